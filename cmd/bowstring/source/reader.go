package source

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/float16"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"golang.org/x/sync/semaphore"

	"bowstring/fetch/operators/audio/codec"
	"bowstring/fetch/operators/program"
	"bowstring/schema"
)

const (
	// A batch is complete with this many bytes or rows. Its samples hold memory of the
	// budget, so that it must stay well below that.
	batchBytes = 8 << 20
	batchRows  = 8192
	// budget bounds the bytes of samples that were read and not yet released. A single
	// larger sample is allowed.
	budget = 96 << 20
	// queuedSlots bounds the number of such samples.
	queuedSlots = 4096
)

// ReadOptions configure a Reader.
type ReadOptions struct {
	Dataset string // dataset for which ids are made
	Split   string // split of samples whose source has none
	Verify  Verify // VerifyHeader if empty
	Workers int    // samples loaded and checked at once; 2 × GOMAXPROCS if 0
	Limit   int64  // samples to read at most; all if 0
	// LeaveOut are patterns of columns that are not added to those of the source, as in
	// Options.
	LeaveOut []string
	// Count is a column of lists whose lengths become the column n_tokens; "" for none.
	Count string
	// InPlace says that blobs stay at their source. A sample with a blob that is nowhere
	// in one piece is then bad.
	InPlace bool
	Mem     memory.Allocator
}

// Known is a sample of the previous snapshot, whose bytes need not be read.
type Known struct {
	Refs []*schema.BlobRef // by blob column, nil for a null
	// Column returns the value of a column that a Reader adds, in a form that Sample.Meta
	// allows.
	Column func(name string) any
}

// Reader reads the samples of a Source in order, with several workers.
//
// It adds columns unless the source has them, or is an export, which has all columns of
// its dataset:
//
//   - width, height, format and orientation of the image column; of several, the one
//     named image or the first
//   - duration, sampling_rate and channels of the audio column
//
// It holds at most 96 MiB of samples, or one larger sample.
type Reader struct {
	src    Source
	opts   ReadOptions
	schema *arrow.Schema
	meta   []arrow.Field // columns of src, then the added ones
	blobs  []arrow.Field
	// The columns of the batches, and the index in meta and blobs of each; -1 for a
	// column that the source lacks.
	outMeta, outBlobs []arrow.Field
	metaAt, blobAt    []int
	image             int // blob column of width and height, or -1
	sound             int // blob column of duration, or -1
	added             []func(*slot) any
	know              func(schema.ID, []Extent) *Known // may be nil
}

// Batch is consecutive samples of one split, in the order of the source. It is valid
// until the next one is requested.
type Batch struct {
	Split string
	Keys  []string
	IDs   []schema.ID
	Meta  arrow.Record // metadata columns, in the order of the Reader's schema
	Blobs [][][]byte   // [blob column][row]; nil for a null, or if not read
	At    [][]Extent   // places of the blobs, indexed as Blobs; zero if not known
	Known []*Known     // by row, instead of blobs; nil if no row is known
	Bytes int64        // total size of the blobs
	Bad   []BadItem    // bad samples found on the way, which are not rows
}

