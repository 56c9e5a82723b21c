// Package simulate runs whole clusters in virtual time: the engines, caches, members,
// layouts and prefetching that servers consist of, with models of links, disks, stores,
// CPUs and training programs.
//
// A [File] describes the cluster and its events. [Run] runs it and returns a [Report].
// Blobs have sizes and no content. Time is that of a bubble of testing/synctest. It does
// not advance while a goroutine computes, and jumps to the next event. A report therefore
// does not depend on the speed of the machine.
//
// The simulation leaves out gRPC and Arrow Flight, whose costs are charged as CPU time
// and latency. It also leaves out the scaling of caches, and everything that a formula
// describes as well.
//
// Begin reading at [Run]. The models are server in node.go for CPUs and disks, network in
// network.go for links, and meeting in job.go for the ranks of a job.
package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/fetch/object"
	"bowstring/internal/memshared"
	"bowstring/schema"
)

// Options configures a run.
type Options struct {
	// Logger receives the logs of the servers' parts. Default: they are dropped.
	Logger *slog.Logger
	// Prices are the prices of requests to the bucket. Default: list prices.
	Prices *object.Prices
}

// Run runs a file to the end of its jobs. Only one goroutine of a process may call it at a time, because it uses a
// bubble of testing/synctest. A simulation that cannot continue, as after all nodes have left for good, is an error.
func Run(f *File, opts Options) (report *Report, err error) {
	small := f.sampled()
	datasets, err := makeAll(small)
	if err != nil {
		return nil, err
	}
	bubble(func() { report, err = run(small, datasets, opts) })
	return report, err
}

// bubble runs f in a bubble, where time is virtual. The standard library has bubbles only for tests, so this makes a
// test that no runner executes: Test only needs a place to record failures, and there are none.
func bubble(f func()) {
	if flag.Lookup("test.v") == nil {
		testing.Init()
	}
	synctest.Test(&testing.T{}, func(*testing.T) { f() })
}

// makeAll makes the datasets, outside of the bubble: it takes CPU time and no virtual
// time.
func makeAll(f *File) (map[string]*made, error) {
	datasets := map[string]*made{}
	for _, d := range f.Datasets {
		m, err := makeDataset(d, f.Seed)
		if err != nil {
			return nil, fmt.Errorf("make dataset %s up: %w", d.Name, err)
		}
		datasets[d.Name] = m
	}
	return datasets, nil
}

// sampled returns the file with the numbers of a sample. Rates per node stay, and rates
// that nodes share are divided, so that each node has the same load as in the whole run.
func (f *File) sampled() *File {
	s := *f
	n := float64(f.Sample)
	s.Nodes.Count /= f.Sample
	s.Nodes.Zones = min(s.Nodes.Zones, s.Nodes.Count)
	s.Store.ReadsPerS /= n
	s.Store.BytesPerS /= n
	s.Bucket.RequestsPerS /= n
	s.Bucket.BytesPerS /= n
	s.Network.ZoneBytesPerS /= n
	s.Datasets, s.Jobs = append([]Dataset(nil), f.Datasets...), append([]Job(nil), f.Jobs...)
	for i := range s.Datasets {
		s.Datasets[i].Samples /= f.Sample
	}
	for i := range s.Jobs {
		s.Jobs[i].Batch /= f.Sample
		s.Jobs[i].Ranks /= f.Sample
	}
	return &s
}

// oneThread is the number of rows, over all nodes, up to which one thread runs
// everything. Larger runs would take too long on one thread, and vary a little with
// several.
const oneThread = 50e6

// work returns the number of rows that all nodes together have to scan.
func (f *File) work() (rows float64) {
	for _, d := range f.Datasets {
		rows += float64(d.Samples) * float64(f.Nodes.Count)
	}
	return rows
}

// errStuck says that a simulation does not progress.
var errStuck = fmt.Errorf("%w: nothing was served for so long that the simulation is cancelled", schema.ErrUnavailable)

// stuckAfter is how long a running job may be served nothing, in virtual time.
const stuckAfter = 4 * time.Hour

