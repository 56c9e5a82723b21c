package ingest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Missing says what becomes of rows whose key the dataset does not have.
type Missing int

const (
	// MissingError makes an error of them, which names some.
	MissingError Missing = iota
	// MissingInsert adds them as new samples, behind all others.
	MissingInsert
	// MissingIgnore leaves them out.
	MissingIgnore
)

var missings = []string{"error", "insert", "ignore"}

func (m Missing) String() string {
	if m < 0 || int(m) >= len(missings) {
		return fmt.Sprintf("missing %d", int(m))
	}
	return missings[m]
}

// ParseMissing reads "error", "insert" or "ignore".
func ParseMissing(s string) (Missing, error) {
	if i := slices.Index(missings, s); i >= 0 {
		return Missing(i), nil
	}
	return 0, &schema.FieldError{Field: "missing", Got: schema.Quote(s), Want: `"error", "insert" or "ignore"`}
}

// MaxKept bounds the memory of the rows of an alteration where AlterOptions have no Keep, in bytes.
const MaxKept = 4 << 30

// AlterOptions say how a dataset's newest snapshot is altered. What they name are its columns, and what they leave
// out stays as it is. First rows are deleted by DeleteWhere, then columns dropped and renamed; then rows are merged.
type AlterOptions struct {
	Dataset string
	Source  string // for people, where the change comes from; the snapshot's stays where it is empty

	DeleteWhere string            // an expression of package where; rows that meet it are deleted
	Drop        []string          // columns to drop
	Rename      map[string]string // new names of columns, by the old ones

	// Rows is the logical schema of the rows that Write takes; nil if there are none.
	Rows *arrow.Schema
	// On is the column by whose values rows are found: the id, or a metadata column of integers, text or bytes.
	On string
	// Missing says what becomes of rows whose key the dataset does not have.
	Missing Missing
	// Delete deletes the samples that rows are found for. Of the rows, nothing but their keys counts.
	Delete bool
	// Split is that of samples that are inserted by rows with no split; DefaultSplit if empty.
	Split string

	Workers  int              // as of Options
	Mem      memory.Allocator // as of Options
	PageRows int              // as of Options
	Turn     func(piece func() error) error
	// Keep is asked before so many bytes are kept in memory until the alteration is closed, and fails where there
	// is no room for them; nil allows MaxKept in all.
	Keep func(bytes int64) error
}

// Altered says what an alteration has done.
type Altered struct {
	// Changed is false where the newest snapshot was as it was to become.
	Changed bool
	// Matched are the rows that were found, Inserted those that were added, and Ignored those that were left out.
	Matched, Inserted, Ignored int64
	// Deleted are the samples that are gone.
	Deleted int64
}

// Alteration changes metadata columns and rows of a dataset by making a snapshot of its newest one. Blobs keep their
// keys, and pages of the manifest in which nothing changes are shared. It keeps the rows that it is given in memory,
// and of the dataset a page at a time. It is not safe for concurrent use.
type Alteration struct {
	putter
	store store.Store
	opts  AlterOptions
	added incoming
	kept  int64 // where opts.Keep is nil
	err   error // why it can no longer be used
}