// NewReader returns a Reader of src. The caller closes src. An error means that the
// columns of src make no valid schema.
func NewReader(src Source, opts ReadOptions) (*Reader, error) {
	if opts.Workers <= 0 {
		opts.Workers = 2 * runtime.GOMAXPROCS(0)
		if src.Files().Bucket() != nil { // most workers wait for the bucket
			opts.Workers = max(opts.Workers, atTheSameTime)
		}
	}
	if opts.Mem == nil {
		opts.Mem = memory.DefaultAllocator
	}
	if opts.Verify == "" {
		opts.Verify = VerifyHeader
	}
	r := &Reader{src: src, opts: opts, image: -1, sound: -1}
	r.meta, r.blobs = src.Fields()
	r.meta = slices.Clone(r.meta)
	// One column of each media describes the sample: added columns have one name.
	for i, f := range r.blobs {
		if schema.Media(f) == schema.MediaImage && (r.image < 0 || f.Name == schema.MediaImage) {
			r.image = i
		}
		if schema.Media(f) == schema.MediaAudio && (r.sound < 0 || f.Name == schema.MediaAudio) {
			r.sound = i
		}
	}
	// own are the columns of the source before any is added: an added column never hides
	// one of them.
	own := slices.Clone(r.meta)
	if r.image >= 0 && !src.Exact() && !src.Walked() {
		r.addImageColumns(own)
	}
	if r.sound >= 0 && !src.Exact() && !src.Walked() {
		r.addSoundColumns(own)
	}
	if !src.Exact() {
		if err := r.addTokenCount(own); err != nil {
			return nil, err
		}
	}
	var err error
	r.schema, err = schema.NewSchema(r.meta, r.blobs)
	r.outMeta, r.metaAt, _ = fieldsIn(r.meta, r.meta)
	r.outBlobs, r.blobAt, _ = fieldsIn(r.blobs, r.blobs)
	return r, err
}

// Take gives the batches the columns of a schema, and reports whether all columns of the
// source are among them. Columns that the source lacks are null. It is called before
// Batches.
func (r *Reader) Take(s *arrow.Schema) bool {
	meta, metaAt, ok := fieldsIn(schema.MetaFields(s), r.meta)
	blobs, blobAt, also := fieldsIn(schema.BlobFields(s), r.blobs)
	if ok = ok && also; ok {
		r.schema, r.outMeta, r.outBlobs, r.metaAt, r.blobAt = s, meta, blobs, metaAt, blobAt
	}
	return ok
}

// fieldsIn returns the index in some of each field of all, -1 for none. ok is false if
// some has a field that all lacks, or if some lacks a field that must not be null.
func fieldsIn(all, some []arrow.Field) (_ []arrow.Field, at []int, ok bool) {
	found := 0
	for _, f := range all {
		i := slices.IndexFunc(some, func(g arrow.Field) bool {
			fits := f.Nullable || !g.Nullable
			g.Nullable = f.Nullable
			return fits && g.Equal(f)
		})
		if i >= 0 {
			found++
		} else if !f.Nullable {
			return nil, nil, false
		}
		at = append(at, i)
	}
	return all, at, found == len(some)
}

// Know makes the reader call find before it loads a sample. A result other than nil
// replaces loading. Several goroutines call find.
func (r *Reader) Know(find func(id schema.ID, at []Extent) *Known) { r.know = find }

// Schema returns the logical schema of the batches.
func (r *Reader) Schema() *arrow.Schema { return r.schema }

// slot is a sample on its way through a worker. The worker owns it until done is closed,
// then the goroutine of Batches.
type slot struct {
	Sample
	weight int64 // bytes of the budget that it holds
	known  *Known
	info   imageInfo
	sound  codec.Info    // without the decoded data
	failed error         // error that ends all reading
	done   chan struct{} // closed when the worker has finished
}

// release returns the sample's memory.
func (s *slot) release() {
	if s.Release != nil {
		s.Release()
	}
}

