package command

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// heapRoom is how much a server allocates at least between two garbage collections, in bytes. By itself a heap that is
// small is collected each time that it has doubled: ten times a second where bytes come at the rate of memory, which is
// 4 % of all that a server does. And each collection takes the database driver's buffers away, which are then allocated
// anew: a new server would spend a fifth of its first second on that.
const heapRoom = 64 << 20

// The memory of streams is outside of the heap. The less of that memory is free, the less
// room the heap has: at last leastRoom, or leastPercent of it, if that is more. Blobs and
// garbage would be too much together.
const (
	leastRoom    = 24 << 20
	leastPercent = 25
	// roomShare is of which part of what is free for windows the room is at most. They fill between two collections.
	roomShare = 8
)

// keepHeapRoom has the garbage collector leave heapRoom, or as much as the heap has, if that is more, until stop is
// called. Where little is free of the memory for windows, it leaves less. GOGC stands above it.
func keepHeapRoom(free func() int64) (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	w := &heapWatch{free: free, set: func(percent int) { debug.SetGCPercent(percent) }}
	w.adjust()
	return w.stop
}

// usualPercent is that of the collector by itself: a heap is collected when it has doubled.
const usualPercent = 100

// heapWatch calls set with the percentage by which the heap may grow: at first, and after
// each collection that changed it.
type heapWatch struct {
	free func() int64 // bytes that windows may take beside what they have
	set  func(percent int)

	mu   sync.Mutex
	over bool
	now  int
}

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

func (w *heapWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
}

// percentFor is by how much a heap of a size may grow while the given bytes are free for
// windows.
func percentFor(live uint64, free int64) int {
	heap := int64(max(live, leastHeap))
	least := max(leastPercent, 100*leastRoom/heap)
	most := max(usualPercent, 100*heapRoom/heap)
	return int(min(max(100*(free/roomShare)/heap, least), most))
}

// leastHeap is the size that the collector takes a heap for at least.
const leastHeap = 4 << 20
