// Package ingest turns rows into a snapshot: it stores their blobs, writes the manifest
// in chunks, and commits. Imports and DoPut use it.
//
// The committed snapshot depends only on the rows, their order and their splits. It does
// not depend on how the rows were divided into calls, or on how many workers stored them.
// So a repeated import finds that nothing has changed, and commits nothing.
//
// [Writer] (writer.go) makes a snapshot of rows. [Alteration] (alter.go, alter_apply.go)
// makes one by changing the newest. Both write manifests through output (output.go).
// fit.go converts columns to the types of a dataset. Reading sources is not here, and
// neither is the format of manifests: that is in package schema.
package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/google/uuid"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Mode says what a new snapshot consists of.
type Mode string

// The modes of a writer.
const (
	// Create makes the first snapshot of a dataset: schema.ErrExists if it has one.
	Create Mode = "create"
	// Append makes a snapshot of the newest one's rows and the new ones, which must have
	// the same schema: schema.ErrNotFound if there is no snapshot.
	Append Mode = "append"
	// Replace makes a snapshot of these rows only, whatever there was before.
	Replace Mode = "replace"
)

// ParseMode parses "create", "append" or "replace".
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case Create, Append, Replace:
		return m, nil
	}
	return "", &schema.FieldError{Field: "mode", Got: fmt.Sprintf("%q", s), Want: `"create", "append" or "replace"`}
}

// DefaultSplit holds rows without a split.
const DefaultSplit = "train"

// Options describe a Writer.
type Options struct {
	Dataset string
	Split   string // of rows written with no split; DefaultSplit if empty
	Source  string // where the rows came from, for people
	Schema  *arrow.Schema
	Mode    Mode             // Create if empty
	Workers int              // blobs put at the same time; 2 × GOMAXPROCS if 0, since a put mostly waits
	Mem     memory.Allocator // for the manifest page being built; Go's if nil
	// PageRows is how many rows a manifest page has; schema.PageRows if 0. A page of
	// large rows has fewer: see schema.PageBytes.
	PageRows int
	// Turn runs a piece of work that occupies a CPU for some milliseconds when it is
	// permitted, and returns its error; nil runs it at once.
	Turn func(piece func() error) error
	// Drop names columns of the newest snapshot that a Replace may omit or redefine. For
	// any other column that is an error, because all readers of the dataset would lose
	// it.
	Drop []string
}

// Writer writes one snapshot. It is not safe for concurrent use. It holds one manifest
// chunk in memory, 16 bytes for each row, and as many for each blob without a checksum. The
// first error of a write makes it unusable: rows may be missing then, and a snapshot
// without them would look complete.
type Writer struct {
	output // of the rows written; its splits count from the first of these rows
	store  store.Store
	opts   Options
	meta   []arrow.Field // metadata columns
	blobs  []arrow.Field // blob columns

	base *schema.Snapshot // newest snapshot when the writer was opened or last rebased, or nil
	ids  []schema.ID      // of all rows; Commit sorts them
	sets []schema.SetRef  // object sets that the snapshot will name
	// blobs of the rows without a checksum, by object set
	unproven map[schema.ObjectPrefix]*unproven
	notes    []string // for readers of the base, set by Commit
	err      error    // why the writer can no longer be used
}

