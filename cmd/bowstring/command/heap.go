package command

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// heapRoom is the number of bytes that a server allocates at least between two garbage
// collections. Go collects a heap each time that it has doubled. A small heap is then
// collected ten times a second if data arrives at the rate of memory, which takes 4 % of
// the server's CPU time.
//
// Each collection also empties the database driver's pools of buffers, which are then
// allocated again. A new server would spend a fifth of its first second on that.
const heapRoom = 64 << 20

// leastRoom and leastPercent are the least room of the heap. The memory of streams is
// outside of the heap. The less of it is free, the less room the heap gets, because blobs
// and garbage together would exceed the limit of the process. The room never falls below
// 24 MiB, or below 25 % of the heap if that is more.
const (
	leastRoom    = 24 << 20
	leastPercent = 25
	// roomShare divides the free memory for windows: the room is at most an eighth of it.
	// The windows grow between two collections.
	roomShare = 8
)

// keepHeapRoom makes the garbage collector leave heapRoom, or as much as the heap has if
// that is more, until stop is called. If little of the memory for windows is free, it
// leaves less. It does nothing if the user has set GOGC.
func keepHeapRoom(free func() int64) (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	w := &heapWatch{free: free, set: func(percent int) { debug.SetGCPercent(percent) }}
	w.adjust()
	return w.stop
}

// usualPercent is Go's default: a heap is collected when it has doubled.
const usualPercent = 100

// heapWatch calls set with the percentage by which the heap may grow. It does so at
// first, and after each collection that changed it.
type heapWatch struct {
	free func() int64 // bytes that windows may take in addition to what they have
	set  func(percent int)

	// mu guards the fields below. adjust runs on the goroutine of cleanups.
	mu   sync.Mutex
	over bool // no more adjustments
	now  int  // the last percentage
}

// adjust computes the percentage and waits for the next collection. The runtime has no
// hook for collections: the cleanup of an object without references runs after the next
// one, and calls adjust again.
func (w *heapWatch) adjust() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if percent := percentFor(live[0].Value.Uint64(), w.free()); percent != w.now {
		w.now = percent
		w.set(percent)
	}
	runtime.AddCleanup(new([64]byte), (*heapWatch).adjust, w)
}

// stop ends the adjustments. The percentage stays.
func (w *heapWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
}

// percentFor returns the percentage by which a heap of live bytes may grow, if free bytes
// are left for windows.
func percentFor(live uint64, free int64) int {
	heap := int64(max(live, leastHeap))
	least := max(leastPercent, 100*leastRoom/heap)
	most := max(usualPercent, 100*heapRoom/heap)
	return int(min(max(100*(free/roomShare)/heap, least), most))
}

// leastHeap is 4 MiB: the collector treats a smaller heap as one of this size.
const leastHeap = 4 << 20
