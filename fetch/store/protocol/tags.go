package protocol

import (
	"context"
	"maps"
	"slices"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// tagList lists a dataset's tags, sorted.
func (d *datasetState) tagList() []store.Tag {
	var list []store.Tag
	for _, name := range slices.Sorted(maps.Keys(d.tags)) {
		list = append(list, store.Tag{Name: name, Snapshot: d.tags[name].Number})
	}
	return list
}

// Tag gives a snapshot a name, which Drop and retention respect. The name of
// another snapshot of the dataset moves to this one.
func (s *Store) Tag(ctx context.Context, dataset, name string, number int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.done()
	if err := schema.CheckTag("tag", name); err != nil {
		return err
	}
	missing := false
	err := s.update(ctx, dataset, func(d *datasetState, e *edit) error {
		r, ok := d.snapshots[number]
		switch missing = !ok || !r.Dropped.IsZero(); {
		case missing, d.tags[name].Number == number:
		default:
			e.put(rowTag+name, tagRecord{Number: number, Created: s.env.Now().UTC()})
		}
		return nil
	})
	if err == nil && missing {
		return s.missing(ctx, dataset, number)
	}
	return err
}

// Untag removes a tag.
func (s *Store) Untag(ctx context.Context, dataset, name string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.done()
	var have []store.Tag
	missing := false
	err := s.update(ctx, dataset, func(d *datasetState, e *edit) error {
		_, ok := d.tags[name]
		if ok {
			e.remove(rowTag + name)
		}
		missing = !ok && !e.uncertain
		have = d.tagList()
		return nil
	})
	if err == nil && missing {
		return store.NoTag(dataset, name, store.TagNames(have))
	}
	return err
}

// Tagged returns the number of the snapshot that has a tag.
func (s *Store) Tagged(ctx context.Context, dataset, name string) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.done()
	d, err := s.peek(ctx, dataset, rowTag+name)
	if err != nil {
		return 0, err
	}
	if tag, ok := d.tags[name]; ok {
		return tag.Number, nil
	}
	if d, err = s.peek(ctx, dataset); err != nil { // to say what there is
		return 0, err
	}
	if d.newest() == 0 {
		return 0, s.missing(ctx, dataset, 0)
	}
	return 0, store.NoTag(dataset, name, store.TagNames(d.tagList()))
}
