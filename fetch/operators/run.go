package operators

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/operators/program"
	"bowstring/schema"
)

// FaultError is why operators could make nothing of a cell: schema.ErrDataLoss, schema.ErrNotSupported or
// schema.ErrLimit where the cell is at fault, schema.ErrUnavailable where another try may succeed.
type FaultError struct {
	// Operator is the name of the step, where it is known.
	Operator string
	err      error
}

func (f *FaultError) Error() string {
	if f.Operator == "" {
		return "operators: " + f.err.Error()
	}
	return "operators: " + f.Operator + ": " + f.err.Error()
}

// Unwrap is the cause.
func (f *FaultError) Unwrap() error { return f.err }

// unsupported is a schema.ErrNotSupported in the words of the program, which has the same ones for it.
type unsupported struct{ error }

// Unwrap is what it is, and the cause.
func (u unsupported) Unwrap() []error { return []error{schema.ErrNotSupported, u.error} }

// faultOf makes a FaultError of what a program said, in the words of package schema. Whoever
// says no step was reading the header, which the first one does.
func (c *Column) faultOf(err error) error {
	f := &FaultError{Operator: c.Named(0), err: err}
	if step, ok := errors.AsType[*program.StepError](err); ok {
		f.Operator = step.Name
	}
	switch {
	case errors.Is(err, schema.ErrDataLoss): // a page of a file that cannot be read
	case errors.Is(err, program.ErrUnavailable):
		f.err = fmt.Errorf("%w: %w", schema.ErrUnavailable, err)
	case errors.Is(err, program.ErrNotSupported):
		f.err = unsupported{err}
	case errors.Is(err, program.ErrTooLarge):
		f.err = fmt.Errorf("%w: %w", schema.ErrLimit, err)
	default:
		f.err = fmt.Errorf("%w: %w", schema.ErrDataLoss, err)
	}
	return f
}

// cost asks what a cell becomes at most. It allocates nothing worth counting.
func (s *Stage) cost(t *Task) (cost program.Cost, err error) {
	err = s.shielded(t, func() (err error) {
		cost, err = t.Column.Program.Cost(t.Cell.Bytes(), s.opts.Limits)
		return err
	})
	if err == nil && cost.Steps.Beyond(s.opts.Limits.Steps) {
		err = fmt.Errorf("%w: it would take %v steps of work; a sample may take %d", program.ErrTooLarge, cost.Steps,
			s.opts.Limits.Steps)
	}
	if err == nil && cost.Result.Plus(cost.Working).Beyond(s.opts.Limits.Bytes) {
		err = fmt.Errorf("%w: it would take %v bytes, and %v beside while it is made; a sample may take %d",
			program.ErrTooLarge, cost.Result, cost.Working, s.opts.Limits.Bytes)
	}
	if size := t.Column.Form.CellBytes(); err == nil && size >= 0 {
		cost.Result = program.Count(size)
	}
	if err != nil {
		return cost, t.Column.faultOf(err)
	}
	return cost, nil
}

// make runs a program over bytes, for a task that has room for a result of most bytes. The
// cell is the caller's, with what the program said of its result.
func (s *Stage) make(t *Task, p program.Program, in []byte,
	most int64) (c *cell, n int, outcome program.Outcome, err error) {
	var refused error
	err = s.shielded(t, func() (err error) {
		outcome, err = p.Run(t.Context, in, t.Draws, func(size int) []byte {
			if size < 0 || int64(size) > most {
				refused = fmt.Errorf("%w: the program makes %d bytes, where it said that it would make %d at most",
					program.ErrTooLarge, size, most)
				return nil
			}
			c, n = newCell(size), size
			return c.memory[:n:n]
		})
		return err
	})
	t.elsewhere += outcome.Elsewhere
	if refused != nil {
		err = refused
	}
	if err == nil && c == nil {
		err = errors.New("the program has made nothing")
	}
	if err != nil && c != nil {
		c.Unpin()
		c = nil
	}
	return c, n, outcome, err
}

// whole makes the result of a task by a program, from the cell or from what lies between.
func (s *Stage) whole(t *Task, p program.Program, in []byte) (*cell, int, error) {
	c, n, outcome, err := s.make(t, p, in, t.cost.Result.Int64())
	if err != nil {
		return nil, 0, err
	}
	if err := t.Column.checkOutcome(&outcome, n); err != nil {
		c.Unpin()
		return nil, 0, err
	}
	c.describe(t.Column, &outcome)
	return c, n, nil
}

