package read

import "sync/atomic"

// Tenant is on whose account reads are made. What it has in flight to the last tier
// is within its share of what may be, but for one read.
type Tenant struct {
	reader *Reader
	reads  int     // in flight to the last tier; guarded by Reader.mu
	bytes  int64   // of those, with their overhead; guarded by Reader.mu
	share  float64 // 0: all; guarded by Reader.mu
}

// NewTenant returns the account of one who may have such a share, of 1, of what may be
// in flight to the last tier; 0 stands for all.
func (r *Reader) NewTenant(share float64) *Tenant { return &Tenant{reader: r, share: share} }

// SetShare changes the share.
func (t *Tenant) SetShare(share float64) {
	t.reader.mu.Lock()
	defer t.reader.mu.Unlock()
	t.share = share
}

// InFlight is what it has in flight to the last tier.
func (t *Tenant) InFlight() (reads int, bytes int64) {
	t.reader.mu.Lock()
	defer t.reader.mu.Unlock()
	return t.reads, t.bytes
}

// Account is what was read for one stream. A read that several want is on the account
// of who asked first.
type Account struct {
	Tenant    *Tenant
	LastBytes atomic.Int64 // of blobs that came from the last tier
}

// admitsLocked reports whether the tenant may have one more read of n bytes in flight on
// a way, whatever room there is.
func (t *Tenant) admitsLocked(f *flow, n int64) bool {
	if t == nil || t.share <= 0 || t.share >= 1 || t.reads == 0 {
		return true
	}
	if float64(t.reads) < t.share*float64(f.floor()) || float64(t.bytes+n+readOverhead) <= t.share*float64(f.limit) {
		return true
	}
	// While the path is being found out it has to be asked for more, or it would never
	// show that it carries it. Later a round says nothing where nobody else was held back.
	f.gated = f.gated || f.startup
	return false
}

func (a *Account) beganLocked(n int64) {
	if a != nil && a.Tenant != nil {
		a.Tenant.reads++
		a.Tenant.bytes += n + readOverhead
	}
}

func (a *Account) endedLocked(n int64) {
	if a != nil && a.Tenant != nil {
		a.Tenant.reads--
		a.Tenant.bytes -= n + readOverhead
		if a.Tenant.share > 0 {
			a.Tenant.reader.queue.Again()
		}
	}
}
