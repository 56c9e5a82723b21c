package delay

import (
	"math/bits"
	"time"
)

const (
	// leastQueue and mostKept are the least memory of a queue, and what an empty one keeps at most.
	leastQueue = 4 << 10
	mostKept   = 1 << 20
)

// queue holds bytes in order. It reuses its memory.
type queue struct {
	data    []byte // a power of two of them
	head, n int
}

// push adds b. It does not change the bytes that peek returned.
func (q *queue) push(b []byte) {
	if need := q.n + len(b); need > len(q.data) {
		grown := make([]byte, max(leastQueue, 1<<bits.Len(uint(need-1))))
		first := copy(grown, q.peek(q.n))
		copy(grown[first:], q.data[:q.n-first])
		q.data, q.head = grown, 0
	}
	at := (q.head + q.n) & (len(q.data) - 1)
	copy(q.data, b[copy(q.data[at:], b):])
	q.n += len(b)
}

// peek returns the first bytes: at most n, and at least one.
func (q *queue) peek(n int) []byte {
	return q.data[q.head:min(q.head+n, len(q.data))]
}

// drop removes the first n bytes. Slices that peek returned become invalid.
func (q *queue) drop(n int) {
	q.n -= n
	switch {
	case q.n > 0:
		q.head = (q.head + n) & (len(q.data) - 1)
	case len(q.data) > mostKept:
		*q = queue{}
	default:
		q.head = 0 // the same memory again, which the processor's cache still holds
	}
}

// mark says when a number of bytes arrives or is acknowledged.
type mark struct {
	at time.Duration
	n  int
}

// marks are in the order of their times. They reuse their memory.
type marks struct {
	items   []mark // a power of two of them
	head, n int
}

func (m *marks) at(i int) *mark { return &m.items[(m.head+i)&(len(m.items)-1)] }

// add puts n bytes at a time that is not before the last one.
func (m *marks) add(at time.Duration, n int) {
	if m.n > 0 && m.at(m.n-1).at == at {
		m.at(m.n - 1).n += n
		return
	}
	if m.n == len(m.items) {
		grown := make([]mark, max(16, 2*m.n))
		for i := range m.n {
			grown[i] = *m.at(i)
		}
		m.items, m.head = grown, 0
	}
	m.n++
	*m.at(m.n - 1) = mark{at, n}
}

// next is the time of the first mark, or never.
func (m *marks) next() time.Duration {
	if m.n == 0 {
		return never
	}
	return m.at(0).at
}

// until removes the marks up to a time and returns their bytes.
func (m *marks) until(now time.Duration) (n int) {
	for m.n > 0 && m.at(0).at <= now {
		n += m.at(0).n
		m.head = (m.head + 1) & (len(m.items) - 1)
		m.n--
	}
	return n
}

// window bounds the bytes that are not acknowledged. The zero window has no limit.
type window struct {
	size, limit int // limit: to which size grows
	used        int
}

func newWindow(c *Config) window {
	limit := int(min(c.Window, maxWindow))
	w := window{size: limit, limit: limit}
	if c.SlowStart {
		if w.limit == 0 {
			w.limit = maxWindow
		}
		w.size = min(initialWindow, w.limit)
	}
	return w
}

// room is how many of want bytes may be under way now: 0 if it is better to wait for more.
func (w *window) room(want int) int {
	if w.size == 0 {
		return want
	}
	room := w.size - w.used
	if room < min(want, max(w.size/16, 1), chunkSize) {
		return 0
	}
	return min(room, want)
}

func (w *window) acknowledge(n int) {
	w.used -= n
	w.size = min(w.size+n, w.limit)
}