// New opens a Writer. The caller must Close it. Errors of the options are
// schema.ErrInvalid. It fails early if the mode does not allow a snapshot, so that no blob
// is stored in vain. The base is looked up again if another writer commits meanwhile.
func New(ctx context.Context, store store.Store, opts Options) (*Writer, error) {
	if err := schema.CheckName("dataset", opts.Dataset); err != nil {
		return nil, err
	}
	if opts.Split == "" {
		opts.Split = DefaultSplit
	}
	if err := schema.CheckName("split", opts.Split); err != nil {
		return nil, err
	}
	if opts.Schema == nil {
		return nil, &schema.FieldError{Field: "schema", Want: "the columns of the rows"}
	}
	if err := schema.CheckSchema(opts.Schema); err != nil {
		return nil, err
	}
	w := &Writer{store: store, opts: opts}
	for _, f := range opts.Schema.Fields()[1:] {
		if schema.IsBlob(f) {
			w.blobs = append(w.blobs, f)
		} else {
			w.meta = append(w.meta, f)
		}
	}
	if err := w.findBase(ctx); err != nil {
		return nil, err
	}
	in, err := store.Begin(ctx, opts.Dataset)
	if err != nil {
		return nil, fmt.Errorf("open an ingest into %s: %w", opts.Dataset, err)
	}
	w.output = newOutput(in, outputOptions{opts.Schema, opts.Mem, opts.PageRows, opts.Workers, opts.Turn})
	return w, nil
}

// findBase looks up the newest snapshot, and checks whether the mode allows it.
func (w *Writer) findBase(ctx context.Context) error {
	// A missing dataset is an error for Append only.
	base, err := w.store.Snapshot(ctx, w.opts.Dataset, 0)
	switch {
	case errors.Is(err, schema.ErrNotFound):
		base = nil
	case err != nil:
		return fmt.Errorf("look up dataset %s: %w", w.opts.Dataset, err)
	}
	switch w.opts.Mode {
	case Create, "":
		if base != nil {
			return fmt.Errorf("%w: dataset %s, its newest snapshot is %d; append to it or replace it", schema.ErrExists,
				w.opts.Dataset, base.Number)
		}
	case Append:
		if base == nil {
			return fmt.Errorf("append: %w", err)
		}
		if diff := schemaDiff(base.Schema, w.opts.Schema); diff != "" {
			return fmt.Errorf("%w: the rows do not fit dataset %s: %s", schema.ErrInvalid, w.opts.Dataset, diff)
		}
	case Replace:
		if base == nil {
			break
		}
		if err := checkReplaced(base, w.opts.Schema, w.opts.Drop); err != nil {
			return err
		}
	default:
		return &schema.FieldError{Field: "mode", Got: string(w.opts.Mode), Want: "create, append or replace"}
	}
	w.base = base
	return nil
}

// schemaDiff describes the first difference of two logical schemas; "" if there is none.
func schemaDiff(have, got *arrow.Schema) string {
	// Missing and additional columns are named first: if they exist, every comparison by
	// index after them would report the wrong column.
	for _, f := range got.Fields() {
		if !have.HasField(f.Name) {
			return fmt.Sprintf("it has no column %q; leave the column out, or add it by a merge first", f.Name)
		}
	}
	for _, f := range have.Fields() {
		if !got.HasField(f.Name) {
			return fmt.Sprintf("column %q is missing", f.Name)
		}
	}
	for i := range have.NumFields() {
		h, g := have.Field(i), got.Field(i)
		switch {
		case h.Name != g.Name:
			return fmt.Sprintf("column %d is %q, not %q", i, h.Name, g.Name)
		case !h.Equal(g):
			return fmt.Sprintf("column %q is %s, not %s", h.Name, describeField(h), describeField(g))
		}
	}
	return ""
}

// describeField describes a field for messages: type, nulls, classes and media.
func describeField(f arrow.Field) string {
	s := schema.ShownType(f.Type)
	if schema.IsBlob(f) {
		s = "blob"
	}
	if f.Nullable {
		s += " or null"
	}
	if classes := schema.Classes(f); classes != nil {
		s += fmt.Sprintf(" of the %d classes %.80q", len(classes), classes)
	}
	if media := schema.Media(f); media != "" {
		s += " (" + media + ")"
	}
	return s
}

// Close ends the ingest. Without a Commit nothing of it is visible. Close may be called
// again, and after Commit.
func (w *Writer) Close() error {
	if w.err == nil {
		w.err = errors.New("the writer is closed")
	}
	return w.close()
}

