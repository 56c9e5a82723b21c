package prefetch

import (
	"sync/atomic"

	"bowstring/fetch/admission"
	"bowstring/fetch/read"
)

// tenant is the streams on one account. All fields but the atomic ones, which are
// read without a lock, and those that never change are guarded by Set.mu.
type tenant struct {
	name    string       // never changes
	reads   *read.Tenant // likewise
	terms   admission.Terms
	streams int
	readers int // streams that do not stand still
	places  int // of other nodes that read on this account

	live    atomic.Int64 // streams
	transit atomic.Int64 // bytes of batches that were not released
	share   atomic.Int64 // bytes that the window of each of its streams may have
	most    atomic.Int64 // bytes that all of them may have
}

// enterLocked gives a stream its tenant.
func (s *Set) enterLocked(st *Stream) {
	t := s.tenantLocked(st.caller.Tenant)
	t.streams++
	t.live.Add(1)
	st.tenant = t
}

func (s *Set) leaveLocked(st *Stream) {
	t := st.tenant
	t.live.Add(-1)
	t.streams--
	s.forgetLocked(t)
}

// tenantLocked returns a tenant, which is forgotten when nobody reads on its account any more.
func (s *Set) tenantLocked(name string) *tenant {
	t := s.tenants[name]
	if t == nil {
		t = &tenant{name: name, terms: s.termsOfLocked(name)}
		t.reads = s.opts.Reader.NewTenant(t.terms.Reads)
		s.tenants[name] = t
	}
	return t
}

func (s *Set) forgetLocked(t *tenant) {
	if t.streams == 0 && t.places == 0 {
		delete(s.tenants, t.name)
	}
}

// borrowFor gives a tenant that another node reads for a place among the streams. What it reads
// from the store counts with what its streams here read.
func (s *Set) borrowFor(b *Borrower, name string) *place {
	s.mu.Lock()
	t := s.tenantLocked(name)
	t.places++
	of := weight(&t.terms)
	s.mu.Unlock()
	p := &place{borrower: b, tenant: t, account: read.Account{Tenant: t.reads}}
	p.Place = s.opts.Reader.Open(name, of, "loans", p)
	return p
}

// borrowsNoMore forgets a place that is closed.
func (s *Set) borrowsNoMore(p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.tenant.places--
	s.forgetLocked(p.tenant)
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
// of each between its streams, as if those that stand still were not there. Streams see it when they look. It is a
// bound on what is read ahead, and not a reservation: see Ledger for what holds.
func (s *Set) shareLocked() {
	for _, t := range s.tenants {
		t.readers = 0
	}
	for st := range s.streams {
		if !st.still.Load() {
			st.tenant.readers++
		}
	}
	var sum int64
	for _, t := range s.tenants {
		if t.readers > 0 {
			sum += weight(&t.terms)
		}
	}
	for _, t := range s.tenants {
		if t.streams == 0 {
			continue
		}
		most, of := s.opts.Ledger.MostFor(admission.Windows, t.name), sum
		if t.readers == 0 {
			of += weight(&t.terms)
		}
		t.most.Store(min(most, s.opts.WindowBytes))
		part := int64(float64(s.opts.WindowBytes) * float64(weight(&t.terms)) / float64(of))
		t.share.Store(max(min(part, most)/int64(max(t.readers, 1)), 1))
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
	s.opts.Reader.SetWeights(func(name string) int64 {
		if terms == nil {
			return 1
		}
		return terms(name).Weight
	})
}

// StoreBytes is how many bytes were read from the store for the stream, so far.
func (s *Stream) StoreBytes() int64 { return s.account.LastBytes.Load() }
