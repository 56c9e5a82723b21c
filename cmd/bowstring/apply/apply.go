// Package apply runs the operators of a request where the samples are used: in a process
// beside the client's, which hands it blobs over a pipe and gets cells back.
//
// It is a process, and no library in the client's own, for three reasons. Trainers fork, and
// a runtime with threads does not survive that. Decoders read hostile bytes, and what ends
// them must not end a training job. And the program is static, so that it is in every
// package for every processor without a C compiler.
//
// What lives here: the frames on the pipe, and the order of batches. How cells are made is
// fetch/operators; who asks for it is the Python package.
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
	// ahead is how many batches may wait for one that is being made.
	ahead = 2
	// maxBody bounds the bytes of a batch that come, and those that are made of it: offsets
	// of 32 bits reach no further.
	maxBody = math.MaxInt32
)

// Options says what runs.
type Options struct {
	// Kinds are the operators that there are.
	Kinds operators.Kinds
	// Logger receives what is wrong with operators, rather than with samples. Default slog.Default().
	Logger *slog.Logger
	// MaxBytes bounds the bytes of a batch that come, and those that are made of it.
	// Default, and at most, 2^31-1.
	MaxBytes int64
}

// EnsureDefaults fills in what is not given.
func (o *Options) EnsureDefaults() {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.MaxBytes = cmp.Or(o.MaxBytes, maxBody)
}

// Validate says what is wrong.
func (o *Options) Validate() error {
	if o.MaxBytes < 1 || o.MaxBytes > maxBody {
		return fmt.Errorf("%w: a bound of %d bytes, want 1 to %d", schema.ErrInvalid, o.MaxBytes, maxBody)
	}
	return nil
}

// Run makes cells of the blobs that come from in and writes them to out, batch by batch in
// the order they came, until in ends. Where the frames are not understood it answers with an
// error, reads what else comes to its end, so that a writer who reads answers later is not stopped, and returns the
// error. A cell that nothing can be made of is a fault in its batch's answer.
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
	defer stop(nil)
	batches := make(chan *batch, ahead)
	var writing sync.WaitGroup
	writing.Go(func() {
		for b := range batches {
			if err := b.write(ctx, out); err != nil {
				stop(err) // nobody reads any more: what comes is read to its end, and not made
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

// refused answers a frame that is not understood, or too large, and reads what follows to its end. Its body may be
// on its way, and answers of the batches before it be unread until that is written.
func refused(batches chan<- *batch, r io.Reader, err error) error {
	batches <- failed(err)
	_, lost := io.Copy(io.Discard, r)
	return errors.Join(err, lost)
}

// maker makes batches of one list of operators.
type maker struct {
	set   *operators.Set
	seed  uint64
	known map[string]bool
	most  int64 // bytes of a batch
	stage *operators.Stage
	place *operators.Place
}

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

// close ends the stage. Every batch was released.
func (m *maker) close() {
	m.place.Close()
	m.stage.Close()
}

// batch is what is made of one frame. It implements operators.Receiver.
type batch struct {
	maker     *maker
	rows      int
	names     []string
	positions []int64
	blobs     [][]schema.Blob // what came, by column and row

	// bytes are those of the cells that were made, and of those that will be, where all have
	// one size. How large others may become is no part of them: re-encoded images have but a
	// tenth of it.
	bytes atomic.Int64

	tasks sync.WaitGroup // one for each cell that is not told of

	mu     sync.Mutex
	err    error           // no cell is sent; guarded by mu until tasks is done
	cells  [][]schema.Blob // guarded by mu until tasks is done
	faults []fault         // guarded by mu until tasks is done
}

func failed(err error) *batch { return &batch{err: err} }

// cell is where a task belongs.
type cell struct{ column, row int }

// begin has the cells of a batch made.
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
				Column: column, Cell: blobs[i][row], Context: ctx, To: b, Of: cell{i, row},
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

// Room implements operators.Receiver. There is room until the batch is too much, which ends
// the batch and not a cell: no cell of it is at fault. What is being made meanwhile is
// bounded by the stage's ledger.
func (b *batch) Room(t *operators.Task, _ int64) bool {
	if b.bytes.Load() <= b.maker.most {
		return true
	}
	b.end(t, operators.Outcome{})
	return false
}

// Made implements operators.Receiver.
func (b *batch) Made(t *operators.Task, o operators.Outcome) { b.end(t, o) }

// end takes what became of a task; the zero Outcome where it was not begun.
func (b *batch) end(t *operators.Task, o operators.Outcome) {
	defer b.tasks.Done()
	at := t.Of.(cell)
	t.Cell.Release()
	b.mu.Lock()
	defer b.mu.Unlock()
	if o.Err == nil {
		b.cells[at.column][at.row] = o.Blob
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

// write waits for the batch and writes its frame.
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

var zeros [64 << 10]byte

// writeCell writes a cell; zeros for a null, where all cells have size bytes.
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

// release waits for the tasks and gives back what was made.
func (b *batch) release() {
	b.tasks.Wait()
	for i := range b.cells {
		for row := range b.cells[i] {
			b.cells[i][row].Release()
		}
	}
}
