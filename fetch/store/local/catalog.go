package local

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Datasets implements store.Store.
func (s *Store) Datasets(ctx context.Context) ([]store.Dataset, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	at := s.db.NewSnapshot() // snapshots and tags as of one time
	list, err := datasets(at)
	if err == nil {
		err = addTags(at, list)
	}
	if err = errors.Join(err, at.Close()); err != nil {
		return nil, err
	}
	return list, nil
}

// Names implements store.Store.
func (s *Store) Names(ctx context.Context) ([]string, error) {
	list, err := s.Datasets(ctx)
	names := make([]string, len(list))
	for i, d := range list {
		names[i] = d.Name
	}
	return names, err
}

// datasets lists the catalog, without tags. Keys sort by name and number because no name
// contains the zero byte that ends it.
func datasets(r pebble.Reader) (list []store.Dataset, err error) {
	it, err := r.NewIter(within(prefixSnapshot))
	if err != nil {
		return nil, dbError("read the catalog", err)
	}
	defer func() { err = errors.Join(err, dbError("read the catalog", it.Close())) }()
	for it.First(); it.Valid(); it.Next() {
		name, number, err := parseSnapshotKey(it.Key())
		if err != nil {
			return nil, err
		}
		if n := len(list); n == 0 || list[n-1].Name != name {
			list = append(list, store.Dataset{Name: name})
		}
		d := &list[len(list)-1]
		d.Snapshots = append(d.Snapshots, number)
	}
	return list, nil
}

func parseSnapshotKey(key []byte) (dataset string, number int64, err error) {
	i := bytes.IndexByte(key, 0)
	if i < 0 || len(key) != i+9 {
		return "", 0, fmt.Errorf("%w: snapshot key %q", schema.ErrDataLoss, key)
	}
	return string(key[1:i]), int64(binary.BigEndian.Uint64(key[i+1:])), nil
}

// newest is the highest number of a dataset's snapshots, 0 if it has none.
func (s *Store) newest(dataset string) (number int64, err error) {
	it, err := s.db.NewIter(within(namePrefix(prefixSnapshot, dataset)...))
	if err != nil {
		return 0, dbError("read the catalog", err)
	}
	defer func() { err = errors.Join(err, dbError("read the catalog", it.Close())) }()
	if it.Last() {
		_, number, err = parseSnapshotKey(it.Key())
	}
	return number, err
}

// Snapshot implements store.Store.
func (s *Store) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	asked := number
	// Repeated if the newest is dropped between the two reads.
	for {
		if asked == 0 {
			n, err := s.newest(dataset)
			if err != nil {
				return nil, err
			}
			if number = n; n == 0 {
				return nil, s.missing(dataset, 0)
			}
		}
		v, err := s.value(snapshotKey(dataset, number))
		if err != nil {
			return nil, err
		}
		if v == nil && asked == 0 {
			continue
		}
		if v == nil {
			return nil, s.missing(dataset, number)
		}
		return decodeSnapshot(dataset, number, v)
	}
}

func decodeSnapshot(dataset string, number int64, v []byte) (*schema.Snapshot, error) {
	snap := new(schema.Snapshot)
	if err := json.Unmarshal(v, snap); err != nil {
		return nil, fmt.Errorf("%w: the record of snapshot %s@%d: %w", schema.ErrDataLoss, dataset, number, err)
	}
	return snap, nil
}

// missing says which dataset or snapshot there is not, and which there are.
func (s *Store) missing(dataset string, number int64) error {
	list, err := datasets(s.db)
	if err != nil {
		return err
	}
	return store.NoSnapshot(list, dataset, number)
}

// Drop implements store.Store. A dropped snapshot's selections go with it.
func (s *Store) Drop(ctx context.Context, dataset string, number int64) error {
	if err := s.enterToWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	s.catalog.Lock()
	defer s.catalog.Unlock()
	newest, err := s.newest(dataset)
	if err != nil {
		return err
	}
	if newest == 0 {
		return s.missing(dataset, number)
	}
	if number != 0 {
		v, err := s.value(snapshotKey(dataset, number))
		if err != nil {
			return err
		}
		if v == nil {
			return s.missing(dataset, number)
		}
	}
	if err := s.checkUntagged(dataset, number); err != nil {
		return err
	}
	selections, err := s.selections(s.db, namePrefix(prefixSelection, dataset))
	if err != nil {
		return err
	}
	c := change{}
	for _, sel := range selections {
		if number == 0 || sel.Snapshot == number {
			c[string(selectionKey(dataset, sel.Key()))] = nil
		}
	}
	if number != 0 {
		c[string(snapshotKey(dataset, number))] = nil
		return s.update(c)
	}
	list, err := datasets(s.db)
	if err != nil {
		return err
	}
	for _, d := range list {
		for _, n := range d.Snapshots {
			if d.Name == dataset {
				c[string(snapshotKey(dataset, n))] = nil
			}
		}
	}
	return s.update(c)
}

// Selection implements store.Store.
func (s *Store) Selection(ctx context.Context, dataset, name string) (*schema.Selection, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	key, err := schema.ParseKey(name)
	if err != nil {
		return nil, fmt.Errorf("selection name: %w", err)
	}
	return s.selection(dataset, key)
}

func (s *Store) selection(dataset string, key schema.Key) (*schema.Selection, error) {
	v, err := s.value(selectionKey(dataset, key))
	if err != nil {
		return nil, err
	}
	if v != nil {
		sel, err := decodeSelection(v)
		if err == nil && sel.Expired(time.Now()) {
			err = store.SelectionExpired(sel)
		}
		return sel, err
	}
	newest, err := s.newest(dataset)
	if err != nil {
		return nil, err
	}
	if newest == 0 {
		return nil, s.missing(dataset, 0)
	}
	list, err := s.selections(s.db, namePrefix(prefixSelection, dataset))
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: dataset %q has no selection %s among its %d", schema.ErrNotFound, dataset, key,
		len(list))
}

// RenewSelection implements store.Store.
func (s *Store) RenewSelection(ctx context.Context, dataset, name string, until time.Time) error {
	if err := s.enterToWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	key, err := schema.ParseKey(name)
	if err != nil {
		return fmt.Errorf("selection name: %w", err)
	}
	s.catalog.Lock()
	defer s.catalog.Unlock()
	sel, err := s.selection(dataset, key)
	if err != nil || !sel.Extend(until) {
		return err
	}
	return s.putSelection(sel)
}

// putSelection writes a selection's record. Store.catalog is held.
func (s *Store) putSelection(sel *schema.Selection) error {
	record, err := json.Marshal(sel)
	if err != nil {
		return fmt.Errorf("encode the selection: %w", err)
	}
	return s.update(change{string(selectionKey(sel.Dataset, sel.Key())): record})
}

func decodeSelection(v []byte) (*schema.Selection, error) {
	sel := new(schema.Selection)
	if err := json.Unmarshal(v, sel); err != nil {
		return nil, fmt.Errorf("%w: the record of a selection: %w", schema.ErrDataLoss, err)
	}
	return sel, nil
}

// selections lists those whose keys begin with prefix.
func (s *Store) selections(r pebble.Reader, prefix []byte) (list []*schema.Selection, err error) {
	it, err := r.NewIter(within(prefix...))
	if err != nil {
		return nil, dbError("read the catalog", err)
	}
	defer func() { err = errors.Join(err, dbError("read the catalog", it.Close())) }()
	for it.First(); it.Valid(); it.Next() {
		sel, err := decodeSelection(it.Value())
		if err != nil {
			return nil, err
		}
		list = append(list, sel)
	}
	return list, nil
}
