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

// Turn runs a piece of work of some milliseconds when it is permitted, and returns the
// piece's error, or ctx's if that ends first. It may be called from several goroutines.
type Turn func(ctx context.Context, piece func() error) error

// Rows are the rows of a snapshot. Walk visits the pages with positions in [from, to), in
// any order and several at once. start is the position of a page's first row, and the
// page is open until visit returns. Walk reads no chunk or page for which need is false.
// It may call need at any time, several times at once. If several pages fail, Walk
// returns the error at the lowest position.
type Rows interface {
	Form() *schema.Form
	Walk(ctx context.Context, from, to int64, need func(start int64, run *schema.Chunk) bool,
		visit func(ctx context.Context, start int64, p *schema.Page) error) error
}

// Eval returns the positions of the samples for which the expression is true, as a frozen
// bitmap. Pages are evaluated in parallel, each piece of work within a turn. A row that
// cannot be evaluated (a remainder by zero, an index beyond an array's end) is an *Error
// that names the first such row. An expression that takes too long for these rows is an
// *Error as well, reported before or during the evaluation. If the statistics of a page
// show that all or none of its rows match, the page is not read and costs nothing.
func (e *Expr) Eval(ctx context.Context, m Rows, turn Turn) (*plan.Bitmap, error) {
	return e.EvalWithin(ctx, m, nil, turn)
}

// EvalWithin is Eval over the samples of within, or over all if within is nil. No error,
// cost or result depends on the other samples, which the caller may not be allowed to
// see. So statistics are used only for pages that have no other samples.
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
	// One worker for each turn that may run at once. A worker has its own machine and
	// scratch.
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

// need reports whether a page has to be read. If statistics decide the page, need adds
// its matches to the result.
func (ev *evaluation) need(start int64, run *schema.Chunk) bool {
	if ev.within != nil {
		// Statistics include rows that the caller may not see. They are used only if all
		// rows of the page are within.
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

// skipSteps is what a sample outside of within counts for, so that a turn also ends on a
// page with few samples to evaluate. These steps are not charged to the expression.
const skipSteps = 1.0 / 16

// evaluation is one run of an expression over a snapshot. Several goroutines share it.
type evaluation struct {
	expr   *Expr
	form   *schema.Form
	within *plan.Bitmap // samples to evaluate; nil means all
	rows   int64        // number of those samples
	turn   Turn
	places []place // of expr.named
	ctx    context.Context

	mu    sync.Mutex
	out   *plan.Bitmap // guarded by mu
	spent float64      // steps; guarded by mu
}

// spend adds steps to the total of all rows and fails if it exceeds what is allowed.
// sizes are those of the last row, for the message.
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

// merge adds the matches of a page that starts at that position. Pages mostly start at
// multiples of 64, and then whole words are merged.
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

// runner runs an expression for rows of a snapshot. It reuses its machine and buffers, so
// it is for one goroutine.
type runner struct {
	expr    *Expr
	form    *schema.Form
	sources []source // of expr.columns
	sized   []int    // by column of cost.columns: its index in the schema
	vm      vm.VM
	env     map[string]any // values of the current row, by name
	sizes   []float64      // of the row's cells, with the numbers of their items: see cost.columns
}

// open are the columns of a page that the expression names. They are valid while the page
// is open.
type open struct {
	gets  []getter      // by column
	cells []arrow.Array // by column of cost.columns
	nulls bool          // a column has some
}

// newRunner resolves the expression's columns in a snapshot. It fails if the snapshot has
// not all of them.
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

// open takes the columns of a page that begins at start. The caller has touched the page
// before: a read fault during evaluation would be reported as an error of the expression.
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

// measure bounds the steps of row i of a page, and leaves the sizes of its cells in
// r.sizes.
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

// run evaluates the expression for row i of a page.
func (r *runner) run(program *vm.Program, o *open, i int) (any, error) {
	for c, get := range o.gets {
		r.env[r.expr.columns[c]] = get(i)
	}
	return r.vm.Run(program, r.env)
}

// worker evaluates pages, one after the other, for one goroutine at a time.
type worker struct {
	*evaluation
	*runner
}

// evaluate evaluates the rows of a page. It touches the page first: a lost file must be
// reported as schema.ErrDataLoss, not as an error of the expression. Guard catches faults
// of pages that are lost later.
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

// page evaluates the rows of a page in pieces, and merges the matches once at the end.
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

// piece evaluates rows of a page that starts at position start, from row i until the
// turn's steps are spent, and returns the next row. Each row is measured before it runs.
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
		// A row is refused before it runs: the machine cannot be interrupted within a
		// row.
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
