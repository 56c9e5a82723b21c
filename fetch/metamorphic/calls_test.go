package metamorphic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/schema"
)

// job is a job that an operation opens.
type job struct {
	ready  chan struct{} // closed when what follows is set
	job    *fetch.Job    // nil if it was not opened
	rows   []sample      // of the snapshot
	picks  []int64       // the positions selected
	listed []int64       // of its selection, nil if it has none
	// shaky says that the snapshot was dropped before the job was open: its blobs
	// may have been collected by then.
	shaky bool

	mu    sync.Mutex
	users int
	done  bool // to be closed by the last user
}

// saved is a selection that an operation saves.
type saved struct {
	ready     chan struct{}
	name      string
	dataset   string
	positions []int64
}

func (w *world) job(id int) *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.jobs[id]
}

// rows lists the samples of a snapshot that was committed, as its source says.
func (w *world) rows(snap *schema.Snapshot) []sample {
	var id int
	if _, err := fmt.Sscanf(snap.Source, "operation %d", &id); err != nil {
		panic(err)
	}
	w.mu.Lock()
	o := w.imports[id]
	w.mu.Unlock()
	list := imported(o.Gen, o.Rows)
	if o.Mode == "append" && snap.Parent != 0 {
		list = append(w.rows(w.store.find(snap.Dataset, snap.Parent).snap), list...)
	}
	return list
}

// find returns what became of a snapshot, nil if it was never committed.
func (m *ram) find(dataset string, number int64) *history {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.log[name(dataset, number)]; h != nil {
		c := *h
		return &c
	}
	return nil
}

// missed says whether there may have been a moment since then at which a
// snapshot, or with number 0 the newest, was not to be found.
func (m *ram) missed(dataset string, number, since int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	there := false
	for _, h := range m.log {
		if h.snap.Dataset != dataset || number != 0 && h.snap.Number != number {
			continue
		}
		if h.dropped > since {
			return true
		}
		there = there || h.committed < since && h.dropped == 0
	}
	return !there
}

// gone notes that a drop of snapshots of a dataset was answered.
func (m *ram) gone(dataset string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock++
	for _, h := range m.log {
		if h.snap.Dataset == dataset && h.dropped != 0 && h.gone == 0 {
			h.gone = m.clock
		}
	}
}

var logical = func() *arrow.Schema {
	s, err := schema.NewSchema(
		[]arrow.Field{{Name: "label", Type: arrow.PrimitiveTypes.Int64},
			{Name: "name", Type: arrow.BinaryTypes.String}},
		[]arrow.Field{schema.BlobField("image", "image", true)})
	if err != nil {
		panic(err)
	}
	return s
}()

// doImport imports a generation of samples.
func (w *world) doImport(o op) {
	mode, err := ingest.ParseMode(o.Mode)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.imports[o.ID] = o
	w.mu.Unlock()
	w.call(o, false, func(ctx context.Context, since span) {
		snap, changed, err := w.ingest(ctx, o, mode)
		w.note("%s: %s", o, plain(err))
		switch {
		case err == nil:
			h := w.store.find(o.Dataset, snap.Number)
			if changed && (h == nil || h.snap.Source != snap.Source) {
				w.fail("%s: snapshot %d is not what was committed", o, snap.Number)
			}
			if got, want := w.rows(snap), imported(o.Gen, o.Rows); mode != ingest.Append && !slices.Equal(got, want) ||
				!slices.Equal(got[max(0, len(got)-len(want)):], want) {
				w.fail("%s: snapshot %d has other rows", o, snap.Number)
			}
		case w.excused(err, since):
		case mode == ingest.Create && errors.Is(err, schema.ErrExists):
		case errors.Is(err, schema.ErrConflict):
		case mode == ingest.Append && errors.Is(err, schema.ErrNotFound): // there is none to append to, or it went
		case mode == ingest.Append && errors.Is(err, schema.ErrInvalid): // of the same generation
		case mode == ingest.Replace && o.Rows == 0 && errors.Is(err, schema.ErrInvalid):
		default:
			w.fail("%s: %w", o, err)
		}
	})
}

func (w *world) ingest(ctx context.Context, o op, mode ingest.Mode) (*schema.Snapshot, bool, error) {
	writer, err := ingest.New(ctx, w.store, ingest.Options{Dataset: o.Dataset,
		Source: fmt.Sprintf("operation %d", o.ID), Schema: logical, Mode: mode, Workers: 2})
	if err != nil {
		return nil, false, err
	}
	defer writer.Close()
	for _, split := range []string{"train", "val"} {
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(logical), nil))
		var ids []schema.ID
		var images [][]byte
		for _, s := range imported(o.Gen, o.Rows) {
			if s.val != (split == "val") {
				continue
			}
			ids = append(ids, s.id())
			images = append(images, s.image(w.scale))
			b.Field(0).(*array.Int64Builder).Append(s.label())
			b.Field(1).(*array.StringBuilder).Append(s.name())
		}
		rec := b.NewRecord()
		err := writer.Write(ctx, split, ids, rec, [][][]byte{images})
		rec.Release()
		b.Release()
		if err != nil {
			return nil, false, err
		}
	}
	return writer.Commit(ctx)
}

// open opens a job, and compares it with what the model says of it.
func (w *world) open(o op) {
	j := &job{ready: make(chan struct{})}
	w.mu.Lock()
	w.jobs[o.ID] = j
	from := w.saves[o.On]
	w.mu.Unlock()
	w.call(o, false, func(ctx context.Context, since span) {
		defer close(j.ready)
		r := *o.Request
		if o.On != 0 && from != nil {
			if <-from.ready; from.name != "" {
				r.Selection = &schema.SelectionRef{Name: from.name}
			}
		}
		w.opened(o, j, r, from, since, func() (*fetch.Job, error) { return w.engine.Open(ctx, r) })
	})
}

