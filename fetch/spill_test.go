package fetch_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/peers"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// newSpill returns a spill, and what it is told of, in a directory of the test. It is closed after engines made later.
func newSpill(t *testing.T, bytes int64) (*spill.Cache, *spill.Future, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "spill")
	future := &spill.Future{}
	c, err := spill.Open(spill.Options{Dir: dir, Bytes: bytes, Oracle: future, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if n := future.Len(); n != 0 {
			t.Errorf("%d jobs run on", n)
		}
	})
	return c, future, dir
}

// until waits for something that another goroutine does.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("never: ", what)
		}
	}
}

// counted is a store that counts the reads of samples, and can hold them up.
type counted struct {
	store.Store
	chunks map[schema.Key]bool
	reads  atomic.Int64
	gate   atomic.Pointer[chan struct{}]
}

func newCounted(store store.Store, snaps ...*schema.Snapshot) *counted {
	c := &counted{Store: store, chunks: map[schema.Key]bool{}}
	for _, s := range snaps {
		for _, chunk := range s.Chunks {
			c.chunks[chunk.Key] = true
		}
	}
	return c
}

func (c *counted) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if !c.chunks[ref.Key] {
		c.reads.Add(1)
		if gate := c.gate.Load(); gate != nil {
			select {
			case <-*gate:
			case <-ctx.Done():
				return schema.Blob{}, context.Cause(ctx)
			}
		}
	}
	return c.Store.Get(ctx, ref)
}

// hold holds up reads from now on; the function returned lets them go.
func (c *counted) hold() func() {
	gate := make(chan struct{})
	c.gate.Store(&gate)
	return func() { c.gate.Store(nil); close(gate) }
}

func shuffled(dataset string, seed, epoch uint64) schema.Request {
	return schema.Request{Dataset: dataset, Columns: []string{"image"}, Batch: 32, Remainder: "uneven",
		Shuffle: &schema.Shuffle{Seed: seed, Epoch: epoch}}
}

// begin starts a stream that is closed with the test.
func begin(t *testing.T, e *fetch.Engine, req schema.Request, rank int, step int64) *fetch.Stream {
	t.Helper()
	tk := ticket(req, rank)
	tk.Step = step
	s := start(t, e, open(t, e, req), tk)
	t.Cleanup(s.Close)
	return s
}

// warm fills the spill, and returns what it says at the end.
func warm(t *testing.T, e *fetch.Engine, req schema.Request) (last fetch.WarmProgress) {
	t.Helper()
	if err := e.Warm(t.Context(), open(t, e, req), func(p fetch.WarmProgress) { last = p }); err != nil {
		t.Fatal(err)
	}
	return last
}

const images = 297 // of 300 samples, as every hundredth has none

func TestSpilledBlobsAreNotReadAgain(t *testing.T) {
	store := newStore(t)
	far := newCounted(store, put(t, store, "ds", 300))
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, NoHedge: true})
	// What a stream reads is offered, and written behind its back.
	req := shuffled("ds", 1, 0)
	drain(t, e, open(t, e, req), ticket(req, 0))
	until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images })
	if n := far.reads.Load(); n != images {
		t.Errorf("%d reads for %d images", n, images)
	}
	far.reads.Store(0)
	for epoch := range uint64(3) {
		for seed := range uint64(2) {
			req := shuffled("ds", seed, epoch+1)
			drain(t, e, open(t, e, req), ticket(req, 0))
		}
	}
	if n := far.reads.Load(); n != 0 {
		t.Errorf("%d blobs were read again from the store", n)
	}
	st := e.Stats()
	if st.SpillReads != 6*images || st.Reads-images > 4 { // chunks of the manifest
		t.Errorf("%d blobs came from the spill, %d from the store", st.SpillReads, st.Reads)
	}
	ds := st.Spill.Datasets["ds@1"]
	if ds.Hits != 6*images || ds.Misses != images || ds.Stored != images {
		t.Errorf("%+v", ds)
	}
}

// framing is a store whose blobs lie in frames.
type framing struct {
	store.Store
	asked atomic.Int64 // how often for a frame
}

// frame is the owner of a blob in one.
type frame struct {
	store  *framing
	memory []byte
}

func (f *frame) Unpin() {}

func (f *frame) Frame() []byte {
	f.store.asked.Add(1)
	return f.memory
}

