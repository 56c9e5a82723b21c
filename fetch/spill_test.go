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
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// newSpill returns a spill and its Future, in a directory of the test. The spill is closed after engines made later.
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
	// Blobs that a stream reads are offered to the spill, and written in the background.
	req := shuffled("ds", 1, 0)
	drain(t, e, open(t, e, req), ticket(req, 0))
	until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images })
	// On a busy machine a read may be silent for so long that it is attempted again, which NoHedge does not prevent.
	if n, again := far.reads.Load(), e.Stats().Retries; n < images || n > images+again {
		t.Errorf("%d reads for %d images, %d attempts again", n, images, again)
	}
	far.reads.Store(0)
	for epoch := range uint64(3) {
		for seed := range uint64(2) {
			req := shuffled("ds", seed, epoch+1)
			drain(t, e, open(t, e, req), ticket(req, 0))
		}
	}
	st := e.Stats()
	if n := far.reads.Load(); n > st.Retries {
		t.Errorf("%d blobs were read again from the store, %d attempts again", n, st.Retries)
	}
	// Blobs that are prefetched into the spill while the stream's goroutine waits for a CPU are no misses of the stream.
	// The first reads of a stream may share what the stream before it still holds.
	if st.SpillReads+st.SharedReads+st.Retries < 6*images || st.Reads-images-st.Retries > 4 { // chunks of the manifest
		t.Errorf("%d blobs came from the spill, %d from the store, %d were shared, %d attempts again",
			st.SpillReads, st.Reads, st.SharedReads, st.Retries)
	}
	ds := st.Spill.Datasets["ds@1"]
	if ds.Hits < st.SpillReads || ds.Hits > st.SpillReads+st.Retries || ds.Hits+ds.Misses > 7*images+st.Retries ||
		ds.Misses > images+st.Retries || ds.Stored != images {
		t.Errorf("%+v", ds)
	}
}

// framing is a store whose blobs are in frames.
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
	// Blobs that are prefetched while no stream reads are stored in the spill at once.
	if n, prefetched := far.asked.Load(), e.Stats().ReadReasons["ahead"]; n < images-prefetched {
		t.Errorf("the spill asked for %d frames of %d, of which %d were read ahead", n, images, prefetched)
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
		// Another goroutine prefetches for the running job, too.
		until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images })
		far.reads.Store(0)
		if p := warm(t, e, shuffled("ds", 2, 0)); p.There != images || p.Stored != 0 {
			t.Errorf("%+v", p)
		}
		req := shuffled("ds", 1, 0)
		drain(t, e, open(t, e, req), ticket(req, 0))
		if n, again := far.reads.Load(), e.Stats().Retries; n > again {
			t.Errorf("%d reads of what was there, %d attempts again", n, again)
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