// Batches reads all samples. A batch is valid until the next one is requested. It may
// have bad items and no rows. An error is the last element. When the iteration ends, all
// goroutines have ended and all memory is released.
func (r *Reader) Batches(ctx context.Context) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		// The goroutine of list acquires from the budget, and flush releases.
		mem := semaphore.NewWeighted(budget)
		// A slot enters order before work. The goroutine that takes it from order may
		// therefore wait for it, unless ctx ends.
		order, work := make(chan *slot, queuedSlots), make(chan *slot, queuedSlots)
		var failed error // error of the source, set before order is closed
		var running sync.WaitGroup
		running.Go(func() {
			defer close(order)
			defer close(work)
			failed = r.list(ctx, mem, order, work)
		})
		for range r.opts.Workers {
			running.Go(func() {
				for s := range work {
					if ctx.Err() == nil {
						r.process(s)
					}
					close(s.done)
				}
			})
		}
		// Whatever ends the iteration, workers end first, and every slot is released
		// once.
		b := newBatcher(r)
		var waited *slot // slot that was awaited when ctx ended; a worker may still have had it
		defer func() {
			cancel()
			running.Wait()
			if waited != nil {
				waited.release()
			}
			for s := range order {
				s.release()
			}
			b.reset(mem)
			b.close()
		}()
		for s := range order {
			select {
			case <-s.done:
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				waited = s
				break
			}
			// An error of the connection ends everything: the sample itself may be good.
			if s.failed != nil {
				err := fmt.Errorf("read %s: %w", Quoted(s.Key), s.failed)
				s.release()
				yield(nil, err)
				return
			}
			// A batch has one split, so a sample of another one ends it.
			if b.rows() > 0 && s.Bad == "" && b.split != r.splitOf(s) && !b.flush(mem, yield) {
				s.release()
				return
			}
			if err := b.add(s); err != nil {
				yield(nil, err)
				return
			}
			// Flush before waiting for the next sample, which may need this memory.
			if b.full() && !b.flush(mem, yield) {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(nil, context.Cause(ctx))
			return
		}
		if failed != nil {
			yield(nil, failed)
			return
		}
		if b.rows() > 0 || len(b.bad) > 0 {
			b.flush(mem, yield)
		}
	}
}

// list reads the samples of the source and queues them for the workers, in order. It
// waits while the budget is used up.
func (r *Reader) list(ctx context.Context, mem *semaphore.Weighted, order, work chan<- *slot) error {
	left := r.opts.Limit
	for sample, err := range r.src.Samples(ctx) {
		if err != nil {
			return err
		}
		// Samples after the bucket has become unreachable would all be bad for the same
		// reason.
		if err := r.src.Files().broken(); err != nil {
			if sample.Release != nil {
				sample.Release()
			}
			return err
		}
		// A batch that waits for its next row holds less than batchBytes. The memory that
		// is awaited here therefore becomes free.
		s := &slot{Sample: sample, weight: r.weight(sample), done: make(chan struct{})}
		if mem.Acquire(ctx, s.weight) != nil {
			s.release()
			return nil
		}
		select {
		case order <- s:
		case <-ctx.Done():
			s.release()
			return nil
		}
		select {
		case work <- s:
		case <-ctx.Done():
			return nil
		}
		if left--; left == 0 {
			return nil
		}
	}
	return nil
}

// weight returns how much of the budget a sample takes. It is capped, so that a large
// sample can be acquired at all.
func (r *Reader) weight(s Sample) int64 {
	if s.Blobs == nil && s.Load == nil { // the blobs are not read
		return min(max(listBytes(s.Meta), 1), budget-batchBytes)
	}
	return min(max(s.Size, 1), budget-batchBytes)
}

