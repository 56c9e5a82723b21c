package cluster_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch/ingest"
	"bowstring/fetch/layout"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/internal/memshared"
	"bowstring/schema"
)

var (
	churnSeed  = flag.Uint64("churn-seed", 0, "the seed of TestClusterChurn to run alone; 0 for all")
	churnSeeds = flag.Int("churn-seeds", 8, "how many seeds TestClusterChurn runs")
)

const churnSamples = 240

// churnSize is how many bytes the sample at a position has: no two have as many, as disks that are models know blobs by
// it.
func churnSize(pos int64) int64 { return 500 + 7*pos }

// churnContent is a blob of n bytes.
func churnContent(n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(n*31 + int64(i)*int64(i))
	}
	return b
}

// Leave implements cluster.Server.
func (l *churnLife) Leave(func() []string) { l.setLeaving(true) }

// Return implements cluster.Server.
func (l *churnLife) Return() { l.setLeaving(false) }

// WaitStreams implements cluster.Server, for callers that do not wait.
func (l *churnLife) WaitStreams(context.Context) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.streams
}

func (l *churnLife) setLeaving(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaving = on
}

func (l *churnLife) leaves() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving
}

// enter counts a stream in, unless the server takes none.
func (l *churnLife) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leaving {
		l.streams++
	}
	return !l.leaving
}

func (l *churnLife) exit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams--
}

// drain has the server leave its cluster, as serve does; a node that has left ends only when something ends it.
func (l *churnLife) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stay != nil {
		return
	}
	ctx, stay := context.WithCancelCause(l.gone)
	l.stay, l.drained = stay, make(chan struct{})
	d := cluster.Drain{
		Node: l.node.id, Members: l.members, Server: l, Logger: slog.New(slog.DiscardHandler),
		Handed: func() (int64, int64) { l.mu.Lock(); defer l.mu.Unlock(); return l.handed[0], l.handed[1] },
		Held:   func() int64 { return l.node.cache.Stats().Bytes },
		Jobs:   func() bool { return len(l.engine.Wants()) > 0 },
	}
	go func() {
		defer close(l.drained)
		if d.Run(ctx) == nil {
			l.node.world.total.add(&l.node.world.total.drains, 1)
		}
	}()
}

// undrain ends the drain that runs, if one does.
func (l *churnLife) undrain(cause error) bool {
	l.mu.Lock()
	stay, drained := l.stay, l.drained
	l.stay = nil
	l.mu.Unlock()
	if stay == nil {
		return false
	}
	stay(cause)
	<-drained
	if errors.Is(cause, cluster.ErrStays) { // also if it had ended before that
		l.Return()
		_ = l.members.SetDraining(l.gone, nil)
	}
	return true
}

// happen has things happen, by chance, until ctx ends.
func (w *churnWorld) happen(ctx context.Context) error {
	var errs []error
	set := func(change func()) {
		w.mu.Lock()
		defer w.mu.Unlock()
		change()
		close(w.heal)
		w.heal = make(chan struct{})
	}
	for churnPause(ctx, time.Duration(w.rng.IntN(3000))*time.Millisecond) == nil {
		n, k := w.nodes[w.rng.IntN(len(w.nodes))], w.rng.IntN(len(w.nodes))
		l, way, on := n.lives(), [2]int{n.index, k}, w.rng.IntN(2) == 0
		switch w.rng.IntN(9) {
		case 0:
			errs = append(errs, n.end(on))
		case 1, 2, 3:
			if l == nil {
				errs = append(errs, w.join(n, 1+w.rng.IntN(2)))
			}
		case 4:
			if l != nil {
				l.drain()
			}
		case 5:
			if l != nil && l.undrain(cluster.ErrStays) {
				w.total.add(&w.total.stays, 1)
			}
		case 6:
			set(func() { w.quiet[way] = on })
		case 7:
			set(func() { w.wrong[way] = on && w.rng.IntN(2) == 0; w.dark[k] = on && w.rng.IntN(3) == 0 })
		case 8:
			set(func() {
				clear(w.side)
				if on { // two views, and two layouts, at once
					w.side[n.index], w.side[k] = 1, 1
					w.total.add(&w.total.splits, 1)
				}
			})
		}
	}
	set(func() { clear(w.quiet); clear(w.wrong); clear(w.dark); clear(w.side) })
	for _, n := range w.nodes {
		if l := n.lives(); l != nil {
			l.undrain(cluster.ErrStays)
		} else {
			errs = append(errs, w.join(n, 2))
		}
	}
	return errors.Join(errs...)
}

