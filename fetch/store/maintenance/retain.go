package maintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Retention says which snapshots of a dataset stay: those that any of its rules
// keeps. The newest one and those that have a tag always do.
type Retention struct {
	// Last keeps this many of the newest.
	Last int
	// Within keeps those that were made at most this long ago; 0 keeps none for that.
	Within time.Duration
	// Now is the time that Within goes by.
	Now time.Time
	// DryRun drops nothing.
	DryRun bool
}

// Fate is what becomes of a snapshot.
type Fate struct {
	Dataset  string    `json:"dataset"`
	Snapshot int64     `json:"snapshot"`
	Created  time.Time `json:"created"`
	Dropped  bool      `json:"dropped"` // or would be, in a dry run
	Why      string    `json:"why"`     // it stays
}

// Retain drops the snapshots of some datasets, of all there are if none is named, that
// the rules do not keep. Streams that read one read on, and a collection frees
// what only the dropped ones had.
func Retain(ctx context.Context, s store.Store, datasets []string, rules Retention) ([]Fate, error) {
	if rules.Last < 0 || rules.Within < 0 || rules.Last == 0 && rules.Within == 0 {
		return nil, fmt.Errorf("%w: no rule says which snapshots are to stay", schema.ErrInvalid)
	}
	var names []Name
	for _, name := range datasets {
		names = append(names, Name{Dataset: name})
	}
	snaps, err := Snapshots(ctx, s, names)
	if err != nil {
		return nil, err
	}
	tags, err := tagsOf(ctx, s)
	if err != nil {
		return nil, err
	}
	var fates []Fate
	for len(snaps) > 0 {
		n := slices.IndexFunc(snaps, func(snap *schema.Snapshot) bool { return snap.Dataset != snaps[0].Dataset })
		if n < 0 {
			n = len(snaps)
		}
		list, err := retain(ctx, s, snaps[:n], rules, tags)
		fates = append(fates, list...)
		if err != nil {
			return fates, err
		}
		snaps = snaps[n:]
	}
	return fates, nil
}

// retain looks at the snapshots of one dataset, in ascending order.
func retain(
	ctx context.Context, s store.Store, snaps []*schema.Snapshot, rules Retention, tags map[Name][]string,
) ([]Fate, error) {
	var fates []Fate
	for i, snap := range snaps {
		fate := Fate{Dataset: snap.Dataset, Snapshot: snap.Number, Created: snap.Created}
		switch age := rules.Now.Sub(snap.Created); {
		case i == len(snaps)-1:
			fate.Why = "the newest"
		case i >= len(snaps)-rules.Last:
			fate.Why = fmt.Sprintf("one of the last %d", rules.Last)
		case rules.Within > 0 && age <= rules.Within:
			fate.Why = fmt.Sprintf("made within %s", rules.Within)
		default:
			if err := drop(ctx, s, snap, tags, rules.DryRun, &fate); err != nil {
				return fates, err
			}
		}
		fates = append(fates, fate)
	}
	return fates, nil
}

// drop drops a snapshot that no rule keeps, unless it has a tag. Those known may be old: what decides is the
// store, which drops nothing that has one.
func drop(
	ctx context.Context, s store.Store, snap *schema.Snapshot, known map[Name][]string, dry bool, fate *Fate,
) error {
	names := known[nameOf(snap)]
	if len(names) == 0 && !dry {
		err := s.Drop(ctx, snap.Dataset, snap.Number)
		switch {
		case errors.Is(err, schema.ErrInvalid): // somebody has given it a name meanwhile
			now, failed := tagsOf(ctx, s)
			if names = now[nameOf(snap)]; failed != nil || len(names) == 0 {
				return errors.Join(fmt.Errorf("drop %s@%d: %w", snap.Dataset, snap.Number, err), failed)
			}
		case err != nil && !errors.Is(err, schema.ErrNotFound):
			return fmt.Errorf("drop %s@%d: %w", snap.Dataset, snap.Number, err)
		}
	}
	if fate.Dropped = len(names) == 0; !fate.Dropped {
		fate.Why = "tagged " + strings.Join(names, ", ")
	}
	return nil
}

// tagsOf are the tags of all snapshots that have some, sorted. A store without tags has none.
func tagsOf(ctx context.Context, s store.Store) (map[Name][]string, error) {
	all, err := s.Datasets(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the tags: %w", err)
	}
	tags := map[Name][]string{}
	for _, d := range all {
		for _, tag := range d.Tags {
			name := Name{Dataset: d.Name, Number: tag.Snapshot}
			tags[name] = append(tags[name], tag.Name)
		}
	}
	return tags, nil
}
