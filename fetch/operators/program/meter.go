package program

import (
	"context"
	"fmt"
	"io"
)

// checkEvery is how many steps a run takes between two checks of its context: about 17
// ms.
const checkEvery = 1 << 24

// Meter limits a run to its computed cost, in steps and in bytes of working memory, and
// ends it when its context ends. It is a second guard: if a cost was computed too low,
// the run fails instead of exhausting memory. A nil Meter allows everything. It is not
// safe for concurrent use.
type Meter struct {
	ctx     context.Context //nolint:containedctx // a meter is a part of one run
	granted Cost
	spent   Amount
	next    int64 // steps at which it checks again
	held    int64
	most    int64 // maximum of held
	err     error // the first one, which stays
}

// NewMeter returns the meter of a run with that cost.
func NewMeter(ctx context.Context, granted Cost) *Meter {
	m := &Meter{ctx: ctx, granted: granted}
	m.plan()
	return m
}

// plan sets the next check, at the latest when all granted steps are spent.
func (m *Meter) plan() {
	m.next = min(m.spent.Plus(Count(checkEvery)).Int64(), m.granted.Steps.Int64())
}

// Spend counts steps before they are taken. It fails with ErrTooLarge if they exceed the
// granted ones, and with the context's cause if the context has ended. After a failure
// each further call fails.
func (m *Meter) Spend(steps int64) error {
	if m == nil {
		return nil
	}
	m.spent = m.spent.Plus(Count(steps))
	if m.err == nil && !m.spent.Beyond(m.next) {
		return nil
	}
	if m.err == nil && m.spent.Beyond(m.granted.Steps.Int64()) {
		m.err = fmt.Errorf("%w: it takes %v steps and more, where %v were counted for it", ErrTooLarge, m.spent,
			m.granted.Steps)
	}
	m.plan()
	return m.Check()
}

// Check fails if the run's context has ended, or after another failure.
func (m *Meter) Check() error {
	if m == nil {
		return nil
	}
	if m.err == nil {
		m.err = context.Cause(m.ctx)
	}
	return m.err
}

// Hold counts bytes of working memory before they are allocated. It fails with
// ErrTooLarge if the run would exceed its grant; the caller must not allocate them then.
func (m *Meter) Hold(bytes int64) error {
	if m == nil {
		return nil
	}
	total := Count(m.held).Plus(Count(bytes))
	if m.err == nil && total.Beyond(m.granted.Working.Int64()) {
		m.err = fmt.Errorf("%w: it works in %v bytes, where %v were counted for it", ErrTooLarge, total,
			m.granted.Working)
	}
	if m.err == nil {
		m.held = total.Int64()
		m.most = max(m.most, m.held)
	}
	return m.err
}

// Free counts held bytes as released.
func (m *Meter) Free(bytes int64) {
	if m != nil {
		m.held = max(m.held-max(bytes, 0), 0)
	}
}

// Used is the cost of the run so far: its steps, and the maximum of its working memory.
func (m *Meter) Used() (steps, bytes int64) {
	if m == nil {
		return 0, 0
	}
	return m.spent.Int64(), m.most
}

// Reader wraps in for a library that knows no meter: a read fails after the run's context
// has ended.
func (m *Meter) Reader(in io.Reader) io.Reader {
	if m == nil {
		return in
	}
	return &meteredReader{in, m}
}

// meteredReader is the result of Reader.
type meteredReader struct {
	in io.Reader
	m  *Meter
}

func (r *meteredReader) Read(p []byte) (int, error) {
	if err := r.m.Check(); err != nil {
		return 0, err
	}
	return r.in.Read(p)
}
