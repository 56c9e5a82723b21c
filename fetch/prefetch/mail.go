package prefetch

import (
	"sync"

	"bowstring/fetch/read"
)

// mail is what comes to a stream's goroutine. Any goroutine may post; posting never waits.
type mail struct {
	wake chan struct{} // has room for one: there is something

	mu     sync.Mutex
	closed bool // nobody reads it any more
	in     letters
}

// letters are messages in the order of their kinds.
type letters struct {
	answers []read.Outcome // of reads
	freed   int64          // bytes of batches that were released
	todo    []func(*owner) // whatever else is to be done
	knock   bool           // there is reason to look at all again
}

// post adds to what comes, and reports whether it will be read.
func (m *mail) post(add func(*letters)) bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	add(&m.in)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return true
}

// take swaps what has come for the letters given, which are empty.
func (m *mail) take(l *letters) {
	m.mu.Lock()
	*l, m.in = m.in, *l
	m.mu.Unlock()
}

// close has nothing more come, and returns what was not taken.
func (m *mail) close() letters {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	l := m.in
	m.in = letters{}
	return l
}

// clear empties letters, whose room is used again.
func (l *letters) clear() {
	clear(l.answers)
	clear(l.todo)
	l.answers, l.todo, l.freed, l.knock = l.answers[:0], l.todo[:0], 0, false
}

// do has the stream's goroutine do something, and reports whether it will.
func (s *Stream) do(f func(*owner)) bool {
	return s.mail.post(func(l *letters) { l.todo = append(l.todo, f) })
}

// ask is do, and waits until it is done, or the stream has ended.
func (s *Stream) ask(f func(*owner)) {
	done := make(chan struct{})
	if s.do(func(o *owner) { f(o); close(done) }) {
		<-done
	}
}

// knock has the stream's goroutine look at all again.
func (s *Stream) knock() { s.mail.post(func(l *letters) { l.knock = true }) }

// More implements read.Receiver.
func (s *Stream) More() { s.knock() }

// Receive implements read.Receiver.
func (s *Stream) Receive(list []read.Outcome) {
	if s.mail.post(func(l *letters) { l.answers = append(l.answers, list...) }) {
		return
	}
	for i := range list {
		list[i].Blob.Release()
	}
}
