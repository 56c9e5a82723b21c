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
	"github.com/apache/arrow/go/v17/arrow/memory"
	"golang.org/x/sync/semaphore"

	"bowstring/fetch/operators/audio/codec"
	"bowstring/fetch/operators/program"
	"bowstring/schema"
)

const (
	// A batch is handed out once it has this many bytes or rows.
	batchBytes = 8 << 20
	batchRows  = 8192
	// budget bounds the bytes of the samples read and not yet done with, but
	// that a single sample may be as large as it is.
	budget = 96 << 20
	// ahead bounds their number.
	ahead = 4096
)

// ReadOptions say how samples are read.
type ReadOptions struct {
	Dataset string // that ids are made for
	Split   string // of samples whose source tells none
	Verify  Verify // VerifyHeader if empty
	Workers int    // samples loaded and checked at a time; 2 × GOMAXPROCS if 0
	Limit   int64  // read at most that many samples; all if 0
	// LeaveOut are columns that are not added to those of the source, as in Options.
	LeaveOut []string
	Mem      memory.Allocator
}

// Reader reads the samples of a Source in order, with several workers, and adds
// the columns width, height, format and orientation of the image column (of several the one
// called image, or else the first), and duration, sampling_rate and channels of the audio column, where the source has
// no columns of these names, and is no export, which has the columns of its dataset. It holds at most 96 MiB of samples,
// or one larger sample.
type Reader struct {
	src    Source
	opts   ReadOptions
	schema *arrow.Schema
	meta   []arrow.Field // of src, then the added
	blobs  []arrow.Field
	image  int // ordinal of the blob column that width and height are of, or -1
	sound  int // ordinal of the blob column that duration is of, or -1
	added  []func(*slot) any
}

// Batch is a run of samples of one split, in the source's order.
type Batch struct {
	Split string
	Keys  []string
	IDs   []schema.ID
	Meta  arrow.Record // the metadata columns of the Reader's schema
	Blobs [][][]byte   // [blob column][row], nil being null
	Bytes int64        // of the blobs
	Bad   []BadItem    // met on the way; they are not among the rows
}

// NewReader reads src, which stays the caller's to close.
func NewReader(src Source, opts ReadOptions) (*Reader, error) {
	if opts.Workers <= 0 {
		opts.Workers = 2 * runtime.GOMAXPROCS(0)
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
	for i, f := range r.blobs {
		if schema.Media(f) == schema.MediaImage && (r.image < 0 || f.Name == schema.MediaImage) {
			r.image = i
		}
		if schema.Media(f) == schema.MediaAudio && (r.sound < 0 || f.Name == schema.MediaAudio) {
			r.sound = i
		}
	}
	own := slices.Clone(r.meta)
	exact, ok := src.(interface{ Exact() bool })
	adds := !ok || !exact.Exact()
	if r.image >= 0 && adds {
		r.addImageColumns(own)
	}
	if r.sound >= 0 && adds {
		r.addSoundColumns(own)
	}
	var err error
	r.schema, err = schema.NewSchema(r.meta, r.blobs)
	return r, err
}

// Schema is the logical schema of the batches.
func (r *Reader) Schema() *arrow.Schema { return r.schema }

// slot is a sample on its way through a worker.
type slot struct {
	Sample
	weight int64 // of the budget
	info   imageInfo
	sound  codec.Info    // of which no bytes are kept
	done   chan struct{} // closed when the worker has finished
}

func (s *slot) release() {
	if s.Release != nil {
		s.Release()
	}
}

// Batches reads all samples. A batch is valid until the next one is asked for;
// it may have no rows, only bad items. An error ends it.
func (r *Reader) Batches(ctx context.Context) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		mem := semaphore.NewWeighted(budget)
		// A slot is in order before it is in work, so whoever takes from order
		// may wait for it, unless ctx ends.
		order, work := make(chan *slot, ahead), make(chan *slot, ahead)
		var failed error // of the source; set before order is closed
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
		b := newBatcher(r)
		var waited *slot // for, when ctx ended; a worker may have it
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
			if b.rows() > 0 && s.Bad == "" && b.split != r.splitOf(s) && !b.flush(mem, yield) {
				s.release()
				return
			}
			if err := b.add(s); err != nil {
				yield(nil, err)
				return
			}
			// Before the next is waited for, which may need the memory.
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

// list hands the samples of the source to the workers.
func (r *Reader) list(ctx context.Context, mem *semaphore.Weighted, order, work chan<- *slot) error {
	left := r.opts.Limit
	for sample, err := range r.src.Samples(ctx) {
		if err != nil {
			return err
		}
		// A batch that waits for its next row holds less than batchBytes, so
		// that what is asked for here becomes free at last.
		s := &slot{Sample: sample, weight: min(max(sample.Size, 1), budget-batchBytes), done: make(chan struct{})}
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

// process loads a sample and checks it. It sets Bad if there is anything wrong.
func (r *Reader) process(s *slot) {
	if s.Bad != "" {
		return
	}
	if s.Load != nil {
		blobs, err := s.Load()
		if err != nil {
			s.Bad = err.Error()
			return
		}
		s.Blobs = blobs
	}
	for c, f := range r.blobs {
		data := s.Blobs[c]
		if data == nil {
			if !f.Nullable {
				s.Bad = fmt.Sprintf("%s missing", Quoted(f.Name))
				return
			}
			continue
		}
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
	for i, v := range s.Meta {
		if !validText(v) {
			s.Bad = fmt.Sprintf("%s is not valid UTF-8", Quoted(r.meta[i].Name))
			return
		}
	}
}

// about says what is wrong with a blob, and which it is where there are several.
func (r *Reader) about(f arrow.Field, err error) string {
	if len(r.blobs) > 1 {
		return Quoted(f.Name) + ": " + err.Error()
	}
	return err.Error()
}

// validText says whether all text in a value is valid UTF-8, which Arrow's readers take for granted.
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

func (r *Reader) splitOf(s *slot) string {
	if s.Split != "" {
		return s.Split
	}
	return r.opts.Split
}
