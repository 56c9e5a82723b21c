package protocol

import (
	"context"
	"testing"
	"testing/synctest"
)

// slowPeek is a database whose reads of the state of collections take until the test ends them.
type slowPeek struct {
	*memory
	peeks chan struct{}
}

func (d *slowPeek) Peek(ctx context.Context, name string, rows ...string) (Partition, error) {
	<-d.peeks
	return d.memory.Peek(ctx, name, rows...)
}

// TestReadersWaitForTheState: a reader relies on the row of its process, and on the state of collections that was read
// after the row was written. If a collection had begun before the row, a reader that did not know could read a snapshot
// that this collection takes for unused.
func TestReadersWaitForTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &slowPeek{newMemory(), make(chan struct{})}
		s := New(db, System(), Options{})
		ended := make(chan error, 2)
		for range cap(ended) {
			go func() { ended <- s.ensure(t.Context()) }()
			synctest.Wait() // the first has written the row, and the second comes
		}
		if len(ended) != 0 {
			t.Error("a caller did not wait for the state of collections")
		}
		close(db.peeks)
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