// process loads a sample and checks it, in a worker. A defect sets Bad; an error of the
// connection sets failed.
func (r *Reader) process(s *slot) {
	if s.Bad != "" {
		return
	}
	if s.known = s.Known; s.known != nil {
		return
	}
	// A sample at an unchanged extent is not read again.
	if s.Load != nil && s.At != nil && r.know != nil {
		s.known = r.know(r.idOf(s), s.At)
	}
	if s.Load != nil && s.known == nil {
		blobs, err := s.Load()
		if interrupted(err) {
			s.failed = err
			return
		}
		if err != nil {
			s.Bad = err.Error()
			return
		}
		s.Blobs = blobs
	}
	for c, f := range r.blobs {
		var data []byte
		if s.Blobs != nil {
			data = s.Blobs[c]
		} else if s.At != nil && !s.At[c].IsZero() {
			continue // in place and not read
		}
		if data == nil {
			if !f.Nullable {
				s.Bad = fmt.Sprintf("%s missing", Quoted(f.Name))
				return
			}
			continue
		}
		if r.opts.InPlace && (s.At == nil || s.At[c].IsZero()) {
			s.Bad = r.about(f, errNotInPlace)
			return
		}
		// Audio of an unknown format is accepted as it is. A recognised format with
		// damage is not.
		if schema.Media(f) == schema.MediaAudio {
			info, err := codec.Read(data)
			if err != nil && r.opts.Verify != VerifyNone && codec.Recognised(data) && errors.Is(err, program.ErrDamaged) {
				s.Bad = r.about(f, err)
				return
			}
			if err == nil && c == r.sound {
				s.sound = codec.Info{Rate: info.Rate, Channels: info.Channels, Frames: info.Frames}
			}
		}
		if schema.Media(f) != schema.MediaImage {
			continue
		}
		info, err := inspect(data, r.opts.Verify)
		if err != nil && r.opts.Verify != VerifyNone {
			s.Bad = r.about(f, err)
			return
		}
		if c == r.image {
			s.info = info
		}
	}
	// Text must be UTF-8 in all metadata, also within lists and structs.
	for i, v := range s.Meta {
		if !validText(v) {
			s.Bad = fmt.Sprintf("%s is not valid UTF-8", Quoted(r.meta[i].Name))
			return
		}
	}
}

// errNotInPlace is why a blob cannot stay at its source.
var errNotInPlace = errors.New("its bytes are nowhere in the data as they are, or in a piece that is decoded at once " +
	"(compressed or encoded otherwise): import it instead")

// about returns what is wrong with a blob, with its column if there are several.
func (r *Reader) about(f arrow.Field, err error) string {
	if len(r.blobs) > 1 {
		return Quoted(f.Name) + ": " + err.Error()
	}
	return err.Error()
}

// validText reports whether all text in a value is valid UTF-8. Arrow's readers do not
// check it, and would pass invalid text to clients.
func validText(v any) bool {
	switch v := v.(type) {
	case string:
		return utf8.ValidString(v)
	case []any:
		return !slices.ContainsFunc(v, func(e any) bool { return !validText(e) })
	case Cell:
		if v.Array.IsNull(v.Row) {
			return true
		}
		switch a := v.Array.(type) {
		case array.StringLike:
			return utf8.ValidString(a.Value(v.Row))
		case array.ListLike:
			start, end := a.ValueOffsets(v.Row)
			for i := start; i < end; i++ {
				if !validText(Cell{a.ListValues(), int(i)}) {
					return false
				}
			}
		case *array.Struct:
			for i := range a.NumField() {
				if !validText(Cell{a.Field(i), v.Row}) {
					return false
				}
			}
		case array.ExtensionArray:
			return validText(Cell{a.Storage(), v.Row})
		}
	}
	return true
}

// idOf returns the id of a sample: its own, or one made of the dataset and the key.
func (r *Reader) idOf(s *slot) schema.ID {
	if s.ID != nil {
		return *s.ID
	}
	return schema.SampleID(r.opts.Dataset, s.Key)
}

// splitOf returns the split of a sample: its own, or that of the options.
func (r *Reader) splitOf(s *slot) string {
	if s.Split != "" {
		return s.Split
	}
	return r.opts.Split
}

// addedColumns are the names of all columns that a Reader may add to those of media.
var addedColumns = []string{"width", "height", "format", "orientation", "duration", "sampling_rate", "channels"}

// AddedColumns returns the names of the columns that a Reader may add.
func AddedColumns() []string { return slices.Clone(addedColumns) }

// adds reports whether a column is added: no option leaves it out, and the source has
// none of that name.
func (r *Reader) adds(own []arrow.Field, name string) bool {
	out := slices.ContainsFunc(r.opts.LeaveOut, func(pattern string) bool { return matches(pattern, name) })
	return !out && !slices.ContainsFunc(own, func(f arrow.Field) bool { return f.Name == name })
}

