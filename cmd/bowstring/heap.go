package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// heapRoom is how much a server allocates at least between two garbage collections, in bytes. By itself a heap that is
// small is collected each time that it has doubled, and each collection takes the database driver's buffers away, which
// are then allocated anew: a new server would spend a fifth of its first second on that.
const heapRoom = 64 << 20

// keepHeapRoom has the garbage collector leave heapRoom, unless GOGC says what it is to do. A heap of that size or more
// is collected as ever.
var keepHeapRoom = sync.OnceFunc(func() {
	if os.Getenv("GOGC") != "" {
		return
	}
	now := usualPercent
	watchHeap(func(percent int) {
		if percent != now {
			now = percent
			debug.SetGCPercent(percent)
		}
	})
})

// usualPercent is that of the collector by itself: a heap is collected when it has doubled.
const usualPercent = 100

// watchHeap tells set, now and after each collection, which percentage leaves heapRoom.
func watchHeap(set func(percent int)) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	set(percentFor(live[0].Value.Uint64()))
	runtime.AddCleanup(new([64]byte), watchHeap, set)
}

// percentFor is the percentage that leaves heapRoom to a heap of that size.
func percentFor(live uint64) int {
	return int(max(usualPercent, 100*heapRoom/max(live, leastHeap)))
}

// leastHeap is the size that the collector takes a heap for at least.
const leastHeap = 4 << 20
