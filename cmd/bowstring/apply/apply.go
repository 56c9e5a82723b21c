// Package apply runs the operators of a request where the samples are used: in a process
// beside the client's. The client writes blobs to a pipe and reads cells from another.
//
// It is a process, and no library in the client's own, for three reasons. Trainers fork, and
// a runtime with threads does not survive that. Decoders read hostile bytes, and what ends
// them must not end a training job. And the program is static, so that it is in every
// package for every processor without a C compiler.
//
// The frames on the pipe and the order of batches are here. Making a cell is
// fetch/operators; the client is in the Python package. Begin reading at [Run]; frame.go
// has the protocol.
package apply

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/admission"
	"bowstring/fetch/operators"
	"bowstring/fetch/operators/draw"
	"bowstring/schema"
)

const (
	// batchesWaiting is how many batches may wait behind the one that is written. The
	// client sends the next batch while it reads one, so two are enough to keep all cores
	// busy.
	batchesWaiting = 2
	// maxBody bounds the bytes of a batch, both its blobs and its cells: offsets of 32
	// bits reach no further.
	maxBody = math.MaxInt32
)

// Options configure Run.
type Options struct {
	// Kinds are the operators that requests may name.
	Kinds operators.Kinds
	// Logger receives defects of operators. Defects of samples are in the answers.
	// Default slog.Default().
	Logger *slog.Logger
	// MaxBytes bounds the bytes of the blobs of a batch, and of its cells. Default, and
	// at most, 2^31-1.
	MaxBytes int64
}

// EnsureDefaults fills in what is not given.
func (o *Options) EnsureDefaults() {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.MaxBytes = cmp.Or(o.MaxBytes, maxBody)
}

// Validate returns an error that names the field, its value and the range.
func (o *Options) Validate() error {
	if o.MaxBytes < 1 || o.MaxBytes > maxBody {
		return fmt.Errorf("%w: a bound of %d bytes, want 1 to %d", schema.ErrInvalid, o.MaxBytes, maxBody)
	}
	return nil
}

// Run reads batches of blobs from in, makes cells of them, and writes the cells to out,
// in the order of the batches, until in ends. If it does not understand a frame, it
// answers with an error, reads the rest of in so that the client's writes do not block,
// and returns the error. A cell that cannot be made is a fault in its batch's answer, and
// does not end Run.
//
// Batches are made in parallel with reading and writing: a goroutine writes them in order
// while Run reads the next.
func Run(ctx context.Context, in io.Reader, out io.Writer, opts Options) error {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return err
	}
	r := bufio.NewReaderSize(in, 1<<16)
	var h hello
	if err := readHeader(r, &h); err != nil {
		if errors.Is(err, io.EOF) {
			return nil
		}
		return errors.Join(err, writeHeader(out, welcome{Error: err.Error(), Code: codeOf(err)}))
	}
	m, err := newMaker(&h, opts)
	if err != nil {
		return errors.Join(err, writeHeader(out, welcome{Error: err.Error(), Code: codeOf(err)}))
	}
	defer m.close()
	if err := writeHeader(out, welcome{Forms: m.set.Forms()}); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	// The goroutine below owns the batches that are sent to it: it writes and releases
	// them.
	defer stop(nil)
	batches := make(chan *batch, batchesWaiting)
	var writing sync.WaitGroup
	writing.Go(func() {
		for b := range batches {
			if err := b.write(ctx, out); err != nil {
				stop(err) // the client has stopped reading: the rest of in is read, but no cell is made
			}
			b.release()
		}
	})
	defer writing.Wait()
	defer close(batches)
	for {
		var a asked
		if err := readHeader(r, &a); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return refused(batches, r, err)
		}
		positions, blobs, err := a.readBody(r, m.known, m.most)
		if err != nil {
			return refused(batches, r, err)
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		batches <- m.begin(ctx, &a, positions, blobs)
	}
}

// refused answers a frame that is wrong or too large, and reads the rest of in. The
// client may be in the middle of writing the frame's body, and it reads the answers to
// earlier batches only after that.
func refused(batches chan<- *batch, r io.Reader, err error) error {
	batches <- failed(err)
	_, lost := io.Copy(io.Discard, r)
	return errors.Join(err, lost)
}

