package fetch_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// Streams over a store that falls silent end with an error when a read of theirs has had its time: however many there
// are, whatever waits for its turn behind reads that are under way, and whatever becomes of samples that cannot be read.
func TestStreamsOverASilentStoreEndInTime(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 3000)
	const limit, grace, streams = 8 * time.Second, time.Second, 20
	for _, c := range []struct {
		onError string
		order   string
		after   time.Duration // of reading, until the store falls silent
		deaf    bool          // it does not return when its context ends
		tenants bool
	}{
		{onError: schema.OnErrorFail},
		{onError: schema.OnErrorFail, after: 2 * time.Second, order: schema.OrderFree},
		{onError: schema.OnErrorSkip, after: 2 * time.Second, tenants: true},
		{onError: schema.OnErrorNull, after: 2 * time.Second, deaf: true},
	} {
		t.Run(fmt.Sprintf("on_error=%s,after=%s,deaf=%t", c.onError, c.after, c.deaf), func(t *testing.T) {
			r := newRemote(st, 5*time.Millisecond, 2e6)
			far(t, r, fetch.Options{ReadTimeout: limit}, func(t *testing.T, e *fetch.Engine) {
				var silent atomic.Bool
				release := make(chan struct{})
				r.hook = func(ctx context.Context, _ schema.BlobRef, _ int) error {
					switch {
					case !silent.Load():
						return nil
					case c.deaf:
						<-release
						return fmt.Errorf("%w: released", schema.ErrUnavailable)
					}
					<-ctx.Done()
					return context.Cause(ctx)
				}
				var list []*fetch.Stream
				for i := range streams {
					req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 64, OnError: c.onError,
						Order: c.order, Shuffle: &schema.Shuffle{Seed: uint64(i)}}
					j := resolve(t, e, req)
					defer j.Close()
					tk := ticket(req, 0)
					tk.Epochs = 1000
					ctx := t.Context()
					if c.tenants {
						ctx = fetch.WithCaller(ctx, fetch.Caller{Tenant: fmt.Sprint(i % 3)})
					}
					s := must(e.Stream(ctx, j, tk))
					defer s.Close()
					list = append(list, s)
				}
				began := time.Now()
				if c.after == 0 {
					silent.Store(true)
				} else {
					time.AfterFunc(c.after, func() { silent.Store(true) })
				}
				var latest atomic.Int64
				var running sync.WaitGroup
				for _, s := range list {
					running.Go(func() {
						var err error
						for err == nil {
							var b *fetch.Batch
							if b, err = s.Next(); err == nil {
								b.Release()
							}
						}
						late := time.Since(began) - c.after - limit
						for m := latest.Load(); int64(late) > m && !latest.CompareAndSwap(m, int64(late)); {
							m = latest.Load()
						}
						if !errors.Is(err, schema.ErrUnavailable) || !strings.Contains(err.Error(), "position") {
							t.Errorf("a stream ends with %v", err)
						}
					})
				}
				running.Wait()
				if late := time.Duration(latest.Load()); late > grace {
					t.Errorf("the last stream ends %s after the time of a read", late)
				}
				close(release)
			})
		})
	}
}

// silentCatalog is a store whose catalog says nothing.
type silentCatalog struct{ store.Store }

func (silentCatalog) Snapshot(ctx context.Context, _ string, _ int64) (*schema.Snapshot, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("looking: %w", ctx.Err())
}

func (silentCatalog) Datasets(ctx context.Context) ([]store.Dataset, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (silentCatalog) Selection(ctx context.Context, _, _ string) (*schema.Selection, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// A look into a catalog that says nothing ends, though its caller has no deadline. One whose caller has gone ends with
// that.
func TestCatalogThatSaysNothing(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 10)
	const limit = 8 * time.Second
	r := newRemote(silentCatalog{st}, 0, 0)
	far(t, r, fetch.Options{ReadTimeout: limit}, func(t *testing.T, e *fetch.Engine) {
		for what, c := range map[string]struct {
			call  func(ctx context.Context) error
			takes time.Duration
		}{
			"open": {func(ctx context.Context) error {
				_, err := e.Open(ctx, schema.Request{Dataset: "d"})
				return err
			}, limit},
			"open early": {func(ctx context.Context) error {
				_, err := e.OpenEarly(ctx, schema.Request{Dataset: "d", Snapshot: 1})
				return err
			}, limit},
			"plan": {func(ctx context.Context) error {
				_, err := e.PlanID(ctx, schema.Request{Dataset: "d"})
				return err
			}, limit},
			"selection": {func(ctx context.Context) error {
				_, err := e.Store().Selection(ctx, "d", "s")
				return err
			}, limit},
			"list": {func(ctx context.Context) error {
				_, err := e.Store().Datasets(ctx)
				return err
			}, 4 * limit},
		} {
			began := time.Now()
			err := c.call(t.Context())
			if took := time.Since(began); took != c.takes || !errors.Is(err, schema.ErrUnavailable) ||
				!strings.Contains(err.Error(), fmt.Sprintf("not answered for %s", c.takes)) {
				t.Errorf("%s: after %s: %v", what, took, err)
			}
			gone := errors.New("the caller has gone")
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, gone)
			began = time.Now()
			err = c.call(ctx)
			cancel()
			if took := time.Since(began); took != time.Second || errors.Is(err, schema.ErrUnavailable) || err == nil {
				t.Errorf("%s: of a caller that goes: after %s: %v", what, took, err)
			}
		}
	})
}