// opened takes what came of opening a job.
func (w *world) opened(o op, j *job, r schema.Request, from *saved, since span, open func() (*fetch.Job, error)) {
	got, err := open()
	w.note("%s: %s", o, plain(err))
	switch {
	case err == nil:
	case w.excused(err, since):
		return
	case errors.Is(err, schema.ErrNotFound) && (w.store.missed(r.Dataset, r.Snapshot, since.event) ||
		r.Split == "none" || r.Selection != nil):
		return
	case errors.Is(err, schema.ErrNotFound) && r.Split != "" && w.small(r.Dataset): // with no row in that split
		return
	case errors.Is(err, schema.ErrInvalid) && r.Selection != nil: // of another snapshot
		return
	default:
		w.fail("%s: %w", o, err)
		return
	}
	number := got.Request().Snapshot
	h := w.store.find(r.Dataset, number)
	switch {
	case h == nil || r.Snapshot != 0 && number != r.Snapshot:
		w.fail("%s: opened snapshot %d", o, number)
	case h.gone != 0 && h.gone < since.event:
		w.fail("%s: opened snapshot %d, which was dropped", o, number)
	default:
		j.job, j.rows, j.shaky = got, w.rows(h.snap), h.dropped != 0
		if r.Selection != nil {
			j.listed = from.positions
		}
		j.picks = selected(j.rows, r, j.listed)
		if err := j.compare(); err != nil {
			w.fail("%s: %w", o, err)
		}
		return
	}
	got.Close()
}

// small says whether some snapshot of a dataset has too few rows for two splits.
func (w *world) small(dataset string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.imports {
		if o.Dataset == dataset && o.Rows < 2 {
			return true
		}
	}
	return false
}

// compare compares a job's order with the model's.
func (j *job) compare() error {
	got := j.job.Plan()
	want, err := planFor(len(j.rows), j.picks, j.job.Request(), j.job.EpochNumber())
	if err != nil {
		return err
	}
	if got.Rows() != want.Rows() || got.Steps() != want.Steps() {
		return fmt.Errorf("%d rows in %d steps, want %d in %d", got.Rows(), got.Steps(), want.Rows(), want.Steps())
	}
	for i := range want.Rows() {
		if got.Position(i) != want.Position(i) {
			return fmt.Errorf("position %d at %d, want %d", got.Position(i), i, want.Position(i))
		}
	}
	return nil
}

// total adds up the bytes of a job.
func (w *world) total(o op) {
	j := w.job(o.On)
	if j == nil {
		return
	}
	w.call(o, false, func(ctx context.Context, since span) {
		if !j.use() {
			return
		}
		defer j.leave()
		got, err := w.engine.TotalBytes(ctx, j.job)
		w.note("%s: %d, %s", o, got, plain(err))
		if err != nil {
			if !w.excused(err, since) {
				w.fail("%s: %w", o, err)
			}
			return
		}
		var want int64
		p := j.job.Plan()
		for i := range p.Rows() {
			want += w.bytes(j, p.Position(i))
		}
		if got != want {
			w.fail("%s: %d bytes, want %d", o, got, want)
		}
	})
}

// bytes is how many bytes a row has in the columns that a job shows.
func (w *world) bytes(j *job, pos int64) (n int64) {
	s := j.rows[pos]
	for _, f := range j.job.Projection().Schema.Fields() {
		switch f.Name {
		case "id":
			n += 16
		case "label", "position":
			n += 8
		case "name":
			n += int64(len(s.name()))
		case "image":
			n += int64(len(s.image(w.scale)))
		}
	}
	return n
}

// save saves a selection of the newest snapshot.
func (w *world) save(o op) {
	s := &saved{ready: make(chan struct{}), dataset: o.Dataset, positions: []int64{}}
	w.mu.Lock()
	w.saves[o.ID] = s
	w.mu.Unlock()
	rng := rand.New(rand.NewPCG(o.Draw, 1))
	for pos := range int64(o.N) {
		if rng.IntN(3) > 0 {
			s.positions = append(s.positions, pos)
		}
	}
	w.call(o, false, func(ctx context.Context, since span) {
		defer close(s.ready)
		name, err := w.engine.SaveSelection(ctx, o.Dataset, 0, s.positions)
		w.note("%s: %s", o, plain(err))
		switch {
		case err == nil:
			s.name = name
		case w.excused(err, since):
		case errors.Is(err, schema.ErrNotFound) && w.store.missed(o.Dataset, 0, since.event):
		case errors.Is(err, schema.ErrInvalid): // more positions than rows, or none
		default:
			w.fail("%s: %w", o, err)
		}
	})
}

// warm fills the spill.
func (w *world) warm(o op) {
	j := w.job(o.On)
	if j == nil {
		return
	}
	w.call(o, false, func(ctx context.Context, since span) {
		if !j.use() {
			return
		}
		defer j.leave()
		err := w.engine.Warm(ctx, j.job, nil)
		w.note("%s: %s", o, plain(err))
		if errors.Is(err, schema.ErrInvalid) != (w.cache == nil) || err != nil && w.cache != nil &&
			!w.excused(err, since) {
			w.fail("%s: %w", o, err)
		}
	})
}

// use waits until the job is open and keeps it so until it is left; false if
// there is nothing to use.
func (j *job) use() bool {
	<-j.ready
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.job == nil || j.done {
		return false
	}
	j.users++
	return true
}

func (j *job) leave() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.users--; j.users == 0 && j.done {
		j.job.Close()
	}
}

// close closes the job when it has no users.
func (j *job) close() {
	if !j.use() {
		return
	}
	j.mu.Lock()
	j.done = true
	j.mu.Unlock()
	j.leave()
}
