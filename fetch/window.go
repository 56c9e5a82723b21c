package fetch

import "sync"

// initialWindow is what a stream may hold ahead of its consumer at first.
const initialWindow = 4 << 20

// initialReads is how many reads a stream has in flight at first.
const initialReads = 4

// window bounds what one stream holds ahead of its consumer, in bytes, and how
// many of its reads are in flight.
//
// It starts small and grows by each read that completes while the consumer
// waits, up to the stream's share of the node's memory. That doubles it every
// round trip, as TCP's slow start (RFC 5681) does: a distant store soon sees as
// many reads as it takes, while one that answers from memory sees a few at a
// time, whose bytes are still in the processor's cache when they are sent.
//
// All fields are guarded by mu. cond is told of every change that may let
// somebody go on.
type window struct {
	mu   sync.Mutex
	cond sync.Cond

	size     int64 // bytes the stream may hold now
	limit    int64 // the stream's share; size never exceeds it
	used     int64 // bytes reserved by reads under way, and by batches not yet released
	reads    int   // reads that may be in flight now
	maxReads int
}

func (w *window) init(maxReads int) {
	w.cond.L = &w.mu
	w.size, w.limit = initialWindow, initialWindow
	w.reads, w.maxReads = min(initialReads, maxReads), maxReads
}

// setLimit sets the stream's share of the memory. A smaller one takes effect
// as the consumer takes what is there.
func (w *window) setLimit(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit = n
	w.size = min(w.size, n)
	w.cond.Broadcast()
}

// grow makes room for one more read of n bytes; mu is held.
func (w *window) grow(n int64) {
	w.size = min(w.size+n, w.limit)
	w.reads = min(w.reads+1, w.maxReads)
	w.cond.Broadcast()
}

// free returns n bytes.
func (w *window) free(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used -= n
	w.cond.Broadcast()
}

func (w *window) inUse() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used
}