const (
	// maxRanges bounds the ranges of all splits together. The snapshot's record contains
	// them, and interleaved splits make one range of each row.
	maxRanges = 1 << 16
	// rebases is how often a commit is repeated after another writer's.
	rebases = 8
	// rowsAtOnce is how many rows are processed without a turn: less than a millisecond
	// of work.
	rowsAtOnce = 1024
	// namedDuplicates is how many ids an error about duplicates names.
	namedDuplicates = 5
)

// Write appends rows. meta has the schema's metadata columns in order (nil if there are
// none), and blobs the content by blob column and row, where nil is null. Write keeps
// nothing of its arguments. After an error the Writer cannot be used any more.
func (w *Writer) Write(ctx context.Context, split string, ids []schema.ID, meta arrow.Record, blobs [][][]byte) error {
	if w.err != nil {
		return w.err
	}
	// The check needs only the shape. So content and references share one path, and nothing
	// is stored before the check.
	shape := shapeOf(blobs, func(b []byte) bool { return b == nil })
	w.err = w.write(ctx, split, ids, meta, shape, func() ([][]*schema.BlobRef, error) { return w.put(ctx, blobs) })
	return w.err
}

// WriteRefs is Write for rows whose blobs are readable already: refs has their references
// by blob column and row, where nil is null. If they are addresses in object sets, the
// caller names the sets by KeepSet before the commit.
func (w *Writer) WriteRefs(ctx context.Context, split string, ids []schema.ID, meta arrow.Record,
	refs [][]*schema.BlobRef) error {
	if w.err != nil {
		return w.err
	}
	shape := shapeOf(refs, func(ref *schema.BlobRef) bool { return ref == nil })
	w.err = w.write(ctx, split, ids, meta, shape, func() ([][]*schema.BlobRef, error) { return refs, nil })
	for _, column := range refs {
		for _, ref := range column {
			if ref != nil && ref.Unproven() {
				w.count(ref)
			}
		}
	}
	return w.err
}

// unproven counts the blobs of an object set that have no checksum.
type unproven struct {
	schema.Unproven
	seen map[schema.Sum]struct{} // keys of counted blobs: they have a key instead of a checksum
}

// count counts a blob without a checksum, once for all rows that name it.
func (w *Writer) count(ref *schema.BlobRef) {
	prefix := schema.ObjectPrefix(ref.Key[:len(schema.ObjectPrefix{})])
	u := w.unproven[prefix]
	if u == nil {
		u = &unproven{seen: map[schema.Sum]struct{}{}}
		if w.unproven == nil {
			w.unproven = map[schema.ObjectPrefix]*unproven{}
		}
		w.unproven[prefix] = u
	}
	if _, again := u.seen[ref.Sum]; !again {
		u.seen[ref.Sum] = struct{}{}
		u.Blobs++
		u.Bytes += ref.Size
	}
}

// PutSet stores an object set that contains blobs of the rows, and makes the snapshot
// name it.
func (w *Writer) PutSet(ctx context.Context, set *schema.ObjectSet) error {
	if w.err != nil {
		return w.err
	}
	data, err := schema.EncodeObjectSet(set)
	if err != nil {
		return err
	}
	ref, err := w.in.Put(ctx, data)
	if err != nil {
		return fmt.Errorf("store an object set of %d bytes: %w", len(data), err)
	}
	w.KeepSet(schema.SetRef{Prefix: set.Prefix(), Blob: ref})
	return nil
}

// KeepSet makes the snapshot name an object set that is stored already. If several sets
// have one prefix, the last one is used.
func (w *Writer) KeepSet(ref schema.SetRef) { w.sets = addSet(w.sets, ref) }

// addSet adds a set, or replaces the one with the same prefix.
func addSet(sets []schema.SetRef, ref schema.SetRef) []schema.SetRef {
	i := slices.IndexFunc(sets, func(s schema.SetRef) bool { return s.Prefix == ref.Prefix })
	if i < 0 {
		return append(sets, ref)
	}
	sets[i] = ref
	return sets
}

