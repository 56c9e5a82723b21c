package protocol

import (
	"context"
	"errors"
	"testing"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// stuck is a database whose Sync runs until the test ends it.
type stuck struct {
	*memory
	syncs chan struct{}
}

func (d *stuck) Sync(ctx context.Context) error {
	select {
	case d.syncs <- struct{}{}:
	case <-ctx.Done():
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestCloseWhileCollecting: a collection that the store's Close ends says that, and one that its caller ends why.
func TestCloseWhileCollecting(t *testing.T) {
	why := errors.New("the caller has its reason")
	for name, want := range map[string]error{"the store": schema.ErrUnavailable, "the caller": why} {
		t.Run(name, func(t *testing.T) {
			db := &stuck{newMemory(), make(chan struct{})}
			s := New(db, System(), Options{})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			collected := make(chan error, 1)
			go func() {
				_, err := s.GC(ctx, store.GCOptions{}, nil)
				collected <- err
			}()
			<-db.syncs
			if name == "the caller" {
				cancel(why)
			} else if err := s.Close(); err != nil {
				t.Error(err)
			}
			if err := <-collected; !errors.Is(err, want) {
				t.Errorf("the collection ended with %v, want %v", err, want)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