func (s *framing) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	b, err := s.Store.Get(ctx, ref)
	if err != nil {
		return b, err
	}
	defer b.Release()
	f := &frame{s, make([]byte, schema.FrameSize(ref.Size))}
	copy(f.memory[schema.FrameMargin:], b.Bytes())
	return schema.NewBlob(f.memory[schema.FrameMargin:][:ref.Size], f), nil
}

// TestSpillIsGivenFrames: what a store reads into a frame can be stored from there.
func TestSpillIsGivenFrames(t *testing.T) {
	store := newStore(t)
	put(t, store, "ds", 300)
	far := &framing{Store: store}
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, NoHedge: true})
	req := shuffled("ds", 1, 0)
	drain(t, e, open(t, e, req), ticket(req, 0))
	until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images })
	if n := far.asked.Load(); n < images {
		t.Errorf("the spill asked for %d frames of %d", n, images)
	}
	req = shuffled("ds", 2, 0)
	drain(t, e, open(t, e, req), ticket(req, 0)) // which compares the bytes
}

func TestWarm(t *testing.T) {
	store := newStore(t)
	far := newCounted(store, put(t, store, "ds", 300))
	t.Run("all", func(t *testing.T) {
		cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
		e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, NoHedge: true})
		if p := warm(t, e, shuffled("ds", 1, 0)); p.There+p.Stored != images || p.Stored == 0 || p.Seen != 300 ||
			p.Full || !p.Done || p.Failed != 0 {
			t.Errorf("%+v", p)
		}
		// What runs is looked ahead for, too, by another goroutine.
		until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images })
		far.reads.Store(0)
		if p := warm(t, e, shuffled("ds", 2, 0)); p.There != images || p.Stored != 0 {
			t.Errorf("%+v", p)
		}
		req := shuffled("ds", 1, 0)
		drain(t, e, open(t, e, req), ticket(req, 0))
		if n := far.reads.Load(); n != 0 {
			t.Errorf("%d reads of what was there", n)
		}
	})
	t.Run("none", func(t *testing.T) {
		e := newEngine(t, far, fetch.Options{})
		if err := e.Warm(t.Context(), open(t, e, shuffled("ds", 1, 0)), nil); !errors.Is(err, schema.ErrInvalid) {
			t.Error(err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
		e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, NoHedge: true})
		job := open(t, e, shuffled("ds", 1, 0))
		release := far.hold()
		defer release()
		ctx, cancel := context.WithCancelCause(t.Context())
		far.reads.Store(0)
		go func() {
			for far.reads.Load() == 0 {
				runtime.Gosched()
			}
			cancel(io.ErrUnexpectedEOF)
		}()
		if err := e.Warm(ctx, job, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	})
	t.Run("cancelled while all is there", func(t *testing.T) {
		cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
		e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, NoHedge: true})
		warm(t, e, shuffled("ds", 1, 0))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(io.ErrUnexpectedEOF)
		if err := e.Warm(ctx, open(t, e, shuffled("ds", 1, 0)), nil); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	})
}

// TestSpillLoses damages what is in the spill: streams go on from the store.
func TestSpillLoses(t *testing.T) {
	store := newStore(t)
	far := newCounted(store, put(t, store, "ds", 300))
	cache, future, dir := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, NoHedge: true})
	warm(t, e, shuffled("ds", 1, 0))
	until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images })
	segments, err := filepath.Glob(filepath.Join(dir, "*", "*.seg"))
	if err != nil || len(segments) == 0 {
		t.Fatal(segments, err)
	}
	for _, name := range segments {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, 100<<10), 4<<10); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	far.reads.Store(0)
	req := shuffled("ds", 1, 0)
	drain(t, e, open(t, e, req), ticket(req, 0)) // compares every byte
	st := e.Stats()
	if n := far.reads.Load(); n == 0 || n == images || st.Spill.Damaged == 0 {
		t.Errorf("%d reads from the store, %d blobs found damaged", n, st.Spill.Damaged)
	}
}

// TestHitsDoNotWaitForMisses has a job whose blobs are all in the spill run while reads of another hang.
func TestHitsDoNotWaitForMisses(t *testing.T) {
	store := newStore(t)
	far := newCounted(store, put(t, store, "near", 100), put(t, store, "far", 600))
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, MaxReads: 4, NoHedge: true})
	warm(t, e, shuffled("near", 1, 0))
	until(t, "all is in the spill", func() bool { return cache.Stats().Entries == 99 })
	open(t, e, shuffled("far", 1, 0)) // its manifest is read before reads hang
	release := far.hold()
	defer release()
	begin(t, e, shuffled("far", 1, 0), 0, 0)
	until(t, "reads hang", func() bool { return e.Stats().ReadsInFlight == 4 })
	req := shuffled("near", 1, 0)
	drain(t, e, open(t, e, req), ticket(req, 0))
}

