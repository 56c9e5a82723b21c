package read_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch/read"
)

// Of reads that a goroutine begins together, as they take no time as a rule, those that prove slow hold up no others,
// and what came before them is told.
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
				t.Fatal("nothing is told")
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

// gathering is a tier that serves cells together, and tells how many.
type gathering struct {
	peer
	sizes chan int
	hold  func(i int) // is called before each cell of a Fetch
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

// A tier gets as many cells at once as it serves together, with when they are used, and each is told of as it comes.
func TestTogether(t *testing.T) {
	near, far := newFake(t), newFake(t)
	next := make(chan struct{})
	g := gathering{peer{near}, make(chan int, 100), func(i int) {
		if i > 0 {
			<-next
		}
	}}
	r := newReader(t, read.Options{NoHedge: true}, g, read.Store(far))
	to := newTold()
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
