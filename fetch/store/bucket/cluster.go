package bucket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// Directories of the leases, claims and layouts of clusters. The comment is the rest of
// the key.
const (
	dirLeases  = "clu/lease/"  // CLUSTER/ID
	dirClaims  = "clu/claim/"  // CLUSTER/PLAN/EPOCH
	dirLayouts = "clu/layout/" // NAME
)

// kept is the content of an object that is valid for some time after the server wrote it,
// by the server's clock.
type kept struct {
	Seconds int64  `json:"seconds"`
	Value   []byte `json:"value"`
}

// lapsed reports whether the time of an object is over.
func (k kept) lapsed(info object.Info, s *Store) bool {
	return s.lapsed(info, time.Duration(k.Seconds)*time.Second)
}

// maxKept is the size of the largest object of a cluster that is read.
const maxKept = 64 << 20

// part escapes a name for use as a part of a key, so that it contains no slash, and is
// not a name with a meaning in a directory, such as "..".
func part(name string) string { return strings.ReplaceAll(url.PathEscape(name), ".", "%2E") }

// putKept writes an object of a cluster once.
func (s *Store) putKept(ctx context.Context, key string, k kept, c object.Condition) (object.Outcome, error) {
	body, err := json.Marshal(k)
	if err != nil {
		return object.Failed, err
	}
	within, cancel := context.WithTimeout(ctx, swapWithin)
	defer cancel()
	_, outcome, err := s.bucket.Put(within, key, body, c)
	return outcome, err
}

// getKept reads an object of a cluster. It may have lapsed: info has the times.
func (s *Store) getKept(ctx context.Context, key string) (k kept, info object.Info, err error) {
	err = s.again(ctx, func(ctx context.Context) error {
		data, got, err := s.bucket.Get(ctx, key, schema.ObjectVersion{}, maxKept)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, &k); err != nil {
			return fmt.Errorf("%w: %s: %w", schema.ErrDataLoss, key, err)
		}
		info = got
		return nil
	})
	return k, info, err
}

// leases caches the leases that were read, by key. A lease whose object has not changed
// is not read again.
type leases struct {
	mu   sync.Mutex
	read map[string]readLease
}

// readLease is a lease with the version of its object.
type readLease struct {
	object schema.ObjectVersion
	kept   kept
}

// PutLease implements members.Shared.
func (s *Store) PutLease(ctx context.Context, cluster, id string, lease []byte, ttl time.Duration) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	key := s.key(dirLeases + part(cluster) + "/" + part(id))
	err := s.again(ctx, func(ctx context.Context) error {
		_, err := s.putKept(ctx, key, kept{int64(ttl / time.Second), lease}, object.Condition{})
		return err
	})
	if err != nil {
		return fmt.Errorf("write the lease of a node into %s: %w", s, err)
	}
	return nil
}

