package read_test

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch/read"
	"bowstring/fetch/store"
)

// If some reads of a quick run prove slow, they do not delay the others, and earlier outcomes are delivered.
func TestRunsAreNotHeldUp(t *testing.T) {
	f := newFake(t)
	var slow atomic.Bool
	free := make(chan struct{})
	began := make(chan struct{}, blobs)
	f.do = func(ctx context.Context, n int64, data []byte) ([]byte, error) {
		if slow.Load() && n%5 == 3 {
			began <- struct{}{}
			select {
			case <-free:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		return data, nil
	}
	r := newReader(t, read.Options{NoHedge: true}, read.Store(f))
	to := make(outcomes, 2*blobs)
	p := r.Open("", 1, "test", to)
	ask := func(from, n int) {
		var wants []read.Want
		for i := range n {
			_, ref := content(from + i)
			wants = append(wants, read.Want{Ref: ref, Context: t.Context()})
		}
		p.Ask(wants...)
	}
	take := func(n int) {
		t.Helper()
		for range n {
			select {
			case o := <-to:
				if o.Err != nil {
					t.Error(o.Err)
				}
				o.Blob.Release()
			case <-time.After(time.Minute):
				t.Fatal("no outcome came")
			}
		}
	}
	for range 10 { // so that the store is known to answer at once
		ask(0, blobs)
		take(blobs)
	}
	slow.Store(true)
	const n = 60
	before := f.gets.Load()
	ask(0, n)
	hanging := 0
	for i := before; i < before+n; i++ {
		if i%5 == 3 {
			hanging++
		}
	}
	for range hanging {
		select {
		case <-began:
		case <-time.After(time.Minute):
			t.Fatal("a read that waits behind a slow one is not begun")
		}
	}
	take(n - hanging)
	close(free)
	take(hanging)
	p.Retire()
}

// gathering is a tier that serves cells together, and records how many.
type gathering struct {
	peer
	sizes chan int
	hold  func(i int) // called before each cell of a Fetch
}

func (g gathering) Traits() read.Traits { return read.Traits{Together: 8, Parallel: 100} }

func (g gathering) Fetch(cells []read.Cell, to read.Answers) {
	g.sizes <- len(cells)
	for i := range cells {
		g.hold(i)
		b, err := g.Get(cells[i].Context, cells[i].Ref)
		to.Answer(i, read.Answer{Blob: b, Err: err})
	}
}

// A tier gets as many cells at once as it serves together, with their use, and each outcome is delivered when it
// comes.
func TestTogether(t *testing.T) {
	near, far := newFake(t), newFake(t)
	next := make(chan struct{})
	g := gathering{peer{near}, make(chan int, 100), func(i int) {
		if i > 0 {
			<-next
		}
	}}
	r := newReader(t, read.Options{NoHedge: true}, g, read.Store(far))
	to := newOutcomes()
	p := r.Open("", 1, "test", to)
	var wants []read.Want
	for i := range 8 {
		_, ref := content(i)
		wants = append(wants, read.Want{Ref: ref, Context: t.Context(), Use: int64(i)})
	}
	p.Ask(wants...)
	for i := range 8 {
		requireBlob(t, to.next(t), i, 0) // the others wait
		if i < 7 {
			next <- struct{}{}
		}
	}
	if n := <-g.sizes; n != 8 {
		t.Errorf("%d cells are asked for at once, want 8", n)
	}
	p.Retire()
}

// chain requests one blob after another, and an older one in addition to the first.
type chain struct {
	t     testing.TB
	place *read.Place
	next  int
	begin func() // starts the older one
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

// The read that was begun first is made first, even if all CPUs are busy with reads that start more reads, and the
// goroutine that was woken for it gets no CPU.
func TestOldestFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	older, ref := content(chainLength + 1)
	far := newFake(t)
	var mu sync.Mutex
	after := -1 // reads made before the older one
	far.do = func(_ context.Context, n int64, b []byte) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		if bytes.Equal(b, older) {
			after = int(n)
		}
		return b, nil
	}
	r := newReader(t, read.Options{NoHedge: true}, read.Store(far))
	extra := newOutcomes()
	c := &chain{t: t, done: make(chan struct{})}
	c.begin = func() {
		if v := r.Fill(&read.Want{Ref: ref, Context: t.Context(), To: extra}, false); v != read.Begun {
			t.Errorf("the older one is not begun: %v", v)
		}
	}
	c.place = r.Open("", 1, "chain", c)
	_, first := content(0)
	c.place.Ask(read.Want{Ref: first, Context: t.Context()})
	<-c.done
	o := extra.next(t)
	o.Blob.Release()
	mu.Lock()
	defer mu.Unlock()
	if after < 0 || after > chainLength/4 {
		t.Errorf("what was begun second was read after %d others, of %d", after, chainLength)
	}
}

// mapped is a fake with blobs in files of this node, so that they may be checked late.
type mapped struct{ *fake }

func (mapped) Traits() store.Traits { return store.Traits{Mapped: true, Replicas: 1} }

// Among attempts for which hardly any goroutine is woken, slow ones do not delay the others.
func TestQuickThatAreSlowHoldUpNone(t *testing.T) {
	const reads, slow = 8, 3
	for round := range 50 {
		f := newFake(t)
		free := make(chan struct{})
		f.do = func(ctx context.Context, n int64, data []byte) ([]byte, error) {
			if n >= slow {
				return data, nil
			}
			select {
			case <-free:
				return data, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		r := newReader(t, read.Options{NoHedge: true}, read.Store(mapped{f}))
		to := newOutcomes()
		for i := range reads {
			_, ref := content(i)
			want(t, r, read.Want{Ref: ref, To: to, Late: true})
		}
		for range reads - slow {
			o := to.next(t)
			if o.Err != nil || !o.Blob.Unchecked() {
				t.Errorf("round %d: error %v; unchecked: %t", round, o.Err, o.Blob.Unchecked())
			}
			o.Blob.Release()
		}
		close(free)
		for range slow {
			o := to.next(t)
			o.Blob.Release()
		}
		r.Close()
	}
}
