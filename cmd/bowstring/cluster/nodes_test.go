package cluster_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"golang.org/x/time/rate"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/peers"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/flight"
	"bowstring/flight/peer"
	"bowstring/internal/leaktest"
	"bowstring/schema"
	"bowstring/schema/checksum/forge"
	"bowstring/spill"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// counted is a store that several engines share, and that counts its reads.
type counted struct {
	store.Store
	blobs atomic.Int64 // of samples that were read
	delay time.Duration
	rate  *rate.Limiter // of bytes; nil for any
	gate  chan struct{} // nothing is read until it is closed; nil for none
}

func (c *counted) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if ref.Size > 900 && ref.Size < 1100+blobBytes {
		c.blobs.Add(1)
		if c.gate != nil {
			<-c.gate
		}
		time.Sleep(c.delay) // as if it were far away
		if c.rate != nil {
			if err := c.rate.WaitN(ctx, int(ref.Size)); err != nil {
				return schema.Blob{}, err
			}
		}
	}
	return c.Store.Get(ctx, ref)
}

// content is the blob of sample i.
func content(i int) []byte {
	one, _ := forge.Twins(plainContent(i))
	return one
}

// forgedContent has the size and the checksum of content, and is other bytes.
func forgedContent(i int) []byte {
	_, other := forge.Twins(plainContent(i))
	return other
}

func plainContent(i int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "sample %06d. ", i), blobBytes/15+i%10)
}

const blobBytes = 20_000 // about, of each

// newStore returns a store with a dataset "d" of n samples.
func newStore(t testing.TB, n int) *counted {
	t.Helper()
	s, err := local.Open(t.TempDir(), local.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing the store: %v", err)
		}
	})
	fields := []arrow.Field{{Name: "number", Type: arrow.PrimitiveTypes.Int64}}
	sc, err := schema.NewSchema(fields, []arrow.Field{schema.BlobField("image", schema.MediaImage, false)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := ingest.New(t.Context(), s, ingest.Options{Dataset: "d", Source: "test", Schema: sc, Mode: ingest.Replace})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	var ids []schema.ID
	var images [][]byte
	for i := range n {
		ids = append(ids, schema.SampleID("d", fmt.Sprint(i)))
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		images = append(images, content(i))
	}
	rec := b.NewRecord()
	defer rec.Release()
	if err := w.Write(t.Context(), "train", ids, rec, [][][]byte{images}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &counted{Store: s}
}

// directory shares keys out by their first byte. It is a node's own view.
type directory struct {
	self   string
	owners atomic.Pointer[[]string] // by which key belongs to whom
	lists  sync.Map                 // of one name each
}

func (d *directory) Route(ref schema.BlobRef) peers.Route {
	owners := *d.owners.Load()
	name := owners[int(ref.Key[0])%len(owners)]
	if name == d.self {
		return peers.Route{Keep: true}
	}
	list, ok := d.lists.Load(name)
	if !ok {
		list, _ = d.lists.LoadOrStore(name, []string{name})
	}
	return peers.Route{Ask: list.([]string)}
}

// node is a node of a cluster in this process.
type node struct {
	name   string
	dir    *directory
	engine *fetch.Engine
	spill  *spill.Cache
	tier   *peers.Tier
	server *flight.Server
	keys   *peer.Keys   // of the server, and of the ways to the others
	at     atomic.Value // where it says that it is reached; nothing if that is not known
	served chan error
	addr   string
	once   sync.Once
}

// nodes are all of a cluster.
type nodes struct {
	t    testing.TB
	mu   sync.Mutex
	addr map[string]string // by which each is dialled; a test may lead a way elsewhere
	list []*node
}

type clusterOptions struct {
	key, wrongKey []byte // of the cluster, and what node 0 sends instead
	through       func(addr string) string
	patience      time.Duration // with nodes that say nothing; 0 for more than a busy machine needs
	spillBytes    int64         // 0 for plenty
	keepFree      int64         // of the disk; 0 for as good as nothing
}

// newNodes starts n nodes over a store, named "a", "b" and so on.
func newNodes(t testing.TB, s store.Store, n int, o clusterOptions) *nodes {
	t.Helper()
	c := &nodes{t: t, addr: map[string]string{}}
	names := []string{}
	for i := range n {
		names = append(names, string(rune('a'+i)))
	}
	for i, name := range names {
		c.list = append(c.list, c.start(s, name, names, i, o))
	}
	c.connect()
	return c
}

// connect waits until each node can ask each other one.
func (c *nodes) connect() {
	c.t.Helper()
	for _, n := range c.list {
		var others []string
		for _, o := range c.list {
			if o != n {
				others = append(others, o.name)
			}
		}
		if err := n.tier.SetNodes(others); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, n := range c.list {
		for _, st := range n.tier.Stats() {
			for up := st.Up; !up; runtime.Gosched() {
				for _, now := range n.tier.Stats() {
					up = up || now.Node == st.Node && now.Up
				}
				if c.t.Context().Err() != nil {
					c.t.Fatalf("node %s cannot ask %s", n.name, st.Node)
				}
			}
		}
	}
}

func (c *nodes) start(s store.Store, name string, names []string, i int, o clusterOptions) *node {
	t := c.t
	t.Helper()
	n := &node{name: name, dir: &directory{self: name}, served: make(chan error, 1)}
	n.dir.owners.Store(&names)
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})).With("node", name)
	var err error
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	future := &spill.Future{}
	n.spill, err = spill.Open(spill.Options{Dir: filepath.Join(t.TempDir(), "spill"),
		Bytes: cmp.Or(o.spillBytes, 256<<20), KeepFree: cmp.Or(o.keepFree, 1), Oracle: future,
		Logger: log})
	check()
	if o.key != nil {
		n.keys = peer.NewKeys(o.key)
	}
	keys := n.keys
	if i == 0 && o.wrongKey != nil {
		keys = peer.NewKeys(o.wrongKey)
	}
	n.tier, err = peers.New(peers.Options{
		Directory: n.dir, SnapshotName: n.spill.DatasetName, Logger: log,
		Patience: cmp.Or(o.patience, time.Minute),
		Dial: func(name string) (peers.Link, error) {
			c.mu.Lock()
			addr := c.addr[name]
			c.mu.Unlock()
			return peer.Dial(addr, peer.Options{Node: n.name, Keys: keys, Logger: log})
		},
	})
	check()
	n.engine, err = fetch.NewEngine(s, fetch.Options{WindowBytes: 16 << 20, NoHedge: true, Spill: n.spill,
		Future: future, Peers: n.tier, Logger: log})
	check()
	n.server = flight.New(n.engine, flight.Options{
		Cluster: &flight.Cluster{Node: name, Keys: n.keys, Address: n.advertised}, Logger: log,
		Ledger: n.engine.Ledger()})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	check()
	n.addr = lis.Addr().String()
	c.mu.Lock()
	c.addr[name] = n.addr
	if o.through != nil {
		c.addr[name] = o.through(n.addr)
	}
	c.mu.Unlock()
	go func() { n.served <- n.server.Serve(lis) }()
	t.Cleanup(func() { c.stop(n) })
	return n
}

