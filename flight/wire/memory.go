package wire

import (
	"context"
	"fmt"
	"sync"
	"time"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

// uploadPatience is how long what comes in waits for memory that others have. A waiting
// call may hold some memory, so it has to stop waiting at some time.
const uploadPatience = 10 * time.Second

// Shares accounts for the memory of one use, in total and by address. One address may
// take three quarters, so that a client that holds its maximum leaves room for the
// others. It is safe for concurrent use.
type Shares struct {
	all  *admission.Ledger
	use  admission.Use
	most int64 // for one address

	mu    sync.Mutex
	peers map[string]*share // addresses that have memory or wait for it; guarded by mu
}

// share is the account of one address. It is removed with its last user.
type share struct {
	ledger *admission.Ledger
	users  int // leases, and calls of Reserve; guarded by Shares.mu
}

// NewShares returns the shares of a ledger's limit for a use.
func NewShares(all *admission.Ledger, use admission.Use) *Shares {
	return &Shares{all: all, use: use, most: max(1, all.Limit(use)/4*3), peers: map[string]*share{}}
}

// enter returns the share of an address. The caller calls done after it has returned all
// memory.
func (s *Shares) enter(peer string) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[peer]
	if p == nil {
		limits := admission.Limits{Uploads: s.most, Results: s.most}
		limits.EnsureDefaults()
		p = &share{ledger: admission.NewLedger(limits)}
		s.peers[peer] = p
	}
	p.users++
	return p
}

// Reserve charges n bytes to an address and to a tenant, as soon as they fit. release
// returns them. It fails with schema.ErrLimit if they can never fit, and with ctx's cause
// if that ends first.
func (s *Shares) Reserve(ctx context.Context, peer, tenant string, n int64) (release func(), err error) {
	own, err := s.enter(peer).ledger.Reserve(ctx, s.use, n)
	if err == nil {
		var all *admission.Hold
		if all, err = s.all.ReserveFor(ctx, s.use, tenant, n); err == nil {
			return sync.OnceFunc(func() {
				all.Release()
				own.Release()
				s.done(peer)
			}), nil
		}
	}
	own.Release()
	s.done(peer)
	return nil, err
}

// Lease returns an empty lease of a new account, which the caller releases. ctx ends
// waits for memory.
func (s *Shares) Lease(ctx context.Context, peer string) *Lease {
	a := &account{ctx: ctx, shares: s, peer: peer, leases: 1}
	a.own, _ = s.enter(peer).ledger.Try(s.use, 0)
	a.all, _ = s.all.Try(s.use, 0)
	return &Lease{account: a}
}

// Most returns the bound for one address in bytes.
func (s *Shares) Most() int64 { return s.most }

// Holds returns the bytes that an address has, and how many of its calls wait for more.
func (s *Shares) Holds(peer string) (used int64, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[peer]; p != nil {
		a := p.ledger.Accounts()[s.use]
		return a.Used, a.Waiting
	}
	return 0, 0
}

// done removes the share of an address with its last user, so that the map is bounded by
// the running calls.
func (s *Shares) done(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[peer]
	if p.users--; p.users == 0 {
		delete(s.peers, peer)
	}
}

// account is the memory of one call, which may have several leases.
type account struct {
	ctx    context.Context // ends before the leases are released
	shares *Shares
	peer   string

	mu       sync.Mutex
	own, all *admission.Hold // guarded by mu
	leases   int             // guarded by mu
	turn     *admission.Turn // of the work that takes memory now, or nil; guarded by mu
}

// Lease is a part of an account. It is safe for concurrent use: a call may end
// while its reader waits for more.
type Lease struct {
	account *account
	n       int64 // guarded by account.mu
	over    bool  // guarded by account.mu
}

// During sets the turn in which the account takes memory from now on. While the account
// waits for memory, it returns the turn, so that other tenants can work.
func (l *Lease) During(t *admission.Turn) {
	l.account.mu.Lock()
	defer l.account.mu.Unlock()
	l.account.turn = t
}

// Another returns an empty lease of the same account, which the caller releases.
func (l *Lease) Another() *Lease {
	l.account.mu.Lock()
	defer l.account.mu.Unlock()
	if l.over {
		return &Lease{account: l.account, over: true}
	}
	l.account.leases++
	return &Lease{account: l.account}
}

// Grow charges n more bytes. If they do not fit, it waits for uploadPatience at most, and
// fails with schema.ErrLimit.
func (l *Lease) Grow(n int64) error {
	a := l.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.over {
		return context.Canceled // the call is over
	}
	if err := a.growLocked(n); err != nil {
		return err
	}
	l.n += n
	return nil
}

// growLocked charges the address first and then the whole use. It holds mu while it
// waits.
func (a *account) growLocked(n int64) error {
	if a.own.TryGrow(n) {
		if a.all.TryGrow(n) {
			return nil
		}
		a.own.Shrink(n)
	}
	busy := fmt.Errorf("%w: %d bytes did not become free in %s; try again later, or with smaller messages",
		schema.ErrLimit, n, uploadPatience)
	ctx, cancel := context.WithTimeoutCause(a.ctx, uploadPatience, busy)
	defer cancel()
	grown := false
	err := a.turn.Without(func() error {
		if err := a.own.Grow(ctx, n); err != nil {
			return err
		}
		if err := a.all.Grow(ctx, n); err != nil {
			a.own.Shrink(n)
			return err
		}
		grown = true
		return nil
	})
	if err != nil && grown { // the call has ended while it waited for its turn
		a.all.Shrink(n)
		a.own.Shrink(n)
	}
	return err
}

// Shrink returns n bytes, or what the lease has, if that is less.
func (l *Lease) Shrink(n int64) {
	l.account.mu.Lock()
	defer l.account.mu.Unlock()
	l.shrinkLocked(n)
}

func (l *Lease) shrinkLocked(n int64) {
	n = min(n, l.n)
	l.n -= n
	l.account.own.Shrink(n)
	l.account.all.Shrink(n)
}

// Bytes returns the bytes that the lease has.
func (l *Lease) Bytes() int64 {
	l.account.mu.Lock()
	defer l.account.mu.Unlock()
	return l.n
}

// Release returns all bytes. Later calls do nothing, and Grow fails.
func (l *Lease) Release() {
	a := l.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.over {
		return
	}
	l.shrinkLocked(l.n)
	l.over = true
	if a.leases--; a.leases == 0 {
		a.shares.done(a.peer)
	}
}
