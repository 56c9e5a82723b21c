package where

import (
	"context"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/vm"
)

// tabulated is how many numbers one turn evaluates an expression for: some milliseconds.
const tabulated = 4096

// Tabulate evaluates an expression over one integer variable of that name, for each value
// from 0 to most, and returns the results as floats; a bool is 0 or 1. Errors call the
// expression place. Long work is done within turns. An error in the expression is an
// *Error, which names the number that it cannot be evaluated for.
func Tabulate(ctx context.Context, name, place, text string, most int64, turn Turn) ([]float64, error) {
	s := arrow.NewSchema([]arrow.Field{{Name: name, Type: arrow.PrimitiveTypes.Int64}}, nil)
	m, err := CompileNumber(ctx, name, place, text, s, turn)
	if err != nil {
		return nil, err
	}
	for _, used := range m.Columns() {
		if used != name { // a virtual column of snapshots, which has no value here
			return nil, m.placed(at(text, file.Location{}, fmt.Sprintf("no column %q: there is %s alone", used, name)))
		}
	}
	if err := m.CheckRows(most + 1); err != nil {
		return nil, err
	}
	values := make([]float64, most+1)
	machine, env := vm.VM{MemoryBudget: rowBudget}, map[string]any{}
	for from := 0; from < len(values); from += tabulated {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		err := turn(ctx, func() error {
			for n := from; n < min(from+tabulated, len(values)); n++ {
				env[name] = n
				v, err := machine.Run(m.expr.guarded, env)
				if err != nil {
					return tabulateFault(located(text, err), name, n)
				}
				var ok bool
				if values[n], ok = asNumber(v); !ok {
					return tabulateFault(at(text, file.Location{}, "it gives no number"), name, n)
				}
			}
			return nil
		})
		if err != nil {
			return nil, m.placed(err)
		}
	}
	return values, nil
}

// tabulateFault says for which number an expression cannot be evaluated.
func tabulateFault(err *Error, name string, n int) error {
	err.Message = fmt.Sprintf("%s = %d: %s", name, n, err.Message)
	return err
}

// asNumber converts a number or a bool to a float.
func asNumber(v any) (number float64, ok bool) {
	switch v := v.(type) {
	case int:
		return float64(v), true
	case uint64:
		return float64(v), true
	case float64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}
