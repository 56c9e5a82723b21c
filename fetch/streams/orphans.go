package streams

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// orphans is the memory of batches whose streams are closed. Most are released
// soon. But a transport may drop what a broken connection was to send without a
// word; then the collector finds it, and would take minutes in a process that
// does little. As long as there are orphans it is called: first after a second,
// then ever less often, as a consumer may well keep a batch.
type orphans struct {
	bytes atomic.Int64

	mu     sync.Mutex
	timer  *time.Timer // nil while there are none
	period time.Duration
	closed bool

	collecting sync.WaitGroup // the timer; grows under mu only while not closed
}

const (
	firstCollection = time.Second
	lastCollection  = time.Minute
)

// add counts bytes in.
func (o *orphans) add(n int64) {
	if n == 0 {
		return
	}
	o.bytes.Add(n)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.period = firstCollection
	o.armLocked()
}

// remove counts bytes out.
func (o *orphans) remove(n int64) { o.bytes.Add(-n) }

func (o *orphans) armLocked() {
	if o.closed || o.timer != nil {
		return
	}
	o.collecting.Add(1)
	o.timer = time.AfterFunc(o.period, o.collect)
}

func (o *orphans) collect() {
	defer o.collecting.Done()
	if o.bytes.Load() > 0 {
		runtime.GC()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timer = nil
	if o.bytes.Load() > 0 {
		o.period = min(2*o.period, lastCollection)
		o.armLocked()
	}
}

// close stops the timer, and waits for it.
func (o *orphans) close() {
	o.mu.Lock()
	o.closed = true
	if o.timer != nil && o.timer.Stop() {
		o.collecting.Done()
	}
	o.mu.Unlock()
	o.collecting.Wait()
}
