package spans_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"bowstring/fetch/read"
	"bowstring/fetch/spans"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// fixture is a tier over an object set of consecutive blobs, at positions in their order.
type fixture struct {
	*spans.Tier
	store *lying
	t     testing.TB
	refs  []schema.BlobRef
	data  [][]byte
	cache *spill.Cache
}

// newFixture makes objects with each blobs of n bytes, and gaps between them.
func newFixture(t testing.TB, objects, each, n, gap int, opts spans.Options) *fixture {
	t.Helper()
	f := &fixture{store: newLying(), t: t, cache: opts.Cache}
	for o := range objects {
		for range each {
			data := content(len(f.refs), n)
			f.data = append(f.data, data)
			f.refs = append(f.refs, f.store.put(fmt.Sprintf("object-%04d", o), gap, data))
		}
	}
	opts.Store, opts.Set = f.store, allIn
	if opts.Cache != nil {
		opts.Neighbours = f.neighbour
		opts.Bytes = func(uint32) int64 { return int64(objects * each * n) }
	}
	var err error
	if f.Tier, err = spans.New(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// neighbour lists neighbouring positions.
func (f *fixture) neighbour(at spill.Place, after bool) iter.Seq2[schema.BlobRef, spill.Place] {
	return func(yield func(schema.BlobRef, spill.Place) bool) {
		step := int64(1)
		if !after {
			step = -1
		}
		for pos := at.Position; pos >= 0 && pos < int64(len(f.refs)); pos += step {
			if !yield(f.refs[pos], spill.Place{Dataset: at.Dataset, Position: pos}) {
				return
			}
		}
	}
}

// cells returns cells for positions.
func (f *fixture) cells(ctx context.Context, positions ...int) []read.Cell {
	var list []read.Cell
	for _, pos := range positions {
		c := read.Cell{Context: ctx, Ref: f.refs[pos], At: spill.Place{Position: int64(pos)}, Use: 1 << 20}
		if f.cache != nil {
			c.At.Dataset = 1
		}
		list = append(list, c)
	}
	return list
}

// get fetches positions, checks the bytes and returns the blobs.
func (f *fixture) get(positions ...int) []schema.Blob {
	f.t.Helper()
	got := newTaken(f.t)
	f.Fetch(f.cells(f.t.Context(), positions...), got)
	blobs := make([]schema.Blob, len(positions))
	for i, pos := range positions {
		a, ok := got.list[i]
		if !ok || a.Err != nil {
			f.t.Fatalf("position %d: answered %t, %v", pos, ok, a.Err)
		}
		if !bytes.Equal(a.Blob.Bytes(), f.data[pos]) {
			f.t.Fatalf("position %d has other bytes", pos)
		}
		blobs[i] = a.Blob
	}
	return blobs
}

func (f *fixture) read(positions ...int) {
	f.t.Helper()
	for _, b := range f.get(positions...) {
		b.Release()
	}
}

// requireAsked fails unless want requests were made since its last call.
func (f *fixture) requireAsked(want int) []stretch {
	f.t.Helper()
	asked := f.store.bucket.asked()
	if len(asked) != want {
		f.t.Fatalf("%d requests were made, want %d: %v", len(asked), want, asked)
	}
	return asked
}

func (f *fixture) requireNothingHeld() {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); f.Stats().Memory != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) { // the spill writes what it was offered before it releases it
			f.t.Fatalf("%d bytes of spans are held", f.Stats().Memory)
		}
	}
}

// Near cells of one object take one request, distant ones several, and a lone cell is read alone.
func TestNearCellsTogether(t *testing.T) {
	f := newFixture(t, 2, 64, 100<<10, 512, spans.Options{})
	blobs := f.get(0, 1, 2, 5, 40, 41, 64)
	asked := f.requireAsked(3)
	slices.SortFunc(asked, func(a, b stretch) int { return int(a.begin - b.begin) })
	for i := range blobs {
		if !bytes.Equal(blobs[i].Bytes(), f.data[[]int{0, 1, 2, 5, 40, 41, 64}[i]]) {
			t.Errorf("blob %d changes while it is held", i)
		}
		blobs[i].Release()
	}
	f.requireNothingHeld()
}

