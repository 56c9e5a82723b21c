package fetch_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/peers"
	"bowstring/schema"
)

var (
	churnSeed  = flag.Uint64("churn-seed", 0, "the seed of TestChurn to run alone; 0 for all")
	churnSeeds = flag.Int("churn-seeds", 100, "how many seeds TestChurn runs")
)

// churn is a cluster in a bubble, whose nodes come, go, fall silent and disagree, by chance.
type churn struct {
	rng   *rand.Rand // of what happens; used by one goroutine
	store *remote
	nodes []*churned

	mu    sync.Mutex
	quiet map[[2]int]bool // ways on which nothing is answered, from and to
	wrong map[[2]int]bool // ways on which blobs are damaged
	heal  chan struct{}   // closed, and made anew, when quiet changes
	total *churnTotal
}

// churned is a node: an engine that is there or not.
type churned struct {
	churn *churn
	index int
	view  atomic.Pointer[[]int] // whom this node takes for the owner of each slot, by number

	mu        sync.Mutex
	engine    *fetch.Engine // nil while it is gone
	tier      *peers.Tier
	gone      context.Context // of this life
	die       context.CancelFunc
	peerReads sync.WaitGroup // that others have here
}

const churnSlots = 16

// Route implements peers.Directory. Every third slot has a zone cache in addition to its owner. Every fifth slot has a
// previous owner, which still holds its blobs.
func (n *churned) Route(ref schema.BlobRef) peers.Route {
	view, slot := *n.view.Load(), int(ref.Key[0])%churnSlots
	owner, zoneCache := view[slot], view[(slot+1)%churnSlots]
	switch {
	case owner == n.index && slot%5 == 0:
		return peers.Route{Ask: churnNames[zoneCache : zoneCache+1], Keep: true, Held: true}
	case owner == n.index:
		return peers.Route{Keep: true}
	case zoneCache == n.index && slot%3 == 0:
		return peers.Route{Ask: churnNames[owner : owner+1], Keep: true}
	case slot%3 == 0:
		return peers.Route{Ask: []string{churnNames[zoneCache], churnNames[owner]}, Near: 1 + slot%2}
	}
	return peers.Route{Ask: churnNames[owner : owner+1]}
}

var churnNames = []string{"a", "b", "c", "d", "e"}

// begin has the node live.
func (n *churned) begin() {
	c := n.churn
	gone, die := context.WithCancel(context.Background())
	tier := must(peers.New(peers.Options{
		Directory: n, SnapshotName: func(uint32) string { return "" }, Logger: quiet,
		Dial: func(name string) (peers.Link, error) {
			for i := range c.nodes {
				if churnNames[i] == name {
					return &churnLink{from: n, to: c.nodes[i]}, nil
				}
			}
			return nil, schema.ErrNotFound
		},
	}))
	e := must(fetch.NewEngine(c.store, fetch.Options{WindowBytes: 64 << 10, Peers: tier, Logger: quiet,
		ReadTimeout: time.Minute}))
	n.mu.Lock()
	defer n.mu.Unlock()
	n.engine, n.tier, n.gone, n.die = e, tier, gone, die
}

// end has it gone, and all that runs on it.
func (n *churned) end() error {
	n.mu.Lock()
	e, tier := n.engine, n.tier
	n.engine = nil
	if e != nil {
		n.die()
	}
	n.mu.Unlock()
	if e == nil {
		return nil
	}
	n.peerReads.Wait()
	n.churn.mu.Lock()
	n.churn.total.reads += e.Stats().PeerReads
	n.churn.total.ends++
	for _, st := range tier.Stats() {
		n.churn.total.failed += st.Refused
	}
	n.churn.mu.Unlock()
	return errors.Join(e.Close(), tier.Close())
}

// lives returns the node's engine; nil if it is gone.
func (n *churned) lives() (*fetch.Engine, context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.engine, n.gone
}

// churnLink is a way from one node to another one, without a network.
type churnLink struct{ from, to *churned }

func (l *churnLink) way() [2]int { return [2]int{l.from.index, l.to.index} }

// Up implements peers.Link.
func (l *churnLink) Up() bool { e, _ := l.to.lives(); return e != nil }