// add adds a column computed from a sample. For a known sample its value comes from the
// previous snapshot.
func (r *Reader) add(own []arrow.Field, name string, dt arrow.DataType, value func(*slot) any) {
	if r.adds(own, name) {
		r.meta = append(r.meta, arrow.Field{Name: name, Type: dt, Nullable: true})
		r.added = append(r.added, func(s *slot) any {
			if s.known != nil {
				return s.known.Column(name)
			}
			return value(s)
		})
	}
}

// addImageColumns adds what the headers of images state.
func (r *Reader) addImageColumns(own []arrow.Field) {
	add := func(name string, dt arrow.DataType, value func(imageInfo) any) {
		r.add(own, name, dt, func(s *slot) any {
			if s.info.Format == "" { // a null image, or one without a valid header
				return nil
			}
			return value(s.info)
		})
	}
	add("width", arrow.PrimitiveTypes.Int32, func(i imageInfo) any { return i.Width })
	add("height", arrow.PrimitiveTypes.Int32, func(i imageInfo) any { return i.Height })
	add("format", arrow.BinaryTypes.String, func(i imageInfo) any { return i.Format })
	add("orientation", arrow.PrimitiveTypes.Int32, func(i imageInfo) any { return i.Orientation })
}

// addSoundColumns adds what the headers of audio state. The columns are null for an
// unknown format: such files are imported unchanged.
func (r *Reader) addSoundColumns(own []arrow.Field) {
	add := func(name string, dt arrow.DataType, value func(codec.Info) any) {
		r.add(own, name, dt, func(s *slot) any {
			if s.sound.Rate == 0 {
				return nil
			}
			return value(s.sound)
		})
	}
	add("duration", arrow.PrimitiveTypes.Float64, func(i codec.Info) any { return float64(i.Frames) / float64(i.Rate) })
	add("sampling_rate", arrow.PrimitiveTypes.Int32, func(i codec.Info) any { return int32(i.Rate) })
	add("channels", arrow.PrimitiveTypes.Int32, func(i codec.Info) any { return int32(i.Channels) })
}

// batcher collects the slots of a batch. The goroutine of Batches owns it. Its slices are
// reused by the next batch, except keys and bad.
type batcher struct {
	r       *Reader
	split   string
	keys    []string
	ids     []schema.ID
	columns []column
	blobs   [][][]byte
	at      [][]Extent
	known   []*Known
	knows   bool // any of known is not nil
	bytes   int64
	bad     []BadItem
	slots   []*slot // slots whose memory the batch uses, and bad ones
	weight  int64   // weight of all slots
}

// newBatcher returns an empty batcher for the columns of r.
func newBatcher(r *Reader) *batcher {
	b := &batcher{r: r, blobs: make([][][]byte, len(r.outBlobs)),
		at: make([][]Extent, len(r.outBlobs))}
	for _, f := range r.outMeta {
		b.columns = append(b.columns, column{builder: array.NewBuilder(r.opts.Mem, f.Type)})
	}
	return b
}

// rows returns the number of rows so far; bad items are not rows.
func (b *batcher) rows() int { return len(b.ids) }

// full reports whether the batch must be flushed. Bad samples count too: they hold
// budget.
func (b *batcher) full() bool {
	return b.weight >= batchBytes || len(b.slots) >= batchRows
}