// maker makes the batches of one list of operators. It is safe for use by one goroutine,
// while its stage makes cells in others.
type maker struct {
	set   *operators.Set
	seed  uint64          // of the ticket's shuffle
	known map[string]bool // columns with operators
	most  int64           // bytes of a batch
	stage *operators.Stage
	place *operators.Place
}

// newMaker compiles the operators of the first header. It returns schema.ErrInvalid if
// they are absent, unresolved or of an unknown kind: only a resolved list makes the same
// cells as the server does.
func newMaker(h *hello, opts Options) (*maker, error) {
	var wanted schema.Operators
	var err error
	if len(h.Operators) > 0 {
		if wanted, err = schema.ParseOperators(h.Operators); err != nil {
			return nil, err
		}
	}
	if len(wanted) == 0 || !wanted.Resolved() {
		return nil, &schema.FieldError{Field: "operators", Got: "a list that is not written in full", Want: "those of a ticket"}
	}
	m := &maker{seed: h.Seed, known: map[string]bool{}, most: opts.MaxBytes}
	fields := []arrow.Field{}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		m.known[name] = true
		fields = append(fields, schema.BlobField(name, "", true))
	}
	if m.set, err = operators.CompileSet(opts.Kinds, arrow.NewSchema(fields, nil), nil, wanted); err != nil {
		return nil, err
	}
	// Cells in the making may take 256 MiB for each worker: enough for a large image and
	// its decoded pixels.
	room := 256 << 20 * int64(runtime.GOMAXPROCS(0))
	limits := admission.Limits{Making: room, LongMaking: room}
	limits.EnsureDefaults()
	m.stage, err = operators.NewStage(operators.Options{
		Workers: cmp.Or(h.Workers, runtime.GOMAXPROCS(0)), Ledger: admission.NewLedger(limits), Logger: opts.Logger,
	})
	if err != nil {
		return nil, err
	}
	m.place = m.stage.Open("", "")
	return m, nil
}

// close ends the stage. Every batch must have been released.
func (m *maker) close() {
	m.place.Close()
	m.stage.Close()
}

// batch is the cells of one frame. It implements operators.Receiver. Its cells are made
// by the stage's workers, and released by release.
type batch struct {
	maker     *maker
	rows      int
	names     []string
	positions []int64
	blobs     [][]schema.Blob // those of the frame, by column and row; a task releases its own

	// bytes is the size of the cells that are made, and of those to come in columns where
	// all have one size. It leaves out the largest size that other cells could have:
	// re-encoded images have about a tenth of it.
	bytes atomic.Int64

	tasks sync.WaitGroup // one for each cell whose outcome is not known yet

	mu     sync.Mutex
	err    error           // no cell is sent; guarded by mu until tasks is done
	cells  [][]schema.Blob // guarded by mu until tasks is done
	faults []fault         // guarded by mu until tasks is done
}

// failed is a batch whose answer is an error.
func failed(err error) *batch { return &batch{err: err} }

// cell is the place of a task's result in its batch.
type cell struct{ column, row int }

// begin puts a task for each blob on the stage, and returns before they are done. Nulls
// have no task. It returns a failed batch if the columns with cells of one size exceed
// the bound: their size is known now, and making them would be wasted.
func (m *maker) begin(ctx context.Context, a *asked, positions []int64, blobs [][]schema.Blob) *batch {
	b := &batch{maker: m, rows: a.Rows, positions: positions, blobs: blobs}
	var tasks []*operators.Task
	for i, c := range a.Columns {
		column := m.set.Column(c.Name)
		if size := column.Form.CellBytes(); size > 0 && b.bytes.Add(size*int64(a.Rows)) > m.most {
			return failed(errTooMuch(m.most))
		}
		b.names = append(b.names, c.Name)
		b.cells = append(b.cells, make([]schema.Blob, a.Rows))
		for row, size := range c.Sizes {
			if size < 0 {
				continue
			}
			tasks = append(tasks, &operators.Task{
				Column: column, Cell: blobs[i][row], Context: ctx, To: b, Data: cell{i, row},
				Draws: column.Draws(draw.Key{Seed: m.seed, Epoch: a.Epoch, Position: uint64(positions[row])}),
			})
		}
	}
	b.tasks.Add(len(tasks))
	for _, t := range tasks {
		m.place.Put(t)
	}
	return b
}

func errTooMuch(most int64) error {
	return fmt.Errorf("%w: a batch would become more than %d bytes; ask for a smaller batch", schema.ErrLimit, most)
}

