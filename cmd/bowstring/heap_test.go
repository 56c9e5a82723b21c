package main

import (
	"runtime"
	"testing"
)

func TestHeapRoom(t *testing.T) {
	for _, c := range []struct {
		live uint64
		want int
	}{{0, 1600}, {4 << 20, 1600}, {32 << 20, 200}, {64 << 20, 100}, {1 << 40, 100}} {
		if got := percentFor(c.live); got != c.want {
			t.Errorf("a heap of %d bytes may grow by %d %%, want %d", c.live, got, c.want)
		}
	}
}

// TestHeapRoomKept: after each collection it is seen what that has left.
func TestHeapRoomKept(t *testing.T) {
	set := make(chan int)
	over := make(chan struct{})
	defer close(over)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watchHeap(func(percent int) {
			select {
			case set <- percent:
			case <-over:
			}
		})
	}()
	<-set
	<-watched
	ballast := make([]byte, heapRoom)
	for percent := 0; percent != usualPercent; percent = <-set {
		runtime.GC()
	}
	runtime.KeepAlive(ballast)
}
