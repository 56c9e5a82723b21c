package where

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/expr-lang/expr/file"

	"bowstring/schema"
)

// ColumnContract is the version of the values that expressions make. It is part of the
// identity of a computed column, and changes whenever the value of any expression
// changes.
const ColumnContract = "expression/2"

// Bounds of an expression that makes a column, for each row. They are lower than those of
// a condition, because rows are made while a consumer waits for their batch.
const (
	// MaxMadeSteps bounds the steps.
	MaxMadeSteps = 1 << 14
	// MaxMadeText bounds the bytes of a text.
	MaxMadeText = 4096
)

// fewSteps are the steps that a batch may take without a turn: some hundred microseconds.
const fewSteps = 1 << 14

// Maker is a compiled expression that makes a column. It is immutable and safe for
// concurrent use.
type Maker struct {
	expr  *Expr
	field arrow.Field
	place string // what errors call the expression: its field of the request
	fails bool   // the first row that cannot be evaluated ends Make
}

// CompileColumn checks an expression against a logical schema and compiles it to a maker
// of the column of that name. It does the work within turns and ends with ctx. Errors
// call the expression place. onError is the request's policy for rows that cannot be
// evaluated. An error in the expression is an *Error.
func CompileColumn(ctx context.Context, name, place, text string, s *arrow.Schema, onError string,
	turn Turn) (*Maker, error) {
	return compileColumn(ctx, name, place, text, s, onError, turn, typeMade)
}

// CompileNumber is CompileColumn for a column of numbers or bools. If only a row decides
// the type, as for x ?? 1 of an untyped x, the column is float64, and a row without a
// number cannot be evaluated.
func CompileNumber(ctx context.Context, name, place, text string, s *arrow.Schema, turn Turn) (*Maker, error) {
	m, err := compileColumn(ctx, name, place, text, s, schema.OnErrorFail, turn, func(t reflect.Type) arrow.DataType {
		if t == nil || t.Kind() == reflect.Interface {
			return arrow.PrimitiveTypes.Float64
		}
		return typeMade(t)
	})
	if err != nil {
		return nil, err
	}
	switch m.field.Type.ID() {
	case arrow.BOOL, arrow.INT64, arrow.UINT64, arrow.FLOAT64:
		return m, nil
	}
	return nil, m.placed(at(text, file.Location{}, fmt.Sprintf("it gives %s; wanted is a number or a bool: float(…) makes one",
		madeName(m.expr.made))))
}

// compileColumn compiles an expression to a column whose type typeMade derives from the
// expression's; nil if no column can have it.
func compileColumn(ctx context.Context, name, place, text string, s *arrow.Schema, onError string, turn Turn,
	typeMade func(reflect.Type) arrow.DataType) (*Maker, error) {
	m := &Maker{place: place, field: arrow.Field{Name: name},
		fails: onError != schema.OnErrorNull && onError != schema.OnErrorSkip}
	e, err := compile(ctx, &Expr{text: text, value: true}, s, turn)
	if err != nil {
		return nil, m.placed(err)
	}
	m.expr = e
	if m.field.Type = typeMade(e.made); m.field.Type == nil {
		return nil, m.placed(at(text, file.Location{}, fmt.Sprintf("it gives %s, which no column can have; wanted is a "+
			"bool, an integer, a float, a text, a time or a duration: int(…), float(…) or string(…) make one, as "+
			"does an item or a field of a list or a struct", madeName(e.made))))
	}
	m.field.Nullable = m.field.Type.ID() != arrow.BOOL || onError == schema.OnErrorNull
	return m, m.checkSteps(make([]float64, 2*len(e.cost.columns)), "a row")
}

// Field is the field of the column. A column of bools has no nulls except for rows that
// cannot be evaluated, because a test of null is false.
func (m *Maker) Field() arrow.Field { return m.field }

// RowBytes bounds the bytes of a row of the column. The size of the row's own cells does
// not matter, as texts are limited.
func (m *Maker) RowBytes(int64) int64 {
	if m.field.Type.ID() == arrow.STRING {
		return MaxMadeText + 8
	}
	return 8
}

// programNode is the memory in bytes that a node of an expression takes at most once it
// is compiled: instructions with their locations, and a constant.
const programNode = 128

// Bytes bounds the memory of the maker itself.
func (m *Maker) Bytes() int64 { return programNode*int64(m.expr.nodes) + 4*int64(len(m.expr.text)) }

// Columns returns the names that the expression uses, as [Expr.Columns] does.
func (m *Maker) Columns() []string { return m.expr.Columns() }

// placed adds the field of the request to an *Error.
func (m *Maker) placed(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.Field = m.place
	}
	return err
}

// CheckRows fails if that number of rows takes too long together, whatever they contain.
// It is for callers that make a whole column at once.
func (m *Maker) CheckRows(rows int64) error { return m.placed(m.expr.checkRows(rows)) }

// checkSteps fails if a row of those sizes takes more than MaxMadeSteps.
func (m *Maker) checkSteps(sizes []float64, row string) error {
	if n := m.expr.rowSteps(sizes); n > MaxMadeSteps {
		return m.placed(m.expr.beyond(sizes, "it takes up to %.3g steps for %s, at most %d are allowed where a column "+
			"is made", n, row, int64(MaxMadeSteps)))
	}
	return nil
}

