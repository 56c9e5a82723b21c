package operators_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"bowstring/fetch/operators"
	"bowstring/fetch/operators/program"
	"bowstring/schema"
)

// failing is operators that fail in one way.
type failing struct {
	program.Program
	err error
}

func (f *failing) Run(context.Context, []byte, program.Draws, func(int) []byte) (program.Outcome, error) {
	return program.Outcome{}, fmt.Errorf("step 0: %w", f.err)
}

// TestFaults holds that a failure that is not the cell's fault is not reported as damage.
func TestFaults(t *testing.T) {
	stage, column, p := steppedStage(t, 1)
	close(p.gate)
	place := stage.Open("", "job")
	defer place.Close()
	sentinels := []error{schema.ErrDataLoss, schema.ErrLimit, schema.ErrUnavailable, schema.ErrNotSupported}
	for i, err := range []error{program.ErrDamaged, program.ErrTooLarge, program.ErrUnavailable, program.ErrNotSupported} {
		p.Program = &failing{p.Program, err}
		to := make(ended, 1)
		place.Put(&operators.Task{Column: column, Cell: cellOf('a', 10), Context: t.Context(), To: to})
		o := <-to
		for k, s := range sentinels {
			if errors.Is(o.Err, s) != (i == k) {
				t.Errorf("%v is reported as %v", err, o.Err)
			}
		}
		if f, ok := errors.AsType[*operators.FaultError](o.Err); !ok || f.Operator != "Decode" {
			t.Errorf("%v is reported as %v, without its operator", err, o.Err)
		}
	}
}
