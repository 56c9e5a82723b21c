package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/fetch/store"
	"bowstring/flight"
	"bowstring/internal/memshared"
	"bowstring/schema"
	"bowstring/spill"
)

// whole is a node put together as serve does it, over members in memory.
type whole struct {
	id      string
	dir     string
	members *members.Members
	cluster *cluster.Cluster
	engine  *fetch.Engine
	spill   *spill.Cache
	server  *flight.Server
	egress  *admission.Egress
	close   func()
}

func startWhole(t *testing.T, s store.Store, shared members.Shared, id, dir string) *whole {
	t.Helper()
	w := &whole{id: id, dir: dir, egress: admission.NewEgress(admission.EgressLimits{})}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})).With("node", id)
	var err error
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w.members, err = members.New(members.Options{Cluster: "c", Shared: shared, TTL: 10 * time.Second,
		RenewEvery: 50 * time.Millisecond, ReadEvery: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	check()
	future := &spill.Future{}
	w.spill, err = spill.Open(spill.Options{Dir: dir, Bytes: 256 << 20, KeepFree: 1, Oracle: future,
		Logger: log})
	check()
	w.cluster, err = cluster.New(cluster.Options{Node: id, Members: w.members, SnapshotName: w.spill.DatasetName,
		Plaintext: true, Logger: log})
	check()
	w.engine, err = fetch.NewEngine(s, fetch.Options{WindowBytes: 16 << 20, NoHedge: true, Spill: w.spill,
		Future: future, Peers: w.cluster.Tier(), Layouts: w.members, Logger: log})
	check()
	w.server = flight.New(w.engine, flight.Options{
		Cluster: &flight.Cluster{Node: id, Egress: w.egress, WarmOthers: w.cluster.WarmOthers}, Logger: log,
		Ledger: w.engine.Ledger(),
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	check()
	// It says that it has room for one copy of little. Else second copies are kept once a
	// node has published what its jobs read, and what is there already is not handed
	// over.
	err = w.members.Start(t.Context(), layout.Node{ID: id, Address: "grpc://" + lis.Addr().String(), Weight: 1,
		Capacity: 4096})
	check()
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(lis) }()
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() { defer close(ran); w.cluster.Run(ctx, w.engine) }()
	closed := false
	w.close = func() {
		if closed {
			return
		}
		closed = true
		gone, now := context.WithCancel(context.Background())
		now()
		_ = w.server.Shutdown(gone)
		cancel()
		<-ran
		if err := errors.Join(<-served, w.members.Close(), w.engine.Close(), w.cluster.Close(),
			w.spill.Close()); err != nil {
			t.Errorf("node %s: %v", id, err)
		}
	}
	t.Cleanup(w.close)
	return w
}

// meet waits until all nodes know and can ask each other.
func meet(t *testing.T, all ...*whole) {
	t.Helper()
	for _, w := range all {
		for up := 0; up < len(all)-1; runtime.Gosched() {
			if _, err := w.members.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := w.cluster.Refresh(); err != nil {
				t.Fatal(err)
			}
			up = 0
			for _, st := range w.cluster.Tier().Stats() {
				if st.Up {
					up++
				}
			}
		}
	}
}

func (w *whole) read(t *testing.T, epoch uint64, seen []atomic.Int32) {
	t.Helper()
	n := &node{name: w.id, engine: w.engine}
	if err := n.epoch(t, 7, epoch, 0, 1, seen, nil); err != nil {
		t.Fatal(err)
	}
}

// A node that drains hands over what it holds: the others take it from there, and hardly read the store again. A node
// that comes back with its old cache uses what that holds.
func TestHandover(t *testing.T) {
	const n = 600
	s := newStore(t, n)
	shared := memshared.New()
	a := startWhole(t, s, shared, "a", filepath.Join(t.TempDir(), "a"))
	b := startWhole(t, s, shared, "b", filepath.Join(t.TempDir(), "b"))
	meet(t, a, b)
	a.read(t, 0, make([]atomic.Int32, n))
	a.read(t, 1, make([]atomic.Int32, n))
	before := s.blobs.Load()
	handed := func() int64 { blobs, _ := b.egress.Handed(); return blobs }
	drained := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		drained <- cluster.Drain{
			Node: "b", Members: b.members, Server: b.server, Handed: b.egress.Handed, Held: func() int64 {
				return b.spill.Stats().Bytes
			},
			Jobs: func() bool {
				return true
			}, Settle: 100 * time.Millisecond, Quiet: 3 * time.Second, Every: 10 * time.Millisecond,
			Logger: slog.New(slog.DiscardHandler),
		}.Run(ctx)
	}()
	for len(a.members.View().Leaving) == 0 {
		runtime.Gosched()
	}
	if _, err := a.members.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := make([]atomic.Int32, n)
	a.read(t, 2, seen)
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
	for pos := range seen {
		if got := seen[pos].Load(); got != 1 {
			t.Fatalf("position %d was served %d times", pos, got)
		}
	}
	read := s.blobs.Load() - before
	t.Logf("%d blobs were handed over, %d read from the store", handed(), read)
	if handed() < n/3 || read > n/50 {
		t.Errorf("%d blobs were handed over, %d read from the store; want about %d, and hardly any", handed(), read,
			n/2)
	}
	b.close()
	before = s.blobs.Load()
	again := startWhole(t, s, shared, "b", b.dir)
	meet(t, a, again)
	again.read(t, 3, make([]atomic.Int32, n))
	if read := s.blobs.Load() - before; read > n/50 {
		t.Errorf("%d blobs were read from the store by a node with its old cache", read)
	}
}

// A node that is set to stay while it drains is as it was.
func TestDrainThatIsTakenBack(t *testing.T) {
	s := newStore(t, 50)
	shared := memshared.New()
	a := startWhole(t, s, shared, "a", filepath.Join(t.TempDir(), "a"))
	b := startWhole(t, s, shared, "b", filepath.Join(t.TempDir(), "b"))
	meet(t, a, b)
	ctx, cancel := context.WithCancelCause(t.Context())
	drained := make(chan error, 1)
	go func() {
		drained <- cluster.Drain{
			Node: "b", Members: b.members, Server: b.server, Handed: b.egress.Handed, Held: func() int64 { return 1 },
			Jobs: func() bool { return true }, Settle: time.Hour, Logger: slog.New(slog.DiscardHandler),
		}.Run(ctx)
	}()
	for !b.server.Leaving() {
		runtime.Gosched()
	}
	cancel(cluster.ErrStays)
	if err := <-drained; !errors.Is(err, cluster.ErrStays) {
		t.Error(err)
	}
	if v := b.members.View(); b.server.Leaving() || len(v.Leaving) > 0 || len(v.Nodes) != 2 {
		t.Errorf("after all the server leaves (%t), and the view is %+v", b.server.Leaving(), v)
	}
}

// warm has each node bring what it owns.
func TestWarmFillsTheCluster(t *testing.T) {
	const n = 400
	s := newStore(t, n)
	shared := memshared.New()
	a := startWhole(t, s, shared, "a", filepath.Join(t.TempDir(), "a"))
	b := startWhole(t, s, shared, "b", filepath.Join(t.TempDir(), "b"))
	meet(t, a, b)
	req := schema.Request{Dataset: "d", Shuffle: &schema.Shuffle{Seed: 9}, Batch: 10}
	last := map[string]string{}
	b.cluster.WarmOthers(t.Context(), req.Marshal(), "t", func(node string, said []byte, err error) {
		if err != nil {
			t.Errorf("node %s: %v", node, err)
		}
		last[node] = string(said)
	})
	var p fetch.WarmProgress
	if err := json.Unmarshal([]byte(last["a"]), &p); err != nil || !p.Done || p.Stored < n/3 || p.Stored > n*2/3 {
		t.Errorf("node a has said %s, %v", last["a"], err)
	}
	if len(last) != 1 {
		t.Errorf("nodes %v were asked", last)
	}
	if got := a.engine.Stats().PeerReads; got != 0 {
		t.Errorf("node a has read %d blobs of another, which it does not own", got)
	}
}

// A stream on a node that leaves ends at a batch, and says where to go on.
func TestStreamsMove(t *testing.T) {
	s := newStore(t, 50)
	shared := memshared.New()
	a := startWhole(t, s, shared, "a", filepath.Join(t.TempDir(), "a"))
	b := startWhole(t, s, shared, "b", filepath.Join(t.TempDir(), "b"))
	meet(t, a, b)
	rows, resume, err := readOver(t, b, schema.Ticket{Request: schema.Request{Dataset: "d", Batch: 5}},
		func(batches int) {
			if batches == 3 {
				b.server.Leave(func() []string { return []string{"grpc://a:1", "grpc://c:1"} })
			}
		})
	if !errors.Is(err, io.EOF) && len(status.Convert(err).Details()) != 1 {
		t.Fatalf("after %d rows: %v", rows, err)
	}
	if errors.Is(err, io.EOF) {
		t.Fatal("the stream came to its end on a node that leaves")
	}
	more, _, err := readOver(t, a, resume, nil)
	if !errors.Is(err, io.EOF) || rows+more != 50 {
		t.Errorf("%d rows came, and %d elsewhere; %v", rows, more, err)
	}
}
