package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Commit makes the rows written a snapshot, or finds that the newest one is the
// same in schema, rows and splits, and returns that with changed false. An
// Append of rows that the newest snapshot ends with already, from one commit,
// is such a case: it may be repeated where its answer was lost.
//
// schema.ErrInvalid names the first ids that occur twice, and refuses a Replace without
// rows: an upload that broke off before its first row would leave the dataset empty. Where another writer
// commits first, Append and Replace take its snapshot as the new base and try
// again a few times before they give schema.ErrConflict; Create gives
// schema.ErrExists. After Commit the Writer can only be closed.
func (w *Writer) Commit(ctx context.Context) (snap *schema.Snapshot, changed bool, err error) {
	if w.err != nil {
		return nil, false, w.err
	}
	if err = w.flush(ctx); err == nil {
		snap, changed, err = w.commit(ctx)
	}
	if w.err = err; err == nil {
		w.err = errors.New("the writer has committed")
	}
	return snap, changed, err
}

func (w *Writer) commit(ctx context.Context) (*schema.Snapshot, bool, error) {
	if w.opts.Mode == Replace && w.rows == 0 {
		return nil, false, fmt.Errorf("%w: no rows came to replace those of dataset %s; nothing was committed (to "+
			"empty it, drop it)",
			schema.ErrInvalid, w.opts.Dataset)
	}
	if err := w.turn(len(w.ids), w.checkUnique); err != nil {
		return nil, false, err
	}
	checked := map[schema.Key]bool{} // chunks of bases that share no id with the new rows
	for range rebases {
		snap := w.snapshot()
		if err := checkRanges(snap.Splits); err != nil {
			return nil, false, err
		}
		if w.base != nil && (sameContent(w.base, snap) || w.opts.Mode == Append && w.isTail(w.base)) {
			return w.base, false, nil
		}
		if w.opts.Mode == Append {
			if err := w.checkBase(ctx, checked); err != nil {
				return nil, false, err
			}
		}
		done, err := w.in.Commit(ctx, *snap)
		if err == nil {
			if w.opts.Mode == Replace {
				w.notes = notesOf(w.base, done)
			}
			return done, true, nil
		}
		if !errors.Is(err, schema.ErrConflict) {
			return nil, false, fmt.Errorf("commit to %s: %w", w.opts.Dataset, err)
		}
		if err := w.findBase(ctx); err != nil {
			return nil, false, err
		}
	}
	return nil, false, fmt.Errorf("commit to %s: %w: other writers were first %d times in a row", w.opts.Dataset,
		schema.ErrConflict, rebases)
}

// Notes tell what a committed Replace means for those who read the snapshot before: splits that are gone, classes that
// have other numbers.
func (w *Writer) Notes() []string { return w.notes }

// snapshot puts together what is to be committed, on the present base.
func (w *Writer) snapshot() *schema.Snapshot {
	s := &schema.Snapshot{Dataset: w.opts.Dataset, Source: w.opts.Source, Schema: w.opts.Schema}
	if w.base != nil {
		s.Parent = w.base.Number
	}
	var offset int64
	if w.opts.Mode == Append {
		s.Chunks = slices.Clone(w.base.Chunks)
		for _, split := range w.base.Splits {
			s.Splits = append(s.Splits, schema.Split{Name: split.Name, Ranges: slices.Clone(split.Ranges)})
		}
		offset = w.base.Rows()
	}
	s.Chunks = append(s.Chunks, w.chunks...)
	for _, add := range inOrder(w.splits) {
		r := schema.Range{Start: add.Start + offset, End: add.End + offset}
		s.Splits = addRange(s.Splits, add.split, r)
	}
	return s
}

type splitRange struct {
	split string
	schema.Range
}

// inOrder lists the ranges of all splits by position.
func inOrder(splits []schema.Split) []splitRange {
	var all []splitRange
	for _, s := range splits {
		for _, r := range s.Ranges {
			all = append(all, splitRange{s.Name, r})
		}
	}
	slices.SortFunc(all, func(a, b splitRange) int { return int(a.Start - b.Start) })
	return all
}

// sameContent compares all that readers can tell apart.
func sameContent(a, b *schema.Snapshot) bool {
	return schemaDiff(a.Schema, b.Schema) == "" && reflect.DeepEqual(a.Splits, b.Splits) &&
		sameChunks(a.Chunks, b.Chunks)
}

func sameChunks(a, b []schema.Chunk) bool {
	return slices.EqualFunc(a, b, func(a, b schema.Chunk) bool { return a.BlobRef == b.BlobRef && a.Rows == b.Rows })
}

// isTail says whether the rows written are the last ones of base already, in the same splits.
func (w *Writer) isTail(base *schema.Snapshot) bool {
	n := len(base.Chunks) - len(w.chunks)
	if n < 0 || !sameChunks(base.Chunks[n:], w.chunks) {
		return false
	}
	offset := base.Rows() - w.rows
	var tail []schema.Split
	for _, r := range inOrder(base.Splits) {
		if r.End > offset {
			tail = addRange(tail, r.split, schema.Range{Start: max(r.Start-offset, 0), End: r.End - offset})
		}
	}
	return slices.Equal(inOrder(tail), inOrder(w.splits))
}

func compareIDs(a, b schema.ID) int { return bytes.Compare(a[:], b[:]) }

// checkUnique sorts the ids, and looks for those that were written twice.
func (w *Writer) checkUnique() error {
	slices.SortFunc(w.ids, compareIDs)
	var dup duplicates
	for i := 1; i < len(w.ids); i++ {
		if w.ids[i] == w.ids[i-1] {
			dup.add(w.ids[i])
		}
	}
	return dup.err("are written twice")
}

// checkBase looks for ids that the base has too, in the chunks not seen yet.
func (w *Writer) checkBase(ctx context.Context, checked map[schema.Key]bool) error {
	var dup duplicates
	var unseen []schema.Chunk
	for _, c := range w.base.Chunks {
		if !checked[c.Key] {
			unseen = append(unseen, c)
		}
	}
	err := store.EachPage(ctx, w.base, unseen, w.store.Get, func(_ schema.Chunk, m *schema.Manifest) error {
		return w.turn(int(m.Rows()), func() error {
			for pos := range m.Rows() {
				id := m.ID(pos)
				if _, found := slices.BinarySearchFunc(w.ids, id, compareIDs); found {
					dup.add(id)
				}
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("read the manifest of %s@%d: %w", w.base.Dataset, w.base.Number, err)
	}
	for _, c := range unseen {
		checked[c.Key] = true
	}
	return dup.err(fmt.Sprintf("are in %s@%d already", w.base.Dataset, w.base.Number))
}

// duplicates collects the first few ids and counts the rest.
type duplicates struct {
	named []string
	n     int
}

func (d *duplicates) add(id schema.ID) {
	if d.n++; d.n <= namedDuplicates {
		d.named = append(d.named, uuid.UUID(id).String())
	}
}

func (d *duplicates) err(what string) error {
	if d.n == 0 {
		return nil
	}
	list := strings.Join(d.named, ", ")
	if more := d.n - len(d.named); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("%w: %d ids %s: %s", schema.ErrInvalid, d.n, what, list)
}
