package prefetch

import (
	"io"
	"time"
)

// A stream of a run plans steps alone that are settled: see resolve.Job.Settle. It has more be settled before it
// comes to the last one. Each time is a swap in the store, and a change of weights waits for all that is settled:
// so that comes every few seconds.

const (
	// leastLeap and mostLeap bound how many steps are settled at once.
	leastLeap = 16
	mostLeap  = 1 << 20
	// oftenLeap and seldomLeap bound how long that lasts: if it is less, or more, it is to be twice as many, or half.
	oftenLeap  = 4 * time.Second
	seldomLeap = 16 * time.Second
)

// settling is how a stream has steps be settled. It is of the stream's goroutine.
type settling struct {
	busy bool
	leap int64 // steps
	last time.Time
}

// settleAhead has more steps be settled where a walk comes near the last one, or needs more.
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

// unsettled reports whether planning needs more steps to be settled.
func (s *owner) unsettled() bool { return s.pipeline.walk.needs > s.job.Settled() }

// serveEnd serves a consumer where the stream cannot go on: it has ended, or waits for steps to be settled.
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
	if !s.settling.busy { // they are settled by now
		s.check, s.again = true, true
		return
	}
	s.woken = false
	s.setWaiting(true)
}
