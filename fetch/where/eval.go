package where

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/expr-lang/expr/vm"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/plan"
	"bowstring/schema"
)

// Turn runs a piece of work of some milliseconds, when it may, and returns its
// error. It may be called from several goroutines.
type Turn func(ctx context.Context, piece func() error) error

// Eval returns the positions of the samples for which the expression is true,
// frozen. Chunks are evaluated in parallel, by turns. A row that cannot be
// evaluated (a remainder by zero, an item beyond an array's end) is an *Error that
// says which; so is an expression that takes too long for the rows there are,
// which is told before or while they are evaluated.
func (e *Expr) Eval(ctx context.Context, m *schema.Manifest, turn Turn) (*plan.Bitmap, error) {
	return e.EvalWithin(ctx, m, nil, turn)
}

// EvalWithin is Eval over some samples, all if within is nil. Of the others nothing is
// looked at: no error, cost or result depends on them.
func (e *Expr) EvalWithin(ctx context.Context, m *schema.Manifest, within *plan.Bitmap, turn Turn) (*plan.Bitmap, error) {
	ev := &evaluation{expr: e, manifest: m, within: within, rows: m.Rows(), turn: turn, out: plan.NewBitmap(m.Rows())}
	if within != nil {
		ev.rows = within.Len()
	}
	if err := e.checkRows(ev.rows); err != nil {
		return nil, err
	}
	if err := ev.prepare(); err != nil {
		return nil, err
	}
	chunks := make(chan int)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(chunks)
		for c := range m.Chunks() {
			select {
			case chunks <- c:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	// As many as may have a turn at once.
	for range min(max(1, runtime.GOMAXPROCS(0)/2), m.Chunks()) {
		g.Go(func() error {
			w := ev.worker()
			for c := range chunks {
				if err := w.evaluate(ctx, c); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return ev.out.Freeze(), nil
}

// skipSteps is what passing over a sample counts for, towards the end of a turn.
const skipSteps = 1.0 / 16

// evaluation is an expression going through a manifest.
type evaluation struct {
	expr     *Expr
	manifest *schema.Manifest
	within   *plan.Bitmap // the samples that there are; nil if all
	rows     int64        // as many as these
	turn     Turn
	gets     [][]getter      // by column and chunk
	nulls    [][]bool        // by column and chunk: whether there may be nulls
	sized    [][]arrow.Array // by column of cost.columns and chunk

	mu    sync.Mutex
	out   *plan.Bitmap // guarded by mu
	spent float64      // steps; guarded by mu
}

func (ev *evaluation) prepare() error {
	e := ev.expr
	ev.gets, ev.nulls = make([][]getter, len(e.columns)), make([][]bool, len(e.columns))
	for i, name := range e.columns {
		var err error
		if ev.gets[i], ev.nulls[i], err = e.getters(ev.manifest, name); err != nil {
			return err
		}
	}
	for _, name := range e.cost.columns {
		arrays, err := ev.manifest.Column(name)
		if err != nil {
			return err
		}
		ev.sized = append(ev.sized, arrays)
	}
	return nil
}

// spend counts steps, and fails where they are too many.
func (ev *evaluation) spend(steps float64, sizes []float64) error {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.spent += steps
	if ev.spent > allowed(ev.rows) {
		return ev.expr.beyond(sizes, "it has taken %.3g steps before all of %d rows were done, at most %.3g are allowed, %.3g for the last row",
			ev.spent, ev.rows, allowed(ev.rows), ev.expr.rowSteps(sizes))
	}
	return nil
}

// merge adds the matches of a chunk that starts at that position.
func (ev *evaluation) merge(start int64, words []uint64) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	if start%64 == 0 {
		for i, w := range words {
			ev.out.Words()[start/64+int64(i)] |= w
		}
		return
	}
	for i, w := range words {
		for ; w != 0; w &= w - 1 {
			ev.out.Set(start + int64(i*64+bits.TrailingZeros64(w)))
		}
	}
}

// worker evaluates chunks, one after the other.
type worker struct {
	*evaluation
	vm    vm.VM
	env   map[string]any
	gets  []getter      // by column
	cells []arrow.Array // by column of cost.columns
	sizes []float64     // of the row's cells, and numbers of their items
}

func (ev *evaluation) worker() *worker {
	e := ev.expr
	return &worker{
		evaluation: ev, vm: vm.VM{MemoryBudget: rowBudget}, env: make(map[string]any, len(e.columns)),
		gets: make([]getter, len(e.columns)), cells: make([]arrow.Array, len(ev.sized)), sizes: make([]float64, 2*len(ev.sized)),
	}
}

// evaluate evaluates the rows of a chunk, which must first be there: a fault within an
// expression would count as the expression's.
func (w *worker) evaluate(ctx context.Context, c int) error {
	err := w.manifest.Touch(c)
	if err == nil {
		err = schema.Guard(func() error { return w.chunk(ctx, c) })
	}
	if errors.Is(err, schema.ErrDataLoss) {
		snap := w.manifest.Snapshot()
		return fmt.Errorf("manifest of %s@%d: %w", snap.Dataset, snap.Number, err)
	}
	return err
}

// chunk evaluates the rows of a chunk.
func (w *worker) chunk(ctx context.Context, c int) error {
	program := w.expr.plain
	for i := range w.expr.columns {
		w.gets[i] = w.evaluation.gets[i][c]
		if w.nulls[i][c] {
			program = w.expr.guarded
		}
	}
	for i := range w.sized {
		w.cells[i] = w.sized[i][c]
	}
	start, n := w.manifest.ChunkStart(c), 0
	rows := int(w.manifest.ChunkStart(c+1) - start)
	words := make([]uint64, (rows+63)/64)
	for n < rows {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		err := w.turn(ctx, func() (err error) {
			n, err = w.piece(program, words, start, n, rows)
			return err
		})
		if err != nil {
			return err
		}
	}
	w.merge(start, words)
	return nil
}

// measure returns what row i of the chunk may take.
func (w *worker) measure(i int) float64 {
	if len(w.cells) == 0 {
		return w.expr.constant
	}
	for c, cells := range w.cells {
		w.sizes[2*c] = sizeOf(cells, i)
		w.sizes[2*c+1] = countOf(cells, i, w.sizes[2*c])
	}
	return w.expr.rowSteps(w.sizes)
}

// piece evaluates rows of the chunk that starts at that position, from row i on,
// and returns how far it came.
func (w *worker) piece(program *vm.Program, words []uint64, start int64, i, rows int) (int, error) {
	var spent, skipped float64
	for ; i < rows && spent < turnSteps; i++ {
		if w.within != nil && !w.within.Has(start+int64(i)) {
			spent, skipped = spent+skipSteps, skipped+skipSteps
			continue
		}
		steps := w.measure(i)
		if steps > MaxRowSteps {
			return i, w.expr.checkRow(w.sizes, fmt.Sprintf("position %d", start+int64(i)))
		}
		spent += steps
		for c, get := range w.gets {
			w.env[w.expr.columns[c]] = get(i)
		}
		v, err := w.vm.Run(program, w.env)
		if err != nil {
			e := located(w.expr.text, err)
			e.Message = fmt.Sprintf("position %d: %s", start+int64(i), e.Message)
			return i, e
		}
		if v == true {
			words[i>>6] |= 1 << (i & 63)
		}
	}
	return i, w.spend(spent-skipped, slices.Clone(w.sizes))
}
