package cql

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// crowd is a store on a mock, with blobs. Enough reads are in flight that each further
// one may join a statement.
type crowd struct {
	*Store
	t     *testing.T
	mock  *mock
	refs  []schema.BlobRef
	clock atomic.Int64 // of steering
	busy  atomic.Pointer[gathered]
	mu    sync.Mutex
	cells map[schema.Key][]byte
}

const (
	crowdKeys = 4
	// crowdReads are counted as on their way all the time.
	crowdReads = 10_000
)

// newCrowd has statements of crowdKeys blobs, which are sent when they are full, and not before.
func newCrowd(t *testing.T, m *mock, sizes ...int) *crowd {
	t.Helper()
	port := freePort(t)
	c := &crowd{t: t, mock: m, cells: map[schema.Key][]byte{}}
	c.begin(port, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=4&keys=%d", port, crowdKeys), sizes...)
	return c
}

func (c *crowd) begin(port int, uri string, sizes ...int) {
	t := c.t
	t.Helper()
	for i, size := range sizes {
		data := make([]byte, size)
		copy(data, fmt.Sprintf("%d. blob", i))
		ref := schema.RefOf(data)
		c.refs = append(c.refs, ref)
		c.cells[ref.Key] = data
	}
	c.mock.cells = c.cell
	if c.mock.do == nil {
		c.mock.do = well
	}
	startMock(t, c.mock, "127.0.0.1", port)
	c.Store = mockStore(t, uri)
	c.steering.now = func() time.Duration { return time.Duration(c.clock.Load()) } // it stands: no host is silent
	c.gathering.linger = func(time.Duration) time.Duration { return time.Hour }
	h := c.host()
	h.reads, h.least = crowdReads, 1
	c.busy.Store(h)
	t.Cleanup(func() {
		c.gathering.running.Wait()
		if h.reads != crowdReads || h.kinds[0].open != nil || h.kinds[1].open != nil {
			t.Errorf("%d reads are counted, want %d; open are %v", h.reads, crowdReads, h.kinds)
		}
		if s := c.buffers.stats(); s.buffers != 0 {
			t.Errorf("%d buffers are held", s.buffers)
		}
	})
}

func (c *crowd) cell(key []byte, _ int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cells[schema.Key(key)]
}

// set gives a key another cell, nil for none.
func (c *crowd) set(ref schema.BlobRef, cell []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cells[ref.Key] = cell
}

// host is the state of the first replica of the first blob.
func (c *crowd) host() *gathered { return c.gathering.hostOf(&c.refs[0]) }

// pass lets time pass when no statement is in flight any more. A read gets its blob
// before the statement has ended. A host whose statement does not end for that time would
// count as silent.
func (c *crowd) pass(d time.Duration) {
	c.gathering.running.Wait()
	c.clock.Add(int64(d))
}

// reading begins a read.
func (c *crowd) reading(ctx context.Context, ref schema.BlobRef) <-chan error {
	ended := make(chan error, 1)
	go func() {
		b, err := c.readParts(ctx, ref)
		if err == nil {
			err = ref.Check(b.Bytes())
			b.Release()
		}
		ended <- err
	}()
	return ended
}

// all reads every blob, at the same time.
func (c *crowd) all() []error {
	var ended []<-chan error
	for _, ref := range c.refs {
		ended = append(ended, c.reading(c.t.Context(), ref))
	}
	errs := make([]error, len(ended))
	for i := range ended {
		errs[i] = <-ended[i]
	}
	return errs
}

// alone reads a blob at the host that an attempt begins with.
func (c *crowd) alone(attempt int) {
	c.t.Helper()
	if err := <-c.reading(store.WithAttempt(c.t.Context(), attempt), c.refs[0]); err != nil {
		c.t.Error(err)
	}
}

// waiting waits until the open statement of large blobs has n members.
func (c *crowd) waiting(n int) {
	h := c.host()
	for {
		h.mu.Lock()
		st := h.kinds[1].open
		there := st != nil && len(st.members) == n
		h.mu.Unlock()
		if there {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// keys lists how many keys each request had.
func (m *mock) keys() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	var n []int
	for _, list := range m.lists {
		n = append(n, len(list))
	}
	return n
}

// gets checks the server's counts of statements and of single reads.
func (c *crowd) gets(statements, singles int) {
	c.t.Helper()
	var several, one int
	for _, n := range c.mock.keys() {
		if n > 1 {
			several++
		} else {
			one++
		}
	}
	if several != statements || one != singles {
		c.t.Errorf("the server got %d statements and %d single reads, want %d and %d: %v", several, one, statements,
			singles, c.mock.keys())
	}
}

func (c *crowd) well(errs []error) {
	c.t.Helper()
	for i, err := range errs {
		if err != nil {
			c.t.Errorf("blob %d: %v", i, err)
		}
	}
}

func large(n int) []int {
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = 20_000 + i
	}
	return sizes
}
