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

// memberFile is the content of a process's object, as JSON: see [protocol.Member].
type memberFile struct {
	Holder string   `json:"holder"`
	Acked  int64    `json:"acked"`
	Beat   int64    `json:"beat"`
	Holds  []string `json:"holds,omitempty"`
}

// maxMember is the size of the largest object of a process that is read.
const maxMember = 16 << 20

// memberVersions caches the rows of processes. It is safe for concurrent use.
type memberVersions struct {
	mu   sync.Mutex
	own  map[string]schema.ObjectVersion // versions of the objects that this process wrote last
	read map[string]readMember           // the rows that were read last, with the versions of their objects
}

// readMember is a row with the version of its object.
type readMember struct {
	object schema.ObjectVersion
	member protocol.Member
}

// announceTries is how often a row is written again because its object has another
// version than expected.
const announceTries = 5

// Announce implements protocol.Members. Each write has the condition that the object is
// the one that this process wrote before. So a late write cannot replace a newer row.
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
		// A process that may only read works without a row.
		case errors.Is(err, schema.ErrDenied):
			return fmt.Errorf("%w: announce this process: %w", protocol.ErrReadOnly, err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && outcome == object.Failed && !errors.Is(err, schema.ErrUnavailable), try == announceTries:
			return fmt.Errorf("announce this process in %s: %w", s, err)
		}
		// An earlier attempt was made, or a collection has removed the row.
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

// wrote records the version of an object that this process has written.
func (v *memberVersions) wrote(id string, at schema.ObjectVersion) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.own[id] = at
}

// readMember reads the row of a process, and the version of its object.
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

// membersAtOnce is how many rows or leases are read at the same time.
const membersAtOnce = 16

// Members implements protocol.Members. A row has lapsed if the server wrote it longer
// than Options.Lapse before it answered the list. Both times are the server's, so no
// other clock takes part. If a server does not send its time, no row lapses.
func (d database) Members(ctx context.Context) ([]protocol.Member, error) {
	s := d.s
	var listed []object.Info
	err := s.list(ctx, dirMembers, func(name string, info object.Info) error {
		if !s.lapsed(info, s.options.Lapse) {
			// From here on Key is the process's id.
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
		// A row whose object has not changed is not read again.
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

// keep removes the cached rows that are not listed.
func (v *memberVersions) keep(listed []object.Info) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id := range v.read {
		if !slices.ContainsFunc(listed, func(info object.Info) bool { return info.Key == id }) {
			delete(v.read, id)
		}
	}
}

// lapsed reports whether the server wrote an object longer ago than after.
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

// forgetAfter is how long a lapsed row is left, so that its process finds it if it was
// only suspended.
const forgetAfter = 24 * time.Hour

// forgetMembers removes the rows of processes that have been gone for long.
func (s *Store) forgetMembers(ctx context.Context) error {
	return s.forget(ctx, dirMembers, s.options.Lapse+forgetAfter)
}

// list visits the objects whose keys begin with under, with their names after it. If a
// list is interrupted, it continues after the last visited object. visit is called by one
// goroutine, and its error ends the list.
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
			// From here a broken list would continue.
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
		// A list that makes progress is continued, however often it is interrupted.
		was := after
		broken, failed := page()
		if failed != nil || broken == nil {
			return failed
		}
		// Progress resets the tries: a long list may be interrupted often.
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
