package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
)

// Restriction says what of a dataset whoever asks may see. What it hides does not
// exist for him: it is in no schema, count, message or result. It comes from the
// server's rules, never from a client, and so has no JSON. It is immutable and safe
// for concurrent use; nil hides nothing.
type Restriction struct {
	// Where is an expression that a sample has to meet; "" hides none. It may name
	// columns that are hidden.
	Where string
	// Columns are the stored columns to be seen; nil hides none. A blob column shows
	// its size and key, too. The virtual columns position and split can always be seen.
	Columns []string
}

// Hides reports whether a column does not exist: a stored one, or a part of one such
// as image.size.
func (r *Restriction) Hides(s *arrow.Schema, column string) bool {
	if r == nil || r.Columns == nil || column == PositionColumn || column == SplitColumn {
		return false
	}
	if _, blob, _, ok := BlobPart(s, column); ok {
		column = blob.Name
	}
	return !slices.Contains(r.Columns, column)
}

// HidesRows reports whether there may be samples that cannot be seen.
func (r *Restriction) HidesRows() bool { return r != nil && r.Where != "" }

// Visible is a logical schema without what is hidden. It may lack even the id.
func (r *Restriction) Visible(s *arrow.Schema) *arrow.Schema {
	if r == nil || r.Columns == nil {
		return s
	}
	fields := slices.DeleteFunc(slices.Clone(s.Fields()), func(f arrow.Field) bool {
		return !slices.Contains(r.Columns, f.Name)
	})
	return arrow.NewSchema(fields, nil)
}

// Key names the restriction: different ones have different keys, nil has "". What is
// kept for one key is never given for another.
func (r *Restriction) Key() string {
	if r == nil || r.Where == "" && r.Columns == nil {
		return ""
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %t", r.Where, r.Columns != nil)
	columns := slices.Sorted(slices.Values(r.Columns))
	for _, c := range slices.Compact(columns) {
		fmt.Fprintf(h, " %q", c)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// NoPosition is the ErrNotFound for a position that does not exist, or cannot be seen:
// it is the same for both, and tells no number of rows.
func NoPosition(field, snapshot string, position int64) error {
	return fmt.Errorf("%w: %s: no sample of %s has position %d", ErrNotFound, field, snapshot, position)
}

// knownColumns lists what a request may name of a snapshot under a restriction.
func knownColumns(s *arrow.Schema, within *Restriction) []string {
	var known, parts []string
	for _, f := range s.Fields() {
		if within.Hides(s, f.Name) {
			continue
		}
		known = append(known, f.Name)
		if IsBlob(f) {
			for _, part := range []string{SizePart, KeyPart} {
				if name := f.Name + "." + part; !within.Hides(s, name) {
					parts = append(parts, name)
				}
			}
		}
	}
	return slices.Concat(known, []string{PositionColumn, SplitColumn}, parts)
}

// unknownColumn is the FieldError for a column that does not exist, or cannot be seen.
func unknownColumn(field, name string, known []string) error {
	want := "one of " + ShownList(known)
	if n := Nearest(name, known); n != "" {
		want += fmt.Sprintf(" (did you mean %q?)", n)
	}
	return &FieldError{Field: field, Got: Quote(name), Want: want}
}
