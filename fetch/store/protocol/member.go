package protocol

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"bowstring/schema"
)

// member is this process as the collections of all processes see it. Each Store has one.
type member struct {
	id string

	renewing turns[struct{}] // one row is written at a time

	mu    sync.Mutex
	seen  int64 // version of the control partition from which state was read
	state control
	// puts are the generations with running puts, in ascending order of epoch. New puts
	// join the last one.
	puts      []*generation // those with puts under way, and the one that puts join
	beat      int64
	announced Epoch // the newest epoch that a written row has acknowledged
	// renewed is when the row was written that the state of collections was read after;
	// zero if never. Callers of ensure rely on both.
	renewed time.Time
	// held are the snapshots that Snapshot has returned, by name. With inUse, an entry is
	// removed after heldFor.
	held    map[string]hold
	inUse   func() []*schema.Snapshot
	release []*Ingest     // closed ingests that may still be registered
	wake    chan struct{} // closed to have the row renewed at once

	readOnly bool // the database has refused a row of this process
	keeping  bool // the goroutine that renews the row was started
}

// hold is when a snapshot was read, and the id of the collection that ran then.
type hold struct {
	at  time.Time
	run string
}

// generation counts the running puts that know the same state of collections.
type generation struct {
	epoch Epoch
	// trusted is the epoch since which a blob must have been stored for a put to rely on
	// it; 0 for any. It is control.Unclean.
	trusted Epoch
	flight  int // running puts
}

// init sets up the member. Until it has read the control partition, it knows firstEpoch.
func (m *member) init(env Env) {
	m.id = newID(env)
	m.state.Epoch = firstEpoch
	m.puts = []*generation{{epoch: firstEpoch}}
	m.held = map[string]hold{}
	m.wake = make(chan struct{})
}

// learn records the state of collections, if it is newer than the known one. Puts that
// begin later use it. Running puts keep the state that they began with.
func (s *Store) learn(p Partition) error {
	m := &s.member
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.Version <= m.seen && !s.planted(bugStateBackwards) {
		return nil // older than what is known
	}
	c, err := decodeControl(p)
	if err != nil {
		return err
	}
	m.seen, m.state = p.Version, c
	now := m.puts[len(m.puts)-1]
	if now.epoch != c.Epoch || now.trusted != c.Unclean {
		m.puts = append(m.puts, &generation{epoch: c.Epoch, trusted: c.Unclean})
		m.settle()
	}
	return nil
}

// settle removes generations whose puts have ended. The caller holds mu.
func (m *member) settle() {
	last := m.puts[len(m.puts)-1]
	m.puts = slices.DeleteFunc(m.puts, func(g *generation) bool { return g.flight == 0 && g != last })
}

// known is the newest epoch that all running puts know of: what the process may
// acknowledge. The caller holds mu.
func (m *member) known() Epoch {
	m.settle()
	return m.puts[0].epoch
}

// join begins a put, and returns what it knows. The caller calls quit.
func (m *member) join() *generation {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.puts[len(m.puts)-1]
	g.flight++
	return g
}

// quit ends a put. If a newer epoch can be acknowledged now, the row is renewed at once,
// because a collection waits for it.
func (m *member) quit(g *generation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.flight--; g.flight == 0 && m.known() > m.announced {
		m.kick() // a collection waits for it
	}
}

// kick makes the row be renewed at once. The caller holds mu.
func (m *member) kick() {
	close(m.wake)
	m.wake = make(chan struct{})
}

