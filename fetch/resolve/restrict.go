package resolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"bowstring/fetch/plan"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// RestrictionError says that what a caller may see of a snapshot cannot be told, as the
// restriction's own expression does not fit its columns or rows. He may see nothing of
// it then, and the error is not for him: it is no schema.ErrInvalid.
type RestrictionError struct {
	Snapshot string
	Cause    *where.Error
}

func (e *RestrictionError) Error() string {
	return fmt.Sprintf("the rule's where does not fit snapshot %s: %s", e.Snapshot,
		strings.ReplaceAll(e.Cause.Error(), "\n", " "))
}

// visible computes which samples a restriction shows. The result, of which the caller
// gets a hold, is nil if it shows all.
func (rv *Resolver) visible(ctx context.Context, snap *openSnapshot, within *schema.Restriction) (*result, error) {
	if !within.HidesRows() {
		return nil, nil //nolint:nilnil // nobody needs a bitmap of all rows
	}
	r, err := rv.matches(ctx, snap, nil, nil, within.Where)
	if fault, ok := errors.AsType[*where.Error](err); ok {
		return nil, &RestrictionError{snap.key.String(), fault}
	}
	return r, err
}

// checkHidden fails if a compiled expression names a column that does not exist under a
// restriction. Compile does not see it where a hidden column has the name of a part of a
// blob column that is not.
func checkHidden(expr *where.Expr, snap *schema.Snapshot, within *schema.Restriction) error {
	for _, name := range expr.Columns() {
		if within.Hides(snap.Schema, name) {
			return &where.Error{Line: 1, Column: 1, Message: fmt.Sprintf("no column %q", name)}
		}
	}
	return nil
}

// checkSplit fails if a split does not exist, as far as those samples show. One of
// which nothing can be seen does not.
func checkSplit(snap *schema.Snapshot, name string, seen *plan.Bitmap) error {
	if name == "" {
		return nil
	}
	var have []string
	for _, s := range SeenSplits(snap, seen) {
		if s.Name == name {
			return nil
		}
		have = append(have, s.Name)
	}
	return noSplit(snap, name, have)
}

func noSplit(snap *schema.Snapshot, name string, have []string) error {
	return fmt.Errorf("%w: dataset %s@%d has no split %q; it has %s", schema.ErrNotFound, snap.Dataset, snap.Number,
		name, cmp.Or(schema.ShownList(have), "none"))
}

// SeenSplit is a split, and how many of its samples can be seen.
type SeenSplit struct {
	schema.Split
	Seen int64
}

// SeenSplits lists the splits of a snapshot of which some of the samples can be seen;
// all of them, if seen is nil.
func SeenSplits(snap *schema.Snapshot, seen *plan.Bitmap) []SeenSplit {
	var list []SeenSplit
	for _, s := range snap.Splits {
		if seen == nil {
			list = append(list, SeenSplit{s, s.Rows()})
			continue
		}
		var n int64
		for _, r := range s.Ranges {
			n += seen.CountIn(r.Start, r.End)
		}
		if n > 0 {
			list = append(list, SeenSplit{s, n})
		}
	}
	return list
}

// bitmapIn is the bitmap of a result; nil if there is no result.
func (r *result) bitmapIn() *plan.Bitmap {
	if r == nil {
		return nil
	}
	return r.selection.(*plan.Bitmap)
}

// Sees reports whether a position is that of a sample which the job's caller may see.
func (j *Job) Sees(position int64) bool {
	if j.sees == nil {
		return position >= 0 && position < j.Manifest().Rows()
	}
	return j.sees.bitmapIn().Has(position)
}

// Seen is how many samples of the snapshot the job's caller may see.
func (j *Job) Seen() int64 {
	if j.sees == nil {
		return j.Manifest().Rows()
	}
	return j.sees.selection.Len()
}

// Splits lists the splits that exist for the job's caller.
func (j *Job) Splits() []SeenSplit {
	return SeenSplits(j.Manifest().Snapshot(), j.sees.bitmapIn())
}

// Hides reports whether a column does not exist for the job's caller.
func (j *Job) Hides(column string) bool {
	return j.request.Within.Hides(j.Manifest().Snapshot().Schema, column)
}

// ShownID is a sample's id in text, "" if the job's caller may not see ids.
func (j *Job) ShownID(id schema.ID) string {
	if j.Hides(schema.IDColumn) {
		return ""
	}
	return schema.FormatID(id)
}

// CheckPosition fails if no sample that the job's caller may see is at a position. He
// learns the same of one that he may not see and of one that there is not.
func (j *Job) CheckPosition(field string, position int64) error {
	switch {
	case j.Sees(position):
		return nil
	case j.sees != nil:
		return schema.NoPosition(field, j.SnapshotName(), position)
	}
	return &schema.FieldError{Field: field, Got: fmt.Sprint(position),
		Want: fmt.Sprintf("0 to %d, the positions of the snapshot", j.Manifest().Rows()-1)}
}
