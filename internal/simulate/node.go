package simulate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch"
	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/fetch/object"
	"bowstring/fetch/peers"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
	"bowstring/spill/segment"
)

// manifests is the memory for manifests that a server has by default, in bytes.
const manifests = 128 << 20

// minSpill is the smallest cache.
const minSpill = spill.MinBytes

// node is a machine. A server may be running on it. The machine outlives its servers:
// cores, disks and links have their state over a restart.
type node struct {
	world *world
	index int
	id    string
	zone  int

	cores, reads, writes *server
	frozen               atomic.Bool // whether it is stalled

	// mu guards life and links.
	mu    sync.Mutex
	life  *life // the running server; nil if there is none
	links struct {
		slow    float64 // factor by which its links are slower
		stalled bool
	}

	// The spill of the server that runs or ran last. Only the goroutine that begins and
	// ends the server uses these.
	cache  *spill.Cache
	future *spill.Future
}

// life is a server from its start to its end. gone ends with it. The fields are constant
// after begin, except those below mu.
type life struct {
	node    *node
	gone    context.Context
	die     context.CancelFunc
	engine  *fetch.Engine
	members *members.Members // nil for a single server
	cluster *cluster.Cluster // nil for a single server
	inbox   *inbox
	// requests are the requests to the bucket.
	requests  *object.Requests
	running   sync.WaitGroup
	peerReads sync.WaitGroup // grows under node.mu, while the node has this life

	mu         sync.Mutex
	requesters map[*life]*requester // other servers that read through this one
}

