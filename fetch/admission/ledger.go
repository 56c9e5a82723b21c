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

// Use is what memory is reserved for. Each use has a limit of its own, so that one use cannot block another.
type Use int

// The uses of memory.
const (
	// Windows is the memory of streams: reads in flight, samples waiting for their consumer, record batches being
	// sent.
	Windows Use = iota
	// Uploads is what clients have sent and the server decodes.
	Uploads
	// Evaluation is for selections being computed, and for indexes of ids.
	Evaluation
	// Results is for answers that are assembled whole, of actions and of GetFlightInfo.
	Results
	// Manifests is for pages of manifests, in use or cached.
	Manifests
	// PeerReads is for blobs that this node reads on behalf of other nodes.
	PeerReads
	// Making is the working memory of operators, in addition to the blob and the result.
	Making
	// LongMaking is the same for cells that take long to compute, so that they do not take the memory of short ones.
	LongMaking
	uses
)

var useNames = [uses]string{"windows of streams", "uploads", "selections and indexes of ids", "answers",
	"pages of manifests", "blobs for other nodes", "operators at work", "long operators at work"}

// String names the use, for errors and statistics.
func (u Use) String() string { return useNames[u] }

// Limits are how many bytes each use may take. Zero is the default.
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

// EnsureDefaults sets fields that are zero to their defaults.
func (l *Limits) EnsureDefaults() {
	for at, most := range map[*int64]int64{&l.Windows: 512 << 20, &l.Uploads: 512 << 20, &l.Evaluation: 256 << 20,
		&l.Results: 64 << 20, &l.Manifests: 128 << 20, &l.PeerReads: 128 << 20, &l.Making: 256 << 20,
		&l.LongMaking: 256 << 20} {
		if *at == 0 {
			*at = most
		}
	}
}

// Validate returns an error that names the first invalid field.
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

// Ledger is the account of all memory that requests take. A limit is strict: what does not fit is not counted in. It
// is safe for concurrent use.
//
// Tenants may have shares of Windows and Evaluation, which are strict as well (see [Terms]). If there are several
// tenants and one has no share of Evaluation, it may take as much as is free after it (Choudhury, Hahne: "Dynamic
// queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 1998, with α = 1):
// one tenant gets half, two a third each, and so on.
type Ledger struct {
	mu       sync.Mutex
	accounts [uses]account
	terms    func(tenant string) Terms // nil: no ceilings; guarded by mu
}

// account is the memory of one use. Ledger.mu guards it.
type account struct {
	limit, used, most int64
	waiting           []*reservation    // in order of arrival
	shares            map[string]*share // by tenant, of tenants that have reserved memory
}

// reservation waits for memory.
type reservation struct {
	tenant  string
	n       int64
	granted chan struct{} // closed when the memory is reserved
}

// NewLedger returns a ledger with these limits, which must be valid.
func NewLedger(limits Limits) *Ledger {
	l := &Ledger{}
	for u, n := range [uses]int64{limits.Windows, limits.Uploads, limits.Evaluation, limits.Results, limits.Manifests,
		limits.PeerReads, limits.Making, limits.LongMaking} {
		l.accounts[u].limit = n
	}
	return l
}

// Hold is reserved memory. One goroutine at a time may use it.
type Hold struct {
	ledger *Ledger
	use    Use
	tenant string
	bytes  int64
}

// Reserve reserves n bytes, and waits until they fit; waiting reservations are served in order. It fails with
// schema.ErrLimit if they never fit, and with ctx's cause if ctx ends first. The caller releases the hold.
func (l *Ledger) Reserve(ctx context.Context, use Use, n int64) (*Hold, error) {
	return l.ReserveFor(ctx, use, "", n)
}

// ReserveFor is Reserve on a tenant's account. A reservation that waits for the tenant's own share does not block
// others.
func (l *Ledger) ReserveFor(ctx context.Context, use Use, tenant string, n int64) (*Hold, error) {
	h := l.holdFor(use, tenant)
	if err := h.Grow(ctx, n); err != nil {
		return nil, err
	}
	return h, nil
}

