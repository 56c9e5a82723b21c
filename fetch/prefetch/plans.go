package prefetch

import (
	"runtime"
	"sync"
)

// plans plans streams, and begins reads, for goroutines that have something else to do: one that gives a batch back may
// be that of a connection, and the runtime has one alone for all cleanups. It is safe for concurrent use.
type plans struct {
	set     *Set
	workers sync.WaitGroup // grows under mu only while not closed

	mu      sync.Mutex
	closed  bool
	due     []*Stream // that have memory again, each once: Stream.due
	running int       // workers
}

// plan has a stream ask for what its window has room for now, and reads begun.
func (p *plans) plan(st *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || st.due {
		return
	}
	st.due = true
	p.due = append(p.due, st)
	p.wakeLocked()
}

// wakeLocked begins a worker, unless there are as many as processors.
func (p *plans) wakeLocked() {
	if p.running < runtime.GOMAXPROCS(0) {
		p.running++
		p.workers.Go(p.work)
	}
}

func (p *plans) work() {
	for {
		st, ok := p.next()
		if !ok {
			return
		}
		st.refill()
	}
}

// next returns a stream that is due; ok is false if nothing is, and the worker ends.
func (p *plans) next() (st *Stream, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case len(p.due) > 0:
		st = p.due[0]
		st.due = false
		p.due[0] = nil
		if p.due = p.due[1:]; len(p.due) == 0 {
			p.due = nil
		}
		return st, true
	}
	p.running--
	return nil, false
}

// close waits for the workers. Nothing is planned afterwards.
func (p *plans) close() {
	p.mu.Lock()
	p.closed, p.due = true, nil
	p.mu.Unlock()
	p.workers.Wait()
}
