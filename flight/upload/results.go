package upload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/arrow/go/v17/arrow/flight"
)

// MaxUnread bounds the results that wait for a client that does not read. A further result
// replaces the last one. Nothing is lost by that, because results are sums.
const MaxUnread = 4096

// Results sends PutResults from its own goroutine. A client that reads them late, or not at
// all, does not delay its upload. Add, Flush and Abandon may be called while Run runs.
type Results struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	send   func(*flight.PutResult) error

	mu       sync.Mutex
	waiting  [][]byte      // guarded by mu
	complete bool          // Flush was called; guarded by mu
	more     chan struct{} // capacity 1; signalled when Run has something to do
	sent     chan struct{} // closed when Run has returned
}

// errAbandoned is the cause with which Abandon ends Run.
var errAbandoned = errors.New("the call is over")

// NewResults returns results that are sent by send. The caller runs Run in a goroutine, and
// calls Flush or Abandon.
func NewResults(ctx context.Context, send func(*flight.PutResult) error) *Results {
	r := &Results{send: send, more: make(chan struct{}, 1), sent: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	return r
}

// Add queues a result. It does not block.
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

// wake makes Run check the queue. A signal that is already there is enough.
func (r *Results) wake() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// Run sends queued results until Flush has drained the queue, Abandon is called, or a send
// fails.
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

// Flush waits until all results are sent. It returns the first error of a send, or the
// cause of the call's end.
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

// Abandon makes Run return. Run may be blocked in a send, which ends with the call.
func (r *Results) Abandon() { r.cancel(errAbandoned) }