// Protocol implements peers.Link.
func (*churnLink) Protocol() int { return 1 }

// SendProgress implements peers.Link.
func (*churnLink) SendProgress([]peers.Progress) {}

// Heard implements peers.Link.
func (*churnLink) Heard() time.Time { return time.Time{} }

// Secure implements peers.Link.
func (*churnLink) Secure() bool { return true }

// Close implements peers.Link.
func (*churnLink) Close() error { return nil }

// Get implements peers.Link.
func (l *churnLink) Get(ctx context.Context, ask peers.Ask) (schema.Blob, error) {
	n, c := l.to, l.to.churn
	n.mu.Lock()
	e, gone := n.engine, n.gone
	if e == nil {
		n.mu.Unlock()
		return schema.Blob{}, schema.ErrUnavailable
	}
	n.peerReads.Add(1)
	n.mu.Unlock()
	defer n.peerReads.Done()
	time.Sleep(time.Millisecond)
	answers := make(chan fetch.Answer, 1)
	b := e.NewRequester(func(a fetch.Answer) { answers <- a })
	defer func() {
		b.Close()
		select {
		case a := <-answers: // the requester has left
			a.Blob.Release()
		default:
		}
	}()
	both, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(gone, stop)()
	if err := b.Read(both, fetch.PeerRead{ID: 1, Ref: ask.Ref, Forward: ask.Forward, Held: ask.Held}); err != nil {
		return schema.Blob{}, fmt.Errorf("%w: %w", schema.ErrUnavailable, err)
	}
	var a fetch.Answer
	select {
	case a = <-answers:
	case <-gone.Done():
		return schema.Blob{}, schema.ErrUnavailable
	case <-ctx.Done():
		return schema.Blob{}, context.Cause(ctx)
	}
	if a.Err != nil {
		return schema.Blob{}, a.Err
	}
	defer a.Blob.Release()
	data := append([]byte(nil), a.Blob.Bytes()...) // as a network does
	for {
		c.mu.Lock()
		silent, wrong, heal := c.quiet[l.way()], c.wrong[l.way()], c.heal
		c.mu.Unlock()
		if !silent {
			if wrong {
				data[len(data)/2] ^= 1
				c.mu.Lock()
				c.total.damaged++
				c.mu.Unlock()
			}
			return schema.NewBlob(data, nil), nil
		}
		select {
		case <-heal:
		case <-gone.Done():
			return schema.Blob{}, schema.ErrUnavailable
		case <-ctx.Done():
			return schema.Blob{}, context.Cause(ctx)
		}
	}
}

// set changes what a way does.
func (c *churn) set(ways map[[2]int]bool, way [2]int, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ways[way] = on
	close(c.heal)
	c.heal = make(chan struct{})
}

// happen has things happen, by chance, until ctx ends.
func (c *churn) happen(ctx context.Context) error {
	var errs []error
	for {
		select {
		case <-ctx.Done():
			return errors.Join(errs...)
		case <-time.After(time.Duration(c.rng.IntN(40)) * time.Millisecond):
		}
		i, k := c.rng.IntN(len(c.nodes)), c.rng.IntN(len(c.nodes))
		switch n := c.nodes[i]; c.rng.IntN(7) {
		case 0:
			errs = append(errs, n.end())
		case 1, 2:
			if e, _ := n.lives(); e == nil {
				n.begin()
			}
		case 3:
			c.set(c.quiet, [2]int{i, k}, true)
		case 4:
			c.set(c.quiet, [2]int{i, k}, false)
		case 5:
			c.set(c.wrong, [2]int{i, k}, c.rng.IntN(3) == 0)
		case 6:
			n.view.Store(c.someView())
		}
	}
}

func (c *churn) someView() *[]int {
	v := make([]int, churnSlots)
	for i := range v {
		v[i] = c.rng.IntN(len(c.nodes))
	}
	return &v
}

