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

	"bowstring/fetch/plan"
	"bowstring/schema"
)

// Turn runs a piece of work of some milliseconds, when it may, and returns its
// error. It may be called from several goroutines.
type Turn func(ctx context.Context, piece func() error) error

// Rows are the rows of a snapshot. Walk visits the pages with positions in [from, to), in
// any order and several at once; start is the position of a page's first row, and the
// page is open until visit is back. Of chunks and pages for which need is false nothing is read; it may be called
// at any time, several times at once. Of several errors the one at the least position is returned.
type Rows interface {
	Form() *schema.Form
	Walk(ctx context.Context, from, to int64, need func(start int64, run *schema.Chunk) bool,
		visit func(ctx context.Context, start int64, p *schema.Page) error) error
}

// Eval returns the positions of the samples for which the expression is true,
// frozen. Pages are evaluated in parallel, by turns. A row that cannot be
// evaluated (a remainder by zero, an item beyond an array's end) is an *Error that
// says which, the first of them if there are several; so is an expression that takes too long for the rows there are,
// which is told before or while they are evaluated. Pages whose statistics say that all rows
// match, or none, are not read, and their rows cost nothing.
func (e *Expr) Eval(ctx context.Context, m Rows, turn Turn) (*plan.Bitmap, error) {
	return e.EvalWithin(ctx, m, nil, turn)
}