// Blobs cut out of a span share its bytes.
func TestCutWithoutCopies(t *testing.T) {
	f := newFixture(t, 1, 64, 100<<10, 0, spans.Options{})
	blobs := f.get(0, 1, 2, 3)
	f.requireAsked(1)
	for i := range 3 {
		a, b := blobs[i].Bytes(), blobs[i+1].Bytes()
		if &a[:len(a)+0][len(a)-1] == &b[0] || cap(a) != len(a) {
			t.Error("a blob reaches into the next one")
		}
	}
	if n := f.Stats().Memory; n != 4*100<<10 {
		t.Errorf("%d bytes are held, want those of the span", n)
	}
	for i := range blobs {
		blobs[i].Release()
	}
	f.requireNothingHeld()
}

// A run through all objects in order, a few cells at a time, takes about one request for each 8 to 16 MiB, and one
// more for each object whose length the store does not report.
func TestRunsInOrder(t *testing.T) {
	for _, unsized := range []bool{false, true} {
		for _, at := range []int{1, 7, 64} {
			t.Run(fmt.Sprintf("%d, unsized %t", at, unsized), func(t *testing.T) { runInOrder(t, at, unsized) })
		}
	}
}

func runInOrder(t *testing.T, at int, unsized bool) {
	f := newFixture(t, 3, 400, 100<<10, 700, spans.Options{})
	f.store.unsized = unsized
	for from := 0; from < len(f.refs); from += at {
		var some []int
		for pos := from; pos < min(from+at, len(f.refs)); pos++ {
			some = append(some, pos)
		}
		f.read(some...)
	}
	var bytes int64
	asked := f.store.bucket.asked()
	for _, a := range asked {
		bytes += a.end - a.begin
	}
	all := int64(len(f.refs)) * (100<<10 + 700)
	t.Logf("%d requests of %d KiB in the mean", len(asked), bytes/int64(len(asked))>>10)
	if most := int(all/(8<<20)) + 9; len(asked) > most {
		t.Errorf("%d requests, want %d at most", len(asked), most)
	}
	if bytes > all+all/50 {
		t.Errorf("%d bytes were read for %d", bytes, all)
	}
	f.store.bucket.mu.Lock()
	stats := f.store.bucket.stats
	f.store.bucket.mu.Unlock()
	if want := 3; !unsized && stats != 0 || unsized && stats != want {
		t.Errorf("it was asked %d times how long an object is", stats)
	}
	f.Close()
	f.requireNothingHeld()
}

// Streams request cells of a run from several goroutines, so a cell may come after later ones. A span is kept for it:
// bytes are not read again.
func TestRunsNearlyInOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, late := range []int{2, 20, 80, 320} { // cells; the last are two spans
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(late)))
			f := newFixture(t, 3, 400, 25<<10, 175, spans.Options{Memory: 32 << 20})
			turn, order := make([]int, len(f.refs)), make([]int, len(f.refs))
			for i := range order {
				order[i], turn[i] = i, i+rng.IntN(late)
			}
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(turn[a], turn[b]) })
			for _, pos := range order {
				f.read(pos)
			}
			var bytes int64
			asked := f.store.bucket.asked()
			for _, a := range asked {
				bytes += a.end - a.begin
			}
			all := int64(len(f.refs)) * (25<<10 + 175)
			t.Logf("%d requests for %d bytes of %d", len(asked), bytes, all)
			if bytes > all*11/10 {
				t.Errorf("%d bytes were read for %d", bytes, all)
			}
			f.Close()
			f.requireNothingHeld()
		})
	}
}