// advertised is where the node says that it is reached.
func (n *node) advertised() string {
	address, _ := n.at.Load().(string)
	return address
}

// stop ends a node, once.
func (c *nodes) stop(n *node) {
	n.once.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // whatever runs is cut off
		_ = n.server.Shutdown(ctx)
		if err := errors.Join(<-n.served, n.engine.Close(), n.tier.Close(), n.spill.Close()); err != nil {
			c.t.Errorf("node %s: %v", n.name, err)
		}
	})
}

// epoch reads a rank's share of an epoch at a node, and counts each sample in seen.
func (n *node) epoch(t testing.TB, seed, epoch uint64, rank, world int, seen []atomic.Int32, each func()) error {
	req := schema.Request{Dataset: "d", Shuffle: &schema.Shuffle{Seed: seed, Epoch: epoch}, Batch: 64,
		World: &schema.World{Size: int64(world)}, Remainder: schema.RemainderUneven}
	j, err := n.engine.Open(t.Context(), req)
	if err != nil {
		return err
	}
	defer j.Close()
	s, err := n.engine.Stream(t.Context(), j, schema.Ticket{Request: j.Request(), Rank: rank})
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for i, pos := range b.Positions {
			if !bytes.Equal(b.Blobs[0][i].Bytes(), content(int(pos))) {
				b.Release()
				return fmt.Errorf("position %d has wrong bytes", pos)
			}
			seen[pos].Add(1)
		}
		b.Release()
		if each != nil {
			each()
		}
	}
}