// shape is the shape of blobs: by column, the number of rows and the first null row, -1
// if none is null. Content and references are checked by it in the same way.
type shape []struct{ rows, null int }

// shapeOf is the number of rows of each column of blobs, and the index of its first null,
// or -1.
func shapeOf[T any](blobs [][]T, null func(T) bool) shape {
	s := make(shape, len(blobs))
	for c, column := range blobs {
		s[c].rows, s[c].null = len(column), slices.IndexFunc(column, null)
	}
	return s
}

// write checks and adds rows. refsOf stores their blobs, after the checks: a wrong call
// must not store anything.
func (w *Writer) write(ctx context.Context, split string, ids []schema.ID, meta arrow.Record, blobs shape,
	refsOf func() ([][]*schema.BlobRef, error)) error {
	if split == "" {
		split = w.opts.Split
	} else if err := schema.CheckName("split", split); err != nil {
		return err
	}
	if err := w.check(ids, meta, blobs); err != nil {
		return err
	}
	if len(ids) == 0 {
		return nil
	}
	// The split grows before blobs are stored, because too many ranges must fail cheaply.
	if err := w.extend(split, int64(len(ids))); err != nil {
		return err
	}
	refs, err := refsOf()
	if err != nil {
		return err
	}
	w.ids = append(w.ids, ids...)
	return w.add(ctx, ids, meta, refs)
}

// check compares the shape of rows with the schema.
func (w *Writer) check(ids []schema.ID, meta arrow.Record, blobs shape) error {
	rows := len(ids)
	switch {
	// First the numbers of columns and rows: the loops below index by them.
	case meta == nil && len(w.meta) > 0:
		return fmt.Errorf("%w: the rows lack their %d metadata columns", schema.ErrInvalid, len(w.meta))
	case meta != nil && int(meta.NumCols()) != len(w.meta):
		return fmt.Errorf("%w: the rows have %d metadata columns, the schema has %d", schema.ErrInvalid, meta.NumCols(),
			len(w.meta))
	case meta != nil && int(meta.NumRows()) != rows:
		return fmt.Errorf("%w: %d ids for %d rows of metadata", schema.ErrInvalid, rows, meta.NumRows())
	case len(blobs) != len(w.blobs):
		return fmt.Errorf("%w: the rows have %d blob columns, the schema has %d", schema.ErrInvalid, len(blobs),
			len(w.blobs))
	}
	for i, f := range w.meta {
		col := meta.Column(i)
		if name := meta.ColumnName(i); name != f.Name {
			return fmt.Errorf("%w: metadata column %d is %q, the schema has %q", schema.ErrInvalid, i, name, f.Name)
		}
		if !arrow.TypeEqual(col.DataType(), f.Type) {
			return fmt.Errorf("%w: column %q is %s, the schema says %s", schema.ErrInvalid, f.Name,
				schema.ShownType(col.DataType()), schema.ShownType(f.Type))
		}
		if !f.Nullable && col.NullN() > 0 {
			return fmt.Errorf("%w: column %q has %d nulls and must have none", schema.ErrInvalid, f.Name, col.NullN())
		}
	}
	for c, f := range w.blobs {
		if blobs[c].rows != rows {
			return fmt.Errorf("%w: %d ids for %d blobs of column %q", schema.ErrInvalid, rows, blobs[c].rows, f.Name)
		}
		if i := blobs[c].null; i >= 0 && !f.Nullable {
			return fmt.Errorf("%w: column %q is null in row %d and must not be", schema.ErrInvalid, f.Name,
				w.rows+int64(i))
		}
	}
	return nil
}

