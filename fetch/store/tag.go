package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"bowstring/schema"
)

// Tag is a name of a snapshot, such as prod in imagenet@prod.
type Tag struct {
	Name     string `json:"tag"`
	Snapshot int64  `json:"snapshot"`
}

// Tagger is a Store whose snapshots can be given names. One that has any is not
// dropped, nor is its dataset.
type Tagger interface {
	// Tag names a snapshot. The tag of another snapshot of the dataset moves.
	Tag(ctx context.Context, dataset, name string, number int64) error
	// Untag removes a name.
	Untag(ctx context.Context, dataset, name string) error
	// Tagged returns the number of the snapshot that has a name.
	Tagged(ctx context.Context, dataset, name string) (int64, error)
}

// Lister is a Store, or what else has datasets.
type Lister interface {
	Datasets(ctx context.Context) ([]Dataset, error)
}

// Tagged returns the number of the snapshot that has a tag. A schema.ErrNotFound
// says what tags or datasets there are.
func Tagged(ctx context.Context, s Lister, dataset, name string) (int64, error) {
	if t, ok := s.(Tagger); ok {
		return t.Tagged(ctx, dataset, name)
	}
	list, err := s.Datasets(ctx)
	if err != nil {
		return 0, err
	}
	for _, d := range list {
		if d.Name != dataset {
			continue
		}
		for _, tag := range d.Tags {
			if tag.Name == name {
				return tag.Snapshot, nil
			}
		}
		return 0, NoTag(dataset, name, TagNames(d.Tags))
	}
	return 0, NoSnapshot(list, dataset, 0)
}

// TaggerOf is a store's Tagger, or a schema.ErrInvalid.
func TaggerOf(s Store) (Tagger, error) {
	if t, ok := s.(Tagger); ok {
		return t, nil
	}
	return nil, fmt.Errorf("%w: this store has no tags", schema.ErrInvalid)
}

// TagNames are the names of tags.
func TagNames(tags []Tag) []string {
	names := make([]string, len(tags))
	for i, tag := range tags {
		names[i] = tag.Name
	}
	return names
}

// NoTag is the schema.ErrNotFound for a tag that a dataset does not have. It says
// which it has.
func NoTag(dataset, name string, have []string) error {
	if len(have) == 0 {
		return fmt.Errorf("%w: dataset %q has no tag %q, nor any other", schema.ErrNotFound, dataset, name)
	}
	hint := ""
	if near := schema.Nearest(name, have); near != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", near)
	}
	slices.Sort(have)
	const most = 20
	more := ""
	if len(have) > most {
		more = fmt.Sprintf(" and %d more", len(have)-most)
	}
	return fmt.Errorf("%w: dataset %q has no tag %q%s; it has %s%s", schema.ErrNotFound, dataset, name, hint,
		strings.Join(have[:min(len(have), most)], ", "), more)
}

// CheckUntagged is a schema.ErrInvalid if a snapshot that is to be dropped, or with number
// 0 any of the dataset's, has a tag. It says how to remove it.
func CheckUntagged(dataset string, number int64, tags []Tag) error {
	for _, tag := range tags {
		if number == 0 || tag.Snapshot == number {
			return fmt.Errorf("%w: %s@%d has the tag %s, and is not dropped; bowstring untag %s@%s removes the tag",
				schema.ErrInvalid, dataset, tag.Snapshot, tag.Name, dataset, tag.Name)
		}
	}
	return nil
}
