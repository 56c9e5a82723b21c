package command

import (
	"runtime"
	"testing"
)

func TestHeapRoom(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live uint64
		free int64
		want int
	}{
		{0, 1 << 40, 1600},
		{4 * mib, 1 << 40, 1600},
		{32 * mib, 1 << 40, 200},
		{64 * mib, 1 << 40, 100},
		{1 << 40, 1 << 50, 100},
		// An eighth of what is free for windows is the room.
		{32 * mib, 8 * 48 * mib, 150},
		{96 * mib, 8 * 48 * mib, 50},
		{96 * mib, 8 * 95 * mib, 98},
		// Some there is where nothing is free.
		{0, 0, 600},
		{32 * mib, mib, 75},
		{80 * mib, 0, 30},
		{80 * mib, -mib, 30},
		{1 << 40, 0, 25},
	} {
		if got := percentFor(c.live, c.free); got != c.want {
			t.Errorf("a heap of %d bytes may grow by %d %% while %d are free, want %d", c.live, got, c.free, c.want)
		}
	}
}

// TestHeapRoomKept: after each collection it is seen what that has left, and what is free.
func TestHeapRoomKept(t *testing.T) {
	set := make(chan int)
	over := make(chan struct{})
	defer close(over)
	free := make(chan int64, 1)
	left := int64(1 << 40)
	w := &heapWatch{
		free: func() int64 {
			select {
			case left = <-free:
			default:
			}
			return left
		},
		set: func(percent int) {
			select {
			case set <- percent:
			case <-over:
			}
		},
	}
	go w.adjust()
	percent := <-set
	until := func(fits func(percent int) bool) {
		for !fits(percent) {
			runtime.GC()
			select {
			case percent = <-set:
			default: // it stayed, or was not seen yet
			}
		}
	}
	usual := func(percent int) bool { return percent == usualPercent }
	ballast := make([]byte, heapRoom)
	until(usual)
	free <- 0
	until(func(percent int) bool { return percent <= 100*leastRoom/heapRoom })
	free <- 1 << 40
	until(usual)

	w.stop() // waits for no receiver: none is set now
	free <- 0
	runtime.GC()
	runtime.GC()
	w.adjust()
	select {
	case percent := <-set:
		t.Errorf("%d %% was set after the end", percent)
	default:
	}
	runtime.KeepAlive(ballast) // without it the next collection would have something to set, which is not received
}