// TestLookAhead has the consumer stop after a batch: the rest of what it will use is brought into the spill meanwhile.
func TestLookAhead(t *testing.T) {
	store := newStore(t)
	far := newCounted(store, put(t, store, "ds", 300))
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, WindowBytes: 64 << 10, NoHedge: true})
	s := begin(t, e, shuffled("ds", 1, 0), 0, 0)
	b, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images })
	// The stream may want what has just come and is not stored yet.
	n := far.reads.Load()
	if n > images+images/4 {
		t.Errorf("%d reads for %d images", n, images)
	}
	if st := e.Stats(); st.Fills < images/2 || st.Jobs[0].Streams != 1 || st.Jobs[0].Rows != 300 {
		t.Errorf("%d blobs were brought ahead: %+v", st.Fills, st.Jobs)
	}
	for range batches(t, s) {
		continue
	}
	if again := far.reads.Load() - n; again != 0 {
		t.Errorf("%d reads of what was there", again)
	}
}

// TestLookAheadWaits has nothing brought while a consumer waits.
func TestLookAheadWaits(t *testing.T) {
	store := newStore(t)
	far := newCounted(store, put(t, store, "ds", 300))
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, WindowBytes: 64 << 10, NoHedge: true})
	open(t, e, shuffled("ds", 1, 0)) // its manifest is read before reads hang
	release := far.hold()
	s := begin(t, e, shuffled("ds", 1, 0), 0, 0)
	done := make(chan int)
	go func() {
		n := 0
		for b := range batches(t, s) {
			n += b.Rows
		}
		done <- n
	}()
	until(t, "the window is full", func() bool { return far.reads.Load() > 0 && e.Stats().ReadsInFlight > 0 })
	if n := e.Stats().Fills; n != 0 {
		t.Errorf("%d blobs were brought ahead while the consumer waited", n)
	}
	release()
	if n := <-done; n != 300 {
		t.Errorf("%d rows", n)
	}
}

// TestJobsOfStreams says which streams are the same job to the spill.
func TestJobsOfStreams(t *testing.T) {
	store := newStore(t)
	put(t, store, "ds", 300)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, store, fetch.Options{Spill: cache, Future: future, NoHedge: true})
	requireJobs := func(n int) {
		t.Helper()
		if got := future.Len(); got != n || len(e.Stats().Jobs) != n {
			t.Fatalf("%d jobs, want %d: %+v", got, n, e.Stats().Jobs)
		}
	}
	first := begin(t, e, shuffled("ds", 1, 5), 0, 0)
	requireJobs(1)
	begin(t, e, shuffled("ds", 1, 5), 0, 1) // another worker of it
	requireJobs(1)
	begin(t, e, shuffled("ds", 2, 5), 0, 0)
	requireJobs(2)
	again := begin(t, e, shuffled("ds", 1, 0), 0, 0) // from the beginning, while the first is at its fifth epoch
	requireJobs(3)
	begin(t, e, shuffled("ds", 1, 7), 0, 0) // far ahead of it
	requireJobs(4)
	for range batches(t, first) {
		continue
	}
	first.Close()
	requireJobs(4) // it may have another epoch
	begin(t, e, shuffled("ds", 1, 6), 0, 0)
	requireJobs(4)
	// What does not shuffle looks through the data once.
	once := shuffled("ds", 1, 0)
	once.Shuffle = nil
	scan := begin(t, e, once, 0, 0)
	requireJobs(5)
	for range batches(t, scan) {
		continue
	}
	scan.Close()
	requireJobs(4)
	again.Close()
	requireJobs(4)
	// Ranks share a job.
	ranks := shuffled("ds", 3, 0)
	ranks.World = &schema.World{Size: 3}
	begin(t, e, ranks, 0, 0)
	begin(t, e, ranks, 2, 0)
	requireJobs(5)
}