// Commit makes a snapshot of the written rows. If the newest snapshot is the same in
// schema, rows and splits, Commit returns that with changed false. So does an Append of
// rows with which the newest snapshot ends already, from one commit: a client may repeat
// it if the answer was lost.
//
// schema.ErrInvalid names the first ids that occur twice. It also refuses a Replace
// without rows, because an upload that broke off before its first row would leave the
// dataset empty. If another writer commits first, Append and Replace use its snapshot as
// the new base and try again, and fail with schema.ErrConflict after several attempts.
// Create fails with schema.ErrExists. After Commit the Writer can only be closed.
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

// commit checks the ids, and commits on the newest base until no other writer is first.
func (w *Writer) commit(ctx context.Context) (*schema.Snapshot, bool, error) {
	if w.opts.Mode == Replace && w.rows == 0 {
		return nil, false, fmt.Errorf("%w: no rows came to replace those of dataset %s; nothing was committed (to "+
			"empty it, drop it)",
			schema.ErrInvalid, w.opts.Dataset)
	}
	if err := w.turn(len(w.ids), w.checkUnique); err != nil {
		return nil, false, err
	}
	// Each pass builds the snapshot on the newest base. Blobs and pages are stored already.
	checked := map[schema.Key]bool{} // chunks of bases that have none of the new ids
	for range rebases {
		snap := w.snapshot()
		if err := checkRanges(snap.Splits); err != nil {
			return nil, false, err
		}
		if w.base != nil && (sameContent(w.base, snap) || w.opts.Mode == Append && w.isTail(w.base)) {
			return w.base, false, nil
		}
		// Keys of equal pages differ in such a store, so the pages' checksums are
		// compared instead.
		if w.base != nil && w.opts.Mode == Replace && w.store.Traits().Segments {
			if same, err := w.samePages(ctx, snap); err != nil || same {
				return w.base, false, err
			}
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
		// Another writer was first. Its snapshot is the next base; Create fails here.
		if err := w.findBase(ctx); err != nil {
			return nil, false, err
		}
	}
	return nil, false, fmt.Errorf("commit to %s: %w: other writers were first %d times in a row", w.opts.Dataset,
		schema.ErrConflict, rebases)
}

// Notes describe the effects of a committed Replace on readers of the snapshot before:
// splits that are gone, classes with other numbers.
func (w *Writer) Notes() []string { return w.notes }

// snapshot assembles the snapshot to commit, on the current base.
func (w *Writer) snapshot() *schema.Snapshot {
	s := &schema.Snapshot{Dataset: w.opts.Dataset, Source: w.opts.Source, Schema: w.opts.Schema}
	if w.base != nil {
		s.Parent = w.base.Number
	}
	var offset int64
	if w.opts.Mode == Append {
		s.Chunks, s.Sets = slices.Clone(w.base.Chunks), slices.Clone(w.base.Sets)
		for _, split := range w.base.Splits {
			s.Splits = append(s.Splits, schema.Split{Name: split.Name, Ranges: slices.Clone(split.Ranges)})
		}
		// Ranges of the written rows start at 0. Behind the base's rows they are shifted.
		offset = w.base.Rows()
	}
	s.Chunks = append(s.Chunks, w.chunks...)
	for _, set := range w.sets {
		// Counts of this snapshot are computed anew: the reference may come from another
		// snapshot.
		set.Unproven, set.Altered = schema.Unproven{}, false
		if u := w.unproven[set.Prefix]; u != nil {
			set.Unproven = u.Unproven
		}
		for _, base := range s.Sets { // rows of the base keep their counts
			if base.Prefix == set.Prefix {
				set.Unproven.Blobs += base.Unproven.Blobs
				set.Unproven.Bytes += base.Unproven.Bytes
				set.Altered = base.Altered
			}
		}
		s.Sets = addSet(s.Sets, set)
	}
	for _, add := range inOrder(w.splits) {
		r := schema.Range{Start: add.Start + offset, End: add.End + offset}
		s.Splits = addRange(s.Splits, add.split, r)
	}
	return s
}

// splitRange is a range with the name of its split.
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

// sameContent compares everything that readers of two snapshots can distinguish.
func sameContent(a, b *schema.Snapshot) bool {
	return schemaDiff(a.Schema, b.Schema) == "" && reflect.DeepEqual(a.Splits, b.Splits) &&
		sameChunks(a.Chunks, b.Chunks)
}

// samePages reports whether a snapshot has the same pages as the base, for stores that
// keep pages in segments. There a page that is put twice has two keys, so sameContent
// does not find out. Pages of equal length and checksum are equal.
func (w *Writer) samePages(ctx context.Context, snap *schema.Snapshot) (bool, error) {
	base := w.base
	if schemaDiff(base.Schema, snap.Schema) != "" || !reflect.DeepEqual(base.Splits, snap.Splits) ||
		!slices.EqualFunc(base.Chunks, snap.Chunks, func(a, b schema.Chunk) bool {
			return a.Rows == b.Rows && a.ManifestBytes() == b.ManifestBytes()
		}) {
		return false, nil
	}
	marks := w.marks
	for i := range base.Chunks {
		pages, err := w.pagesOf(ctx, &base.Chunks[i])
		if err != nil {
			return false, fmt.Errorf("compare with %s@%d: %w", base.Dataset, base.Number, err)
		}
		// Comparison stops at the first page that differs, so a real change costs little.
		if len(pages) > len(marks) || !slices.EqualFunc(pages, marks[:len(pages)], func(page schema.Chunk, m mark) bool {
			return markOf(page) == m
		}) {
			return false, nil
		}
		marks = marks[len(pages):]
	}
	return len(marks) == 0, nil
}

// pagesOf returns the pages of a chunk. A chunk without an index is its own page.
func (w *Writer) pagesOf(ctx context.Context, chunk *schema.Chunk) ([]schema.Chunk, error) {
	if chunk.Pages == 0 {
		return []schema.Chunk{*chunk}, nil
	}
	index, err := w.store.Get(ctx, chunk.BlobRef)
	if err != nil {
		return nil, err
	}
	defer index.Release()
	return chunk.OpenIndex(index.Bytes())
}

// sameChunks reports whether the chunks have the same contents and rows.
func sameChunks(a, b []schema.Chunk) bool {
	return slices.EqualFunc(a, b, func(a, b schema.Chunk) bool { return a.BlobRef == b.BlobRef && a.Rows == b.Rows })
}

// isTail reports whether the written rows are the last ones of the base already, in the
// same splits.
func (w *Writer) isTail(base *schema.Snapshot) bool {
	// A commit of this writer would have appended exactly its chunks.
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

// compareIDs orders ids by their bytes.
func compareIDs(a, b schema.ID) int { return bytes.Compare(a[:], b[:]) }

// checkUnique sorts the ids, and fails if one occurs twice. Sorting needs no memory besides
// the ids, and checkBase needs them sorted. A map of all ids would take several times as
// much.
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

// checkBase fails if the base has one of the ids. It reads only chunks that were not
// checked for an earlier base.
func (w *Writer) checkBase(ctx context.Context, checked map[schema.Key]bool) error {
	var dup duplicates
	var unseen []schema.Chunk
	for _, c := range w.base.Chunks {
		if !checked[c.Key] {
			unseen = append(unseen, c)
		}
	}
	// A binary search for each id of the base: the new ids are in memory, those of the base
	// are not.
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

// duplicates collects the first few duplicate ids and counts the others.
type duplicates struct {
	named []string
	n     int
}

// add counts an id.
func (d *duplicates) add(id schema.ID) {
	if d.n++; d.n <= namedDuplicates {
		d.named = append(d.named, uuid.UUID(id).String())
	}
}

// err is a schema.ErrInvalid that names the first ids; nil if there are none. what
// completes "5 ids ...".
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

// checkReplaced fails with schema.ErrInvalid if a snapshot with the schema next would
// remove or redefine a column of the newest one, and drop does not name the column.
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
	return fmt.Errorf("%w: replacing dataset %s would %s for all of its readers; the mode \"merge\" changes columns and "+
		"rows and keeps the others and all blobs; if it is meant, name these columns in drop_columns (--drop-column)",
		schema.ErrInvalid, base.Dataset, strings.Join(what, " and "))
}

// stays reports whether readers of a column can read its replacement in the same way: a
// blob column has the same kind of media, and a metadata column has a type that all
// earlier values fit.
func stays(was, is arrow.Field) bool {
	if schema.IsBlob(was) || schema.IsBlob(is) {
		return schema.IsBlob(was) && schema.IsBlob(is) && schema.Media(was) == schema.Media(is)
	}
	return arrow.TypeEqual(was.Type, is.Type) || widens(was.Type, is.Type)
}

// widens reports whether each value of one type is a value of the other, which is of the
// same kind. Floats never replace integers: a large integer would be rounded.
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

// bits is the width of a number in bits.
func bits(t arrow.DataType) int { return t.(arrow.FixedWidthDataType).BitWidth() }

// mostListed is how many items a message lists. A message with more names is not read to
// its end.
const mostListed = 8

// listed joins items for a message.
func listed(things []string) string {
	if more := len(things) - mostListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(things[:mostListed], ", "), more)
	}
	return strings.Join(things, ", ")
}