// Room implements operators.Receiver. If the batch is too large, Room ends the task, and
// the batch fails: no single cell is at fault. The stage's ledger bounds the memory of
// the cells that are being made at that time.
func (b *batch) Room(t *operators.Task, _ int64) bool {
	if b.bytes.Load() <= b.maker.most {
		return true
	}
	b.end(t, operators.Outcome{})
	return false
}

// Made implements operators.Receiver.
func (b *batch) Made(t *operators.Task, o operators.Outcome) { b.end(t, o) }

// end records the outcome of a task; the zero Outcome if the task did not run.
func (b *batch) end(t *operators.Task, o operators.Outcome) {
	defer b.tasks.Done()
	at := t.Data.(cell)
	t.Cell.Release()
	b.mu.Lock()
	defer b.mu.Unlock()
	if o.Err == nil {
		b.cells[at.column][at.row] = o.Blob
		// The size of such a cell is known only now. Room stops those that follow.
		if t.Column.Form.CellBytes() < 0 && b.bytes.Add(int64(len(o.Blob.Bytes()))) > b.maker.most {
			b.err = errTooMuch(b.maker.most)
		}
		return
	}
	f := fault{Row: at.row, Position: b.positions[at.row], Column: b.names[at.column], Cause: o.Err.Error(), Code: codeOf(o.Err)}
	if made, ok := errors.AsType[*operators.FaultError](o.Err); ok {
		f.Operator = made.Operator
	}
	b.faults = append(b.faults, f)
}

// write waits for the tasks of the batch and writes its frame: an error, or the header
// with faults in the order of rows, and then the cells. It returns ctx's cause without
// writing if ctx has ended.
func (b *batch) write(ctx context.Context, out io.Writer) error {
	b.tasks.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if b.err != nil {
		return writeHeader(out, answered{Error: b.err.Error(), Code: codeOf(b.err)})
	}
	slices.SortFunc(b.faults, func(x, y fault) int {
		return cmp.Or(cmp.Compare(x.Row, y.Row), cmp.Compare(x.Column, y.Column))
	})
	header := answered{Columns: make([]madeColumn, len(b.names)), Faults: b.faults}
	for i, name := range b.names {
		header.Columns[i] = b.column(i, name)
	}
	if err := writeHeader(out, header); err != nil {
		return err
	}
	for i, name := range b.names {
		size := b.maker.set.Column(name).Form.CellBytes()
		for row := range b.cells[i] {
			if err := writeCell(out, &b.cells[i][row], size); err != nil {
				return err
			}
		}
	}
	return nil
}

// column returns the header of a column: the size, parameters and, where they differ, the
// shape of each cell.
func (b *batch) column(i int, name string) madeColumn {
	c := madeColumn{Name: name, Sizes: make([]int64, b.rows), Params: make([]*string, b.rows)}
	form := b.maker.set.Column(name).Form
	if !form.Encoded() && form.CellBytes() < 0 {
		c.Shapes = make([][]int32, b.rows)
	}
	for row := range b.cells[i] {
		made := b.cells[i][row].Made()
		if made == nil {
			c.Sizes[row] = -1
			continue
		}
		c.Sizes[row] = int64(len(b.cells[i][row].Bytes()))
		c.Bytes += c.Sizes[row]
		drawn := string(made.Params)
		c.Params[row] = &drawn
		if c.Shapes != nil {
			c.Shapes[row] = made.Shape
		}
	}
	if size := form.CellBytes(); size >= 0 {
		c.Bytes = size * int64(b.rows)
	}
	return c
}

// zeros is the source of null cells in columns of one size.
var zeros [64 << 10]byte

// writeCell writes a cell. For a null it writes size zeros, so that the client can use
// the body as one array; size is negative in columns whose cells differ.
func writeCell(out io.Writer, made *schema.Blob, size int64) error {
	if made.Made() != nil {
		_, err := out.Write(made.Bytes())
		return err
	}
	for size > 0 {
		n, err := out.Write(zeros[:min(size, int64(len(zeros)))])
		if err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}

// release waits for the tasks and releases the cells.
func (b *batch) release() {
	b.tasks.Wait()
	for i := range b.cells {
		for row := range b.cells[i] {
			b.cells[i][row].Release()
		}
	}
}
