package simulate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/peers"
	"bowstring/schema"
)

// link is the way from a server to a node, as a connection is: what is asked, and what is answered, takes time.
type link struct {
	from *life
	to   *node
}

// Up implements peers.Link.
func (l *link) Up() bool { return l.to.lives() != nil }

// Heard implements peers.Link: a node that runs and can be reached says all the time that it is there.
func (l *link) Heard() time.Time {
	if l.to.lives() == nil || l.to.frozen.Load() || l.to.world.cuts.is(l.to, l.from.node) {
		return time.Time{}
	}
	return time.Now()
}

// Protocol implements peers.Link: all nodes speak the same.
func (*link) Protocol() int { return 2 }

// Secure implements peers.Link.
func (*link) Secure() bool { return true }

// Close implements peers.Link.
func (l *link) Close() error {
	if to := l.to.lives(); to != nil {
		to.inbox.put(l.from, nil)
	}
	return nil
}

// Tell implements peers.Link.
func (l *link) Tell(list []peers.Progress) {
	if to := l.to.lives(); to != nil && !l.from.node.frozen.Load() && !l.from.node.world.cuts.is(l.from.node, l.to) {
		to.inbox.put(l.from, list)
	}
}

// errDown says that a node cannot be reached.
var errDown = fmt.Errorf("%w: there is no connection to it", schema.ErrUnavailable)

// Get implements peers.Link.
func (l *link) Get(ctx context.Context, ask peers.Ask) (schema.Blob, error) {
	from, to, w := l.from.node, l.to, l.to.world
	to.mu.Lock()
	there := to.life
	if there == nil {
		to.mu.Unlock()
		return schema.Blob{}, errDown
	}
	there.loans.Add(1)
	to.mu.Unlock()
	defer there.loans.Done()
	both, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(there.gone, func() { stop(errDown) })()

	if err := w.cuts.wait(both, from, to); err != nil {
		return schema.Blob{}, err
	}
	if err := sleepUntil(both, w.later(from, to)); err != nil {
		return schema.Blob{}, err
	}
	a, err := there.borrowerFor(l.from).read(both, ask)
	if err != nil {
		return schema.Blob{}, err
	}
	defer a.Blob.Release() // its bytes are on their way until then
	if err := to.work(both, 1, ask.Ref.Size); err != nil {
		return schema.Blob{}, err
	}
	if err := w.cuts.wait(both, to, from); err != nil {
		return schema.Blob{}, err
	}
	if err := w.carry(both, to, from, ask.Ref.Size); err != nil {
		return schema.Blob{}, err
	}
	if err := sleepUntil(both, w.later(to, from)); err != nil {
		return schema.Blob{}, err
	}
	w.lent(to, from, ask.Ref.Size)
	return schema.NewBlob(content(ask.Ref.Size), nil), nil
}

// borrower is a server that reads by way of another one.
type borrower struct {
	borrower *fetch.Borrower

	mu      sync.Mutex
	next    uint32
	waiting map[uint32]chan fetch.Answer // each of one
}

func (l *life) borrowerFor(from *life) *borrower {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.borrowers[from]
	if b == nil {
		b = &borrower{waiting: map[uint32]chan fetch.Answer{}}
		b.borrower = l.engine.Borrow(b.answered)
		l.borrowers[from] = b
	}
	return b
}

// answered takes what became of a loan.
func (b *borrower) answered(a fetch.Answer) {
	b.mu.Lock()
	to := b.waiting[a.ID]
	delete(b.waiting, a.ID)
	b.mu.Unlock()
	if to == nil {
		a.Blob.Release() // nobody waits for it any more
		return
	}
	to <- a
}

// read has a blob read, and waits for it. The caller releases it.
func (b *borrower) read(ctx context.Context, ask peers.Ask) (fetch.Answer, error) {
	answer := make(chan fetch.Answer, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.waiting[id] = answer
	b.mu.Unlock()
	leave := func() {
		b.mu.Lock()
		_, waits := b.waiting[id]
		delete(b.waiting, id)
		b.mu.Unlock()
		if !waits {
			a := <-answer // it comes in this moment
			a.Blob.Release()
		}
	}
	loan := fetch.Loan{ID: id, Tenant: ask.Tenant, Ref: ask.Ref, Snapshot: ask.Snapshot, Position: ask.Position,
		Onward: ask.Onward, Held: ask.Held}
	if err := b.borrower.Lend(ctx, loan); err != nil {
		b.mu.Lock()
		delete(b.waiting, id)
		b.mu.Unlock()
		return fetch.Answer{}, fmt.Errorf("%w: %w", schema.ErrUnavailable, err)
	}
	select {
	case a := <-answer:
		return a, a.Err
	case <-ctx.Done():
		leave()
		return fetch.Answer{}, context.Cause(ctx)
	}
}

func (b *borrower) close() { b.borrower.Close() }

// inbox is what other servers have told of their streams: of each the latest.
type inbox struct {
	wake chan struct{} // has room for one

	mu   sync.Mutex
	told map[*life][]peers.Progress // nil of one that is gone
	turn []*life                    // in which they are looked at
}

func newInbox() *inbox {
	return &inbox{wake: make(chan struct{}, 1), told: map[*life][]peers.Progress{}}
}

func (x *inbox) put(from *life, list []peers.Progress) {
	x.mu.Lock()
	if _, ok := x.told[from]; !ok {
		x.turn = append(x.turn, from)
	}
	x.told[from] = list
	x.mu.Unlock()
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

func (x *inbox) take() (from *life, list []peers.Progress) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.turn) == 0 {
		return nil, nil
	}
	from, x.turn = x.turn[0], x.turn[1:]
	list = x.told[from]
	delete(x.told, from)
	return from, list
}

// follow has an engine know what it is told, until ctx ends.
func (x *inbox) follow(ctx context.Context, e *fetch.Engine, failed func(error)) {
	followers := map[*life]*fetch.Follower{}
	defer func() {
		for _, f := range followers {
			f.Close()
		}
	}()
	for {
		select {
		case <-x.wake:
		case <-ctx.Done():
			return
		}
		for from, list := x.take(); from != nil && ctx.Err() == nil; from, list = x.take() {
			f := followers[from]
			switch {
			case list == nil && from.gone.Err() != nil:
				if f != nil {
					f.Close()
					delete(followers, from)
				}
				continue
			case f == nil:
				f = e.Follow()
				followers[from] = f
			}
			if err := f.Update(ctx, list); err != nil && ctx.Err() == nil {
				failed(fmt.Errorf("following node %s: %w", from.node.id, err))
			}
		}
	}
}