// join has a node begin, with the cache that it had or an empty one. While what all share is away it cannot.
func (w *churnWorld) join(n *churnNode, protocol int) error {
	keep := w.rng.IntN(2) == 0
	if keep && n.cache != nil {
		w.total.add(&w.total.kept, 1)
	}
	w.total.add(&w.total.joins, 1)
	if err := n.begin(protocol, keep); !errors.Is(err, errDark) {
		return err
	}
	return nil
}

// Whatever nodes do that join, drain, stay, die, come back with old caches or as programs of two protocols, in zones,
// with second owners and with two views at once: each sample is served once an epoch, with its bytes, and then all
// agree again.
func TestClusterChurn(t *testing.T) {
	s := newChurnStore(t)
	first, last := uint64(1), uint64(*churnSeeds)
	if testing.Short() {
		last = 2
	}
	if *churnSeed != 0 {
		first, last = *churnSeed, *churnSeed
	}
	var total churnTotal
	t.Logf("seeds %d to %d; repeat one with -args -churn-seed=SEED", first, last)
	for seed := first; seed <= last; seed++ {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runClusterChurn(t, s, seed, &total) })
		}) {
			return
		}
	}
	t.Logf("in %d s %d blobs came from other nodes, %d of them damaged, %d from nodes that left, %d by who acts for "+
		"a zone, %d refused for their protocol; "+
		"%d drains ended, %d were taken back, %d nodes joined, %d with their old caches, views were split %d times",
		total.seconds, total.reads, total.damaged, total.held, total.forward, total.old, total.drains, total.stays,
		total.joins, total.kept, total.splits)
	if last >= first+50 && slices.Contains([]int64{total.reads, total.damaged, total.held, total.forward, total.old,
		total.drains, total.stays, total.kept, total.splits}, 0) {
		t.Error("too little happened")
	}
}

