package streams

import (
	"sync/atomic"

	"bowstring/fetch/admission"
	"bowstring/fetch/tiers"
)

// tenant is the streams on one account. All fields but the atomic ones, which are
// read without a lock, and those that never change are guarded by Set.mu.
type tenant struct {
	name    string        // never changes
	reads   *tiers.Tenant // likewise
	terms   admission.Terms
	streams int

	live    atomic.Int64 // streams
	transit atomic.Int64 // bytes of batches that were not released
	share   atomic.Int64 // bytes that the window of each of its streams may have
	most    atomic.Int64 // bytes that all of them may have
}

// enterLocked gives a stream its tenant, and has all streams share anew.
func (s *Set) enterLocked(st *Stream) {
	t := s.tenants[st.caller.Tenant]
	if t == nil {
		t = &tenant{name: st.caller.Tenant, terms: s.termsOfLocked(st.caller.Tenant)}
		t.reads = s.opts.Reader.NewTenant(t.terms.Reads)
		s.tenants[t.name] = t
	}
	t.streams++
	t.live.Add(1)
	st.tenant = t
	s.shareLocked()
}

func (s *Set) leaveLocked(st *Stream) {
	t := st.tenant
	t.live.Add(-1)
	if t.streams--; t.streams == 0 {
		delete(s.tenants, t.name)
	}
	s.shareLocked()
}

func (s *Set) termsOfLocked(name string) admission.Terms {
	if s.terms == nil {
		return admission.Terms{}
	}
	return s.terms(name)
}

// weight is what counts of the terms' weight.
func weight(t *admission.Terms) int64 { return max(t.Weight, 1) }

// weightFor is a tenant's weight, whether it has streams or not.
func (s *Set) weightFor(name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.termsOfLocked(name)
	return weight(&t)
}

// shareLocked divides the memory between tenants by weight, within their ceilings, and
// of each between its streams. Streams see it when they look. It is a bound on what
// is read ahead, and not a reservation: see Ledger for what holds.
func (s *Set) shareLocked() {
	var sum int64
	for _, t := range s.tenants {
		sum += weight(&t.terms)
	}
	for _, t := range s.tenants {
		most := s.opts.Ledger.MostFor(admission.Windows, t.name)
		t.most.Store(min(most, s.opts.WindowBytes))
		part := int64(float64(s.opts.WindowBytes) * float64(weight(&t.terms)) / float64(sum))
		t.share.Store(max(min(part, most)/int64(t.streams), 1))
	}
}

// SetTerms has tenants get what terms says, those that have streams included; nil has
// all get the same. The ledger is told before.
func (s *Set) SetTerms(terms func(tenant string) admission.Terms) {
	s.mu.Lock()
	s.terms = terms
	for _, t := range s.tenants {
		t.terms = s.termsOfLocked(t.name)
		t.reads.SetShare(t.terms.Reads)
	}
	s.shareLocked()
	s.mu.Unlock()
	s.queue.SetWeights(func(name string) int64 {
		if terms == nil {
			return 1
		}
		return terms(name).Weight
	})
	s.queue.Again()
	s.pump()
}

// Freed is what the reader tells when a tenant may have more in flight.
func (s *Set) Freed() { s.queue.Again() }

// StoreBytes is how many bytes were read from the store for the stream, so far.
func (s *Stream) StoreBytes() int64 { return s.account.LastBytes.Load() }