// EvalWithin is Eval over some samples, all if within is nil. Of the others nothing is
// looked at: no error, cost or result depends on them. So statistics are believed only of pages without any of
// them.
func (e *Expr) EvalWithin(ctx context.Context, m Rows, within *plan.Bitmap, turn Turn) (*plan.Bitmap, error) {
	all := m.Form().Rows()
	ev := &evaluation{
		ctx: ctx, expr: e, form: m.Form(), within: within, rows: all, turn: turn, out: plan.NewBitmap(all),
		places: placesOf(m.Form(), e.named),
	}
	if within != nil {
		ev.rows = within.Len()
	}
	if err := e.checkRows(ev.rows); err != nil {
		return nil, err
	}
	// As many as may have a turn at once.
	workers := make(chan *worker, max(1, runtime.GOMAXPROCS(0)/2))
	for range cap(workers) {
		r, err := newRunner(e, ev.form)
		if err != nil {
			return nil, err
		}
		workers <- &worker{ev, r}
	}
	err := m.Walk(ctx, 0, all, ev.need, func(ctx context.Context, start int64, p *schema.Page) error {
		select {
		case w := <-workers:
			defer func() { workers <- w }()
			return w.evaluate(ctx, start, p)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil {
		return nil, err
	}
	return ev.out.Freeze(), nil
}

// need reports whether rows have to be read. What it can tell of them by itself is done.
func (ev *evaluation) need(start int64, run *schema.Chunk) bool {
	if ev.within != nil {
		switch ev.within.CountIn(start, start+run.Rows) {
		case 0:
			return false
		case run.Rows:
		default:
			return true
		}
	}
	matches, ok := ev.decided(start, run)
	if ok && matches {
		ev.mu.Lock()
		ev.out.SetRange(start, start+run.Rows)
		ev.mu.Unlock()
	}
	return !ok
}

// skipSteps is what passing over a sample counts for, towards the end of a turn.
const skipSteps = 1.0 / 16

// evaluation is an expression going through a manifest.
type evaluation struct {
	expr   *Expr
	form   *schema.Form
	within *plan.Bitmap // the samples that there are; nil if all
	rows   int64        // as many as these
	turn   Turn
	places []place // of expr.named
	ctx    context.Context

	mu    sync.Mutex
	out   *plan.Bitmap // guarded by mu
	spent float64      // steps; guarded by mu
}

// spend counts steps, and fails where they are too many.
func (ev *evaluation) spend(steps float64, sizes []float64) error {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.spent += steps
	if ev.spent > allowed(ev.rows) {
		return ev.expr.beyond(sizes, "it has taken %.3g steps before all of %d rows were done, at most %.3g are "+
			"allowed, %.3g for the last row",
			ev.spent, ev.rows, allowed(ev.rows), ev.expr.rowSteps(sizes))
	}
	return nil
}

// merge adds the matches of a page that starts at that position.
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

// runner runs an expression for rows. It is not safe for concurrent use.
type runner struct {
	expr    *Expr
	form    *schema.Form
	sources []source // of expr.columns
	sized   []int    // by column of cost.columns: its index in the schema
	vm      vm.VM
	env     map[string]any
	sizes   []float64 // of the row's cells, and numbers of their items
}

// open are the columns of a page that the expression names.
type open struct {
	gets  []getter      // by column
	cells []arrow.Array // by column of cost.columns
	nulls bool          // a column has some
}

func newRunner(e *Expr, form *schema.Form) (*runner, error) {
	n := len(e.cost.columns)
	r := &runner{expr: e, form: form, sized: make([]int, n), vm: vm.VM{MemoryBudget: rowBudget},
		env: make(map[string]any, len(e.columns)), sizes: make([]float64, 2*n)}
	var err error
	if r.sources, err = sourcesOf(form, e.columns); err != nil {
		return nil, err
	}
	for i, name := range e.cost.columns {
		if r.sized[i], err = form.ColumnIndex(name); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// open takes the columns of a page that begins at start and was touched: a fault within an expression would count as the
// expression's.
func (r *runner) open(p *schema.Page, start int64) *open {
	o := &open{gets: make([]getter, len(r.sources)), cells: make([]arrow.Array, len(r.sized))}
	for i := range r.sources {
		get, nulls := r.sources[i].getter(r.form, start, p)
		o.gets[i], o.nulls = get, o.nulls || nulls
	}
	for i, col := range r.sized {
		o.cells[i] = p.Column(col)
	}
	return o
}

// measure returns what row i of a page may take.
func (r *runner) measure(o *open, i int) float64 {
	if len(o.cells) == 0 {
		return r.expr.constant
	}
	for c, cells := range o.cells {
		r.sizes[2*c] = sizeOf(cells, i)
		r.sizes[2*c+1] = countOf(cells, i, r.sizes[2*c])
	}
	return r.expr.rowSteps(r.sizes)
}

// run is the value of row i of a page.
func (r *runner) run(program *vm.Program, o *open, i int) (any, error) {
	for c, get := range o.gets {
		r.env[r.expr.columns[c]] = get(i)
	}
	return r.vm.Run(program, r.env)
}

// worker evaluates pages, one after the other.
type worker struct {
	*evaluation
	*runner
}

// evaluate evaluates the rows of a page, which must first be there: a fault within an
// expression would count as the expression's.
func (w *worker) evaluate(ctx context.Context, start int64, p *schema.Page) error {
	err := p.Touch()
	if err == nil {
		err = schema.Guard(func() error { return w.page(ctx, start, p) })
	}
	if errors.Is(err, schema.ErrDataLoss) {
		snap := w.runner.form.Snapshot()
		return fmt.Errorf("manifest of %s@%d: %w", snap.Dataset, snap.Number, err)
	}
	return err
}

// page evaluates the rows of a page.
func (w *worker) page(ctx context.Context, start int64, p *schema.Page) error {
	o := w.open(p, start)
	n, rows := 0, p.Rows()
	words := make([]uint64, (rows+63)/64)
	for n < rows {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		err := w.turn(ctx, func() (err error) {
			n, err = w.piece(o, words, start, n, rows)
			return err
		})
		if err != nil {
			return err
		}
	}
	w.merge(start, words)
	return nil
}

// piece evaluates rows of the page that starts at that position, from row i on,
// and returns how far it came.
func (w *worker) piece(o *open, words []uint64, start int64, i, rows int) (int, error) {
	program := w.evaluation.expr.plain
	if o.nulls {
		program = w.evaluation.expr.guarded
	}
	var spent, skipped float64
	for ; i < rows && spent < turnSteps; i++ {
		if w.within != nil && !w.within.Has(start+int64(i)) {
			spent, skipped = spent+skipSteps, skipped+skipSteps
			continue
		}
		steps := w.measure(o, i)
		if steps > MaxRowSteps {
			return i, w.runner.expr.checkRow(w.sizes, fmt.Sprintf("position %d", start+int64(i)))
		}
		spent += steps
		v, err := w.run(program, o, i)
		if err != nil {
			e := located(w.runner.expr.text, err)
			e.Message = fmt.Sprintf("position %d: %s", start+int64(i), e.Message)
			return i, e
		}
		if v == true {
			words[i>>6] |= 1 << (i & 63)
		}
	}
	return i, w.spend(spent-skipped, slices.Clone(w.sizes))
}
