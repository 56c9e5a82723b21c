package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// tagRecord is a tag's row.
type tagRecord struct {
	Number  int64     `json:"number"`
	Created time.Time `json:"created"`
}

func decodeTag(key, v []byte) (dataset, name string, r tagRecord, err error) {
	of, tag, ok := bytes.Cut(key[1:], []byte{0})
	if !ok || len(tag) == 0 {
		return "", "", r, fmt.Errorf("%w: tag key %q", schema.ErrDataLoss, key)
	}
	if err := json.Unmarshal(v, &r); err != nil {
		return "", "", r, fmt.Errorf("%w: the record of tag %s@%s: %w", schema.ErrDataLoss, of, tag, err)
	}
	return string(of), string(tag), r, nil
}

// addTags adds their tags to datasets, which are all there are, sorted by name.
// A tag whose snapshot a lossy rebuild has not found is none.
func addTags(r pebble.Reader, list []store.Dataset) (err error) {
	it, err := r.NewIter(within(prefixTag))
	if err != nil {
		return dbError("read the catalog", err)
	}
	defer func() { err = errors.Join(err, dbError("read the catalog", it.Close())) }()
	at := 0
	for it.First(); it.Valid(); it.Next() {
		dataset, name, tag, err := decodeTag(it.Key(), it.Value())
		if err != nil {
			return err
		}
		for at < len(list) && list[at].Name < dataset {
			at++
		}
		if at < len(list) && list[at].Name == dataset && slices.Contains(list[at].Snapshots, tag.Number) {
			list[at].Tags = append(list[at].Tags, store.Tag{Name: name, Snapshot: tag.Number})
		}
	}
	return nil
}

// tagsOf lists the tags of a dataset.
func (s *Store) tagsOf(dataset string) (tags []store.Tag, err error) {
	it, err := s.db.NewIter(within(namePrefix(prefixTag, dataset)...))
	if err != nil {
		return nil, dbError("read the catalog", err)
	}
	defer func() { err = errors.Join(err, dbError("read the catalog", it.Close())) }()
	for it.First(); it.Valid(); it.Next() {
		_, name, tag, err := decodeTag(it.Key(), it.Value())
		if err != nil {
			return nil, err
		}
		tags = append(tags, store.Tag{Name: name, Snapshot: tag.Number})
	}
	return tags, nil
}

// checkUntagged is what Drop asks first. Store.catalog is held.
func (s *Store) checkUntagged(dataset string, number int64) error {
	tags, err := s.tagsOf(dataset)
	if err != nil {
		return err
	}
	return store.CheckUntagged(dataset, number, tags)
}

// Tag implements store.Store.
func (s *Store) Tag(ctx context.Context, dataset, name string, number int64) error {
	if err := schema.CheckTag("tag", name); err != nil {
		return err
	}
	if err := s.enterToWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	s.catalog.Lock()
	defer s.catalog.Unlock()
	v, err := s.value(snapshotKey(dataset, number))
	if err != nil {
		return err
	}
	if v == nil {
		return s.missing(dataset, number)
	}
	key := tagKey(dataset, name)
	if v, err = s.value(key); err != nil {
		return err
	}
	if v != nil {
		if _, _, old, err := decodeTag(key, v); err == nil && old.Number == number {
			return nil
		}
	}
	record, err := json.Marshal(tagRecord{number, time.Now().UTC().Truncate(time.Microsecond)})
	if err != nil {
		return fmt.Errorf("encode the tag: %w", err)
	}
	return s.update(change{string(key): record})
}

// Untag implements store.Store.
func (s *Store) Untag(ctx context.Context, dataset, name string) error {
	if err := s.enterToWrite(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	s.catalog.Lock()
	defer s.catalog.Unlock()
	key := tagKey(dataset, name)
	v, err := s.value(key)
	if err != nil {
		return err
	}
	if v == nil {
		return s.noTag(dataset, name)
	}
	return s.update(change{string(key): nil})
}

// Tagged implements store.Store.
func (s *Store) Tagged(ctx context.Context, dataset, name string) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.life.RUnlock()
	key := tagKey(dataset, name)
	v, err := s.value(key)
	if err != nil {
		return 0, err
	}
	if v == nil {
		return 0, s.noTag(dataset, name)
	}
	_, _, tag, err := decodeTag(key, v)
	return tag.Number, err
}

// noTag says which tags or datasets there are.
func (s *Store) noTag(dataset, name string) error {
	newest, err := s.newest(dataset)
	if err != nil {
		return err
	}
	if newest == 0 {
		return s.missing(dataset, 0)
	}
	tags, err := s.tagsOf(dataset)
	if err != nil {
		return err
	}
	return store.NoTag(dataset, name, store.TagNames(tags))
}
