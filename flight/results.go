package flight

import (
	"context"
	"errors"
	"sync"

	"github.com/apache/arrow/go/v17/arrow/flight"
)

// maxUnread is how many results wait for a client that does not read. Beyond
// that each takes the place of the last, which it includes: they are sums.
const maxUnread = 4096

// results sends PutResults from a goroutine of its own, so that a client that
// reads none of them, or all of them at the end, is not held up.
type results struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	send   func(*flight.PutResult) error

	mu       sync.Mutex
	waiting  [][]byte // guarded by mu
	complete bool     // no more will come; guarded by mu
	more     chan struct{}
	sent     chan struct{} // closed when run has ended
}

var errAbandoned = errors.New("the call is over")

func newResults(ctx context.Context, stream flight.FlightService_DoPutServer) *results {
	r := &results{send: stream.Send, more: make(chan struct{}, 1), sent: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	return r
}

// add queues a result. It does not wait.
func (r *results) add(v any) error {
	b, err := encodeJSON(v)
	if err != nil {
		return err
	}
	r.mu.Lock()
	if len(r.waiting) >= maxUnread {
		r.waiting = r.waiting[:maxUnread-1]
	}
	r.waiting = append(r.waiting, b)
	r.mu.Unlock()
	r.wake()
	return nil
}

func (r *results) wake() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// run sends what is queued until flush's or abandon's end, or an error.
func (r *results) run() {
	defer close(r.sent)
	for {
		r.mu.Lock()
		batch, complete := r.waiting, r.complete
		r.waiting = nil
		r.mu.Unlock()
		for _, b := range batch {
			if r.ctx.Err() != nil {
				return
			}
			if err := r.send(&flight.PutResult{AppMetadata: b}); err != nil {
				r.cancel(err)
				return
			}
		}
		if complete {
			return
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-r.more:
		case <-r.ctx.Done():
			return
		}
	}
}

// flush waits until all results are sent.
func (r *results) flush() error {
	r.mu.Lock()
	r.complete = true
	r.mu.Unlock()
	r.wake()
	select {
	case <-r.sent:
		return context.Cause(r.ctx)
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

// abandon lets run end. It may be inside a send, which ends with the call.
func (r *results) abandon() { r.cancel(errAbandoned) }
