package resolve

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/admission"
	"bowstring/fetch/store"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// express compiles the expressions that make columns of a request, of what its caller may see, and writes their
// contract into it. They are compiled by turns.
func (s *shown) express(ctx context.Context, turn where.Turn, snap *schema.Snapshot, req schema.Request) error {
	visible := req.Within.Visible(snap.Schema)
	for _, name := range req.Operators.Expressions() {
		p, at := req.Operators[name], "operators."+schema.Shown(name)
		if p.Contract != "" && p.Contract != where.ColumnContract {
			return &schema.FieldError{Field: at + ".contract", Got: schema.Quote(p.Contract),
				Want: strconv.Quote(where.ColumnContract) + ", the version of what runs here: others make other values"}
		}
		_, _, part := schema.MadePart(visible, s.operators.Forms(), name)
		if _, _, _, ok := schema.BlobPart(visible, name); ok || part || visible.HasField(name) {
			return &schema.FieldError{Field: at, Got: "an expression for a column that there is",
				Want: "the name of a new column"}
		}
		m, err := where.CompileColumn(ctx, name, at+".expression", p.Expression, visible, req.OnError, turn)
		if err != nil {
			return err
		}
		for _, used := range m.Columns() { // as checkHidden does
			if req.Within.Hides(snap.Schema, used) {
				return &where.Error{Line: 1, Column: 1, Field: at + ".expression",
					Message: fmt.Sprintf("no column %q", used)}
			}
		}
		p.Contract = where.ColumnContract
		req.Operators[name] = p
		s.makers = append(s.makers, m)
	}
	return nil
}

// littleMade is what the makers of a job may take that is not counted: as much as those of some short expressions.
const littleMade = 64 << 10

// keep counts in what a job keeps of expressions, on the account of the caller that ctx carries; nil if that is little.
func (s *shown) keep(ctx context.Context, results *results) (*admission.Hold, error) {
	var n int64
	for _, m := range s.makers {
		n += m.Bytes()
	}
	if n <= littleMade {
		return nil, nil //nolint:nilnil // a Hold may be nil
	}
	h, err := results.reserve(store.CallerFrom(ctx).Tenant, n)
	if err != nil {
		return nil, fmt.Errorf("columns by expression: %w", err)
	}
	return h, nil
}

// fields are the columns that expressions make.
func (s *shown) fields() []arrow.Field {
	fields := make([]arrow.Field, len(s.makers))
	for i, m := range s.makers {
		fields[i] = m.Field()
	}
	return fields
}

// order has the makers in the order of the projection's columns, without those that are not shown.
func (s *shown) order() {
	all := s.makers
	s.makers = nil
	for _, f := range s.projection.Computed() {
		i := slices.IndexFunc(all, func(m *where.Maker) bool { return m.Field().Name == f.Name })
		s.makers = append(s.makers, all[i])
	}
}

// ComputedFault is a row for which a column that Projection().Computed names cannot be made.
type ComputedFault struct {
	Row    int
	Column string
	Err    error
}

// Computed makes the columns that Projection().Computed names, for rows that lie open. It waits for
// turns where that takes long. Rows that cannot be told are faults, and null; where the request's on_error is fail,
// there is one fault and no column.
func (j *Job) Computed(ctx context.Context, positions []int64, rows []schema.Row) ([]schema.Vector, []ComputedFault,
	error) {
	var out []schema.Vector
	var faults []ComputedFault
	for _, m := range j.makers {
		v, wrong, err := m.Make(ctx, j.Manifest().Form(), positions, rows, j.turn)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range wrong {
			faults = append(faults, ComputedFault{f.Row, m.Field().Name, f.Err})
		}
		if len(faults) > 0 && !j.Tolerant() {
			return nil, faults, nil
		}
		out = append(out, v)
	}
	return out, faults, nil
}

// ComputedBytes bounds what those columns take for a row.
func (j *Job) ComputedBytes() (n int64) {
	for _, m := range j.makers {
		n += m.RowBytes()
	}
	return n
}
