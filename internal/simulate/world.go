package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/internal/memshared"
)

// world is all there is.
type world struct {
	file    File // as it is run: with a sample's numbers
	log     *slog.Logger
	began   time.Time
	nodes   []*node
	byID    map[string]*node
	store   *farStore
	network *network
	shared  *memshared.Shared
	layouts layouts
	cuts    cuts

	resident int64 // bytes of manifests that engines keep

	peerBlobs, peerBytes, zoneBytes, served, servedBytes atomic.Int64

	mu      sync.Mutex
	rng     *rand.Rand
	retired engines // what the engines counted that are no more
	trouble []string
	errs    []error
}

// clusterName is what the cluster is called.
const clusterName = "simulated"

func newWorld(file *File, datasets map[string]*made, log *slog.Logger) *world {
	w := &world{
		file: *file, log: log, began: time.Now(), byID: map[string]*node{}, shared: memshared.New(),
		rng:     rand.New(rand.NewPCG(file.Seed, 1)),
		layouts: layouts{known: map[string]*layout.Layout{}}, cuts: cuts{ways: map[[2]*node]chan struct{}{}},
	}
	w.store = &farStore{datasets: datasets, rate: file.Store.ReadsPerS, turns: newServer(1)}
	w.store.latency.Store(int64(millis(file.Store.LatencyMS)))
	for _, d := range datasets {
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
	w.network = newNetwork(resources)
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

func orInf(rate float64) float64 {
	if rate <= 0 {
		return math.Inf(1)
	}
	return rate
}

// Ends and resources of the network.
func (w *world) storeEnd() int32        { return int32(len(w.nodes)) }
func (w *world) storeOut() int32        { return 0 }
func (w *world) in(node int) int32      { return int32(1 + 3*node) }
func (w *world) out(node int) int32     { return int32(2 + 3*node) }
func (w *world) storeIn(node int) int32 { return int32(3 + 3*node) }
func (w *world) zoneOut(zone int) int32 { return int32(1 + 3*len(w.nodes) + 2*zone) }
func (w *world) zoneIn(zone int) int32  { return w.zoneOut(zone) + 1 }
func (w *world) apart(a, b *node) bool  { return a.zone != b.zone }
func (w *world) since() time.Duration   { return time.Since(w.began) }
func (w *world) at(s float64) time.Time { return w.began.Add(seconds(s)) }
func (w *world) later(a, b *node) time.Time {
	ms := w.file.Network.LatencyMS
	if w.apart(a, b) {
		ms += w.file.Network.ZoneLatencyMS
	}
	return time.Now().Add(millis(ms / 2)) // there; as much back
}

// carry has bytes go from one node to another.
func (w *world) carry(ctx context.Context, from, to *node, bytes int64) error {
	return w.network.send(ctx, int32(from.index), int32(to.index), func() []int32 {
		path := []int32{w.out(from.index), w.in(to.index)}
		if w.apart(from, to) {
			path = append(path, w.zoneOut(from.zone), w.zoneIn(to.zone))
		}
		return path
	}, bytes)
}

// lent counts a blob that went from one node to another.
func (w *world) lent(from, to *node, bytes int64) {
	w.peerBlobs.Add(1)
	w.peerBytes.Add(bytes)
	if w.apart(from, to) {
		w.zoneBytes.Add(bytes)
	}
}

// failed notes what went wrong in the background, some of it.
func (w *world) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := err.Error(); len(w.trouble) < 20 && !slices.Contains(w.trouble, s) {
		w.trouble = append(w.trouble, s)
	}
}

// chance draws a time below d.
func (w *world) chance(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rng.Int64N(int64(d)))
}

// member returns a node's part in the membership.
func (w *world) member(n *node) (*members.Members, error) {
	return members.New(members.Options{
		Cluster: clusterName, Shared: leases{w.shared, n}, NewLayout: w.layouts.of, Chance: w.chance, Logger: w.log,
	})
}

// announce writes the leases of nodes that are about to start, so that each knows of all from its start on.
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

// leases is what nodes share, as one of them has it: of one that stands still nothing is written.
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

// layouts are those that were computed, for all nodes: each is the same wherever it is computed.
type layouts struct {
	mu    sync.Mutex
	known map[string]*layout.Layout
	order []string
}

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

// cuts are ways between nodes on which nothing gets through.
type cuts struct {
	mu   sync.Mutex
	ways map[[2]*node]chan struct{} // closed when a way is whole again
}

func (c *cuts) is(from, to *node) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ways[[2]*node{from, to}] != nil
}

// wait waits while a way is cut.
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

func (c *cuts) cut(from, to *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if way := [2]*node{from, to}; from != to && c.ways[way] == nil {
		c.ways[way] = make(chan struct{})
	}
}

func (c *cuts) mend(from, to *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if way := [2]*node{from, to}; c.ways[way] != nil {
		close(c.ways[way])
		delete(c.ways, way)
	}
}
