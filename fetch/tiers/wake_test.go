package tiers

import "testing"

// A goroutine is woken for each attempt that may take long, and one for all that are quick, unless it goes.
func TestWake(t *testing.T) {
	r := &Reader{lanes: make([]lane, 1)}
	var all []*worker
	for range 20 {
		all = append(all, &worker{wake: make(chan bool, 1)})
	}
	r.idle = append(r.idle, all...)
	server := func() (w *worker) {
		t.Helper()
		for _, each := range all {
			if each.serves {
				if w != nil {
					t.Fatal("two serve")
				}
				w = each
			}
		}
		if (w != nil) != r.serving {
			t.Fatalf("one serves: %t, but the reader says %t", w != nil, r.serving)
		}
		return w
	}
	take := func(w *worker, quick bool) {
		t.Helper()
		if a := r.takeLocked(w); a.read == nil || a.quick() != quick {
			t.Fatalf("attempt %v is taken, quick: %t; want one that is: %t", a, a.quick(), quick)
		}
	}
	other := all[0] // is woken last
	quick := func() Attempt { return Attempt{read: &read{late: true}, lane: &r.lanes[0]} }
	slow := func() Attempt { return Attempt{read: &read{}, lane: &r.lanes[0]} }
	again := func() Attempt { a := quick(); a.nth = 1; return a }
	for i, s := range []struct {
		what  string
		do    func()
		woken int // in all
	}{
		{"a slow one", func() { r.startLocked(slow()) }, 1},
		{"another goroutine takes it", func() { take(other, false) }, 1},
		{"a quick one", func() { r.startLocked(quick()) }, 2},
		{"two more", func() { r.startLocked(quick()); r.startLocked(quick()) }, 2},
		{"who serves takes one", func() { take(server(), true) }, 2},
		{"another goroutine takes one", func() { take(other, true) }, 2},
		{"a quick one", func() { r.startLocked(quick()) }, 2},
		{"a slow one", func() { r.startLocked(slow()) }, 3},
		{"one that is made again", func() { r.startLocked(again()) }, 4},
		{"a quick one", func() { r.startLocked(quick()) }, 4},
		{"who serves takes two", func() { take(server(), true); take(server(), true) }, 4},
		{"who serves takes the slow one: another serves", func() { take(server(), false) }, 5},
		{"who serves takes the one that is made again", func() { take(server(), false) }, 6},
		{"who serves takes the last", func() { take(server(), true) }, 6},
		{"who serves finds nothing, and goes on", func() { r.takeLocked(server()) }, 6},
		{"a quick one", func() { r.startLocked(quick()) }, 6},
		{"who serves waits, with one left: another serves", func() { r.retireLocked(server()) }, 7},
		{"who does not serve waits", func() { r.retireLocked(other) }, 7},
		{"who serves takes it", func() { take(server(), true) }, 7},
		{"who serves waits", func() { r.retireLocked(server()) }, 7},
		{"a quick one", func() { r.startLocked(quick()) }, 8},
	} {
		s.do()
		woken := 0
		for _, w := range all {
			woken += len(w.wake)
		}
		if woken != s.woken {
			t.Fatalf("step %d, %s: %d goroutines were woken so far, want %d", i, s.what, woken, s.woken)
		}
		server()
	}
}
