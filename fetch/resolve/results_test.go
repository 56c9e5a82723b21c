package resolve

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"bowstring/schema"
)

// counted counts its holds.
type counted struct{ holds atomic.Int64 }

func (c *counted) Retain()  { c.holds.Add(1) }
func (c *counted) Release() { c.holds.Add(-1) }

// A computation runs while a caller waits for it, and ends with the last one. The holds
// of its value and of the object that it reads are released in every case.
func TestComputations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := computations[*counted]{logger: slog.New(slog.DiscardHandler)}
		defer c.close()
		reads, value := &counted{}, &counted{}
		begun, ended := 0, make(chan error, 1)
		finish := make(chan struct{})
		compute := func(ctx context.Context) (*counted, error) {
			begun++
			select {
			case <-finish:
				value.Retain()
				ended <- nil
				return value, nil
			case <-ctx.Done():
				ended <- context.Cause(ctx)
				return nil, context.Cause(ctx)
			}
		}
		var wg sync.WaitGroup
		wait := func(want error) context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			wg.Go(func() {
				v, err := c.do(ctx, "key", reads, compute)
				if !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
				if err == nil {
					v.Release()
				}
			})
			synctest.Wait()
			return cancel
		}
		first, second := wait(context.Canceled), wait(context.Canceled)
		first()
		synctest.Wait()
		if len(ended) != 0 || reads.holds.Load() != 1 {
			t.Fatal("it ended with its first caller, whom another had joined")
		}
		second()
		wg.Wait()
		synctest.Wait()
		if err := <-ended; !errors.Is(err, errUnwanted) || reads.holds.Load() != 0 {
			t.Fatalf("it went on although no caller waits: %v, %d holds", err, reads.holds.Load())
		}
		third, _ := wait(nil), wait(nil)
		defer third()
		close(finish)
		wg.Wait()
		synctest.Wait()
		if begun != 2 || value.holds.Load() != 0 || reads.holds.Load() != 0 {
			t.Errorf("%d computations, %d holds of the value, %d of what is read", begun, value.holds.Load(),
				reads.holds.Load())
		}
	})
}

// A computation that ends although no caller waits for it any more has its value
// released.
func TestComputationThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := computations[*counted]{logger: slog.New(slog.DiscardHandler)}
		reads, value := &counted{}, &counted{}
		finish := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { synctest.Wait(); cancel() }()
		_, err := c.do(ctx, "key", reads, func(context.Context) (*counted, error) {
			<-finish
			if reads.holds.Load() != 1 {
				t.Error("the value in use was released")
			}
			value.Retain()
			return value, nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(finish)
		c.close()
		if value.holds.Load() != 0 || reads.holds.Load() != 0 {
			t.Errorf("%d holds of the value, %d of what is read", value.holds.Load(), reads.holds.Load())
		}
	})
}

// A panic is returned to the waiting callers as an error, and is logged with its stack.
func TestComputationThatPanics(t *testing.T) {
	var log strings.Builder
	c := computations[*counted]{logger: slog.New(slog.NewTextHandler(&log, nil))}
	reads := &counted{}
	_, err := c.do(t.Context(), "key", reads, func(context.Context) (*counted, error) { panic("index out of range") })
	defect, ok := errors.AsType[*schema.DefectError](err)
	if !ok || strings.Contains(err.Error(), "index out of range") {
		t.Fatal(err)
	}
	c.close()
	if reads.holds.Load() != 0 || !strings.Contains(log.String(), "results_test.go") ||
		!strings.Contains(log.String(), "index out of range") || !strings.Contains(log.String(), defect.ID) {
		t.Errorf("%d holds; logged: %s", reads.holds.Load(), log.String())
	}
	if _, err := c.do(t.Context(), "key", reads, nil); !errors.Is(err, errClosing()) && err == nil {
		t.Error("closed, and begins a computation")
	}
}
