package tiers

import "testing"

// idlers gives a reader goroutines that wait, of which there is nothing but the channel; woken is how many were.
func idlers(r *Reader, n int) (woken func() int) {
	var all []*worker
	for range n {
		w := &worker{wake: make(chan bool, 1)}
		all = append(all, w)
	}
	r.idle = append(r.idle, all...)
	return func() (n int) {
		for _, w := range all {
			n += len(w.wake)
		}
		return n
	}
}

// A goroutine is woken for each attempt that may take long, and for quick ones one at a time.
func TestWake(t *testing.T) {
	r := &Reader{lanes: make([]lane, 1)}
	woken := idlers(r, 20)
	quick := func() Attempt { return Attempt{read: &read{late: true}, lane: &r.lanes[0]} }
	slow := func() Attempt { return Attempt{read: &read{}, lane: &r.lanes[0]} }
	again := func() Attempt { a := quick(); a.nth = 1; return a }
	steps := []struct {
		what  string
		do    func()
		woken int // in all
	}{
		{"the first quick one", func() { r.startLocked(quick()) }, 1},
		{"two more", func() { r.startLocked(quick()); r.startLocked(quick()) }, 1},
		{"a goroutine begins, and two are left", func() { r.beginLocked() }, 2},
		{"one is added", func() { r.startLocked(quick()) }, 2},
		{"a slow one", func() { r.startLocked(slow()) }, 3},
		{"one that is made again", func() { r.startLocked(again()) }, 4},
		{"another goroutine takes two", func() { r.due.take(); r.due.take() }, 4},
		{"one begins with the last quick one", func() { r.beginLocked() }, 4},
		{"one begins with the slow one", func() { r.beginLocked() }, 4},
		{"one begins with the other", func() { r.beginLocked() }, 4},
		{"one finds nothing", func() { r.beginLocked() }, 4},
		{"a slow one", func() { r.startLocked(slow()) }, 5},
		{"a quick one", func() { r.startLocked(quick()) }, 6},
		{"who was woken for the one begins with the other", func() { r.beginLocked() }, 7},
		{"and the next", func() { r.beginLocked() }, 7},
	}
	for i, s := range steps {
		s.do()
		if got := woken(); got != s.woken {
			t.Fatalf("step %d, %s: %d goroutines were woken so far, want %d", i, s.what, got, s.woken)
		}
	}
}