func runClusterChurn(t *testing.T, s store.Store, seed uint64, total *churnTotal) {
	rng := rand.New(rand.NewPCG(seed, 14))
	w := &churnWorld{
		rng: rng, shared: memshared.New(), store: farStore{s, time.Duration(1+rng.IntN(20)) * time.Millisecond},
		total: total,
		quiet: map[[2]int]bool{}, wrong: map[[2]int]bool{}, dark: map[int]bool{}, side: map[int]int{},
		heal: make(chan struct{}), layouts: map[string]*layout.Layout{},
	}
	zones := 1 + rng.IntN(3)
	capacity := int64(100_000 << rng.IntN(4)) // of 320 KB: not all, or some twice
	for i := range 2 + rng.IntN(4) {
		w.nodes = append(w.nodes, &churnNode{world: w, index: i, id: string(rune('a' + i)),
			zone: fmt.Sprint("z", i%zones), capacity: capacity})
	}
	for _, n := range w.nodes[:1+rng.IntN(len(w.nodes))] { // the others join
		if err := n.begin(1+rng.IntN(2), false); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	req := schema.Request{
		Dataset: "d", Shuffle: &schema.Shuffle{Seed: seed}, Batch: int64(10 + rng.IntN(60)),
		Remainder: schema.RemainderUneven,
		World:     &schema.World{Size: int64(1 + rng.IntN(4))},
		Order:     []string{"", schema.OrderFree, "window:3"}[rng.IntN(3)],
	}
	if seed%2 == 0 {
		req.Assign = schema.AssignLocal
	}
	const epochs = 3
	seen := make([][churnSamples]atomic.Int32, epochs)
	happening, calm := context.WithCancel(ctx)
	var background, reading sync.WaitGroup
	var trouble error
	background.Go(func() { trouble = w.happen(happening) }) // which has rng from now on
	ranks := make([]error, req.World.Size)
	for rank := range ranks {
		own := rand.New(rand.NewPCG(seed, uint64(100+rank)))
		reading.Go(func() {
			ranks[rank] = w.rank(ctx, own, schema.Ticket{Request: req, Rank: rank}, epochs,
				func(epoch int, pos int64) error {
					seen[epoch][pos].Add(1)
					return nil
				})
		})
	}
	began := time.Now()
	reading.Wait()
	total.add(&total.seconds, int64(time.Since(began).Seconds()))
	calm()
	background.Wait()
	time.Sleep(30 * time.Second) // a lease, what is doubted after it, and a read
	trouble = errors.Join(trouble, w.agree())
	for _, n := range w.nodes {
		trouble = errors.Join(trouble, n.end(false))
		if n.cache != nil {
			trouble = errors.Join(trouble, n.cache.Close())
		}
	}
	if err := errors.Join(trouble, errors.Join(ranks...)); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	for epoch := range seen {
		for pos := range seen[epoch] {
			if got := seen[epoch][pos].Load(); got != 1 {
				t.Fatalf("seed %d: position %d was served %d times in epoch %d", seed, pos, got, epoch)
			}
		}
	}
}

// agree checks that all nodes know all, and take the same ones for owners.
func (w *churnWorld) agree() error {
	var name string
	for _, n := range w.nodes {
		l := n.lives()
		if l == nil {
			return fmt.Errorf("node %s does not run", n.id)
		}
		v := l.members.View()
		if len(v.Nodes) != len(w.nodes) || len(v.Leaving) != 0 || v.Err != nil {
			return fmt.Errorf("node %s knows %d nodes of %d, %d that leave; %w", n.id, len(v.Nodes), len(w.nodes),
				len(v.Leaving), v.Err)
		}
		if now := l.members.Now().Name(); name == "" {
			name = now
		} else if now != name {
			return fmt.Errorf("node %s goes by layout %s, another by %s", n.id, now, name)
		}
		for _, st := range l.cluster.Tier().Stats() {
			other := w.nodes[slices.IndexFunc(w.nodes, func(n *churnNode) bool { return n.id == st.Node })].lives()
			// One that has sent wrong bytes may be asked for little, until it is asked for something.
			if st.Up != (other.protocol == l.protocol) {
				return fmt.Errorf("node %s can ask node %s: %v; they speak protocols %d and %d", n.id, st.Node, st.Up,
					l.protocol, other.protocol)
			}
		}
	}
	return nil
}

// newChurnStore returns a store with the dataset.
func newChurnStore(t *testing.T) store.Store {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := local.Open(t.TempDir(), local.Options{Logger: slog.New(slog.DiscardHandler)})
	check(err)
	t.Cleanup(func() { check(s.Close()) })
	fields := []arrow.Field{{Name: "number", Type: arrow.PrimitiveTypes.Int64}}
	sc, err := schema.NewSchema(fields, []arrow.Field{schema.BlobField("image", schema.MediaImage, false)})
	check(err)
	in, err := ingest.New(t.Context(), s, ingest.Options{Dataset: "d", Source: "test", Schema: sc,
		Mode: ingest.Replace})
	check(err)
	defer in.Close()
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	var ids []schema.ID
	var images [][]byte
	for i := range int64(churnSamples) {
		ids = append(ids, schema.SampleID("d", fmt.Sprint(i)))
		b.Field(0).(*array.Int64Builder).Append(i)
		images = append(images, churnContent(churnSize(i)))
	}
	rec := b.NewRecord()
	defer rec.Release()
	check(in.Write(t.Context(), "train", ids, rec, [][][]byte{images}))
	_, _, err = in.Commit(t.Context())
	check(err)
	return s
}
