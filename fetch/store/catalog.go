package store

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"bowstring/schema"
)

// The rules of a catalog that every store has to follow, and their common errors.

// NoSnapshot is the schema.ErrNotFound for a snapshot that the catalog does not
// list, or for a dataset, with a number of 0. It says what there is.
func NoSnapshot(catalog []Dataset, dataset string, number int64) error {
	var names []string
	for _, d := range catalog {
		if d.Name == dataset {
			return fmt.Errorf("%w: dataset %q has no snapshot %d; it has %s",
				schema.ErrNotFound, dataset, number, strings.Trim(fmt.Sprint(d.Snapshots), "[]"))
		}
		names = append(names, d.Name)
	}
	if len(names) == 0 {
		return fmt.Errorf("%w: there is no dataset %q; the store is empty", schema.ErrNotFound, dataset)
	}
	hint := ""
	if near := schema.Nearest(dataset, names); near != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", near)
	}
	const most = 20
	have := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		have += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return fmt.Errorf("%w: there is no dataset %q%s; there are %s", schema.ErrNotFound, dataset, hint, have)
}

// CheckCommit checks what an ingest into a dataset is to commit, as far as one
// can without looking into the store. The error is a schema.ErrInvalid.
func CheckCommit(dataset string, snap *schema.Snapshot) error {
	switch {
	case snap.Dataset != "" && snap.Dataset != dataset:
		return fmt.Errorf("%w: a snapshot of %q committed through an ingest into %q", schema.ErrInvalid, snap.Dataset,
			dataset)
	case snap.Schema == nil:
		return fmt.Errorf("%w: a snapshot without a schema", schema.ErrInvalid)
	}
	return nil
}

// CheckParent is a schema.ErrConflict unless the parent of what is to be
// committed is the newest snapshot, which 0 stands for where there is none.
func CheckParent(dataset string, parent, newest int64) error {
	if parent != newest {
		return fmt.Errorf("%w: the newest snapshot of %q is %d, not %d: another import was committed, or one "+
			"dropped, meanwhile",
			schema.ErrConflict, dataset, newest, parent)
	}
	return nil
}

// CheckRestore is a schema.ErrConflict unless the number of a snapshot that is to be
// restored is greater than the last one that the dataset gave out, and a
// schema.ErrInvalid if it is none.
func CheckRestore(snap *schema.Snapshot, last int64) error {
	switch {
	case snap.Number < 1 || snap.Parent < 0 || snap.Parent >= snap.Number:
		return fmt.Errorf("%w: a snapshot of %q with number %d and parent %d", schema.ErrInvalid, snap.Dataset,
			snap.Number, snap.Parent)
	case snap.Number <= last:
		return fmt.Errorf("%w: snapshot %s@%d cannot be restored as what it was: the dataset has given out numbers "+
			"up to %d already",
			schema.ErrConflict, snap.Dataset, snap.Number, last)
	}
	return nil
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

// SelectionExpired is the error for a selection whose time is over.
func SelectionExpired(sel *schema.Selection) error {
	return fmt.Errorf("%w: selection %s of dataset %q, which expired on %s; upload it again", schema.ErrNotFound,
		sel.Name(), sel.Dataset, sel.Expires.UTC().Format(time.RFC3339))
}

// SelectionLimit is the error for a selection whose owner has as many of the others as he may; nil if he has fewer.
func SelectionLimit(sel *schema.Selection, others iter.Seq[*schema.Selection], now time.Time) error {
	if sel.Most == 0 {
		return nil
	}
	n := 0
	for other := range others {
		if other.Owner == sel.Owner && !other.Expired(now) {
			n++
		}
	}
	if n < sel.Most {
		return nil
	}
	owner := "callers without a name have"
	if sel.Owner != "" {
		owner = schema.Quote(sel.Owner) + " has"
	}
	return fmt.Errorf("%w: MaxSelections: %s %d selections of dataset %q, at most %d are allowed: one goes when it "+
		"was not used for 30 days, and with its snapshot; up to 1,024 positions need none, as selection.positions",
		schema.ErrLimit, owner, n, sel.Dataset, sel.Most)
}