// begin starts the server. With keepCache it opens with the spill of the one before, as a
// restart does. Without it the spill is empty, as after the loss of the disk.
func (n *node) begin(keepCache bool) error {
	w := n.world
	ctx, die := context.WithCancel(context.Background())
	l := &life{node: n, gone: ctx, die: die, requesters: map[*life]*requester{}, inbox: newInbox()}
	if n.cache != nil && !keepCache {
		if err := n.cache.Close(); err != nil {
			return err
		}
		n.cache = nil
	}
	if n.cache == nil && w.file.Spill.Bytes > 0 {
		n.future = &spill.Future{}
		var err error
		n.cache, err = spill.Open(spill.Options{
			Bytes: w.file.Spill.Bytes, Oracle: n.future, Seed: w.file.Seed<<16 + uint64(n.index) + 1, Writers: 1,
			Logger: w.log,
			Model:  &segment.Model{Bytes: content, Wait: n.disk},
		})
		if err != nil {
			return err
		}
	}
	opts := fetch.Options{
		WindowBytes: w.file.Nodes.WindowBytes, Resident: w.resident, Spill: n.cache, Future: n.future, Logger: w.log,
	}
	// Manifests stay in memory: half of their memory is for manifests that are read whole.
	opts.Memory.Manifests = max(manifests, 3*w.resident)
	if !w.file.Nodes.Alone {
		if err := l.join(&opts); err != nil {
			return err
		}
	}
	var err error
	near := l.store()
	opts.Requests = l.requests
	if l.engine, err = fetch.NewEngine(near, opts); err != nil {
		return err
	}
	if l.cluster != nil {
		l.running.Go(func() { l.cluster.Run(ctx, l.engine) })
		l.running.Go(func() { l.inbox.follow(ctx, l.engine, w.failed) })
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.life = l
	return nil
}

// store returns the store and the bucket as the server has them. Its requests to the bucket are counted and paced as
// real servers' are.
func (l *life) store() nearStore {
	w := l.node.world
	l.requests = object.NewRequests(object.RequestsOptions{Prices: w.prices, Sharers: func() int {
		if l.cluster == nil {
			return 1
		}
		return 1 + l.cluster.Tier().Nodes()
	}})
	return nearStore{w.store, l.node, l.requests.Wrap(nearBucket{farBucket: w.bucket, node: l.node})}
}

// join makes the server a member of the cluster.
func (l *life) join(opts *fetch.Options) (err error) {
	n, w := l.node, l.node.world
	if l.members, err = w.member(n); err != nil {
		return err
	}
	if err := l.members.Start(l.gone, n.described()); err != nil {
		return err
	}
	name := func(uint32) string { return "" }
	if n.cache != nil {
		name = n.cache.DatasetName
	}
	l.cluster, err = cluster.New(cluster.Options{
		Node: n.id, Members: l.members, SnapshotName: name, Logger: w.log,
		Dial: func(other layout.Node) (peers.Link, error) {
			to := w.byID[other.ID]
			if to == nil {
				return nil, fmt.Errorf("%w: node %s", schema.ErrNotFound, other.ID)
			}
			return &link{from: l, to: to}, nil
		},
	})
	if err != nil {
		return err
	}
	if err := l.cluster.Refresh(); err != nil {
		return err
	}
	opts.Layouts, opts.Peers = l.members, l.cluster.Tier()
	return nil
}

// described returns the node's entry in leases.
func (n *node) described() layout.Node {
	f := &n.world.file
	return layout.Node{ID: n.id, Address: "grpc://" + n.id + ":1", Zone: fmt.Sprint("zone-", n.zone),
		Weight: f.Nodes.Ranks, Capacity: spill.Capacity(f.Spill.Bytes)}
}

// end ends the server. If it does not end in order, it ends like a killed process: its
// lease stays until it expires.
func (n *node) end(inOrder bool) error {
	n.mu.Lock()
	l := n.life
	n.life = nil
	if l != nil {
		l.die()
	}
	n.mu.Unlock()
	if l == nil {
		return nil
	}
	var err error
	if l.members != nil {
		if !inOrder {
			n.frozen.Store(true) // writes of its lease are lost
		}
		err = l.members.Close()
		n.frozen.Store(false)
	}
	// Reads of other nodes end first, because they use the engine.
	l.peerReads.Wait()
	l.mu.Lock()
	for _, b := range l.requesters {
		b.close()
	}
	l.mu.Unlock()
	l.running.Wait()
	err = errors.Join(err, l.engine.Close())
	n.world.retire(l)
	if l.cluster != nil {
		err = errors.Join(err, l.cluster.Close())
	}
	return err
}

// lives returns the running server; nil if there is none.
func (n *node) lives() *life {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.life
}

// disk takes the time that the node's disk needs for an operation.
func (n *node) disk(op segment.Op, bytes int64) {
	switch s := &n.world.file.Spill; op {
	case segment.OpRead:
		_ = n.reads.do(context.Background(), per(float64(bytes), s.ReadBytesPerS))
	case segment.OpWrite:
		_ = n.writes.do(context.Background(), per(float64(bytes), s.WriteBytesPerS))
	}
}

// work charges the node's CPU time for a number of samples.
func (n *node) work(ctx context.Context, samples int, bytes int64) error {
	c := &n.world.file.Node
	return n.cores.do(ctx, time.Duration(float64(samples)*c.USPerSample*1e3)+seconds(float64(bytes)/1e9*c.SPerGB))
}

// receive transfers bytes from the store to the node.
func (n *node) receive(ctx context.Context, bytes int64) error {
	w := n.world
	return w.network.send(ctx, w.storeEnd(), int32(n.index), func() []int32 {
		return []int32{w.storeOut(), w.storeIn(n.index), w.in(n.index)}
	}, bytes)
}

// limitLocked updates the capacities of the node's links. n.mu is held.
func (n *node) limitLocked() {
	w := n.world
	now := func(rate float64) float64 {
		if n.links.stalled {
			return 0
		}
		return orInf(rate) / max(n.links.slow, 1)
	}
	net := &w.file.Network
	w.network.limit(w.in(n.index), now(net.BytesPerS))
	w.network.limit(w.out(n.index), now(net.BytesPerS))
	w.network.limit(w.storeIn(n.index), now(net.StoreBytesPerS))
}

// setLinks changes the state of the node's links.
func (n *node) setLinks(change func(slow *float64, stalled *bool)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.links.slow, &n.links.stalled)
	n.limitLocked()
}

// server processes jobs one after another at each of its places: cores, a disk, or the
// turns of a store. It has no queue: each job gets the time at which it will be done, and
// then sleeps until that time. It is safe for concurrent use.
type server struct {
	mu    sync.Mutex
	speed float64     // of a place, 1 is normal; 0: no limit, and work takes no time
	free  []time.Time // when each place becomes free
}

// newServer returns a server with a number of places; a fraction of one makes it slower. 0: no limit.
func newServer(places float64) *server {
	if places <= 0 {
		return &server{}
	}
	n := int(math.Ceil(places))
	return &server{speed: places / float64(n), free: make([]time.Time, n)}
}

