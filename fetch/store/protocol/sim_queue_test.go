package protocol

import "iter"

// events is a heap of future events, with the next one at the root. It holds events by
// value, because a simulation does little else than push and pop them.
type events []event

func (e events) less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}

func (e *events) push(x event) {
	*e = append(*e, x)
	h := *e
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (e *events) pop() event {
	h := *e
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	*e = h
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return first
		}
		if down+1 < last && h.less(down+1, down) {
			down++
		}
		if !h.less(down, i) {
			return first
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}

// coroutine runs tasks, one after another, so that its stack need not grow for each.
type coroutine struct {
	run   func() // the task
	next  func() (struct{}, bool)
	yield func(struct{}) bool
	stop  func()
}

// coroutines is a pool of idle coroutines. A caller that simulates several seeds uses one
// pool for all of them, and closes it.
type coroutines struct{ list []*coroutine }

func (c *coroutines) take() *coroutine {
	if n := len(c.list); n > 0 {
		co := c.list[n-1]
		c.list = c.list[:n-1]
		return co
	}
	co := &coroutine{}
	co.next, co.stop = iter.Pull(func(yield func(struct{}) bool) {
		co.yield = yield
		for {
			co.run()
			co.run = nil
			if !yield(struct{}{}) {
				return
			}
		}
	})
	return co
}

func (c *coroutines) give(co *coroutine) { c.list = append(c.list, co) }

// close ends those that were given back.
func (c *coroutines) close() {
	for _, co := range c.list {
		co.stop()
	}
	c.list = nil
}