// add adds a slot and takes it over. It returns an error if a value does not fit its
// column, which is a defect of the source's code.
func (b *batcher) add(s *slot) error {
	b.slots = append(b.slots, s)
	b.weight += s.weight
	if s.Bad != "" {
		b.bad = append(b.bad, BadItem{Key: s.Key, Reason: s.Bad})
		return nil
	}
	b.split = b.r.splitOf(s)
	b.keys = append(b.keys, s.Key)
	b.ids = append(b.ids, b.r.idOf(s))
	b.known = append(b.known, s.known)
	b.knows = b.knows || s.known != nil
	// Clip makes append copy: the sample's own slice must not grow.
	values := slices.Clip(s.Meta)
	// The columns of a known sample are complete: its source was not read at all.
	if s.Known == nil {
		for _, value := range b.r.added {
			values = append(values, value(s))
		}
	}
	for i, f := range b.r.outMeta {
		var v any
		if s.Known != nil {
			v = s.Known.Column(f.Name)
		} else if from := b.r.metaAt[i]; from >= 0 {
			v = values[from]
		}
		if err := b.columns[i].add(v); err != nil {
			return fmt.Errorf("%s, column %q: %w", s.Key, f.Name, err)
		}
	}
	for c, from := range b.r.blobAt {
		var blob []byte
		var at Extent
		if s.At != nil && from >= 0 {
			at = s.At[from]
		}
		if s.Blobs != nil && from >= 0 {
			blob = s.Blobs[from]
			b.bytes += int64(len(blob))
		} else if s.Known != nil {
			if ref := s.Known.Refs[c]; ref != nil {
				b.bytes += ref.Size
			}
		} else {
			b.bytes += at.Length
		}
		b.blobs[c] = append(b.blobs[c], blob)
		b.at[c] = append(b.at[c], at)
	}
	return nil
}

// flush yields the batch and resets it. It returns false if iteration must end.
func (b *batcher) flush(mem *semaphore.Weighted, yield func(*Batch, error) bool) bool {
	defer b.reset(mem)
	columns := make([]arrow.Array, 0, len(b.columns))
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i := range b.columns {
		c, err := b.columns[i].finish(b.r.opts.Mem)
		if err != nil {
			yield(nil, fmt.Errorf("column %q: %w", b.r.outMeta[i].Name, err))
			return false
		}
		columns = append(columns, c)
	}
	meta := array.NewRecord(arrow.NewSchema(b.r.outMeta, nil), columns, int64(b.rows()))
	defer meta.Release()
	batch := &Batch{Split: b.split, Keys: b.keys, IDs: b.ids, Meta: meta, Blobs: b.blobs, At: b.at, Bytes: b.bytes,
		Bad: b.bad}
	if b.knows {
		batch.Known = b.known
	}
	return yield(batch, nil)
}

// reset releases the slots and empties the batch.
func (b *batcher) reset(mem *semaphore.Weighted) {
	for _, s := range b.slots {
		s.release()
	}
	mem.Release(b.weight)
	clear(b.slots)
	b.slots, b.weight, b.bytes = b.slots[:0], 0, 0
	b.keys, b.ids, b.bad = nil, b.ids[:0], nil
	clear(b.known)
	b.known, b.knows = b.known[:0], false
	for c := range b.blobs {
		clear(b.blobs[c])
		b.blobs[c] = b.blobs[c][:0]
		clear(b.at[c])
		b.at[c] = b.at[c][:0]
	}
}

// close frees the builders.
func (b *batcher) close() {
	for i := range b.columns {
		b.columns[i].release()
	}
}

// column collects the values of a metadata column. Go values go through a builder; cells
// become slices of the arrays that they are in, without copying values.
type column struct {
	builder array.Builder
	parts   []arrow.Array // finished runs
	last    Cell          // array and end of the open run of cells, which follows parts
	start   int
}

// add appends a value of a type that Sample.Meta allows. Consecutive cells of one array
// extend a run.
func (c *column) add(v any) error {
	cell, ok := v.(Cell)
	if !ok {
		// Values of both kinds may alternate, and the order of parts is that of rows.
		c.endRun()
		return appendValue(c.builder, v)
	}
	if cell.Array == c.last.Array && cell.Row == c.last.Row {
		c.last.Row++
		return nil
	}
	c.endRun()
	c.endBuilt()
	c.last, c.start = Cell{cell.Array, cell.Row + 1}, cell.Row
	// The sample may be released before the column is finished.
	cell.Array.Retain()
	return nil
}