// notesOf describes the effects of a new snapshot on readers of the one before, apart
// from columns: splits that are gone, and classes with other numbers.
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

// renumbered describes the classes that have another number, "" if none has.
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

// putter stores blobs through an ingest, several at the same time. It is not safe for
// concurrent use. Only one call of put is active at a time; its workers end with it.
type putter struct {
	in      store.Ingest
	workers int
	cells   []cell // reused between calls
}

// cell is a blob that is being stored. One worker writes it, and put reads it after all
// workers have ended.
type cell struct {
	data []byte
	ref  schema.BlobRef
}

// newPutter returns a putter, which owns the ingest from then on. The number of workers
// is fixed, since stores bound their own concurrency.
func newPutter(in store.Ingest, workers int) putter {
	if workers <= 0 {
		workers = 2 * runtime.GOMAXPROCS(0)
	}
	return putter{in: in, workers: workers}
}

// end ends the ingest. It may be called again.
func (p *putter) end() error {
	if p.in == nil {
		return nil
	}
	in := p.in
	p.in = nil
	if err := in.Close(); err != nil {
		return fmt.Errorf("close the ingest: %w", err)
	}
	return nil
}

// put stores blobs, given by column and row, and returns their references in the same
// shape; nil stays nil. The first error cancels the other puts.
func (p *putter) put(ctx context.Context, blobs [][][]byte) ([][]*schema.BlobRef, error) {
	p.cells = p.cells[:0]
	for _, column := range blobs {
		for _, data := range column {
			p.cells = append(p.cells, cell{data: data})
		}
	}
	defer clear(p.cells) // keeps no reference to the caller's bytes

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(p.workers, len(p.cells)) {
		workers.Go(func() {
			for {
				// Workers take the next cell from a counter, so one slow put does not
				// delay the others.
				i := int(next.Add(1)) - 1
				if i >= len(p.cells) || ctx.Err() != nil {
					return
				}
				c := &p.cells[i]
				if c.data == nil {
					continue
				}
				ref, err := p.in.Put(ctx, c.data)
				if err != nil {
					cancel(fmt.Errorf("store a blob of %d bytes: %w", len(c.data), err))
					return
				}
				c.ref = ref
			}
		})
	}
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}

	refs := make([][]*schema.BlobRef, len(blobs))
	i := 0
	slab := make([]schema.BlobRef, len(p.cells)) // one allocation for all references
	for c := range blobs {
		refs[c] = make([]*schema.BlobRef, len(blobs[c]))
		for row := range blobs[c] {
			if p.cells[i].data != nil {
				slab[i] = p.cells[i].ref
				refs[c][row] = &slab[i]
			}
			i++
		}
	}
	return refs, nil
}
