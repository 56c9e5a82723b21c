package admission

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"bowstring/schema"
)

// Use is what memory is taken for. Each use has a limit of its own, so that one
// cannot keep another from going on.
type Use int

// What requests take memory for.
const (
	// Windows are what streams hold: reads under way, samples that wait for their
	// consumer, record batches on their way to it.
	Windows Use = iota
	// Uploads are what clients send and is being decoded.
	Uploads
	// Evaluation is what selections take while they are computed, and indexes of ids.
	Evaluation
	// Results are answers that are put together whole: of actions, of GetFlightInfo.
	Results
	// Manifests are pages of manifests, used or kept.
	Manifests
	// PeerReads are blobs that other nodes read by way of this one.
	PeerReads
	// Making is what programs of operators work in, beside the blob and the result.
	Making
	// LongMaking is the same of cells that take long to make: they do not keep what others work in.
	LongMaking
	uses
)

var useNames = [uses]string{"windows of streams", "uploads", "selections and indexes of ids", "answers",
	"pages of manifests", "blobs for other nodes", "operators at work", "long operators at work"}

// String names the use in words, as errors and statistics show it.
func (u Use) String() string { return useNames[u] }

// Limits say how many bytes each use may take. What is zero has its default.
type Limits struct {
	Windows    int64 // default 512 MiB
	Uploads    int64 // default 512 MiB
	Evaluation int64 // default 256 MiB
	Results    int64 // default 64 MiB
	Manifests  int64 // default 128 MiB
	PeerReads  int64 // default 128 MiB
	Making     int64 // default 256 MiB
	LongMaking int64 // default 256 MiB
}

// EnsureDefaults fills in the fields that are zero.
func (l *Limits) EnsureDefaults() {
	for at, most := range map[*int64]int64{&l.Windows: 512 << 20, &l.Uploads: 512 << 20, &l.Evaluation: 256 << 20,
		&l.Results: 64 << 20, &l.Manifests: 128 << 20, &l.PeerReads: 128 << 20, &l.Making: 256 << 20,
		&l.LongMaking: 256 << 20} {
		if *at == 0 {
			*at = most
		}
	}
}

// Validate returns an error that names the first field without a sensible value.
func (l *Limits) Validate() error {
	for u, n := range [uses]int64{l.Windows, l.Uploads, l.Evaluation, l.Results, l.Manifests, l.PeerReads, l.Making,
		l.LongMaking} {
		if n <= 0 {
			return fmt.Errorf("%w: the limit of memory for %s is %d; want a positive number of bytes",
				schema.ErrInvalid, Use(u), n)
		}
	}
	return nil
}

// Ledger is the account of all memory that requests take. A limit is a bound
// that holds: nothing is counted in that does not fit. It is safe for
// concurrent use.
//
// Tenants may have shares of Windows and Evaluation, which hold as well (see
// [Terms]). Where several tenants are there and one has no ceiling on Evaluation,
// it may have as much as is free after it (Choudhury, Hahne: "Dynamic queue length
// thresholds for shared-memory packet switches", IEEE/ACM Transactions on
// Networking 1998, with α = 1): one gets half, two a third each, and so on.
type Ledger struct {
	mu       sync.Mutex
	accounts [uses]account
	terms    func(tenant string) Terms // nil: no ceilings; guarded by mu
}

// account is what one use has taken. It is guarded by Ledger.mu.
type account struct {
	limit, used, most int64
	waiting           []*reservation    // in the order they came
	shares            map[string]*share // by tenant, of those who have something
}

// reservation waits for memory.
type reservation struct {
	tenant  string
	n       int64
	granted chan struct{} // closed when it was counted in
}

// NewLedger returns a ledger with those limits, which must be valid.
func NewLedger(limits Limits) *Ledger {
	l := &Ledger{}
	for u, n := range [uses]int64{limits.Windows, limits.Uploads, limits.Evaluation, limits.Results, limits.Manifests,
		limits.PeerReads, limits.Making, limits.LongMaking} {
		l.accounts[u].limit = n
	}
	return l
}

// Hold is memory that was counted in. It belongs to one goroutine at a time.
type Hold struct {
	ledger *Ledger
	use    Use
	tenant string
	bytes  int64
}

// Reserve counts n bytes in, as soon as they fit: those who came first go first.
// It fails with schema.ErrLimit where they never would, and with ctx's cause
// where that ends first. The caller releases the hold.
func (l *Ledger) Reserve(ctx context.Context, use Use, n int64) (*Hold, error) {
	return l.ReserveFor(ctx, use, "", n)
}

// ReserveFor is Reserve on a tenant's account. What waits for the tenant's own share
// does not keep others waiting.
func (l *Ledger) ReserveFor(ctx context.Context, use Use, tenant string, n int64) (*Hold, error) {
	h := l.holdFor(use, tenant)
	if err := h.Grow(ctx, n); err != nil {
		return nil, err
	}
	return h, nil
}

// Try counts n bytes in if they fit now and nobody waits for any.
func (l *Ledger) Try(use Use, n int64) (*Hold, bool) { return l.TryFor(use, "", n) }

// TryFor is Try on a tenant's account.
func (l *Ledger) TryFor(use Use, tenant string, n int64) (*Hold, bool) {
	h := l.holdFor(use, tenant)
	return h, h.TryGrow(n)
}

