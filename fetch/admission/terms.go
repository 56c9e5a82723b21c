package admission

import (
	"cmp"
	"fmt"
	"math"

	"bowstring/schema"
)

// Terms are what a tenant gets of what there is. The zero value of each ceiling
// stands for none.
type Terms struct {
	// Weight is how many times what others get the tenant is to have. What is less
	// than 1 counts as 1.
	Weight int64
	// Streams is how many may run at once. One more is refused.
	Streams int
	// BytesPerSecond is how fast its streams are served, all together: they wait.
	BytesPerSecond int64
	// Windows, Spill and Reads are shares, of 1, of the memory of windows, of the
	// spill, and of what may be in flight to the store. Streams go slower at them.
	Windows, Spill, Reads float64
	// Evaluation is the share of the memory for selections. At it a request is refused.
	Evaluation float64
	// Workers is the share of what may be computed at once. Work waits.
	Workers float64
	// Several says that there are others to leave something to: where Evaluation is
	// not given, see [Ledger].
	Several bool
}

// of is the tenant's share of a use; 0 if it has no ceiling.
func (t *Terms) of(u Use) float64 {
	switch u {
	case Windows:
		return t.Windows
	case Evaluation:
		return t.Evaluation
	}
	return 0
}

// ceiling is a share of a number of bytes, one byte at least.
func ceiling(share float64, of int64) int64 { return max(int64(share*float64(of)), 1) }

// share is what one tenant has of an account. It is guarded by Ledger.mu, and
// there as long as the tenant has something.
type share struct {
	terms Terms
	used  int64
}

// SetTerms has tenants get what terms says, also those that have something now;
// nil takes all ceilings away. Who is above a new ceiling keeps what he has.
func (l *Ledger) SetTerms(terms func(tenant string) Terms) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.terms = terms
	for u := range l.accounts {
		a := &l.accounts[u]
		for tenant, s := range a.shares {
			s.terms = l.termsOfLocked(tenant)
		}
		l.grantLocked(Use(u))
	}
}

func (l *Ledger) termsOfLocked(tenant string) Terms {
	if l.terms == nil || tenant == "" { // what is on no tenant's account
		return Terms{}
	}
	return l.terms(tenant)
}

// shareLocked returns what a tenant has of an account, to be looked at.
func (l *Ledger) shareLocked(u Use, tenant string) share {
	if s := l.accounts[u].shares[tenant]; s != nil {
		return *s
	}
	return share{terms: l.termsOfLocked(tenant)}
}

// countLocked adds n bytes, which may be negative, to what an account and a tenant
// have of it.
func (l *Ledger) countLocked(u Use, tenant string, n int64) {
	a := &l.accounts[u]
	a.used += n
	a.most = max(a.most, a.used)
	if tenant == "" {
		return
	}
	s := a.shares[tenant]
	if s == nil {
		if n <= 0 {
			return
		}
		s = &share{terms: l.termsOfLocked(tenant)}
		if a.shares == nil {
			a.shares = map[string]*share{}
		}
		a.shares[tenant] = s
	}
	if s.used += n; s.used <= 0 {
		delete(a.shares, tenant)
	}
}

// leftLocked is how many bytes more a tenant may take of an account as far as its
// own share goes.
func (l *Ledger) leftLocked(u Use, tenant string) int64 {
	if tenant == "" {
		return math.MaxInt64
	}
	a, s := &l.accounts[u], l.shareLocked(u, tenant)
	if part := s.terms.of(u); part > 0 {
		return ceiling(part, a.limit) - s.used
	}
	if u == Evaluation && s.terms.Several {
		// What is held as long as a job runs is never all held by those who came
		// first: with as much as is free as a ceiling, n tenants leave an n+1st part.
		return (a.limit - a.used - s.used) / 2
	}
	return math.MaxInt64
}

// mostLocked is what a tenant may have of an account at most, if nobody else had any.
func (l *Ledger) mostLocked(u Use, tenant string) int64 {
	a, s := &l.accounts[u], l.shareLocked(u, tenant)
	if part := s.terms.of(u); part > 0 {
		return ceiling(part, a.limit)
	}
	if u == Evaluation && s.terms.Several {
		return a.limit / 2
	}
	return a.limit
}

// LimitNames are what errors call the ceilings of a tenant.
const (
	LimitStreams    = "tenant.streams"
	LimitWindows    = "tenant.windows"
	LimitEvaluation = "tenant.evaluation"
)

func limitName(u Use) string {
	if u == Windows {
		return LimitWindows
	}
	return LimitEvaluation
}

// tooMuch says that a tenant never gets n bytes of an account.
func tooMuch(u Use, tenant string, n, most int64) error {
	return &schema.LimitError{Limit: limitName(u),
		Message: fmt.Sprintf("%d bytes would be needed at once for %s, and tenant %s may have %d",
			n, u, schema.Quote(cmp.Or(tenant, "(none)")), most)}
}

// Left is how many bytes of a use a tenant may take now: as far as its own share
// goes, and as far as there are any.
func (l *Ledger) Left(u Use, tenant string) (own, all int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leftLocked(u, tenant), l.accounts[u].limit - l.accounts[u].used
}

// MostFor is how many bytes of a use a tenant may have.
func (l *Ledger) MostFor(u Use, tenant string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mostLocked(u, tenant)
}

// UsedBy is how many bytes of a use a tenant has.
func (l *Ledger) UsedBy(u Use, tenant string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shareLocked(u, tenant).used
}