// Leases implements members.Shared. It costs one list, and one read for each lease that
// has changed since the last call.
func (s *Store) Leases(ctx context.Context, cluster string) (map[string][]byte, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	under := dirLeases + part(cluster) + "/"
	var listed []object.Info
	err := s.list(ctx, under, func(_ string, info object.Info) error {
		listed = append(listed, info)
		return nil
	})
	if err != nil {
		return nil, err
	}
	values := make([]*kept, len(listed))
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(membersAtOnce)
	for i, info := range listed {
		s.leases.mu.Lock()
		known, ok := s.leases.read[info.Key]
		s.leases.mu.Unlock()
		if ok && known.object == info.Version && !info.Version.IsZero() {
			values[i] = &known.kept
			continue
		}
		g.Go(func() error {
			k, got, err := s.getKept(within, info.Key)
			if errors.Is(err, schema.ErrNotFound) {
				return nil
			}
			if err == nil {
				values[i] = &k
				s.leases.mu.Lock()
				defer s.leases.mu.Unlock()
				s.leases.read[info.Key] = readLease{got.Version, k}
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("list the nodes of a cluster in %s: %w", s, err)
	}
	// Whether a lease has lapsed follows from the times in the list, because the object
	// may have been renewed without a change.
	found := map[string][]byte{}
	prefix, there := s.key(under), map[string]bool{}
	for i, info := range listed {
		there[info.Key] = true
		// An id that cannot be unescaped was not written by this program.
		id, err := url.PathUnescape(strings.TrimPrefix(info.Key, prefix))
		if err == nil && values[i] != nil && !values[i].lapsed(info, s) {
			found[id] = values[i].Value
		}
	}
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	// Leases that are not listed any more were removed.
	for key := range s.leases.read {
		if strings.HasPrefix(key, prefix) && !there[key] {
			delete(s.leases.read, key)
		}
	}
	return found, nil
}

// RemoveLease implements members.Shared.
func (s *Store) RemoveLease(ctx context.Context, cluster, id string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	key := s.key(dirLeases + part(cluster) + "/" + part(id))
	if err := s.again(ctx, func(ctx context.Context) error { return s.bucket.Delete(ctx, key) }); err != nil {
		return fmt.Errorf("remove the lease of a node from %s: %w", s, err)
	}
	return nil
}

// PutLayout implements members.Shared. A layout's name is its hash, so an object under
// the name has the same content. It is only written again if it would lapse too early.
func (s *Store) PutLayout(ctx context.Context, name string, record []byte, ttl time.Duration) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	key := s.key(dirLayouts + part(name))
	old, info, err := s.getKept(ctx, key)
	// The layout is kept long enough if its remaining time is at least ttl.
	if err == nil && bytes.Equal(old.Value, record) && !s.lapsed(info, time.Duration(old.Seconds)*time.Second-ttl) {
		return nil // it is kept for longer
	}
	if err == nil || errors.Is(err, schema.ErrNotFound) {
		err = s.again(ctx, func(ctx context.Context) error {
			_, err := s.putKept(ctx, key, kept{int64(ttl / time.Second), record}, object.Condition{})
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("keep a layout in %s: %w", s, err)
	}
	return nil
}

// Layout implements members.Shared.
func (s *Store) Layout(ctx context.Context, name string) ([]byte, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	k, info, err := s.getKept(ctx, s.key(dirLayouts+part(name)))
	if errors.Is(err, schema.ErrNotFound) || err == nil && k.lapsed(info, s) {
		return nil, fmt.Errorf("%w: no layout has this name, or it was kept for its time", schema.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read a layout from %s: %w", s, err)
	}
	return k.Value, nil
}

// claimTries is how often a claim with unknown outcome is made.
const claimTries = 8

// ReserveLayout implements members.Shared. A claim is an object that is created once, on
// the condition that none exists or that the existing one has lapsed. After an unknown
// outcome the object is read again, and shows whose claim was made.
func (s *Store) ReserveLayout(ctx context.Context, cluster, plan string, epoch uint64, name string,
	ttl time.Duration) (string, error) {
	if err := s.enter(ctx); err != nil {
		return "", err
	}
	defer s.life.RUnlock()
	key := s.key(fmt.Sprintf("%s%s/%s/%016x", dirClaims, part(cluster), part(plan), epoch))
	for try := 0; ; try++ {
		k, info, err := s.getKept(ctx, key)
		// A lapsed claim is replaced on the condition that it is still the same object,
		// so that only one caller replaces it.
		condition := object.Condition{Absent: true}
		switch {
		case errors.Is(err, schema.ErrNotFound):
		case err != nil:
			return "", fmt.Errorf("look a claim up in %s: %w", s, err)
		case !k.lapsed(info, s):
			return string(k.Value), nil
		default:
			condition = object.Condition{Version: info.Version}
		}
		if name == "" {
			return "", nil
		}
		outcome, err := s.putKept(ctx, key, kept{int64(ttl / time.Second), []byte(name)}, condition)
		switch {
		case outcome == object.Made:
			return name, nil
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case outcome == object.Failed && !errors.Is(err, schema.ErrUnavailable), try == claimTries-1:
			return "", fmt.Errorf("reserve a layout in %s: %w", s, err)
		case outcome != object.Moved:
			if err := pauseAfter(ctx, err, try); err != nil {
				return "", err
			}
		}
	}
}

// How long objects of clusters are left after they were last written: longer than any is
// valid.
const (
	leasesLeft  = 24 * time.Hour
	claimsLeft  = 60 * 24 * time.Hour
	layoutsLeft = 400 * 24 * time.Hour
)

// forgetClusters removes lapsed objects of clusters. A collection calls it.
func (s *Store) forgetClusters(ctx context.Context) error {
	for dir, after := range map[string]time.Duration{dirLeases: leasesLeft, dirClaims: claimsLeft, dirLayouts: layoutsLeft} {
		if err := s.forget(ctx, dir, after); err != nil {
			return err
		}
	}
	return nil
}
