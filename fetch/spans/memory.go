package spans

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"time"
)

// stuckAfter bounds the wait for memory while none is released.
const stuckAfter = 5 * time.Second

// memory bounds the bytes of spans, and keeps some buffers for reuse: spans are of
// megabytes, and clearing new memory for each would cost CPU time. Claims are served in
// order, so that a large one is not overtaken forever.
type memory struct {
	mu      sync.Mutex
	limit   int64
	used    int64
	waiting []*claim
	given   time.Time // time of the last release
	spare   [][]byte
	spares  int64 // size of spare
}

// claim waits for n bytes. granted is closed once they are counted as used.
type claim struct {
	n       int64
	granted chan struct{}
}

// spareShare is the divisor of the limit that bounds the bytes of unused buffers. spareMost bounds them as well.
const (
	spareShare = 4
	spareMost  = 8 * MaxSpan
)

func (m *memory) init(limit int64) { m.limit = limit }

func (m *memory) inUse() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// take returns a buffer of n bytes; false if ctx ends first, or no memory is released for stuckAfter. The caller
// returns the buffer with give.
func (m *memory) take(ctx context.Context, n int64) ([]byte, bool) {
	m.mu.Lock()
	if len(m.waiting) == 0 && m.fitsLocked(n) {
		b := m.bufferLocked(n)
		m.mu.Unlock()
		return b, true
	}
	c := &claim{n, make(chan struct{})}
	m.waiting = append(m.waiting, c)
	m.mu.Unlock()
	since := time.Now()
	tick := time.NewTicker(stuckAfter / 4)
	defer tick.Stop()
	for {
		select {
		case <-c.granted:
			m.mu.Lock()
			defer m.mu.Unlock()
			m.used -= n // bufferLocked counts it
			return m.bufferLocked(n), true
		case <-ctx.Done():
			return nil, m.withdraw(c)
		case now := <-tick.C:
			m.mu.Lock()
			last := m.given
			m.mu.Unlock()
			if now.Sub(last) > stuckAfter && now.Sub(since) > stuckAfter {
				return nil, m.withdraw(c)
			}
		}
	}
}

// withdraw removes a claim, or releases what it was just granted. It returns false.
func (m *memory) withdraw(c *claim) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.waiting, c); i >= 0 {
		m.waiting = slices.Delete(m.waiting, i, i+1)
	} else {
		m.used -= c.n
	}
	m.grantLocked()
	return false
}

// fitsLocked reports whether n bytes fit. A single span always fits.
func (m *memory) fitsLocked(n int64) bool { return m.used == 0 || m.used+n <= m.limit }

// grantLocked grants waiting claims in order, as long as they fit. Each release calls it.
func (m *memory) grantLocked() {
	for len(m.waiting) > 0 && m.fitsLocked(m.waiting[0].n) {
		m.used += m.waiting[0].n
		close(m.waiting[0].granted)
		m.waiting[0] = nil
		m.waiting = m.waiting[1:]
	}
}

// bufferLocked returns a buffer and counts its bytes.
func (m *memory) bufferLocked(n int64) []byte {
	m.used += n
	for i, b := range m.spare {
		if have := int64(cap(b)); have >= n && have <= n+n/bufferShare {
			m.spares -= have
			m.spare = slices.Delete(m.spare, i, i+1)
			return b[:n]
		}
	}
	return make([]byte, n, roundUp(n))
}

// bufferShare is the inverse of the share of a buffer that may be unused, so that spans of about the same length
// reuse buffers.
const bufferShare = 8

// roundUp is the capacity of a new buffer for n bytes.
func roundUp(n int64) int64 {
	step := int64(1) << max(bits.Len64(uint64(n))-1-bits.Len64(bufferShare), 0)
	return (n + step - 1) / step * step
}

// give releases a buffer.
func (m *memory) give(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= int64(len(b))
	m.given = time.Now()
	most := min(m.limit/spareShare, spareMost)
	for m.spares+int64(cap(b)) > most && len(m.spare) > 0 {
		m.spares -= int64(cap(m.spare[0]))
		m.spare = slices.Delete(m.spare, 0, 1)
	}
	if m.spares+int64(cap(b)) <= most {
		m.spare = append(m.spare, b)
		m.spares += int64(cap(b))
	}
	m.grantLocked()
}
