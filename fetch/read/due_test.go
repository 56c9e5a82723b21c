package read_test

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"testing"

	"bowstring/fetch/read"
)

// chain asks for one blob after another, and for an older one beside the first.
type chain struct {
	t     testing.TB
	place *read.Place
	next  int
	begin func() // the older one
	done  chan struct{}
}

func (c *chain) Receive(list []read.Outcome) {
	for _, o := range list {
		if o.Err != nil {
			c.t.Error(o.Err)
		}
		o.Blob.Release()
		if c.next++; c.next == 1 {
			c.begin()
		}
		if c.next == chainLength {
			close(c.done)
			continue
		}
		_, ref := content(c.next)
		c.place.Ask(read.Want{Ref: ref, Context: c.t.Context()})
	}
}

func (*chain) More() {}

const chainLength = 200

// What was begun first is read first, though all processors are busy with reads that bring more reads: the goroutine
// that was woken for it has no turn meanwhile.
func TestOldestFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	older, ref := content(chainLength + 1)
	far := newFake(t)
	var mu sync.Mutex
	after := -1 // how many were read before the older one
	far.do = func(_ context.Context, n int64, b []byte) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		if bytes.Equal(b, older) {
			after = int(n)
		}
		return b, nil
	}
	r := newReader(t, read.Options{NoHedge: true}, read.Store(far))
	beside := newTold()
	c := &chain{t: t, done: make(chan struct{})}
	c.begin = func() {
		if v := r.Fill(&read.Want{Ref: ref, Context: t.Context(), To: beside}, false); v != read.Begun {
			t.Errorf("the older one is not begun: %v", v)
		}
	}
	c.place = r.Open("", 1, "chain", c)
	_, first := content(0)
	c.place.Ask(read.Want{Ref: first, Context: t.Context()})
	<-c.done
	o := beside.next(t)
	o.Blob.Release()
	mu.Lock()
	defer mu.Unlock()
	if after < 0 || after > chainLength/4 {
		t.Errorf("what was begun second was read after %d others, of %d", after, chainLength)
	}
}
