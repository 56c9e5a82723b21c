package prefetch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"bowstring/fetch/admission"
	"bowstring/fetch/peers"
	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// PeerRead is a blob that another node requests from this one.
type PeerRead struct {
	ID     uint32 // chosen by the other node
	Tenant string // whose account pays
	Ref    schema.BlobRef
	// Snapshot and Position are the sample for which the other node wants the blob.
	// Snapshot is "" if there is no such sample.
	Snapshot string
	Position int64
	// Forward says that this node may request the blob from its first owner: the other node assumes that this one
	// caches for others.
	Forward bool
	// Held says that the blob is wanted only if this node holds it.
	Held bool
}

// Answer is the outcome of a peer read. The receiver releases the blob; until then its
// bytes count in the ledger.
type Answer struct {
	ID   uint32
	Blob schema.Blob
	Err  error
	// PeerRead is the request.
	PeerRead PeerRead
	// Stored says that this node read the blob from the store for the request.
	Stored bool
}

// Requester is another node that reads blobs from this one. Each of its tenants has a
// place in the reader's queue, like one more job. It is safe for concurrent use.
type Requester struct {
	set    *Set
	answer func(Answer)
	// own bounds the requester's part of the memory for peer reads, so that a node which
	// reads slowly leaves some to others
	own  *semaphore.Weighted
	most int64 // the size of own, in bytes

	mu     sync.Mutex
	closed bool
	places map[string]*place // by tenant
	out    sync.WaitGroup    // peer reads without an answer yet; grows under mu only while not closed
}

// place is a tenant's place in the reader's queue, for one requester.
type place struct {
	*read.Place
	requester *Requester
	tenant    *tenant
	account   read.Account // its reads of the store count here, within the tenant's ceiling
}

// peerRead is a PeerRead in progress.
type peerRead struct {
	PeerRead
	held *readMemory
}

// readMemory is the memory of a peer read: in the ledger, and in its requester's part.
type readMemory struct {
	hold *admission.Hold
	own  *semaphore.Weighted
	part int64
}

func (l *readMemory) release() {
	l.hold.Release()
	l.own.Release(l.part)
}

// maxTenants is how many tenants' places one requester has before idle places are
// closed. Names of tenants come from the other node, so their number is bounded.
const maxTenants = 1024

// NewRequester returns a requester. answer is called once for each peer read that Read
// has accepted, mostly by a goroutine of the reader. It must not block for long. The
// caller closes the requester.
func (s *Set) NewRequester(answer func(Answer)) *Requester {
	most := max(s.opts.Ledger.Limit(admission.PeerReads)/2, 1)
	return &Requester{set: s, answer: answer, own: semaphore.NewWeighted(most), most: most, places: map[string]*place{}}
}

// Read begins to read a blob, and returns before its answer. It waits for the blob's
// memory until ctx ends. The caller reads the connection of the other node meanwhile no
// further, which slows down a node that requests more than there is room for.
func (b *Requester) Read(ctx context.Context, l PeerRead) error {
	if l.Ref.Size < 0 {
		return fmt.Errorf("%w: a blob of %d bytes", schema.ErrInvalid, l.Ref.Size)
	}
	if (l.Held || l.Forward && b.set.opts.NotOwner != nil && b.set.opts.NotOwner(l.Ref)) &&
		!b.set.opts.Upcoming.Holds(l.Ref) {
		b.answer(Answer{ID: l.ID, Err: peers.ErrNotHeld, PeerRead: l})
		return nil
	}
	part := min(read.Cost(l.Ref.Size), b.most)
	if err := b.own.Acquire(ctx, part); err != nil {
		return err
	}
	hold, err := b.set.opts.Ledger.Reserve(ctx, admission.PeerReads, read.Cost(l.Ref.Size))
	if err != nil {
		b.own.Release(part)
		return err
	}
	held := &readMemory{hold, b.own, part}
	at := b.set.opts.Upcoming.Place(l.Snapshot, l.Position)
	if at != (spill.Place{}) {
		at.Tenant = b.set.opts.Upcoming.Tenant(l.Tenant)
	}
	caller := store.CallerFrom(ctx)
	caller.Tenant = l.Tenant
	want := read.Want{
		Ref: l.Ref, At: at, Context: peers.WithPeerRead(store.WithCaller(context.WithoutCancel(ctx), caller)),
		Since: time.Now(),
		Token: read.Token{Of: &peerRead{l, held}},
		Here:  l.Held || b.set.opts.Forward == nil || !b.set.opts.Forward(l.Ref, l.Forward),
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		held.release()
		return read.ErrClosing()
	}
	of := b.places[l.Tenant]
	if of == nil {
		b.trimLocked()
		of = b.set.openPlace(b, l.Tenant)
		b.places[l.Tenant] = of
	}
	want.Account = &of.account
	b.out.Add(1)
	of.Ask(want)
	b.mu.Unlock()
	return nil
}

// trimLocked closes idle places if there are too many. Their tenants get new ones.
func (b *Requester) trimLocked() {
	if len(b.places) < maxTenants {
		return
	}
	for tenant, p := range b.places {
		if p.Idle() {
			p.Retire() // reads in progress still get their answers
			b.set.closePlace(p)
			delete(b.places, tenant)
		}
	}
}

// More implements read.Receiver. It does nothing: other nodes request when they need.
func (*place) More() {}

// Receive implements read.Receiver.
func (p *place) Receive(list []read.Outcome) {
	for i := range list {
		p.requester.receive(&list[i])
	}
}

func (b *Requester) receive(o *read.Outcome) {
	l := o.Token.Of.(*peerRead)
	if o.Err != nil {
		l.held.release()
		b.answer(Answer{ID: l.ID, Err: o.Err, PeerRead: l.PeerRead})
	} else {
		b.answer(Answer{ID: l.ID, PeerRead: l.PeerRead, Stored: b.set.opts.Reader.From(o) == read.FromStore,
			Blob: schema.NewBlob(o.Blob.Bytes(), &peerBlob{o.Blob, l.held})})
	}
	b.out.Done()
}

// peerBlob is the owner of a blob that another node reads.
type peerBlob struct {
	blob schema.Blob
	held *readMemory
}

// Unpin implements schema.Owner.
func (l *peerBlob) Unpin() {
	l.blob.Release()
	l.held.release()
}

// Close cancels the peer reads without an answer, and waits for answers in progress.
// Cancelled reads get no answer. Further calls do nothing.
func (b *Requester) Close() {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return
	}
	b.closed = true
	var left []*peerRead
	places := b.places
	b.places = nil
	b.mu.Unlock()
	for _, p := range places {
		for _, t := range p.Retire() {
			left = append(left, t.Of.(*peerRead))
		}
		b.set.closePlace(p)
	}
	b.set.opts.Reader.Cancel(func(to read.Receiver, t read.Token) bool {
		p, ok := to.(*place)
		own := ok && p.requester == b
		if own {
			left = append(left, t.Of.(*peerRead))
		}
		return own
	})
	for _, l := range left {
		l.held.release()
		b.out.Done()
	}
	b.out.Wait()
}