// rank reads a rank's share of an epoch, on whatever node lives, from where it was when another one ended.
func (c *churn) rank(ctx context.Context, rng *rand.Rand, t schema.Ticket, seen []atomic.Int32) error {
	for {
		e, _ := c.nodes[rng.IntN(len(c.nodes))].lives()
		if e == nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		done, err := c.readOn(ctx, e, &t, seen)
		switch {
		case done:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("the epoch does not come to its end: %w", errors.Join(context.Cause(ctx), err))
		case err != nil && !errors.Is(err, schema.ErrUnavailable):
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// readOn reads on at a node until that ends; t is where it got to.
func (c *churn) readOn(ctx context.Context, e *fetch.Engine, t *schema.Ticket,
	seen []atomic.Int32) (done bool, err error) {
	j, err := e.Open(ctx, t.Request)
	if err != nil {
		return false, err
	}
	defer j.Close()
	s, err := e.Stream(ctx, j, *t)
	if err != nil {
		return false, err
	}
	defer s.Close()
	for {
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		for i, pos := range b.Positions {
			blob := b.Blobs[0][i].Bytes()
			if pos%100 != 99 && int64(binary.LittleEndian.Uint64(blob)) != pos {
				b.Release()
				return false, fmt.Errorf("%w: position %d has the bytes of another", schema.ErrDataLoss, pos)
			}
			seen[pos].Add(1)
		}
		*t = b.Resume
		b.Release()
	}
}

// Whatever nodes do, each sample is served once, with its bytes, and every epoch comes to its end.
func TestChurn(t *testing.T) {
	const n = 400
	local := newStore(t)
	put(t, local, "d", n)
	first, last := uint64(1), uint64(*churnSeeds)
	if testing.Short() {
		last = 20
	}
	if *churnSeed != 0 {
		first, last = *churnSeed, *churnSeed
	}
	var total churnTotal
	t.Logf("seeds %d to %d; repeat one with -args -churn-seed=SEED", first, last)
	for seed := first; seed <= last; seed++ {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runChurn(t, local, seed, n, &total) })
		}) {
			return
		}
	}
	t.Logf("%d blobs came from other nodes, %d damaged; nodes ended %d times, and %d asks failed", total.reads,
		total.damaged, total.ends, total.failed)
	if last > first && (total.reads == 0 || total.damaged == 0 || total.ends == 0 || total.failed == 0) {
		t.Error("too little happened")
	}
}

// churnTotal is what happened over all seeds.
type churnTotal struct{ reads, damaged, ends, failed int64 }

func runChurn(t *testing.T, local *probe, seed uint64, n int, total *churnTotal) {
	rng := rand.New(rand.NewPCG(seed, 3))
	c := &churn{
		rng: rng, store: newRemote(local, time.Duration(1+rng.IntN(20))*time.Millisecond, 0),
		quiet: map[[2]int]bool{}, wrong: map[[2]int]bool{}, heal: make(chan struct{}), total: total,
	}
	for i := range 2 + rng.IntN(4) {
		c.nodes = append(c.nodes, &churned{churn: c, index: i})
	}
	for _, node := range c.nodes {
		node.view.Store(c.someView())
		node.begin()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	req := schema.Request{
		Dataset: "d", Shuffle: &schema.Shuffle{Seed: seed}, Batch: int64(1 + rng.IntN(60)),
		Remainder: schema.RemainderUneven,
		World:     &schema.World{Size: int64(1 + rng.IntN(4))},
		Order:     []string{"", schema.OrderFree, "window:3"}[rng.IntN(3)],
	}
	happening, calm := context.WithCancel(ctx)
	var second sync.WaitGroup
	var trouble error
	second.Go(func() { trouble = c.happen(happening) }) // which has rng from now on
	seen := make([]atomic.Int32, n)
	ranks := make([]error, req.World.Size)
	var reading sync.WaitGroup
	for rank := range ranks {
		own := rand.New(rand.NewPCG(seed, uint64(100+rank)))
		reading.Go(func() { ranks[rank] = c.rank(ctx, own, schema.Ticket{Request: req, Rank: rank}, seen) })
	}
	reading.Wait()
	calm()
	second.Wait()
	for i := range c.nodes {
		trouble = errors.Join(trouble, c.nodes[i].end())
	}
	if err := errors.Join(trouble, errors.Join(ranks...)); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	for pos := range seen {
		if got := seen[pos].Load(); got != 1 {
			t.Fatalf("seed %d: position %d was served %d times", seed, pos, got)
		}
	}
}
