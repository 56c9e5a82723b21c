package read

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
		if (w != nil) != (r.servers == 1) {
			t.Fatalf("one serves: %t, but the reader says %d", w != nil, r.servers)
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
		{"another goroutine takes the slow one, before the quick one", func() { take(other, false) }, 4},
		{"who serves takes the last quick one", func() { take(server(), true) }, 4},
		{"who serves takes the one that is made again, and serves no longer", func() { take(server(), false) }, 4},
		{"two quick ones", func() { r.startLocked(quick()); r.startLocked(quick()) }, 5},
		{"who serves waits, with two left: another serves", func() { r.retireLocked(server()) }, 6},
		{"who does not serve waits", func() { r.retireLocked(other) }, 6},
		{"who serves takes both", func() { take(server(), true); take(server(), true) }, 6},
		{"who serves finds nothing, and goes on", func() { r.takeLocked(server()) }, 6},
		{"a quick one", func() { r.startLocked(quick()) }, 6},
		{"who serves takes it, and waits", func() { take(server(), true); r.retireLocked(server()) }, 6},
		{"a quick one", func() { r.startLocked(quick()) }, 7},
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

// While quick attempts are due, the timer has more goroutines make them, as those that do may wait for a disk: twice as
// many each time, as many more as there are attempts at most, and no more than are kept.
func TestMoreServe(t *testing.T) {
	r := &Reader{lanes: make([]lane, 1)}
	for range maxIdle + 1 {
		r.idle = append(r.idle, &worker{wake: make(chan bool, 1)})
	}
	due := func(n int) {
		for range n {
			r.startLocked(Attempt{read: &read{late: true}, lane: &r.lanes[0]})
		}
	}
	for i, s := range []struct{ due, servers int }{
		{5, 2}, {0, 4}, {0, 8}, {0, 13}, {1000, 26}, {0, 52}, {0, 104}, {0, 208}, {0, maxIdle}, {0, maxIdle},
	} {
		due(s.due)
		r.running.Add(1)
		r.lookForSlow()
		if r.servers != s.servers {
			t.Fatalf("look %d: %d goroutines serve with %d attempts due, want %d", i, r.servers, r.quick.len(),
				s.servers)
		}
	}
	for r.quick.take().read != nil {
	}
	r.running.Add(1)
	if r.lookForSlow(); r.servers != maxIdle {
		t.Errorf("%d goroutines serve where nothing is due, want %d as before", r.servers, maxIdle)
	}
}
