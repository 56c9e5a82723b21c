package bucket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/object"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// memberFile is the content of a member's object, as JSON.
type memberFile struct {
	Holder string   `json:"holder"`
	Acked  int64    `json:"acked"`
	Beat   int64    `json:"beat"`
	Holds  []string `json:"holds,omitempty"`
}

// maxMember is the size of the largest object of a member that is read.
const maxMember = 16 << 20

// memberVersions are the versions of members' objects: of those of this process as they were written last, and of all as
// they were read last, with what they said.
type memberVersions struct {
	mu   sync.Mutex
	own  map[string]schema.ObjectVersion
	read map[string]readMember
}

type readMember struct {
	object schema.ObjectVersion
	member protocol.Member
}

// announceTries is how often a row is written whose object is not the one that it should be.
const announceTries = 5

// Announce implements protocol.Members. Each write has the condition that the row is the one that this process wrote
// before, so that one which is late cannot replace a newer one.
func (d database) Announce(ctx context.Context, m protocol.Member) error {
	s := d.s
	body, err := json.Marshal(memberFile{m.Holder, int64(m.Acked), m.Beat, m.Holds})
	if err != nil {
		return err
	}
	key := s.key(dirMembers + m.ID)
	s.members.mu.Lock()
	at := s.members.own[m.ID]
	s.members.mu.Unlock()
	for try := 0; ; try++ {
		within, cancel := context.WithTimeout(ctx, swapWithin)
		info, outcome, err := s.bucket.Put(within, key, body, object.Condition{Absent: at.IsZero(), Version: at})
		cancel()
		if outcome == object.Made && !info.Version.IsZero() {
			s.members.wrote(m.ID, info.Version)
			return nil
		}
		switch {
		case errors.Is(err, schema.ErrDenied):
			return fmt.Errorf("%w: announce this process: %w", protocol.ErrReadOnly, err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && outcome == object.Failed && !errors.Is(err, schema.ErrUnavailable), try == announceTries:
			return fmt.Errorf("announce this process in %s: %w", s, err)
		}
		// Another attempt was made, or a collection took the row away.
		there, old, err := s.readMember(ctx, m.ID)
		switch {
		case errors.Is(err, schema.ErrNotFound):
			at = schema.ObjectVersion{}
		case err != nil:
			return fmt.Errorf("announce this process in %s: %w", s, err)
		case there.Beat >= m.Beat:
			s.members.wrote(m.ID, old)
			return nil
		default:
			at = old
		}
		if outcome != object.Moved {
			if err := pause(ctx, try); err != nil {
				return err
			}
		}
	}
}

func (v *memberVersions) wrote(id string, at schema.ObjectVersion) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.own[id] = at
}

// readMember reads a row.
func (s *Store) readMember(ctx context.Context, id string) (m protocol.Member, at schema.ObjectVersion, err error) {
	err = s.again(ctx, func(ctx context.Context) error {
		data, info, err := s.bucket.Get(ctx, s.key(dirMembers+id), schema.ObjectVersion{}, maxMember)
		if err != nil {
			return err
		}
		var f memberFile
		if err := json.Unmarshal(data, &f); err != nil {
			return fmt.Errorf("%w: the row of process %s: %w", schema.ErrDataLoss, id, err)
		}
		m = protocol.Member{ID: id, Holder: f.Holder, Acked: protocol.Epoch(f.Acked), Beat: f.Beat, Holds: f.Holds}
		at = info.Version
		return nil
	})
	return m, at, err
}

// membersAtOnce is how many rows are read at the same time.
const membersAtOnce = 16

// Members implements protocol.Members. A row has lapsed when the server wrote it that long ago, by the clock of the
// server when it answered: no other clock takes part. Where a server does not say the time, no row lapses.
func (d database) Members(ctx context.Context) ([]protocol.Member, error) {
	s := d.s
	var listed []object.Info
	err := s.list(ctx, dirMembers, func(name string, info object.Info) error {
		if !s.lapsed(info, s.options.Lapse) {
			info.Key = name
			listed = append(listed, info)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	list := make([]*protocol.Member, len(listed))
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(membersAtOnce)
	for i, info := range listed {
		s.members.mu.Lock()
		known, ok := s.members.read[info.Key]
		s.members.mu.Unlock()
		if ok && !info.Version.IsZero() && known.object == info.Version {
			list[i] = &known.member
			continue
		}
		g.Go(func() error {
			m, at, err := s.readMember(within, info.Key)
			if errors.Is(err, schema.ErrNotFound) {
				return nil // it has taken leave
			}
			if err == nil {
				list[i] = &m
				s.members.mu.Lock()
				defer s.members.mu.Unlock()
				s.members.read[info.Key] = readMember{at, m}
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("list the processes at work in %s: %w", s, err)
	}
	s.members.keep(listed)
	var members []protocol.Member
	for _, m := range list {
		if m != nil {
			members = append(members, *m)
		}
	}
	return members, nil
}

// keep forgets rows that are not listed.
func (v *memberVersions) keep(listed []object.Info) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id := range v.read {
		if !slices.ContainsFunc(listed, func(info object.Info) bool { return info.Key == id }) {
			delete(v.read, id)
		}
	}
}

// lapsed says whether the server wrote an object that long ago.
func (s *Store) lapsed(info object.Info, after time.Duration) bool {
	return !info.Date.IsZero() && !info.Modified.IsZero() && info.Date.Sub(info.Modified) > after
}

// Leave implements protocol.Members.
func (d database) Leave(ctx context.Context, id string) error {
	s := d.s
	err := s.again(ctx, func(ctx context.Context) error { return s.bucket.Delete(ctx, s.key(dirMembers+id)) })
	if err != nil {
		return fmt.Errorf("take leave of %s: %w", s, err)
	}
	s.members.mu.Lock()
	defer s.members.mu.Unlock()
	delete(s.members.own, id)
	return nil
}

// forgetAfter is how long a row that has lapsed is kept, so that its process finds it when it comes back.
const forgetAfter = 24 * time.Hour

// forgetMembers removes the rows of processes that are gone for long.
func (s *Store) forgetMembers(ctx context.Context) error {
	return s.forget(ctx, dirMembers, s.options.Lapse+forgetAfter)
}

// list visits the objects whose names begin with under, without that beginning. Where the list breaks off it goes on
// behind what was visited.
func (s *Store) list(ctx context.Context, under string, visit func(name string, info object.Info) error) error {
	prefix, after := s.key(under), ""
	page := func() (broken, failed error) {
		for info, err := range s.bucket.List(ctx, object.ListOptions{Prefix: prefix, After: after}) {
			if err != nil {
				return err, nil
			}
			if info.Key <= after {
				continue // some servers repeat the last ones of a page
			}
			after = info.Key
			if name := path.Base(info.Key); strings.HasPrefix(name, ".") && name != protocol.Control {
				continue // servers over a directory list files that they are writing; no other object of a store is named so
			}
			if err := visit(strings.TrimPrefix(info.Key, prefix), info); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	for try := 0; ; try++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		was := after
		broken, failed := page()
		if failed != nil || broken == nil {
			return failed
		}
		if after != was {
			try = 0
		}
		if !errors.Is(broken, schema.ErrUnavailable) || try == tries-1 {
			return fmt.Errorf("list %s of %s: %w", under, s, broken)
		}
		if err := pauseAfter(ctx, broken, try); err != nil {
			return err
		}
	}
}
