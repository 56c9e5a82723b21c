package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

// patience is how long reading a source may take at least, whatever the grace time.
const patience = 10 * time.Second

// DefaultGrace is how long what was read last holds, where no other time is set.
const DefaultGrace = 5 * time.Minute

// Sources are the files and the provider's keys that decide which callers may call, and
// what they may do. If one of them cannot be read, the previous contents stay in force
// for a grace time, because the file may be about to be replaced. Then the server accepts
// no calls: a token may have been revoked, or a right withdrawn, without its knowledge.
// It is safe for concurrent use; nil never closes.
type Sources struct {
	grace time.Duration
	log   *slog.Logger
	now   func() time.Time
	made  time.Time
	least time.Duration // patience

	// closing is when the server is closed, 0 if all can be read: nanoseconds since made, as the wall clock may be set
	// meanwhile.
	closing atomic.Int64

	mu     sync.Mutex
	list   []*Source   // guarded by mu
	ending func(error) // ends calls; guarded by mu
}

// Source is one of Sources. It is safe for concurrent use; nil notes nothing.
type Source struct {
	all    *Sources
	what   string
	closes bool // the server, and not only what reads it
	grace  time.Duration

	began time.Time   // when the read began that goes on; zero if none does; guarded by all.mu
	late  *time.Timer // of that read; guarded by all.mu
	nth   int         // of reads that have begun or ended; guarded by all.mu

	failed time.Time // since when it cannot be read; zero if it can be; guarded by all.mu
	why    error     // guarded by all.mu
	closed bool      // it is known that the grace time is over; guarded by all.mu
}

// SourceState is how a source stands.
type SourceState struct {
	What   string
	Since  time.Time // zero if it can be read
	Closed bool      // the grace time is over
}

// NewSources returns sources with a grace time.
func NewSources(grace time.Duration, log *slog.Logger) *Sources {
	return &Sources{grace: grace, log: log, now: time.Now, made: time.Now(), least: patience}
}

// Add lists a source. closes says whether the server is closed after the grace time, or only what asks for it by
// Source.Closed.
func (s *Sources) Add(what string, closes bool) *Source { return s.add(what, closes, 0) }

// add lists a source with a grace time of its own, if that is not 0.
func (s *Sources) add(what string, closes bool, grace time.Duration) *Source {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one := &Source{all: s, what: what, closes: closes, grace: cmp.Or(grace, s.grace)}
	s.list = append(s.list, one)
	return one
}

// WhenClosed has end called when the server is closed, so that it ends what runs.
func (s *Sources) WhenClosed(end func(error)) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = end
}

// Closed says why calls are refused; nil while they are not.
func (s *Sources) Closed() error {
	if s == nil {
		return nil
	}
	if at := s.closing.Load(); at == 0 || int64(s.now().Sub(s.made)) < at {
		return nil
	}
	return errClosed
}

// errClosed is the answer to all calls while the server is closed. The log has the file
// and the reason.
var errClosed = fmt.Errorf("%w: the server cannot read who may call, or what callers may do, and lets in no calls; its "+
	"log says what it cannot read", schema.ErrUnavailable)

// List returns how all sources stand, in the order in which they were added.
func (s *Sources) List() []SourceState {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]SourceState, len(s.list))
	for i, one := range s.list {
		list[i] = SourceState{one.what, one.failed, one.overLocked()}
	}
	return list
}

// errHangs is why a source cannot be read whose read does not end.
var errHangs = errors.New("reading it has not come to an end")

// Begin says that the source is about to be read, which Note ends. A read that takes as long as the grace time has
// failed since it began: file systems of networks may hang.
func (one *Source) Begin(ctx context.Context) {
	if one == nil {
		return
	}
	s := one.all
	s.mu.Lock()
	defer s.mu.Unlock()
	one.nth++
	nth := one.nth
	one.began = s.now()
	one.late = time.AfterFunc(max(one.grace, s.least), func() { one.note(ctx, errHangs, nth) })
}

// Note says that the source was read, or why it could not be.
func (one *Source) Note(ctx context.Context, err error) {
	if one != nil {
		one.note(ctx, err, 0)
	}
}

// note is Note, for the end of a read, or for one that goes on if its number is still nth.
func (one *Source) note(ctx context.Context, err error, nth int) {
	s := one.all
	s.mu.Lock()
	if nth != 0 && nth != one.nth {
		s.mu.Unlock()
		return
	}
	since := s.now()
	if !one.began.IsZero() {
		since = one.began
	}
	if nth == 0 && one.late != nil {
		one.late.Stop()
		one.nth, one.began, one.late = one.nth+1, time.Time{}, nil
	}
	var end func(error)
	was := one.closed
	if err == nil {
		one.failed, one.why, one.closed = time.Time{}, nil, false
	} else {
		if one.failed.IsZero() {
			one.failed = since
		}
		one.why, one.closed = err, one.overLocked()
		if one.closed && !was && one.closes {
			end = s.ending
		}
	}
	now := one.closed
	s.closeLocked()
	s.mu.Unlock()
	switch {
	case now && !was:
		s.log.LogAttrs(ctx, slog.LevelError, "what could not be read for the grace time does not hold any longer",
			slog.String("what", one.what), slog.Duration("grace", one.grace), slog.Bool("calls_refused", one.closes),
			slog.String("error", err.Error()))
	case was && !now:
		s.log.LogAttrs(ctx, slog.LevelInfo, "it can be read again, and holds", slog.String("what", one.what))
	}
	if end != nil {
		end(errClosed)
	}
}

// Closed says why what the source held does not hold any longer; nil while it does.
func (one *Source) Closed() error {
	if one == nil {
		return nil
	}
	one.all.mu.Lock()
	defer one.all.mu.Unlock()
	if !one.overLocked() {
		return nil
	}
	return fmt.Errorf("%w: %s could not be read for %s: %w", schema.ErrUnavailable, one.what, one.grace, one.why)
}

// overLocked reports whether the grace time is over; the mutex of all is held.
func (one *Source) overLocked() bool {
	return !one.failed.IsZero() && one.all.now().Sub(one.failed) >= one.grace
}

// closeLocked sets when the server is closed; the mutex is held.
func (s *Sources) closeLocked() {
	first := int64(0)
	for _, one := range s.list {
		if !one.closes || one.failed.IsZero() {
			continue
		}
		if at := max(1, int64(one.failed.Sub(s.made)+one.grace)); first == 0 || at < first {
			first = at
		}
	}
	s.closing.Store(first)
}
