package ingest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// checkReplaced fails with schema.ErrInvalid where a snapshot with the schema next would take a column away from
// those who read the newest one, or make another of it, and drop does not name the column.
func checkReplaced(base *schema.Snapshot, next *arrow.Schema, drop []string) error {
	var lost, changed []string
	for _, f := range base.Schema.Fields()[1:] {
		if slices.Contains(drop, f.Name) {
			continue
		}
		at := next.FieldIndices(f.Name)
		switch {
		case len(at) == 0:
			lost = append(lost, fmt.Sprintf("%s (%s)", schema.Quote(f.Name), describeField(f)))
		case !stays(f, next.Field(at[0])):
			changed = append(changed, fmt.Sprintf("%s from %s to %s", schema.Quote(f.Name), describeField(f),
				describeField(next.Field(at[0]))))
		}
	}
	if lost == nil && changed == nil {
		return nil
	}
	var what []string
	if lost != nil {
		what = append(what, "drop "+listed(lost))
	}
	if changed != nil {
		what = append(what, "change "+listed(changed))
	}
	return fmt.Errorf("%w: replacing dataset %s would %s for all who read it; the mode \"merge\" changes columns and "+
		"rows and keeps the others and all blobs; if it is meant, name these columns in drop_columns (--drop-column)",
		schema.ErrInvalid, base.Dataset, strings.Join(what, " and "))
}

// stays reports whether a column that becomes another one can be read as before: a blob column holds the same kind of
// media, and a metadata column has a type that all earlier values fit.
func stays(was, is arrow.Field) bool {
	if schema.IsBlob(was) || schema.IsBlob(is) {
		return schema.IsBlob(was) && schema.IsBlob(is) && schema.Media(was) == schema.Media(is)
	}
	return arrow.TypeEqual(was.Type, is.Type) || widens(was.Type, is.Type)
}

// widens reports whether each value of one type is one of the other, which is of the same kind.
func widens(from, to arrow.DataType) bool {
	a, b := from.ID(), to.ID()
	switch {
	case arrow.IsInteger(a) && arrow.IsInteger(b):
		return bits(from) < bits(to) && (arrow.IsUnsignedInteger(a) || arrow.IsSignedInteger(b))
	case arrow.IsFloating(a) && arrow.IsFloating(b):
		return bits(from) < bits(to)
	case a == arrow.STRING:
		return b == arrow.LARGE_STRING
	case a == arrow.NULL:
		return true
	}
	return false
}

func bits(t arrow.DataType) int { return t.(arrow.FixedWidthDataType).BitWidth() }

// mostListed is how many things a message lists.
const mostListed = 8

// listed lists things for a message.
func listed(things []string) string {
	if more := len(things) - mostListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(things[:mostListed], ", "), more)
	}
	return strings.Join(things, ", ")
}

// notesOf says what a new snapshot means for those who read the one before, beside the columns: splits that are gone
// and classes that have other numbers.
func notesOf(base, next *schema.Snapshot) (notes []string) {
	if base == nil {
		return nil
	}
	var gone []string
	for _, s := range base.Splits {
		if !slices.ContainsFunc(next.Splits, func(n schema.Split) bool { return n.Name == s.Name }) {
			gone = append(gone, fmt.Sprintf("%s (%d rows)", schema.Shown(s.Name), s.Rows()))
		}
	}
	if gone != nil {
		notes = append(notes, "splits that are gone: "+listed(gone))
	}
	for _, f := range base.Schema.Fields() {
		at := next.Schema.FieldIndices(f.Name)
		if len(at) == 0 {
			continue
		}
		if moved := renumbered(schema.Classes(f), schema.Classes(next.Schema.Field(at[0]))); moved != "" {
			notes = append(notes, fmt.Sprintf("column %s: %s", schema.Shown(f.Name), moved))
		}
	}
	return notes
}

// renumbered says which classes have another number, "" if none has.
func renumbered(was, is []string) string {
	if is == nil {
		return ""
	}
	var moved []string
	number := make(map[string]int, len(is))
	for i, name := range is {
		number[name] = i
	}
	for i, name := range was {
		if to, ok := number[name]; ok && to != i {
			moved = append(moved, fmt.Sprintf("%s from %d to %d", schema.Shown(name), i, to))
		}
	}
	if moved == nil {
		return ""
	}
	return "classes with another number: " + listed(moved)
}
