package upload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/arrow/go/v17/arrow/flight"
)

// MaxUnread is how many results wait for a client that does not read. Beyond
// that each takes the place of the last, which it includes: they are sums.
const MaxUnread = 4096

// Results sends PutResults from a goroutine of its own, so that a client that
// reads none of them, or all of them at the end, is not held up.
type Results struct {
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

// NewResults returns results that send sends. The caller has Run run, and calls Flush or Abandon.
func NewResults(ctx context.Context, send func(*flight.PutResult) error) *Results {
	r := &Results{send: send, more: make(chan struct{}, 1), sent: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	return r
}

// Add queues a result. It does not wait.
func (r *Results) Add(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	r.mu.Lock()
	if len(r.waiting) >= MaxUnread {
		r.waiting = r.waiting[:MaxUnread-1]
	}
	r.waiting = append(r.waiting, b)
	r.mu.Unlock()
	r.wake()
	return nil
}

func (r *Results) wake() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// Run sends what is queued until Flush's or Abandon's end, or an error.
func (r *Results) Run() {
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

// Flush waits until all results are sent.
func (r *Results) Flush() error {
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

// Abandon lets run end. It may be inside a send, which ends with the call.
func (r *Results) Abandon() { r.cancel(errAbandoned) }