// take assigns work to the place that is free first, and returns when the work will be
// done.
func (s *server) take(work time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.speed == 0 || work <= 0 {
		return now
	}
	first := 0
	for i := range s.free {
		if s.free[i].Before(s.free[first]) {
			first = i
		}
	}
	at := s.free[first]
	if at.Before(now) {
		at = now
	}
	s.free[first] = at.Add(time.Duration(float64(work) / s.speed))
	return s.free[first]
}

// slow changes the speed; 1 is normal.
func (s *server) slow(factor float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.speed > 0 {
		s.speed *= factor
	}
}

// halt stops it until a time.
func (s *server) halt(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.free {
		if s.free[i].Before(until) {
			s.free[i] = until
		}
	}
}

// do does work, and waits until it is done. If ctx ends, the work is still done.
func (s *server) do(ctx context.Context, work time.Duration) error {
	return sleepUntil(ctx, s.take(work))
}

// sleepUntil waits for a time, or for ctx's end.
func sleepUntil(ctx context.Context, at time.Time) error {
	d := time.Until(at)
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// per returns the time of n items at a rate per second. Without a limit it is 0.
func per(n, rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return time.Duration(n / rate * 1e9)
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

func millis(ms float64) time.Duration { return time.Duration(ms * 1e6) }

// farStore is the store that all nodes share. The maps are constant.
type farStore struct {
	store.Store // nil: engines call only the methods below

	datasets map[string]*made
	sets     map[schema.ObjectPrefix]*objectSet
	latency  atomic.Int64 // nanoseconds
	turns    *server
	rate     float64 // reads per second; 0: no limit

	blobs, blobBytes, pages, pageBytes atomic.Int64
}

// nearStore is the store as one node sees it: with its links, and with its counted
// requests.
type nearStore struct {
	*farStore
	node   *node
	bucket object.Bucket
}

// Get implements store.Store. It takes a turn of the store, its latency, and the way to the node.
func (s nearStore) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if at, in, err := s.Locate(ctx, ref); in || err != nil {
		if err != nil {
			return schema.Blob{}, err
		}
		data := make([]byte, at.Length)
		if err := at.Bucket.Range(ctx, at.Object.Key, at.Object.Version, at.Offset, data); err != nil {
			return schema.Blob{}, err
		}
		return schema.NewBlob(data, nil), nil
	}
	page, isPage := s.page(ref.Key)
	done := s.turns.take(per(1, s.rate))
	if err := sleepUntil(ctx, done.Add(time.Duration(s.latency.Load()))); err != nil {
		return schema.Blob{}, err
	}
	if err := s.node.receive(ctx, ref.Size); err != nil {
		return schema.Blob{}, err
	}
	if isPage {
		s.pages.Add(1)
		s.pageBytes.Add(ref.Size)
		return schema.NewBlob(page, nil), nil
	}
	s.blobs.Add(1)
	s.blobBytes.Add(ref.Size)
	return schema.NewBlob(content(ref.Size), nil), nil
}

// page returns a page of a manifest, and whether the key is that of one.
func (s *farStore) page(key schema.Key) ([]byte, bool) {
	for _, d := range s.datasets {
		if page, ok := d.pages[key]; ok {
			return page, true
		}
	}
	return nil, false
}

// Datasets implements store.Store.
func (s *farStore) Datasets(context.Context) ([]store.Dataset, error) {
	var list []store.Dataset
	for name := range s.datasets {
		list = append(list, store.Dataset{Name: name, Snapshots: []int64{1}})
	}
	return list, nil
}

// Snapshot implements store.Store.
func (s *farStore) Snapshot(_ context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	d := s.datasets[dataset]
	if d == nil || number > 1 {
		return nil, fmt.Errorf("%w: dataset %q, snapshot %d", schema.ErrNotFound, dataset, number)
	}
	return d.snap, nil
}

// SetInUse implements store.Store: nothing is ever collected.
func (*farStore) SetInUse(func() []*schema.Snapshot) {}

// Traits implements store.Store.
func (*farStore) Traits() store.Traits { return store.Traits{Replicas: 1} }

// Where implements store.Store.
func (*farStore) Where() string { return "the simulated store" }

// Stats implements store.Store.
func (s *farStore) Stats() store.Stats {
	return store.Stats{BlobReads: s.blobs.Load(), BlobBytes: s.blobBytes.Load()}
}

// Close implements store.Store.
func (*farStore) Close() error { return nil }

// zeros is the content of all blobs. It is never written to. A simulation of terabytes
// then takes the memory of the largest blob.
var zeros = sync.OnceValue(func() []byte { return make([]byte, maxBytes) })

// content returns a blob of n bytes.
func content(n int64) []byte { return zeros()[:n:n] }

// made is a generated dataset: its record, and the pages of its manifest by key.
type made struct {
	snap  *schema.Snapshot
	pages map[schema.Key][]byte
	bytes int64
	in    *objects // nil: not in objects
}

// sizeClasses is the most distinct blob sizes. Their checksums are computed once.
const sizeClasses = 256

// makeDataset generates a dataset with random sizes and keys. The manifest is real,
// because the engines parse it. Equal seeds and names give equal datasets.
func makeDataset(d Dataset, seed uint64) (*made, error) {
	sch, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("data", "", false)})
	if err != nil {
		return nil, err
	}
	name := sha256.Sum256(fmt.Appendf(nil, "%d %s", seed, d.Name))
	rng := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(name[:]), seed))
	sizes, sums := sizesOf(d), [sizeClasses]schema.Sum{}
	for i, n := range sizes {
		sums[i] = schema.Checksum(content(n))
	}
	m := &made{pages: map[schema.Key][]byte{}, snap: &schema.Snapshot{
		Dataset: d.Name, Number: 1, Created: time.Unix(0, 0), Source: "simulate", Schema: sch,
		Splits: []schema.Split{{Name: "train", Ranges: []schema.Range{{End: d.Samples}}}},
	}}
	if d.ObjectBytes > 0 {
		m.in = &objects{dataset: d.Name, seed: seed, bytes: d.ObjectBytes}
	}
	b := schema.NewChunkBuilder(memory.DefaultAllocator, sch)
	defer b.Release()
	var list schema.PageList
	keep := func(data []byte) schema.BlobRef {
		ref := schema.RefOf(data)
		m.pages[ref.Key] = data
		return ref
	}
	finish := func() {
		data, chunk := list.Finish()
		if data != nil {
			chunk.BlobRef = keep(data)
		}
		m.snap.Chunks = append(m.snap.Chunks, chunk)
	}
	for at := int64(0); at < d.Samples; {
		n := min(schema.PageRows, d.Samples-at)
		ids, refs := make([]schema.ID, n), make([]*schema.BlobRef, n)
		for i := range n {
			binary.BigEndian.PutUint64(ids[i][8:], uint64(at+i))
			class := rng.IntN(sizeClasses)
			ref := &schema.BlobRef{Size: sizes[class], Sum: sums[class]}
			for k := 0; k < len(ref.Key); k += 8 {
				binary.LittleEndian.PutUint64(ref.Key[k:], rng.Uint64())
			}
			// All blobs of a size have the same bytes, so their keys are not hashes.
			ref.Key = schema.AddressKey([12]byte(ref.Key[:12]), ref.Sum, schema.ID(ref.Key[16:]))
			if m.in != nil {
				ref.Key = m.in.next(ref.Size).Key(ref.Sum)
			}
			refs[i] = ref
			m.bytes += ref.Size
		}
		if err := b.AppendBatch(ids, nil, [][]*schema.BlobRef{refs}); err != nil {
			return nil, err
		}
		data, page, err := b.Finish()
		if err != nil {
			return nil, err
		}
		page.BlobRef = keep(data)
		list.Add(page)
		if at += n; list.Len() == schema.ChunkPages || at == d.Samples {
			finish()
		}
	}
	return m, nil
}

// sizesOf returns equally frequent sizes, whose mean is d.Bytes: the middles of equal
// parts of a lognormal distribution.
func sizesOf(d Dataset) (sizes [sizeClasses]int64) {
	sigma := math.Sqrt(math.Log(1 + d.Spread*d.Spread))
	var sum float64
	var at [sizeClasses]float64
	for i := range at {
		at[i] = math.Exp(sigma * math.Sqrt2 * math.Erfinv(2*(float64(i)+0.5)/sizeClasses-1))
		sum += at[i]
	}
	for i := range sizes {
		sizes[i] = min(max(int64(math.Round(at[i]*sizeClasses/sum*float64(d.Bytes))), 1), maxBytes)
	}
	return sizes
}