// Bytes read in vain to save a request cost no more than the request, by the prices of the bucket: within a region
// that is a chunk, over the internet some KiB.
func TestPricesSayHowFar(t *testing.T) {
	within := func(string) (request, each float64, ok bool) { return 0.4e-6, 0, true }
	far := func(bucket string) (request, each float64, ok bool) {
		if bucket != "s3://bucket" {
			t.Errorf("it is asked for the price of %s", bucket)
		}
		return 0.4e-6, 0.09 / (1 << 30), true
	}
	unknown := func(string) (request, each float64, ok bool) { return 7, 7, false }
	for _, c := range []struct {
		name  string
		price func(string) (request, each float64, ok bool)
		asked int // for some blobs with gaps between them
	}{{"none", nil, 1}, {"within the region", within, 1}, {"unknown", unknown, 1}, {"over the internet", far, 3}} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, 1, 64, 100<<10, 0, spans.Options{Price: c.price})
			f.read(0, 1, 4, 5, 9)
			f.requireAsked(c.asked)
			cache, _ := openCache(t, 64<<20)
			f = newFixture(t, 1, 64, 100<<10, 0, spans.Options{Cache: cache, Price: c.price})
			f.read(20)
			var bytes int64
			for _, a := range f.store.bucket.asked() {
				bytes += a.end - a.begin
			}
			if bytes != 64*100<<10 {
				t.Errorf("%d bytes were read of what is all to be kept", bytes)
			}
		})
	}
	costs := spans.Costs{}
	if gap := costs.Gap(); gap != spans.MaxSpan {
		t.Errorf("within a region %d bytes are read in vain", gap)
	}
	costs = costs.At(0.4e-6, 0.09/(1<<30))
	if gap := costs.Gap(); gap < 4000 || gap > 6000 {
		t.Errorf("over the internet %d bytes are read in vain", gap)
	}
	costs = costs.At(0, 0)
	if gap := costs.Gap(); gap != 120_000 { // 60 µs of CPU time, at 500 ms for 10^9 bytes
		t.Errorf("where nothing is paid %d bytes are read in vain", gap)
	}
}

// Cells of a span in flight wait for it, from any Fetch. Cancelling one cell does not end the span for the others;
// cancelling the last one does.
func TestJoin(t *testing.T) {
	f := newFixture(t, 1, 64, 100<<10, 0, spans.Options{})
	release := f.store.bucket.hang()
	var running sync.WaitGroup
	first, cancelFirst := context.WithCancel(t.Context())
	one, two := newTaken(t), newTaken(t)
	running.Go(func() { f.Fetch(f.cells(first, 0, 1, 2, 3), one) })
	for f.store.bucket.reading.Load() == 0 {
		runtime.Gosched()
	}
	running.Go(func() { f.Fetch(f.cells(t.Context(), 1, 2), two) })
	for f.Stats().Joined < 5 {
		runtime.Gosched()
	}
	cancelFirst()
	release()
	running.Wait()
	f.requireAsked(1)
	for i := range 2 {
		a := two.list[i]
		if a.Err != nil || !bytes.Equal(a.Blob.Bytes(), f.data[1+i]) || !a.Joined {
			t.Errorf("a cell that joined: %v, joined %t", a.Err, a.Joined)
		}
		a.Blob.Release()
	}
	for i := range 4 {
		a := one.list[i]
		if a.Joined {
			t.Errorf("cell %d of the Fetch that began the span counts as one that joined", i)
		}
		a.Blob.Release()
	}
	f.requireNothingHeld()

	release = f.store.bucket.hang()
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { f.Fetch(f.cells(ctx, 10, 11), newTaken(t)) })
	for f.store.bucket.reading.Load() == 0 {
		runtime.Gosched()
	}
	cancel()
	running.Wait() // the request ends, because no cell waits for it
	release()
	f.requireNothingHeld()
}

// A cell is answered when its own bytes have arrived, before the rest of its span. A cell that comes later also uses
// what has arrived. Cells whose bytes do not arrive get the error, and blobs handed out before stay unchanged.
func TestAnsweredAsBytesCome(t *testing.T) {
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprint(broken), func(t *testing.T) {
			f := newFixture(t, 1, 64, 100<<10, 0, spans.Options{})
			got, late := newTaken(t), newTaken(t)
			f.store.bucket.half = func() error {
				f.store.bucket.mu.Lock()
				f.store.bucket.half = nil
				f.store.bucket.mu.Unlock()
				if n := got.len(); n != 5 {
					t.Errorf("%d cells are answered of 10 when half of their bytes are there", n)
				}
				f.Fetch(f.cells(t.Context(), 2), late)
				if broken {
					return fmt.Errorf("%w: reset", schema.ErrUnavailable)
				}
				return nil
			}
			f.Fetch(f.cells(t.Context(), 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), got)
			f.requireAsked(1)
			for i := range 10 {
				a := got.list[i]
				if broken && i < 5 {
					if !errors.Is(a.Err, schema.ErrUnavailable) {
						t.Errorf("a cell whose bytes have not come: %v", a.Err)
					}
					continue
				}
				if a.Err != nil || !bytes.Equal(a.Blob.Bytes(), f.data[9-i]) {
					t.Errorf("cell %d: %v", i, a.Err)
				}
				a.Blob.Release()
			}
			if a := late.list[0]; a.Err != nil || !bytes.Equal(a.Blob.Bytes(), f.data[2]) {
				t.Errorf("a cell that came when its bytes were there: %v", a.Err)
			} else {
				a.Blob.Release()
			}
			f.requireNothingHeld()
		})
	}
}