// holdFor returns a hold of nothing. While tenants have no terms it is on nobody's
// account, which costs less.
func (l *Ledger) holdFor(use Use, tenant string) *Hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.terms == nil {
		tenant = ""
	}
	return &Hold{ledger: l, use: use, tenant: tenant}
}

// Beside returns a hold of nothing on the same account, whatever the tenants' terms are by now: see [Hold.Take]. It may
// be called while another goroutine has the hold.
func (h *Hold) Beside() *Hold { return &Hold{ledger: h.ledger, use: h.use, tenant: h.tenant} }

// Bytes is how much the hold has.
func (h *Hold) Bytes() int64 { return h.bytes }

// Take adds what another hold of the same ledger, use and tenant has, which has nothing then.
func (h *Hold) Take(other *Hold) {
	h.bytes += other.bytes
	other.bytes = 0
}

// Split returns a hold of n of the bytes, which this one has no more.
func (h *Hold) Split(n int64) Hold {
	h.bytes -= n
	return Hold{ledger: h.ledger, use: h.use, tenant: h.tenant, bytes: n}
}

// Grow adds n bytes to the hold, as [Ledger.Reserve] does. Who holds some while
// it waits for more may keep others waiting: it is better to reserve once.
func (h *Hold) Grow(ctx context.Context, n int64) error {
	l := h.ledger
	l.mu.Lock()
	a := &l.accounts[h.use]
	if n < 0 || h.bytes+n > a.limit || h.bytes+n < h.bytes {
		defer l.mu.Unlock()
		return fmt.Errorf("%w: %d bytes would be needed at once for %s, and all of those together may take %d",
			schema.ErrLimit, h.bytes+n, h.use, a.limit)
	}
	if most := l.mostLocked(h.use, h.tenant); h.bytes+n > most {
		defer l.mu.Unlock()
		return tooMuch(h.use, h.tenant, h.bytes+n, most)
	}
	if l.takeLocked(h, n) {
		l.mu.Unlock()
		h.bytes += n
		return nil
	}
	r := &reservation{h.tenant, n, make(chan struct{})}
	a.waiting = append(a.waiting, r)
	l.mu.Unlock()
	select {
	case <-r.granted:
		h.bytes += n
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(a.waiting, r); i >= 0 {
		a.waiting = slices.Delete(a.waiting, i, i+1)
	} else {
		l.countLocked(h.use, h.tenant, -n) // it was granted in that moment
	}
	l.grantLocked(h.use)
	return fmt.Errorf("waiting for %d bytes of memory for %s: %w", n, h.use, context.Cause(ctx))
}

// TryGrow adds n bytes to the hold if they fit now and nobody waits for any.
func (h *Hold) TryGrow(n int64) bool {
	h.ledger.mu.Lock()
	defer h.ledger.mu.Unlock()
	if n < 0 || !h.ledger.takeLocked(h, n) {
		return false
	}
	h.bytes += n
	return true
}

// Shrink gives n bytes of the hold back, or all if it has no more.
func (h *Hold) Shrink(n int64) {
	n = min(n, h.bytes)
	h.bytes -= n
	h.ledger.mu.Lock()
	defer h.ledger.mu.Unlock()
	h.ledger.countLocked(h.use, h.tenant, -n)
	h.ledger.grantLocked(h.use)
}

// Release gives all of the hold back. Further calls, and calls on a nil hold, do nothing.
func (h *Hold) Release() {
	if h != nil && h.bytes > 0 {
		h.Shrink(h.bytes)
	}
}

// takeLocked counts n bytes in if they fit, and nobody waits who is not held up by
// his own share.
func (l *Ledger) takeLocked(h *Hold, n int64) bool {
	a := &l.accounts[h.use]
	if a.used+n > a.limit || n > l.leftLocked(h.use, h.tenant) {
		return false
	}
	for i, left := 0, int64(0); i < len(a.waiting); i++ {
		r := a.waiting[i]
		if i == 0 || r.tenant != a.waiting[i-1].tenant { // many of one tenant may wait
			left = l.leftLocked(h.use, r.tenant)
		}
		if r.n <= left {
			return false
		}
	}
	l.countLocked(h.use, h.tenant, n)
	return true
}

// grantLocked counts in those who wait, as far as they fit, in their order.
func (l *Ledger) grantLocked(u Use) {
	a := &l.accounts[u]
	full := false
	a.waiting = slices.DeleteFunc(a.waiting, func(r *reservation) bool {
		if full || r.n > l.leftLocked(u, r.tenant) {
			return false
		}
		if full = a.used+r.n > a.limit; full {
			return false
		}
		l.countLocked(u, r.tenant, r.n)
		close(r.granted)
		return true
	})
}

// Free is how many bytes a use may take now, not counting those who wait.
func (l *Ledger) Free(use Use) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accounts[use].limit - l.accounts[use].used
}

// Limit is how many bytes a use may take in all.
func (l *Ledger) Limit(use Use) int64 { return l.accounts[use].limit }

// Account says how much memory a use has taken, in bytes.
type Account struct {
	Use     string `json:"use"`
	Limit   int64  `json:"limit"`
	Used    int64  `json:"used"`
	Most    int64  `json:"most"`    // at any time
	Waiting int    `json:"waiting"` // requests that wait for some
}

// Accounts lists all uses.
func (l *Ledger) Accounts() []Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Account, uses)
	for u := range list {
		a := &l.accounts[u]
		list[u] = Account{Use(u).String(), a.limit, a.used, a.most, len(a.waiting)}
	}
	return list
}

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