// run is Run within a bubble.
func run(f *File, datasets map[string]*made, opts Options) (*Report, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	// With one thread, the events of one moment have a fixed order, except for Go's own random choices.
	if f.work() <= oneThread {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	if opts.Prices == nil {
		opts.Prices = object.ListPrices()
	}
	w := newWorld(f, datasets, opts.Prices, opts.Logger)
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	var running sync.WaitGroup
	running.Go(func() { w.network.run(ctx) })
	if err := w.start(ctx); err != nil {
		return nil, errors.Join(err, w.end(), closed(stop, &running))
	}
	// The goroutines end in three groups: jobs first, then events and records, and then
	// nodes and network. A job needs all of the others, and nodes need the network to
	// end.
	var jobs []*job
	for _, spec := range f.Jobs {
		jobs = append(jobs, newJob(w, spec))
	}
	series := newSeries(w)
	happening, calm := context.WithCancel(ctx)
	running.Go(func() { series.run(happening) })
	running.Go(func() { w.happen(happening) })
	running.Go(func() { w.guard(happening, jobs, stop) })
	errs := make([]error, len(jobs))
	var all sync.WaitGroup
	for i, j := range jobs {
		all.Go(func() { errs[i] = j.run(ctx) })
	}
	all.Wait()
	series.take()
	calm()
	report := w.report(jobs, series)
	err := errors.Join(errors.Join(errs...), w.end(), errors.Join(w.errs...))
	stop(nil)
	running.Wait()
	if err != nil {
		return nil, err
	}
	return report, nil
}

// closed ends the goroutines after a failed start. It always returns nil, so that it can
// be joined to errors.
func closed(stop context.CancelCauseFunc, running *sync.WaitGroup) error {
	stop(nil)
	running.Wait()
	return nil
}

// guard cancels the simulation if nothing is served for stuckAfter while a job runs.
// Virtual time would otherwise pass without an end.
func (w *world) guard(ctx context.Context, jobs []*job, stop context.CancelCauseFunc) {
	last := int64(-1)
	for {
		if sleepUntil(ctx, time.Now().Add(stuckAfter)) != nil {
			return
		}
		running := false
		for _, j := range jobs {
			running = running || w.since() > seconds(j.StartS)+stuckAfter
		}
		now := w.served.Load()
		if running && now == last {
			stop(errStuck)
			return
		}
		last = now
	}
}

// start starts the nodes that exist from the beginning: those whose first fault is not a
// join.
func (w *world) start(ctx context.Context) error {
	absent, known := map[int]bool{}, map[int]bool{}
	for _, x := range byTime(w.file.Faults) {
		if x.Node != nil && !known[int(*x.Node)] {
			known[int(*x.Node)] = true
			absent[int(*x.Node)] = x.Kind == Join
		}
	}
	var first []*node
	for _, n := range w.nodes {
		if !absent[n.index] {
			first = append(first, n)
		}
	}
	if !w.file.Nodes.Alone {
		if err := w.announce(ctx, first); err != nil {
			return err
		}
	}
	for _, n := range first {
		if err := n.begin(false); err != nil {
			return fmt.Errorf("start %s: %w", n.id, err)
		}
	}
	return nil
}

// end ends all nodes, and their caches.
func (w *world) end() error {
	errs := make([]error, len(w.nodes))
	var all sync.WaitGroup
	for i, n := range w.nodes {
		all.Go(func() {
			errs[i] = n.end(true)
			if n.cache != nil {
				errs[i] = errors.Join(errs[i], n.cache.Close())
				n.cache = nil
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// world is the state of a simulation. Its goroutines share it. Fields without a lock or
// an atomic type are constant after newWorld.
type world struct {
	file    File // as it is run: with a sample's numbers
	log     *slog.Logger
	began   time.Time
	nodes   []*node
	byID    map[string]*node
	store   *farStore
	bucket  *farBucket
	prices  *object.Prices
	network *network
	shared  *memshared.Shared
	layouts layouts
	cuts    cuts

	resident int64 // bytes of manifests that engines keep

	peerBlobs, peerBytes, zoneBytes, served, servedBytes atomic.Int64

	// mu guards the fields below.
	mu      sync.Mutex
	rng     *rand.Rand
	retired engines  // counters of engines that have ended
	trouble []string // background errors, for the report
	errs    []error  // errors of faults, which fail the run
}

// clusterName is the cluster's name.
const clusterName = "simulated"

// newWorld makes the nodes and the network, without starting anything. The order of the
// resources is that of the functions storeOut to zoneIn below.
func newWorld(file *File, datasets map[string]*made, prices *object.Prices, log *slog.Logger) *world {
	w := &world{
		file: *file, log: log, prices: prices, bucket: newFarBucket(file.Bucket, prices), began: time.Now(), byID: map[string]*node{}, shared: memshared.New(),
		rng:     rand.New(rand.NewPCG(file.Seed, 1)),
		layouts: layouts{known: map[string]*layout.Layout{}}, cuts: cuts{ways: map[[2]*node]chan struct{}{}},
	}
	w.store = &farStore{datasets: datasets, sets: map[schema.ObjectPrefix]*objectSet{}, rate: file.Store.ReadsPerS,
		turns: newServer(1)}
	w.store.latency.Store(int64(millis(file.Store.LatencyMS)))
	for _, d := range datasets {
		if d.in != nil {
			for _, set := range d.in.sets {
				w.store.sets[set.prefix] = set
			}
		}
		for _, c := range d.snap.Chunks {
			w.resident += c.ManifestBytes() + 2*c.Size
		}
	}
	w.resident = max(w.resident, 1)
	var resources []resource
	limited := func(rate float64) { resources = append(resources, resource{capacity: orInf(rate)}) }
	limited(file.Store.BytesPerS)
	for range file.Nodes.Count {
		limited(file.Network.BytesPerS)
		limited(file.Network.BytesPerS)
		limited(file.Network.StoreBytesPerS)
	}
	for range file.Nodes.Zones {
		limited(file.Network.ZoneBytesPerS)
		limited(file.Network.ZoneBytesPerS)
	}
	limited(file.Bucket.BytesPerS)
	w.network = newNetwork(resources)
	// A disk without a rate takes no time.
	for i := range int(file.Nodes.Count) {
		disk := func(rate float64) *server {
			if rate <= 0 {
				return newServer(0)
			}
			return newServer(1)
		}
		n := &node{
			world: w, index: i, id: fmt.Sprintf("node-%04d", i), zone: i % int(file.Nodes.Zones),
			cores: newServer(file.Node.Cores), reads: disk(file.Spill.ReadBytesPerS),
			writes: disk(file.Spill.WriteBytesPerS),
		}
		w.nodes, w.byID[n.id] = append(w.nodes, n), n
	}
	return w
}

// orInf returns a rate, and infinity for a rate of 0, which means no limit.
func orInf(rate float64) float64 {
	if rate <= 0 {
		return math.Inf(1)
	}
	return rate
}

// These are the numbers of ends and resources of the network. An end is a node by its
// index, the store, or the bucket.
func (w *world) storeEnd() int32        { return int32(len(w.nodes)) }
func (w *world) storeOut() int32        { return 0 }
func (w *world) bucketEnd() int32       { return int32(len(w.nodes) + 1) }
func (w *world) bucketOut() int32       { return w.zoneOut(int(w.file.Nodes.Zones)) }
func (w *world) in(node int) int32      { return int32(1 + 3*node) }
func (w *world) out(node int) int32     { return int32(2 + 3*node) }
func (w *world) storeIn(node int) int32 { return int32(3 + 3*node) }
func (w *world) zoneOut(zone int) int32 { return int32(1 + 3*len(w.nodes) + 2*zone) }
func (w *world) zoneIn(zone int) int32  { return w.zoneOut(zone) + 1 }
func (w *world) apart(a, b *node) bool  { return a.zone != b.zone }
func (w *world) since() time.Duration   { return time.Since(w.began) }
func (w *world) at(s float64) time.Time { return w.began.Add(seconds(s)) }

// later returns when a message that is sent now arrives at another node.
func (w *world) later(a, b *node) time.Time {
	ms := w.file.Network.LatencyMS
	if w.apart(a, b) {
		ms += w.file.Network.ZoneLatencyMS
	}
	return time.Now().Add(millis(ms / 2)) // one way; the way back takes as long
}

// carry transfers bytes from one node to another.
func (w *world) carry(ctx context.Context, from, to *node, bytes int64) error {
	return w.network.send(ctx, int32(from.index), int32(to.index), func() []int32 {
		path := []int32{w.out(from.index), w.in(to.index)}
		if w.apart(from, to) {
			path = append(path, w.zoneOut(from.zone), w.zoneIn(to.zone))
		}
		return path
	}, bytes)
}

// sent counts a blob that one node has sent to another.
func (w *world) sent(from, to *node, bytes int64) {
	w.peerBlobs.Add(1)
	w.peerBytes.Add(bytes)
	if w.apart(from, to) {
		w.zoneBytes.Add(bytes)
	}
}

// failed records background errors, up to a bound.
func (w *world) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := err.Error(); len(w.trouble) < 20 && !slices.Contains(w.trouble, s) {
		w.trouble = append(w.trouble, s)
	}
}

// chance returns a random time below d.
func (w *world) chance(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rng.Int64N(int64(d)))
}

// member returns a node's membership.
func (w *world) member(n *node) (*members.Members, error) {
	return members.New(members.Options{
		Cluster: clusterName, Shared: leases{w.shared, n}, NewLayout: w.layouts.of, Chance: w.chance, Logger: w.log,
	})
}

// announce writes the leases of nodes that are about to start, so that each knows all others from its start.
func (w *world) announce(ctx context.Context, nodes []*node) error {
	for _, n := range nodes {
		lease, err := json.Marshal(map[string]any{"node": n.described(), "process": "starting"})
		if err != nil {
			return err
		}
		if err := w.shared.PutLease(ctx, clusterName, n.id, lease, 10*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// leases is the shared storage as one node sees it. A stalled node writes nothing, so
// that its lease expires.
type leases struct {
	*memshared.Shared
	node *node
}

// PutLease implements members.Shared.
func (s leases) PutLease(ctx context.Context, cluster, id string, lease []byte, ttl time.Duration) error {
	if s.node.frozen.Load() {
		return nil
	}
	return s.Shared.PutLease(ctx, cluster, id, lease, ttl)
}

// RemoveLease implements members.Shared.
func (s leases) RemoveLease(ctx context.Context, cluster, id string) error {
	if s.node.frozen.Load() {
		return nil
	}
	return s.Shared.RemoveLease(ctx, cluster, id)
}

// layouts caches layouts that nodes have computed. All nodes would compute the same ones.
type layouts struct {
	mu    sync.Mutex
	known map[string]*layout.Layout
	order []string
}

// of returns the layout of a record. It keeps the last 256.
func (s *layouts) of(r layout.Record) (*layout.Layout, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := r.Name()
	if l := s.known[name]; l != nil {
		return l, nil
	}
	l, err := layout.New(r)
	if err == nil {
		if s.order = append(s.order, name); len(s.order) > 256 {
			delete(s.known, s.order[0])
			s.order = s.order[1:]
		}
		s.known[name] = l
	}
	return l, err
}

// cuts are the node pairs whose traffic is cut.
type cuts struct {
	mu   sync.Mutex
	ways map[[2]*node]chan struct{} // closed when a pair is connected again
}

// is reports whether the traffic between a pair is cut, in that direction.
func (c *cuts) is(from, to *node) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ways[[2]*node{from, to}] != nil
}

// wait waits while a pair is cut.
func (c *cuts) wait(ctx context.Context, from, to *node) error {
	for {
		c.mu.Lock()
		healed := c.ways[[2]*node{from, to}]
		c.mu.Unlock()
		if healed == nil {
			return nil
		}
		select {
		case <-healed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// cut cuts the traffic in one direction. A pair that is cut already stays so.
func (c *cuts) cut(from, to *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if way := [2]*node{from, to}; from != to && c.ways[way] == nil {
		c.ways[way] = make(chan struct{})
	}
}

// mend connects a pair again, and wakes those that wait.
func (c *cuts) mend(from, to *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if way := [2]*node{from, to}; c.ways[way] != nil {
		close(c.ways[way])
		delete(c.ways, way)
	}
}

// byTime returns the faults in the order in which they happen. Faults of one time keep
// their order in the file.
func byTime(faults []Fault) []Fault {
	list := slices.Clone(faults)
	slices.SortStableFunc(list, func(a, b Fault) int {
		switch {
		case a.AtS < b.AtS:
			return -1
		case a.AtS > b.AtS:
			return 1
		}
		return 0
	})
	return list
}

// happen executes the faults until ctx ends. Faults of one node, and those of the store, happen one after the other.
func (w *world) happen(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	per := map[int64][]moment{}
	for _, x := range byTime(w.file.Faults) {
		at := int64(-1)
		if x.Node != nil {
			at = *x.Node
		}
		per[at] = append(per[at], w.momentsOf(x)...)
	}
	for _, list := range per {
		slices.SortStableFunc(list, func(a, b moment) int { return a.at.Compare(b.at) })
		all.Go(func() {
			for _, m := range list {
				if sleepUntil(ctx, m.at) != nil {
					return
				}
				if err := m.do(); err != nil {
					w.mu.Lock()
					w.errs = append(w.errs, fmt.Errorf("at %.3f s: %w", w.since().Seconds(), err))
					w.mu.Unlock()
				}
			}
		})
	}
}

// moment is an event at a time.
type moment struct {
	at time.Time
	do func() error
}

// momentsOf returns the events of a fault: its beginning and, if it has a duration, its
// end.
func (w *world) momentsOf(x Fault) []moment {
	at, end := w.at(x.AtS), w.at(x.AtS+x.ForS)
	moments := func(begin, finish func() error) []moment {
		if x.ForS == 0 {
			return []moment{{at, begin}}
		}
		return []moment{{at, begin}, {end, finish}}
	}
	// Two faults of this kind may overlap, so that each multiplies and divides.
	if x.Kind == StoreSlow {
		slow := func(f float64) func() error {
			return func() error {
				w.store.turns.slow(1 / f)
				w.store.latency.Store(int64(float64(w.store.latency.Load()) * f))
				w.network.scale(w.storeOut(), 1/f)
				w.bucket.slow(f)
				w.network.scale(w.bucketOut(), 1/f)
				return nil
			}
		}
		return moments(slow(x.Factor), slow(1/x.Factor))
	}
	n := w.nodes[*x.Node]
	again := func() error {
		if n.lives() != nil {
			return nil
		}
		return n.begin(x.KeepCache)
	}
	switch x.Kind {
	case Kill:
		return moments(func() error { return n.end(false) }, again)
	case Leave:
		return moments(func() error { return n.end(true) }, nil)
	case Join:
		return moments(again, nil)
	case Stop:
		return moments(func() error {
			n.frozen.Store(true)
			for _, s := range []*server{n.cores, n.reads, n.writes} {
				s.halt(end)
			}
			n.setLinks(func(_ *float64, stalled *bool) { *stalled = true })
			return nil
		}, func() error {
			n.frozen.Store(false)
			n.setLinks(func(_ *float64, stalled *bool) { *stalled = false })
			return nil
		})
	case Slow:
		return moments(
			func() error { n.setLinks(func(slow *float64, _ *bool) { *slow = x.Factor }); return nil },
			func() error { n.setLinks(func(slow *float64, _ *bool) { *slow = 1 }); return nil })
	}
	ways := func(change func(from, to *node)) func() error { // Cut
		return func() error {
			for _, other := range w.nodes {
				if x.Other == nil || other.index == int(*x.Other) {
					change(n, other)
					change(other, n)
				}
			}
			return nil
		}
	}
	return moments(ways(w.cuts.cut), ways(w.cuts.mend))
}