// Each cell of a span gets the span's error, and another attempt reads again.
func TestFailures(t *testing.T) {
	f := newFixture(t, 1, 64, 100<<10, 0, spans.Options{})
	f.store.bucket.fail = func(string, int64, int64) error { return fmt.Errorf("%w: reset", schema.ErrUnavailable) }
	got := newTaken(t)
	f.Fetch(f.cells(t.Context(), 0, 1, 2), got)
	for i := range 3 {
		if err := got.list[i].Err; !errors.Is(err, schema.ErrUnavailable) {
			t.Errorf("cell %d has the error %v", i, err)
		}
	}
	f.requireNothingHeld()
	f.store.bucket.fail = nil
	f.requireAsked(1)
	cells := f.cells(store.WithAttempt(t.Context(), 1), 0, 1)
	got = newTaken(t)
	f.Fetch(cells, got)
	f.requireAsked(1)
	for i := range 2 {
		a := got.list[i]
		if a.Err != nil {
			t.Error(a.Err)
		}
		a.Blob.Release()
	}
}

// openCache opens a spill with bytes of room, and a job with rows.
func openCache(t testing.TB, bytes int64) (*spill.Cache, *spill.Future) {
	t.Helper()
	future := &spill.Future{}
	c, err := spill.Open(spill.Options{Dir: filepath.Join(t.TempDir(), "spill"), Bytes: spill.MinBytes + bytes,
		KeepFree: 1, Oracle: future})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if n := c.Dataset("d@1"); n != 1 {
		t.Fatalf("the first dataset has number %d", n)
	}
	return c, future
}

// shuffled is the order of a job.
type shuffled struct{ at, index []int64 }

func newShuffled(rng *rand.Rand, n int) *shuffled {
	o := &shuffled{make([]int64, n), make([]int64, n)}
	for i, p := range rng.Perm(n) {
		o.at[i], o.index[p] = int64(p), int64(i)
	}
	return o
}

// Rows implements spill.Order.
func (o *shuffled) Rows() int64 { return int64(len(o.at)) }

// Index implements spill.Order.
func (o *shuffled) Index(_, position int64) (int64, bool) { return o.index[position], true }

// With a spill for all blobs, a shuffled epoch takes one request per chunk and reads each byte once. The spill has
// the rest, with the right bytes.
func TestShuffledOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	cache, future := openCache(t, 256<<20)
	f := newFixture(t, 3, 330, 100<<10, 600, spans.Options{Cache: cache, Future: future})
	order := newShuffled(rng, len(f.refs))
	job, err := future.Add(spill.JobOptions{Dataset: 1, Order: order, Epochs: 2}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer future.Remove(job)
	misses := 0
	for i, pos := range order.at {
		ref := f.refs[pos]
		if b, ok := cache.Get(ref, spill.Place{Dataset: 1, Position: pos}); ok {
			if !bytes.Equal(b.Bytes(), f.data[pos]) {
				t.Fatalf("the spill has other bytes at position %d", pos)
			}
			b.Release()
			continue
		}
		misses++
		f.read(int(pos))
		job.Advance(0, int64(i), spill.Time(i)*1e6)
	}
	asked := f.store.bucket.asked()
	var bytes int64
	for _, a := range asked {
		bytes += a.end - a.begin
	}
	all := int64(len(f.refs)) * (100<<10 + 600)
	t.Logf("%d requests of %d bytes for %d", len(asked), bytes, all)
	if most := int(float64(all) / (8 << 20) * 1.05); len(asked) > most {
		t.Errorf("%d requests, want %d at most", len(asked), most)
	}
	if bytes > all*21/20 {
		t.Errorf("%d bytes were read of %d", bytes, all)
	}
	f.requireNothingHeld()
}

