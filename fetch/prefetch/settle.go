package prefetch

import (
	"io"
	"time"
)

// A stream of a run plans only settled steps: see resolve.Job.Settle. It settles more
// steps before it reaches the last one. Settling costs a conditional write to the
// store, and a change of weights takes effect only after the settled steps. So a stream
// settles as many steps as take a few seconds.

const (
	// leastLeap and mostLeap bound how many steps are settled at once.
	leastLeap = 16
	mostLeap  = 1 << 20
	// oftenLeap and seldomLeap bound the time between two settlements. If it was less or
	// more, the next settlement has twice or half as many steps.
	oftenLeap  = 4 * time.Second
	seldomLeap = 16 * time.Second
)

// settling is the state of a stream's settlements. It belongs to the stream's goroutine.
type settling struct {
	busy bool      // a helper settles steps
	leap int64     // steps of the last settlement; 0 before the first
	last time.Time // when it began
}

// settleMore starts to settle more steps if a walk comes near the last settled one, or
// cannot continue without. A helper goroutine waits for the store; its result comes as
// a message.
func (s *owner) settleMore(w *walk) {
	j, g := s.job, &s.settling
	if !j.Steerable() || g.busy || s.gone || w.list != nil || j.Steered() {
		return
	}
	need := max(w.needs, j.RunStep(w.plan, w.step)+1+g.leap/2)
	if need <= j.Settled() {
		return
	}
	now := time.Now()
	switch took := now.Sub(g.last); {
	case g.leap == 0:
		g.leap = leastLeap
	case took < oftenLeap:
		g.leap = min(2*g.leap, mostLeap)
	case took > seldomLeap:
		g.leap = max(g.leap/2, leastLeap)
	}
	g.busy, g.last = true, now
	ctx, leap := s.context(), g.leap
	s.helpers.Go(func() {
		err := j.Settle(ctx, need, leap)
		s.do(func(s *owner) {
			s.settling.busy, s.check, s.more = false, true, true
			if err != nil {
				s.fail(err)
			}
		})
	})
}

// unsettled reports whether planning has to wait until more steps are settled.
func (s *owner) unsettled() bool { return s.pipeline.walk.needs > s.job.Settled() }

// serveEnd answers a consumer if no share with rows is left: the stream has ended, ends
// because weights have changed, or waits for steps to be settled.
func (s *owner) serveEnd() {
	if s.slot.needs == 0 {
		s.reply(handed{err: io.EOF})
		return
	}
	if s.job.Steered() {
		continuation := s.goOn()
		s.continuation.Store(&continuation)
		s.reply(handed{err: io.EOF})
		return
	}
	s.settleMore(&s.slot)
	if !s.settling.busy { // the steps are settled by now
		s.check, s.again = true, true
		return
	}
	s.woken = false
	s.setWaiting(true)
}
