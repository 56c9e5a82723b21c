package peer

import (
	"context"
	"fmt"
	"time"
)

// watch asks the other side whether it is there when it has said nothing for long, and ends the call if it is not. It
// returns when ctx ends.
func (w *wire) watch(ctx context.Context, end context.CancelCauseFunc) {
	tick := time.NewTicker(keepaliveAnswer)
	defer tick.Stop()
	quiet := quiet{looked: time.Now()}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		heard := w.made.Add(time.Duration(w.last.Load()))
		switch quiet.look(now, heard) {
		case excused:
			w.last.Store(int64(time.Since(w.made)))
		case gone:
			end(fmt.Errorf("it has said nothing for %s", now.Sub(heard).Round(time.Second)))
			return
		case doubted:
			if !w.writing.TryLock() { // who writes meanwhile may wait for the other side, for a minute at most
				quiet.asked = time.Time{}
				continue
			}
			if w.out.WritePing(false, [8]byte{}) == nil {
				_ = w.flush.Flush() // likewise
			}
			w.writing.Unlock()
		case lively:
		}
	}
}

// quiet is what is made of the silence of the other side.
type quiet struct {
	looked time.Time // the last time
	asked  time.Time // when it was last to be asked whether it is there
}

// liveness is what a look says of the other side.
type liveness int

const (
	lively  liveness = iota
	doubted          // it is to be asked whether it is there
	excused          // this process was not run: what came meanwhile has not been read yet
	gone
)

// look is called every keepaliveAnswer, more or less, with when anything was last heard. Nobody is gone who was not
// asked: looks come a little late at times, and silence may be longer than it was to become.
func (q *quiet) look(now, heard time.Time) liveness {
	late := now.Sub(q.looked) > 2*keepaliveAnswer
	q.looked = now
	switch {
	case late:
		return excused
	case now.Sub(heard) < keepaliveTime:
		return lively
	case !q.asked.After(heard):
		q.asked = now
		return doubted
	case now.Sub(q.asked) < keepaliveAnswer/2: // looks that were late follow each other closely
		return lively
	}
	return gone
}