// endRun makes the open run of cells a part.
func (c *column) endRun() {
	if c.last.Array != nil {
		c.parts = append(c.parts, array.NewSlice(c.last.Array, int64(c.start), int64(c.last.Row)))
		c.last.Array.Release()
		c.last = Cell{}
	}
}

// endBuilt makes the built values a part.
func (c *column) endBuilt() {
	if c.builder.Len() > 0 {
		c.parts = append(c.parts, c.builder.NewArray())
	}
}

// finish returns the values as one array, and empties the column. The caller releases the
// array.
func (c *column) finish(mem memory.Allocator) (arrow.Array, error) {
	c.endRun()
	c.endBuilt()
	defer c.releaseParts()
	switch len(c.parts) {
	case 0:
		return c.builder.NewArray(), nil
	case 1:
		c.parts[0].Retain()
		return c.parts[0], nil
	default:
		return array.Concatenate(c.parts, mem)
	}
}

// releaseParts drops the parts.
func (c *column) releaseParts() {
	for _, p := range c.parts {
		p.Release()
	}
	c.parts = c.parts[:0]
}

// release frees all memory of the column.
func (c *column) release() {
	c.endRun()
	c.releaseParts()
	c.builder.Release()
}

// appendValue appends a Go value to the builder of its type. Numbers must have exactly
// the builder's type; lists are []any or Numbers; nil is a null.
func appendValue(b array.Builder, v any) error {
	if v == nil {
		b.AppendNull()
		return nil
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		return appendAs(b.Append, v)
	case *array.Int8Builder:
		return appendAs(b.Append, v)
	case *array.Int16Builder:
		return appendAs(b.Append, v)
	case *array.Int32Builder:
		return appendAs(b.Append, v)
	case *array.Int64Builder:
		return appendAs(b.Append, v)
	case *array.Uint8Builder:
		return appendAs(b.Append, v)
	case *array.Uint16Builder:
		return appendAs(b.Append, v)
	case *array.Uint32Builder:
		return appendAs(b.Append, v)
	case *array.Uint64Builder:
		return appendAs(b.Append, v)
	case *array.Float16Builder:
		return appendAs(func(x float16.Num) { b.Append(x) }, v)
	case *array.Float32Builder:
		return appendAs(b.Append, v)
	case *array.Float64Builder:
		return appendAs(b.Append, v)
	case *array.StringBuilder:
		return appendAs(b.Append, v)
	case *array.FixedSizeListBuilder: // before ListLikeBuilder, which it implements as well
		if v, ok := v.(Numbers); ok {
			return appendFixedNumbers(b, v)
		}
		list, ok := v.([]any)
		if want := int(b.Type().(*arrow.FixedSizeListType).Len()); !ok || len(list) != want {
			return fmt.Errorf("got %T of length %d, want a list of %d", v, len(list), want)
		}
		b.Append(true)
		return appendAll(b.ValueBuilder(), list)
	case *array.ListBuilder:
		if v, ok := v.(Numbers); ok {
			b.Append(true)
			return appendNumbers(b.ValueBuilder(), v)
		}
		list, ok := v.([]any)
		if !ok {
			return fmt.Errorf("got %T, want a list", v)
		}
		b.Append(true)
		return appendAll(b.ValueBuilder(), list)
	}
	return fmt.Errorf("no way to append %T to %s", v, b.Type())
}

// appendAll appends the values of a list.
func appendAll(b array.Builder, list []any) error {
	for _, v := range list {
		if err := appendValue(b, v); err != nil {
			return err
		}
	}
	return nil
}

// appendAs appends v if it has type T. A conversion would hide a wrong type.
func appendAs[T any](add func(T), v any) error {
	x, ok := v.(T)
	if !ok {
		return fmt.Errorf("got %T, want %T", v, x)
	}
	add(x)
	return nil
}