// Alter opens an alteration, which the caller must Close. schema.ErrNotFound if there is no such dataset.
func Alter(ctx context.Context, st store.Store, opts AlterOptions) (*Alteration, error) {
	if err := schema.CheckName("dataset", opts.Dataset); err != nil {
		return nil, err
	}
	if opts.Split == "" {
		opts.Split = DefaultSplit
	}
	if err := schema.CheckName("split", opts.Split); err != nil {
		return nil, err
	}
	if opts.Rows == nil && len(opts.Drop) == 0 && len(opts.Rename) == 0 && opts.DeleteWhere == "" {
		return nil, fmt.Errorf("%w: nothing is to be altered", schema.ErrInvalid)
	}
	a := &Alteration{store: st, opts: opts}
	a.added.byKey = map[string]int32{}
	if opts.Rows != nil {
		if err := a.checkRows(); err != nil {
			return nil, err
		}
	}
	base, err := a.newest(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := a.plan(base); err != nil { // so that nothing is sent in vain
		return nil, err
	}
	in, err := st.Begin(ctx, opts.Dataset)
	if err != nil {
		return nil, fmt.Errorf("open an ingest into %s: %w", opts.Dataset, err)
	}
	a.putter = newPutter(in, opts.Workers)
	return a, nil
}

// newest is the snapshot that is altered.
func (a *Alteration) newest(ctx context.Context) (*schema.Snapshot, error) {
	base, err := a.store.Snapshot(ctx, a.opts.Dataset, 0)
	if err != nil {
		return nil, fmt.Errorf("alter %s: %w", a.opts.Dataset, err)
	}
	return base, nil
}

// checkRows compares the schema of the rows with what is to be done with them.
func (a *Alteration) checkRows() error {
	o := &a.opts
	if err := schema.CheckSchema(o.Rows); err != nil {
		return err
	}
	a.added.meta, a.added.blobs = schema.MetaFields(o.Rows), schema.BlobFields(o.Rows)
	if o.Delete && o.Missing == MissingInsert {
		return &schema.FieldError{Field: "missing", Got: `"insert"`, Want: `"error" or "ignore" where rows are deleted`}
	}
	if slices.Contains(o.Drop, o.On) || o.Rename[o.On] != "" {
		return &schema.FieldError{Field: "on", Got: schema.Quote(o.On), Want: "a column that is neither dropped nor renamed"}
	}
	if o.On == "" || o.On == schema.IDColumn {
		o.On = schema.IDColumn
		return nil
	}
	a.added.key = slices.IndexFunc(a.added.meta, func(f arrow.Field) bool { return f.Name == o.On })
	if a.added.key < 0 {
		return &schema.FieldError{Field: "on", Got: schema.Quote(o.On),
			Want: "a metadata column of the rows: " + schema.ShownList(namesOf(o.Rows.Fields()))}
	}
	f := a.added.meta[a.added.key]
	if !isKey(f.Type) {
		return &schema.FieldError{Field: "on", Got: fmt.Sprintf("column %s of type %s", schema.Quote(f.Name),
			schema.ShownType(f.Type)), Want: "integers, text or bytes"}
	}
	return nil
}

func namesOf(fields []arrow.Field) []string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return names
}

// keep counts memory that is kept.
func (a *Alteration) keep(bytes int64) error {
	if a.opts.Keep != nil {
		return a.opts.Keep(bytes)
	}
	if a.kept += bytes; a.kept > MaxKept {
		return fmt.Errorf("%w: the rows to merge take more than %d bytes of memory; merge them in several parts",
			schema.ErrLimit, int64(MaxKept))
	}
	return nil
}

// Commit makes the altered snapshot, or finds that the newest one is like that already. Where another writer commits
// first, the newest snapshot is altered anew, a few times before it is a schema.ErrConflict. After Commit the
// Alteration can only be closed.
func (a *Alteration) Commit(ctx context.Context) (*schema.Snapshot, Altered, error) {
	if a.err != nil {
		return nil, Altered{}, a.err
	}
	a.err = errors.New("the alteration has been committed")
	for range rebases {
		base, err := a.newest(ctx)
		if err != nil {
			return nil, Altered{}, err
		}
		next, done, err := a.apply(ctx, base)
		if err != nil {
			if a.superseded(ctx, base, err) {
				continue
			}
			return nil, Altered{}, err
		}
		if sameContent(base, next) {
			return base, done, nil
		}
		snap, err := a.in.Commit(ctx, *next)
		if err == nil {
			done.Changed = true
			return snap, done, nil
		}
		if !errors.Is(err, schema.ErrConflict) {
			return nil, Altered{}, fmt.Errorf("commit to %s: %w", a.opts.Dataset, err)
		}
	}
	return nil, Altered{}, fmt.Errorf("commit to %s: %w: other writers were first %d times in a row", a.opts.Dataset,
		schema.ErrConflict, rebases)
}

// superseded reports whether an error may come of a snapshot that was dropped and collected while it was read.
func (a *Alteration) superseded(ctx context.Context, base *schema.Snapshot, err error) bool {
	if !errors.Is(err, schema.ErrNotFound) && !errors.Is(err, schema.ErrDataLoss) {
		return false
	}
	now, err := a.newest(ctx)
	return err == nil && now.Number != base.Number
}

// Close ends the alteration. Without a Commit nothing of it can be seen. It may be called again, and after Commit.
func (a *Alteration) Close() error {
	if a.err == nil {
		a.err = errors.New("the alteration is closed")
	}
	return a.end()
}

// unknown is the error for columns that a snapshot does not have.
func unknown(field string, base *schema.Snapshot, name string) error {
	have := namesOf(base.Schema.Fields()[1:])
	want := fmt.Sprintf("a column of %s@%d: %s", base.Dataset, base.Number, schema.ShownList(have))
	if near := schema.Nearest(name, have); near != "" {
		want += fmt.Sprintf(" (did you mean %q?)", near)
	}
	return &schema.FieldError{Field: field, Got: schema.Quote(name), Want: want}
}

// renamed are the old names of columns that get new ones, in order.
func (a *Alteration) renamed() []string { return slices.Sorted(maps.Keys(a.opts.Rename)) }