// made maps types of expressions to types of columns.
var made = map[reflect.Type]arrow.DataType{
	reflect.TypeFor[bool]():          arrow.FixedWidthTypes.Boolean,
	reflect.TypeFor[int]():           arrow.PrimitiveTypes.Int64,
	reflect.TypeFor[uint64]():        arrow.PrimitiveTypes.Uint64,
	reflect.TypeFor[float64]():       arrow.PrimitiveTypes.Float64,
	reflect.TypeFor[string]():        arrow.BinaryTypes.String,
	reflect.TypeFor[time.Time]():     arrow.FixedWidthTypes.Timestamp_us,
	reflect.TypeFor[time.Duration](): arrow.FixedWidthTypes.Duration_us,
}

// typeMade is the type of a column of such values; nil if there is none.
func typeMade(t reflect.Type) arrow.DataType { return made[t] }

// madeName is how errors call a type of expressions.
func madeName(t reflect.Type) string {
	switch {
	case t == nil || t.Kind() == reflect.Interface:
		return "a value whose type only each row decides"
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		return "a list"
	case t.Kind() == reflect.Map:
		return "a struct"
	}
	return "a " + t.String()
}

// RowFault is a row for which an expression cannot be evaluated.
type RowFault struct {
	Row int   // index into the rows of Make
	Err error // an *Error
}

// Make evaluates the expression for the rows at positions and returns the column in its
// own memory. The caller keeps the rows' pages open meanwhile. Long work is done within
// turns. A row that cannot be evaluated is a fault, and null in the column. If on_error
// does not permit faults, Make returns the first fault and no column.
func (m *Maker) Make(ctx context.Context, f *schema.Form, positions []int64, rows []schema.Row,
	turn Turn) (schema.Vector, []RowFault, error) {
	r, err := newRunner(m.expr, f)
	if err != nil {
		return schema.Vector{}, nil, err
	}
	w := &making{runner: r, maker: m, positions: positions, rows: rows, pages: map[opened]*open{},
		placed: slices.ContainsFunc(m.Columns(), func(name string) bool {
			return name == schema.PositionColumn || name == schema.SplitColumn
		}),
		out: builderOf(m.field.Type, len(rows))}
	if len(m.expr.terms) == 0 && m.expr.constant*float64(len(rows)) <= fewSteps {
		turn = func(_ context.Context, piece func() error) error { return piece() }
	}
	for w.at < len(rows) {
		if err := ctx.Err(); err != nil {
			return schema.Vector{}, nil, context.Cause(ctx)
		}
		if err := turn(ctx, func() error { return schema.Guard(w.piece) }); err != nil {
			return schema.Vector{}, nil, m.placed(err)
		}
		if m.fails && len(w.faults) > 0 {
			return schema.Vector{}, w.faults, nil
		}
	}
	return w.out.vector(m.field.Type), w.faults, nil
}

// making is one run of Make. It belongs to the goroutine that called Make.
type making struct {
	*runner
	maker     *Maker
	positions []int64
	rows      []schema.Row
	at        int // next row
	pages     map[opened]*open
	placed    bool // the expression names position or split, which depend on positions
	out       *columnBuilder
	faults    []RowFault
}

// opened identifies a page whose columns are open, with the position of its first row if
// the expression depends on positions. Rows that were gathered into a page are not
// contiguous, so such a page may be open with several starts.
type opened struct {
	page  *schema.Page
	start int64
}

// page returns the columns of a page, and opens them at the first of its rows.
func (w *making) page(p *schema.Page, start int64) (*open, error) {
	key := opened{p, 0}
	if w.placed {
		key.start = start
	}
	if o := w.pages[key]; o != nil {
		return o, nil
	}
	if err := p.Touch(); err != nil {
		return nil, err
	}
	o := w.open(p, start)
	w.pages[key] = o
	return o, nil
}

// piece makes rows until the turn's steps are spent.
func (w *making) piece() error {
	m := w.maker
	for spent := 0.0; w.at < len(w.rows) && spent < turnSteps; w.at++ {
		row, pos := w.rows[w.at], w.positions[w.at]
		o, err := w.page(row.Page, pos-int64(row.At))
		if err != nil {
			return err
		}
		spent += min(w.measure(o, row.At), MaxMadeSteps)
		if err := w.row(o, row.At); err != nil {
			w.faults = append(w.faults, RowFault{w.at, m.placed(err)})
			if m.fails {
				return nil
			}
			w.out.fault()
		}
	}
	return nil
}

// row adds the value of a row whose cells were measured. An error is an *Error, and
// nothing was added.
func (w *making) row(o *open, at int) error {
	m := w.maker
	if err := m.checkSteps(w.sizes, "a row"); err != nil {
		return err
	}
	v, err := w.run(m.expr.guarded, o, at)
	if err == nil {
		err = w.out.add(v)
	}
	if err != nil {
		return located(m.expr.text, err)
	}
	return nil
}
