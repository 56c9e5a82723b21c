package program

import (
	"context"
	"fmt"
	"io"
)

// checkEvery is how many steps a run takes between two looks at its context: some 17 ms.
const checkEvery = 1 << 24

// Meter holds a run to the cost that was counted for it: to its steps, and to the bytes that it works in. It ends the
// run when its context has ended. A nil Meter allows everything. It is not safe for concurrent use.
type Meter struct {
	ctx     context.Context //nolint:containedctx // a meter is a part of one run
	granted Cost
	spent   Amount
	next    int64 // steps at which it looks again
	held    int64
	most    int64 // that was held
	err     error // the first one, which stays
}

// NewMeter returns the meter of a run that may cost so much.
func NewMeter(ctx context.Context, granted Cost) *Meter {
	m := &Meter{ctx: ctx, granted: granted}
	m.plan()
	return m
}

// plan says when to look again: not later than when all granted steps are spent.
func (m *Meter) plan() {
	m.next = min(m.spent.Plus(Count(checkEvery)).Int64(), m.granted.Steps.Int64())
}

// Spend counts steps that are about to be taken. It fails with ErrTooLarge where they are more than were granted, and
// with the context's cause when that has ended. After a failure each further call fails.
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

// Check fails when the run's context has ended, or after another failure.
func (m *Meter) Check() error {
	if m == nil {
		return nil
	}
	if m.err == nil {
		m.err = context.Cause(m.ctx)
	}
	return m.err
}

// Hold counts bytes of working memory that are about to be allocated. It fails with ErrTooLarge where the run would
// work in more than was granted: nothing may be allocated then.
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

// Free counts held bytes as given back.
func (m *Meter) Free(bytes int64) {
	if m != nil {
		m.held = max(m.held-max(bytes, 0), 0)
	}
}

// Used is what the run has cost so far: the steps, and the most bytes that it held at once.
func (m *Meter) Used() (steps, bytes int64) {
	if m == nil {
		return 0, 0
	}
	return m.spent.Int64(), m.most
}

// Reader gives what in gives, to a library that knows no meter: a read fails when the run's context has ended.
func (m *Meter) Reader(in io.Reader) io.Reader {
	if m == nil {
		return in
	}
	return &meteredReader{in, m}
}

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