// TestSpillKeepsPages reads the pages of a manifest that does not fit into memory from the spill.
func TestSpillKeepsPages(t *testing.T) {
	store := newStore(t)
	snap := putPages(t, store, "ds", 300, 4)
	const pages = 300 / 4
	far := newCounted(store, snap)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	opts := fetch.Options{Spill: cache, Future: future, NoHedge: true, Resident: -1}
	opts.Memory.Manifests = 20_000
	e := newEngine(t, far, opts)
	req := shuffled("ds", 1, 0)
	drain(t, e, open(t, e, req), ticket(req, 0))
	until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images+pages })
	far.reads.Store(0)
	req = shuffled("ds", 2, 0)
	drain(t, e, open(t, e, req), ticket(req, 0))
	if n := far.reads.Load(); n != 0 {
		t.Errorf("%d reads of what is in the spill", n)
	}
	// What goes through all pages leaves the spill as it is.
	other := putPages(t, store, "other", 100, 4)
	far.chunks[other.Chunks[0].Key] = true
	entries := cache.Stats().Entries
	if j := open(t, e, schema.Request{Dataset: "other", Where: "name contains '7'"}); j.Plan().Rows() == 0 {
		t.Error("no row matches")
	}
	if n := cache.Stats().Entries; n != entries {
		t.Errorf("%d more blobs are in the spill", n-entries)
	}
}

// elsewhere is a cluster in which another node, which cannot be reached, owns everything.
type elsewhere struct{}

func (elsewhere) Route(schema.Key) peers.Route { return peers.Route{Ask: []string{"other"}} }

// TestSpillKeepsPagesOfOthersBlobs keeps the pages of a manifest, which no other node is asked for, whoever owns the
// blobs.
func TestSpillKeepsPagesOfOthersBlobs(t *testing.T) {
	store := newStore(t)
	snap := putPages(t, store, "ds", 300, 4)
	const pages = 300 / 4
	far := newCounted(store, snap)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	others := must(peers.New(peers.Options{
		Directory: elsewhere{}, SnapshotName: cache.DatasetName, Logger: quiet,
		Dial: func(string) (peers.Link, error) { return nil, schema.ErrUnavailable },
	}))
	t.Cleanup(func() { _ = others.Close() })
	opts := fetch.Options{Spill: cache, Future: future, Peers: others, NoHedge: true, Resident: -1}
	opts.Memory.Manifests = 20_000
	e := newEngine(t, far, opts)
	req := shuffled("ds", 1, 0)
	drain(t, e, open(t, e, req), ticket(req, 0))
	until(t, "the pages are in the spill", func() bool { return cache.Stats().Entries >= pages })
	if n := cache.Stats().Entries; n != pages {
		t.Errorf("%d blobs are in the spill, want the %d pages", n, pages)
	}
}

// TestWarmLeavesOthersBlobs brings nothing that another node owns.
func TestWarmLeavesOthersBlobs(t *testing.T) {
	store := newStore(t)
	snap := putPages(t, store, "ds", 300, 4)
	far := newCounted(store, snap)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	others := must(peers.New(peers.Options{
		Directory: elsewhere{}, SnapshotName: cache.DatasetName, Logger: quiet,
		Dial: func(string) (peers.Link, error) { return nil, schema.ErrUnavailable },
	}))
	t.Cleanup(func() { _ = others.Close() })
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, Peers: others})
	var last fetch.WarmProgress
	if err := e.Warm(t.Context(), open(t, e, shuffled("ds", 1, 0)), func(p fetch.WarmProgress) {
		last = p
	}); err != nil {
		t.Fatal(err)
	}
	if n := cache.Stats().Entries; n != 0 || last.Stored != 0 || last.Seen != last.Rows {
		t.Errorf("%d blobs are in the spill after %+v", n, last)
	}
}

// TestFollowedStreamsHaveTenants keeps what is brought for a stream of another node on the account of its tenant.
func TestFollowedStreamsHaveTenants(t *testing.T) {
	store := newStore(t)
	snap := putPages(t, store, "ds", 300, 4)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, newCounted(store, snap), fetch.Options{Spill: cache, Future: future})
	req := shuffled("ds", 1, 0)
	j := open(t, e, req)
	f := e.Follow()
	defer f.Close()
	told := fetch.Progress{ID: 1, Ticket: schema.Ticket{Request: j.Request()}.Marshal(), Tenant: "theirs"}
	until(t, "all is in the spill", func() bool {
		if err := f.Update(t.Context(), []fetch.Progress{told}); err != nil {
			t.Fatal(err)
		}
		return cache.Stats().Entries == images
	})
	if got, all := cache.TenantBytes("theirs"), cache.TenantBytes(""); got == 0 || all != 0 {
		t.Errorf("%d bytes are on the tenant's account, %d on nobody's", got, all)
	}
}
