package upcoming

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/admission"
	"bowstring/fetch/ingest"
	"bowstring/fetch/manifest"
	"bowstring/fetch/read"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/internal/leaktest"
	"bowstring/schema"
	"bowstring/spill"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// rows is how many samples a fixture's dataset has, each with a blob.
const rows = 40

// fixture is a Jobs over a dataset of its own. It is not started, so only the test prefetches.
type fixture struct {
	*Jobs
	all   *resolve.Resolver
	cache *spill.Cache
	busy  atomic.Bool // streams have reads to start
}

// Idle implements Streams, as do the next two.
func (f *fixture) Idle() bool { return !f.busy.Load() }

// Reading implements Streams: no stream reads.
func (*fixture) Reading() int { return 0 }

// Demand implements Streams: no stream has requested anything.
func (*fixture) Demand() spill.Demand { return spill.Demand{} }

func newFixture(t *testing.T) *fixture {
	t.Helper()
	quiet, future := slog.New(slog.DiscardHandler), &spill.Future{}
	s, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	put(t, s)
	f := &fixture{}
	if f.cache, err = spill.Open(spill.Options{Dir: filepath.Join(t.TempDir(), "spill"), Bytes: spill.MinBytes + 8<<20,
		KeepFree: 1, Oracle: future, Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	reader, err := read.New([]read.Tier{read.Spill(f.cache), read.Store(s)}, read.Options{NoHedge: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var limits admission.Limits
	limits.EnsureDefaults()
	get := func(ctx context.Context, ref schema.BlobRef, _ manifest.Place) (schema.Blob, error) {
		return s.Get(ctx, ref)
	}
	f.all = resolve.New(s, get, admission.NewLedger(limits), admission.NewWork(1), resolve.Options{Logger: quiet})
	if f.Jobs, err = New(Options{Cache: f.cache, Future: future, Reader: reader}); err != nil {
		t.Fatal(err)
	}
	f.streams = f
	t.Cleanup(func() {
		f.Stop()
		f.Close()
		if n := future.Len(); n != 0 {
			t.Errorf("%d jobs are still registered", n)
		}
		reader.Close()
		f.all.Close()
		for name, err := range map[string]error{"spill": f.cache.Close(), "store": s.Close()} {
			if err != nil {
				t.Errorf("closing the %s: %v", name, err)
			}
		}
	})
	return f
}

// put commits the rows.
func put(t *testing.T, s store.Store) {
	t.Helper()
	sch, err := schema.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}},
		[]arrow.Field{schema.BlobField("image", schema.MediaImage, false)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := ingest.New(t.Context(), s, ingest.Options{Dataset: "d", Source: "test", Schema: sch, Mode: ingest.Replace})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(sch), nil))
	defer b.Release()
	ids, images := make([]schema.ID, rows), make([][]byte, rows)
	for i := range rows {
		ids[i], images[i] = schema.SampleID("d", fmt.Sprint(i)), []byte(fmt.Sprint("image ", i))
		b.Field(0).(*array.Int64Builder).Append(int64(i))
	}
	rec := b.NewRecord()
	defer rec.Release()
	if err := w.Write(t.Context(), "", ids, rec, [][][]byte{images}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// open resolves a request of an epoch in the order of a seed, for a world of that size.
func (f *fixture) open(t *testing.T, seed, epoch uint64, world int64) *resolve.Job {
	t.Helper()
	j, err := f.all.Open(t.Context(), schema.Request{Dataset: "d", Batch: 4,
		Shuffle: &schema.Shuffle{Seed: seed, Epoch: epoch}, World: &schema.World{Size: world}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	return j
}

// requireJobs fails unless the running jobs have the given numbers of streams.
func (f *fixture) requireJobs(t *testing.T, streams ...int) {
	t.Helper()
	var got []int
	for _, j := range f.Stats(0) {
		got = append(got, j.Streams)
	}
	if fmt.Sprint(got) != fmt.Sprint(streams) {
		t.Fatalf("the running jobs have %v streams, want %v", got, streams)
	}
}

// Streams of one plan belong to one job, whatever their ranks and epochs. Streams of another seed do not.
func TestStreamsOfOnePlanAreOneJob(t *testing.T) {
	f := newFixture(t)
	first := f.Follow(f.open(t, 1, 0, 2), 0, 0, 0, 2)
	second := f.Follow(f.open(t, 1, 0, 2), 0, 1, 0, 2)
	f.requireJobs(t, 2)
	other := f.Follow(f.open(t, 2, 0, 2), 0, 0, 0, 1)
	if n := len(f.Stats(0)); n != 2 {
		t.Fatalf("%d jobs run, want 2", n)
	}
	other.Advance(0, rows)
	other.Leave()
	f.requireJobs(t, 2) // its last epoch was read
	first.Advance(0, rows)
	first.Leave()
	next := f.Follow(f.open(t, 1, 1, 2), 0, 0, 0, 1)
	f.requireJobs(t, 2)
	next.Leave()
	second.Leave()
	f.requireJobs(t, 0) // it stays registered: an epoch of it is left
}

// Without a spill a stream belongs to no job, and its reports are dropped.
func TestNoJob(t *testing.T) {
	var none *Jobs
	p := none.Follow(newFixture(t).open(t, 1, 0, 1), 0, 0, 0, 1)
	if p != nil {
		t.Fatalf("a stream without a spill belongs to %+v", p)
	}
	p.Advance(0, 1)
	p.Count(1, read.FromStore)
	p.Leave()
}

// find returns a filler that has looked up which rows the one job uses next.
func (f *fixture) find(t *testing.T) *filler {
	fill := f.newFiller()
	t.Cleanup(fill.close)
	fill.nextFill()
	<-fill.wake // the rows fit a block
	return fill
}

// The scan finds the blobs that the job uses next, in the order of its plan, and continues with its next epoch.
func TestFillOrder(t *testing.T) {
	const begin = 7
	f := newFixture(t)
	j := f.open(t, 3, 0, 1)
	part := f.Follow(j, 0, 0, begin, 2)
	defer part.Leave()
	fill := f.find(t)
	for i := range int64(rows) {
		c, _ := fill.nextFill()
		if c == nil {
			t.Fatalf("nothing is looked for after %d rows", i)
		}
		epoch, index := (begin+i)/rows, (begin+i)%rows
		if want := j.PlanOf(epoch).Position(index); c.at.Position != want {
			t.Fatalf("sample %d is looked for at index %d of epoch %d, want %d", c.at.Position, index, epoch, want)
		}
		c.from.column++ // it is begun
	}
	if c, more := fill.nextFill(); c != nil || more {
		t.Errorf("%+v is looked for, which is used more than an epoch later", c)
	}
}

// While streams use the path to the store no blob is read, and the filler is woken when they do not.
func TestFillWaitsForStreams(t *testing.T) {
	f := newFixture(t)
	part := f.Follow(f.open(t, 3, 0, 1), 0, 0, 0, 1)
	defer part.Leave()
	fill := f.find(t)
	c, _ := fill.nextFill()
	f.busy.Store(true)
	if v := fill.try(c); v != read.NoRoom {
		t.Fatalf("a fill while streams wait returned %d, want NoRoom", v)
	}
	f.Wake()
	select {
	case <-fill.wake:
		t.Fatal("the filler is woken though streams wait")
	default:
	}
	f.busy.Store(false)
	f.Wake()
	select {
	case <-fill.wake:
	default:
		t.Fatal("the filler is not woken though no stream waits")
	}
	if v := fill.try(c); v != read.Begun {
		t.Fatalf("a fill returned %d, want Begun", v)
	}
	if !fill.keep(<-fill.results) || !f.Holds(c.ref) {
		t.Error("the blob that was read is not in the spill")
	}
}

// After a Warm the spill has every blob of the job, and another Warm reads nothing.
func TestWarm(t *testing.T) {
	f := newFixture(t)
	j := f.open(t, 5, 0, 2)
	warm := func() (last WarmProgress) {
		t.Helper()
		if err := f.Warm(t.Context(), j, "", func(p WarmProgress) { last = p }); err != nil {
			t.Fatal(err)
		}
		if last.Seen != rows || last.Failed != 0 || last.Full || !last.Done {
			t.Errorf("warming ended at %+v", last)
		}
		return last
	}
	if p := warm(); p.Stored != rows || p.There != 0 {
		t.Errorf("%d blobs were stored and %d were there, want %d and 0", p.Stored, p.There, rows)
	}
	all, err := j.Manifest().At(t.Context(), []int64{0, rows / 2, rows - 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range all {
		if ref, _ := row.Blob(0); !f.Holds(ref) {
			t.Errorf("a blob of sample %s is not in the spill", row.ID())
		}
	}
	if p := warm(); p.Stored != 0 || p.There != rows {
		t.Errorf("%d blobs were stored and %d were there, want 0 and %d", p.Stored, p.There, rows)
	}
	f.requireJobs(t, 0) // it is expected to begin
	part := f.Follow(j, 0, 1, 0, 1)
	defer part.Leave()
	f.requireJobs(t, 1)
	if c, _ := f.find(t).nextFill(); c != nil {
		t.Errorf("%+v is looked for, which is there", c)
	}
}