// At most one in twenty chunks' worth of a job's cells is read alone, also if the store does not report the length of
// objects. No range beyond an object's end is requested.
func TestFirstReadsAreFew(t *testing.T) {
	for _, unsized := range []bool{false, true} {
		t.Run(fmt.Sprintf("unsized %t", unsized), func(t *testing.T) {
			cache, _ := openCache(t, 256<<20)
			f := newFixture(t, 2, 200, 100<<10, 0, spans.Options{Cache: cache, Memory: 4 << 20})
			f.store.unsized = unsized
			chunks := int64(len(f.refs)*100<<10) / (512 << 10)
			for pos := range f.refs {
				cells := f.cells(t.Context(), pos)
				cells[0].Use = 0
				got := newTaken(t)
				f.Fetch(cells, got)
				if a := got.list[0]; a.Err != nil || !bytes.Equal(a.Blob.Bytes(), f.data[pos]) {
					t.Fatalf("position %d: %v", pos, a.Err)
				} else {
					a.Blob.Release()
				}
			}
			// In addition, a cell is read alone if the spill has all of its neighbours.
			if s := f.Stats(); s.Singles > chunks/4 {
				t.Errorf("%d cells were read alone, of %d chunks: %+v", s.Singles, chunks, s)
			}
			f.requireNothingHeld()
		})
	}
}

// A cell that has come into the spill since it was requested is not read again, unless the spill may be what is late.
func TestCameMeanwhile(t *testing.T) {
	cache, _ := openCache(t, 64<<20)
	f := newFixture(t, 1, 100, 100<<10, 0, spans.Options{Cache: cache})
	f.read(0)
	f.requireAsked(1)
	f.read(50, 51, 99)
	f.requireAsked(0)
	got := newTaken(t)
	f.Fetch(f.cells(store.WithAttempt(t.Context(), 1), 50), got)
	if a := got.list[0]; a.Err != nil || !bytes.Equal(a.Blob.Bytes(), f.data[50]) {
		t.Fatalf("another attempt: %v", a.Err)
	}
	f.requireAsked(1)
}

// With a spill for a part of the data, shuffled epochs take about as many requests as docs/spans.md derives.
func TestShuffledInPart(t *testing.T) {
	for _, part := range []float64{0.1} {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			const n, size, epochs = 4096, 8 << 10, 3
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			cache, future := openCache(t, int64(part*n*size))
			f := newFixture(t, 4, n/4, size, 0, spans.Options{Cache: cache, Future: future, Memory: 4 << 20})
			k := float64(1<<19) / size // a span is at most an eighth of the memory
			orders := epochsOf{}
			for range epochs + 2 {
				orders = append(orders, newShuffled(rng, n))
			}
			job, err := future.Add(spill.JobOptions{Dataset: 1, Order: orders, RowBytes: size}, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer future.Remove(job)
			room, took := 0.0, spill.Time(0)
			var reads [epochs]float64
			for epoch := range int64(epochs) {
				for i, pos := range orders[epoch].at {
					at := spill.Place{Dataset: 1, Position: pos}
					job.Advance(epoch, int64(i), took)
					took += 1e6
					if b, ok := cache.Get(f.refs[pos], at); ok {
						b.Release()
						continue
					}
					f.read(int(pos))
					f.requireNothingHeld()
				}
				room += float64(cache.Capacity()) / (epochs * n * size)
				reads[epoch] = float64(len(f.store.bucket.asked()))
			}
			bound := n / (1 + (k-1)*spans.Lasts(room))
			later := (reads[1] + reads[2]) / 2
			t.Logf("%v requests with room for %.3f, bound %.0f and %.0f more in the first epoch: %.3f, then %.3f", reads, room,
				bound, n/k, reads[0]/(bound+n/k), later/bound)
			if reads[0] > 1.3*(bound+n/k) || later > 1.3*bound {
				t.Error("more than were derived")
			}
		})
	}
}

// epochsOf is one order per epoch.
type epochsOf []*shuffled

// Rows implements spill.Order.
func (e epochsOf) Rows() int64 { return e[0].Rows() }

// Index implements spill.Order.
func (e epochsOf) Index(epoch, position int64) (int64, bool) {
	return e[min(epoch, int64(len(e)-1))].Index(0, position)
}