// checkOutcome fails where a program has broken its word: what it says of its result goes
// into batches unchecked.
func (c *Column) checkOutcome(o *program.Outcome, made int) error {
	if c.Form.Encoded() {
		return nil
	}
	if len(o.Dims) != len(c.Form.Shape) {
		return fmt.Errorf("the program made %d dimensions, its result has %d", len(o.Dims), len(c.Form.Shape))
	}
	size := c.Form.ElementBytes()
	for i, d := range o.Dims {
		if want := c.Form.Shape[i]; d < 0 || want != nil && d != *want {
			return fmt.Errorf("the program made dimensions %v", o.Dims)
		}
		size *= int64(d)
	}
	if size != int64(made) {
		return fmt.Errorf("the program made %d bytes of dimensions %v", made, o.Dims)
	}
	return nil
}

// shielded calls what reads a cell: a page that cannot be read, and a panic, are errors.
func (s *Stage) shielded(t *Task, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = s.panicked(t, p)
		}
	}()
	return schema.Guard(f)
}

// maxPanics is how many different panics are logged.
const maxPanics = 32

// errPanicked is what is said of a panic that is not logged, as enough others were.
var errPanicked = errors.New("the program has panicked")

// panicked makes an error of a panic, and logs it, once for each column's operators and each text. The error goes to
// clients: it has the id of what was logged and not the text.
func (s *Stage) panicked(t *Task, p any) error {
	s.count.panics.Add(1)
	key := string(t.Column.id[:]) + fmt.Sprint(p)
	s.mu.Lock()
	defect, known := s.panics[key]
	if !known && len(s.panics) < maxPanics {
		defect = schema.Recovered(p)
		s.panics[key] = defect
	}
	s.mu.Unlock()
	if defect == nil {
		return errPanicked
	}
	_ = defect.Log(t.Context, s.opts.Logger, "a program of operators has panicked; the sample counts as one that cannot be "+
		"made", slog.String("column", t.Column.Name), slog.Uint64("position", t.Draws.Key.Position))
	return fmt.Errorf("%w: %w", errPanicked, defect)
}

// spent is the processor time so far of a task that is under way, whichever process took it.
func (t *Task) spent(clock processorClock) time.Duration { return clock.so() + t.elsewhere }

// errClosed is what becomes of a task whose place was closed while it ran.
var errClosed = errors.New("operators: the stream has ended")

// use is what the task's working memory is counted as.
func (t *Task) use() admission.Use {
	if t.long {
		return admission.LongMaking
	}
	return admission.Making
}

// work does a task to its end, or as far as there is room for it.
func (s *Stage) work(t *Task) {
	if err := context.Cause(t.Context); err != nil {
		t.To.Made(t, Outcome{Err: err})
		return
	}
	began := time.Now()
	clock := startClock()
	t.elsewhere = 0
	o := Outcome{Queued: began.Sub(t.put)}
	defer func() {
		if o.done {
			o.Processor, o.Took = clock.stop()+t.elsewhere, time.Since(began)
			s.tell(t, &o)
		} else {
			clock.stop()
		}
	}()
	var found schema.Blob // that was kept
	if s.keeps(t) {
		found, o.Kept = s.kept(t)
	}
	if o.Kept {
		// It is not measured: it may have gone when there is room for it.
		t.cost = program.Cost{Result: program.Count(int64(len(found.Bytes())))}
	} else if !t.measured {
		cost, err := s.cost(t)
		if err != nil {
			o.Err, o.done = err, true
			return
		}
		t.cost, t.measured = cost, true
		t.long = t.long || cost.Steps.Beyond(longSteps)
		if t.long {
			if t.place.again(t) {
				return // it has its turn among those that take long
			}
			o.Err, o.done = cmp.Or(context.Cause(t.Context), errClosed), true
			return
		}
		t.charge()
	}
	// A result that was kept when there was no room for it may have gone since, and to make it may take more.
	if t.Column.Form.CellBytes() < 0 && (!t.roomy || t.cost.Result.Beyond(t.room)) && !t.To.Room(t, t.ResultBytes()) {
		found.Release()
		return // the receiver has it now
	}
	o.done = true
	if o.Kept {
		o.Blob = found
		return
	}
	hold, err := s.opts.Ledger.ReserveFor(t.Context, t.use(), t.Tenant, t.cost.Working.Int64())
	if err != nil {
		o.Err = err
		return
	}
	making := t.spent(clock)
	c, n, err := s.best(t, clock)
	hold.Release()
	if err != nil {
		if o.Err = context.Cause(t.Context); o.Err == nil { // otherwise it was interrupted, whatever it says
			o.Err = t.Column.faultOf(err)
		}
		return
	}
	if s.keeps(t) {
		s.keep(t, c, n, t.spent(clock)-making)
	}
	o.Blob = schema.NewBlob(c.memory[:n:n], c)
}