// current returns the known state of collections.
func (m *member) current() control {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// epoch is the known epoch. Puts that begin now write in it.
func (m *member) epoch() Epoch { return m.current().Epoch }

// SetInUse gives the store a function that lists the snapshots that this process reads,
// so that collections of other processes keep them. Without it, every snapshot that
// [Store.Snapshot] has returned counts as in use until Close.
func (s *Store) SetInUse(inUse func() []*schema.Snapshot) {
	s.member.mu.Lock()
	s.member.inUse = inUse
	s.member.mu.Unlock()
}

// hold records that a snapshot was read. It reports whether a collection runs. If so,
// that collection may have read the rows of members already: the caller must renew the
// row, and check again whether the snapshot exists.
func (s *Store) hold(name string) (collecting bool) {
	m := &s.member
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.readOnly {
		return false
	}
	m.held[name] = hold{s.env.Now(), m.state.Run}
	return m.state.Run != "" && !s.planted(bugHoldUnseen)
}

// ensure writes this process's row, unless it was renewed recently, and starts its
// renewal.
func (s *Store) ensure(ctx context.Context) error {
	if s.fresh() {
		return nil
	}
	m := &s.member
	if err := m.renewing.take(ctx, s.env, struct{}{}); err != nil {
		return err
	}
	defer m.renewing.give(struct{}{})
	if s.fresh() { // a call that came earlier has just renewed it
		return nil
	}
	return s.renewInTurn(ctx)
}

// fresh reports whether the row was renewed recently.
func (s *Store) fresh() bool {
	m := &s.member
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.renewed.IsZero() && s.env.Now().Sub(m.renewed) < 3*s.options.RenewEvery
}

// ensureReading is ensure for readers. If the process may only read, it does without a
// row.
func (s *Store) ensureReading(ctx context.Context) error {
	m := &s.member
	m.mu.Lock()
	readOnly := m.readOnly
	m.mu.Unlock()
	if readOnly {
		return nil
	}
	err := s.ensure(ctx)
	if !errors.Is(err, ErrReadOnly) {
		return err
	}
	m.mu.Lock()
	m.readOnly = true
	m.mu.Unlock()
	s.log.WarnContext(ctx, "this process may only read: a collection will not know what", "error", err)
	return nil
}

// renew writes the row, and learns the state of collections. If a collection runs that
// can be acknowledged now, it writes the row again. Concurrent calls take turns.
func (s *Store) renew(ctx context.Context) error {
	m := &s.member
	if err := m.renewing.take(ctx, s.env, struct{}{}); err != nil {
		return err
	}
	defer m.renewing.give(struct{}{})
	return s.renewInTurn(ctx)
}

// renewInTurn is renew for a caller that has the turn.
func (s *Store) renewInTurn(ctx context.Context) error {
	m := &s.member
	for {
		written := s.env.Now()
		if err := s.announce(ctx); err != nil {
			return fmt.Errorf("renew the row of this process: %w", err)
		}
		p, err := s.db.Peek(ctx, Control)
		if err != nil {
			return fmt.Errorf("look for a collection: %w", err)
		}
		if err := s.learn(p); err != nil {
			return err
		}
		m.mu.Lock()
		again := m.known() > m.announced && m.state.Run != ""
		m.renewed = written
		m.mu.Unlock()
		if !again {
			break
		}
	}
	s.keep()
	return nil
}

// announce writes the row once. The caller has the turn, so rows are written in order of
// their beats.
func (s *Store) announce(ctx context.Context) error {
	m := &s.member
	m.mu.Lock()
	inUse := m.inUse
	m.mu.Unlock()
	names := map[string]struct{}{}
	if inUse != nil { // called without the lock, because the function takes locks of the engine
		for _, snap := range inUse() {
			names[snapshotName(snap.Dataset, snap.Number)] = struct{}{}
		}
	}
	now := s.env.Now()
	m.mu.Lock()
	for name, h := range m.held {
		if inUse != nil && now.Sub(h.at) > heldFor {
			delete(m.held, name)
			continue
		}
		names[name] = struct{}{}
	}
	m.beat++
	row := Member{
		ID: m.id, Holder: s.options.Holder, Acked: m.known(), Beat: m.beat,
		Holds: slices.Sorted(maps.Keys(names)),
	}
	if s.planted(bugAckEarly) {
		row.Acked = m.state.Epoch
	}
	m.mu.Unlock()
	if err := s.db.Announce(ctx, row); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.announced = max(m.announced, row.Acked)
	return nil
}

// keep starts the goroutine that renews the row, once.
func (s *Store) keep() {
	m := &s.member
	m.mu.Lock()
	start := !m.keeping && s.ctx.Err() == nil
	m.keeping = m.keeping || start
	m.mu.Unlock()
	if start {
		s.tasks.start(s.env, s.renewals)
	}
}

// renewals renews the row until the store is closed. It also removes the registrations of
// closed ingests that could not be removed when they were closed.
func (s *Store) renewals() {
	m := &s.member
	for {
		m.mu.Lock()
		wake := m.wake
		m.mu.Unlock()
		if s.env.Wait(s.ctx, wake, s.nextRenewal()) != nil {
			return
		}
		ctx, cancel := s.within(s.ctx, 5*s.options.RenewEvery)
		if err := s.renew(ctx); err != nil && s.ctx.Err() == nil {
			s.log.Warn("the row of this process could not be renewed; its imports fail unless it can be soon", "error",
				err)
		}
		m.mu.Lock()
		left := slices.Clone(m.release)
		m.mu.Unlock()
		for _, in := range left {
			if err := in.unregister(ctx); err != nil && s.ctx.Err() == nil {
				s.log.Debug("an ingest that is closed is still registered", "dataset", in.dataset, "error", err)
			}
		}
		cancel()
	}
}

// nextRenewal is the time until the next renewal: RenewEvery varied by a quarter, so that
// processes that were started together do not write together.
func (s *Store) nextRenewal() time.Duration {
	return s.options.RenewEvery*3/4 + time.Duration(s.env.Rand()%uint64(s.options.RenewEvery/2+1))
}

// leave removes what this process has announced to others. If it cannot, the row lapses
// by itself.
func (s *Store) leave() {
	m := &s.member
	m.mu.Lock()
	keeping := m.keeping
	left := slices.Clone(m.release)
	m.mu.Unlock()
	if !keeping {
		return
	}
	ctx, cancel := s.within(context.Background(), leaveWithin)
	defer cancel()
	for _, in := range left {
		if err := in.unregister(ctx); err != nil {
			s.log.Debug("an ingest stays registered until the next collection", "dataset", in.dataset, "error", err)
		}
	}
	if err := s.db.Leave(ctx, m.id); err != nil {
		s.log.Debug("the row of this process lapses by itself", "error", err)
	}
}