// Try reserves n bytes if they fit now and no reservation waits that could be served.
func (l *Ledger) Try(use Use, n int64) (*Hold, bool) { return l.TryFor(use, "", n) }

// TryFor is Try on a tenant's account.
func (l *Ledger) TryFor(use Use, tenant string, n int64) (*Hold, bool) {
	h := l.holdFor(use, tenant)
	return h, h.TryGrow(n)
}

// holdFor returns an empty hold. While tenants have no quotas it is on no account, which is cheaper.
func (l *Ledger) holdFor(use Use, tenant string) *Hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.terms == nil {
		tenant = ""
	}
	return &Hold{ledger: l, use: use, tenant: tenant}
}

// Sibling returns an empty hold on the same account, even if the tenants' quotas have changed: see [Hold.Take]. It may
// be called while another goroutine uses the hold.
func (h *Hold) Sibling() *Hold { return &Hold{ledger: h.ledger, use: h.use, tenant: h.tenant} }

// Bytes is the size of the hold.
func (h *Hold) Bytes() int64 { return h.bytes }

// Take moves the memory of another hold of the same ledger, use and tenant to this one.
func (h *Hold) Take(other *Hold) {
	h.bytes += other.bytes
	other.bytes = 0
}

// Split moves n bytes of this hold to the hold that it returns.
func (h *Hold) Split(n int64) Hold {
	h.bytes -= n
	return Hold{ledger: h.ledger, use: h.use, tenant: h.tenant, bytes: n}
}

// Grow adds n bytes to the hold, as [Ledger.Reserve] does. A caller that holds memory while it waits for more may
// block others, so it is better to reserve once.
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
		l.countLocked(h.use, h.tenant, -n) // it was granted at the same time
	}
	l.grantLocked(h.use)
	return fmt.Errorf("waiting for %d bytes of memory for %s: %w", n, h.use, context.Cause(ctx))
}

// TryGrow adds n bytes to the hold if they fit now and no reservation waits that could be served.
func (h *Hold) TryGrow(n int64) bool {
	h.ledger.mu.Lock()
	defer h.ledger.mu.Unlock()
	if n < 0 || !h.ledger.takeLocked(h, n) {
		return false
	}
	h.bytes += n
	return true
}

// Shrink releases n bytes of the hold, or all if it has fewer.
func (h *Hold) Shrink(n int64) {
	n = min(n, h.bytes)
	h.bytes -= n
	h.ledger.mu.Lock()
	defer h.ledger.mu.Unlock()
	h.ledger.countLocked(h.use, h.tenant, -n)
	h.ledger.grantLocked(h.use)
}

// Release releases the hold. Further calls, and calls on a nil hold, do nothing.
func (h *Hold) Release() {
	if h != nil && h.bytes > 0 {
		h.Shrink(h.bytes)
	}
}

// takeLocked reserves n bytes if they fit, and no reservation waits that its own tenant's share would allow.
func (l *Ledger) takeLocked(h *Hold, n int64) bool {
	a := &l.accounts[h.use]
	if a.used+n > a.limit || n > l.leftLocked(h.use, h.tenant) {
		return false
	}
	for i, left := 0, int64(0); i < len(a.waiting); i++ {
		r := a.waiting[i]
		if i == 0 || r.tenant != a.waiting[i-1].tenant { // one computation for all reservations of a tenant in a row
			left = l.leftLocked(h.use, r.tenant)
		}
		if r.n <= left {
			return false
		}
	}
	l.countLocked(h.use, h.tenant, n)
	return true
}

// grantLocked serves waiting reservations in order, as far as they fit.
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

// Free is how many bytes of a use are free, ignoring reservations that wait.
func (l *Ledger) Free(use Use) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accounts[use].limit - l.accounts[use].used
}

// Limit is the limit of a use, in bytes.
func (l *Ledger) Limit(use Use) int64 { return l.accounts[use].limit }

