package read_test

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"testing"

	"bowstring/fetch/read"
)

// What was begun first is read first, though all processors are busy with reads that bring more reads: the goroutine
// that was woken for it has no turn meanwhile.
func TestOldestFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const last = 200
	older, _ := content(last + 1)
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
	to := make(told, last+2)
	var r *read.Reader
	begin := func(i int) read.Attempt {
		_, ref := content(i)
		w := read.Want{Ref: ref, Context: t.Context(), To: to}
		v, first, _ := r.Try(&w, r.Look(&w))
		if v != read.Begun {
			t.Errorf("blob %d: verdict %v", i, v)
		}
		return first
	}
	more := 0
	ready := make(chan struct{})
	r = newReader(t, read.Options{NoHedge: true, More: func() read.Attempt {
		<-ready
		mu.Lock()
		more++
		i := more
		mu.Unlock()
		if i == 1 {
			r.Start(begin(last + 1))
		}
		if i > last {
			return read.Attempt{}
		}
		return begin(i)
	}}, read.Store(far))
	close(ready)
	r.Start(begin(0))
	for range last + 2 {
		o := to.next(t)
		if o.Err != nil {
			t.Error(o.Err)
		}
		o.Blob.Release()
	}
	mu.Lock()
	defer mu.Unlock()
	if after < 0 || after > last/4 {
		t.Errorf("what was begun second was read after %d others, of %d", after, last+1)
	}
}