// Account is the state of one use, in bytes.
type Account struct {
	Use     string `json:"use"`
	Limit   int64  `json:"limit"`
	Used    int64  `json:"used"`
	Most    int64  `json:"most"`    // maximum so far
	Waiting int    `json:"waiting"` // reservations that wait
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

// Terms are a tenant's quotas. A ceiling of zero is none.
type Terms struct {
	// Weight is how many times the share of a tenant with weight 1 this tenant gets. Less than 1 counts as 1.
	Weight int64
	// Streams is how many streams may run at once. One more is refused.
	Streams int
	// BytesPerSecond bounds the throughput of its streams together. At the bound they wait.
	BytesPerSecond int64
	// Windows, Spill and Reads are shares, from 0 to 1, of the windows' memory, of the spill, and of the reads in
	// flight to the store. At its share a tenant's streams slow down.
	Windows, Spill, Reads float64
	// Evaluation is the share of the memory for selections. At the share, requests are refused.
	Evaluation float64
	// Workers is the share of the work that may run at once. At the share, work waits.
	Workers float64
	// Several says that other tenants exist, for which some Evaluation memory stays free if Evaluation is zero: see
	// [Ledger].
	Several bool
}

// of returns the tenant's share of a use; 0 without a ceiling.
func (t *Terms) of(u Use) float64 {
	switch u {
	case Windows:
		return t.Windows
	case Evaluation:
		return t.Evaluation
	}
	return 0
}

// ceiling is a share of a number of bytes, at least one byte.
func ceiling(share float64, of int64) int64 { return max(int64(share*float64(of)), 1) }

// share is what one tenant has reserved of an account. Ledger.mu guards it. It exists while the tenant has something
// reserved.
type share struct {
	terms Terms
	used  int64
}

// SetTerms sets the quotas of tenants, including those that have memory reserved; nil removes all ceilings. A tenant
// above its new ceiling keeps what it has.
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
	if l.terms == nil || tenant == "" { // on no tenant's account
		return Terms{}
	}
	return l.terms(tenant)
}

// shareLocked returns a copy of what a tenant has of an account.
func (l *Ledger) shareLocked(u Use, tenant string) share {
	if s := l.accounts[u].shares[tenant]; s != nil {
		return *s
	}
	return share{terms: l.termsOfLocked(tenant)}
}

// countLocked adds n bytes, which may be negative, to an account and to the tenant's part of it.
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

// leftLocked is how many more bytes of an account a tenant's own share allows.
func (l *Ledger) leftLocked(u Use, tenant string) int64 {
	if tenant == "" {
		return math.MaxInt64
	}
	a, s := &l.accounts[u], l.shareLocked(u, tenant)
	if part := s.terms.of(u); part > 0 {
		return ceiling(part, a.limit) - s.used
	}
	if u == Evaluation && s.terms.Several {
		// Indexes are held as long as a job runs, so the first tenants must not take all. With the free memory as the
		// ceiling, n tenants leave one (n+1)th free.
		return (a.limit - a.used - s.used) / 2
	}
	return math.MaxInt64
}

// mostLocked is the most that a tenant could have of an account, if no other tenant had any.
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

// The names of a tenant's ceilings, as errors report them.
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

// tooMuch is the error of a tenant that can never get n bytes of an account.
func tooMuch(u Use, tenant string, n, most int64) error {
	return &schema.LimitError{Limit: limitName(u),
		Message: fmt.Sprintf("%d bytes would be needed at once for %s, and tenant %s may have %d",
			n, u, schema.Quote(cmp.Or(tenant, "(none)")), most)}
}

// Left is how many bytes of a use a tenant may take now: own by its share, and all by what is free.
func (l *Ledger) Left(u Use, tenant string) (own, all int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leftLocked(u, tenant), l.accounts[u].limit - l.accounts[u].used
}

// MostFor is the most bytes of a use that a tenant may have.
func (l *Ledger) MostFor(u Use, tenant string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mostLocked(u, tenant)
}

// UsedBy is how many bytes of a use a tenant has reserved.
func (l *Ledger) UsedBy(u Use, tenant string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shareLocked(u, tenant).used
}
