package cql

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/gocql/gocql"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// AttachOptions names tables of another program that become a dataset.
type AttachOptions struct {
	Dataset string
	// Data is the table of the samples, as KEYSPACE.TABLE: its partition key is
	// one uuid. Its blob columns become blob columns, the others metadata.
	Data string
	// Metadata is a table with more columns of the same samples under the same
	// uuids. Columns that both tables have are taken from Data. It may be empty.
	Metadata string
	// Split is the split of all rows; SplitColumn is a text column that names
	// the split of each row. At most one is given. With neither the split is
	// "train"; rows whose SplitColumn is null or empty are in no split.
	Split, SplitColumn string
	// Columns are those to take; nil for all.
	Columns []string
	// Media is what the blob columns hold: "", schema.MediaImage or schema.MediaAudio.
	Media string
	// Append adds the rows to the newest snapshot, whose columns must be the
	// same, and Replace makes a snapshot of these rows alone. With neither, the
	// dataset must be new.
	Append, Replace bool
	// SkipExisting has Append leave out rows whose ids the newest snapshot has, such
	// as all but the new ones of a table that has grown. Without, they are an error.
	SkipExisting bool
	// Workers is how many intervals of the table are scanned at once. Default: 8.
	Workers int
	// Progress, if set, is told the totals now and then, by one goroutine.
	Progress func(AttachReport)

	ranges int // for tests: in place of attachRanges
}

// AttachReport says what a scan has found.
type AttachReport struct {
	Rows  int64   `json:"rows"`
	Bytes int64   `json:"bytes"` // of blob cells
	Done  float64 `json:"done"`  // part of the table, 0 to 1
	// NoMetadata counts samples without a row in the metadata table, whose columns are null.
	NoMetadata int64 `json:"no_metadata"`
	// NoSample counts rows of the metadata table without a sample, which are left out.
	NoSample int64 `json:"no_sample"`
	// Skipped counts rows that the newest snapshot has already.
	Skipped int64 `json:"skipped"`
}

const (
	// attachRanges is into how many intervals of tokens the tables are cut. One
	// interval's rows are held in memory, without their blobs, for each worker.
	attachRanges = 512
	// attachPage is how many bytes of blobs a page of rows aims at.
	attachPage = 4 << 20
	// foreignLevel is the consistency of scans of other programs' tables, which
	// were written at who knows what.
	foreignLevel = gocql.LocalQuorum
	// defaultSplit is where rows are if nothing says where.
	defaultSplit = "train"
	// attachWorkers is the default of AttachOptions.Workers.
	attachWorkers = 8
)

// Attach makes a snapshot of the rows of a table that some other program keeps,
// without copying them. Every cell is read once, for its size and checksum;
// the bytes stay where they are, and a cell that changes later fails its checksum when it is
// served. Rows come in the order of their tokens, which is the same in every
// scan, split by split.
func (s *Store) Attach(ctx context.Context, opts AttachOptions) (_ *schema.Snapshot, report AttachReport, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, report, err
	}
	defer s.life.RUnlock()
	a := &attachment{s: s, opts: opts}
	snap, err := a.run(ctx)
	if err != nil {
		return nil, a.report, fmt.Errorf("attach %s to %q: %w", opts.Data, opts.Dataset, err)
	}
	return snap, a.report, nil
}

// attachment is one run of Attach.
type attachment struct {
	s    *Store
	opts AttachOptions

	data, meta source
	schema     *arrow.Schema
	metaSchema *arrow.Schema // its metadata columns
	splitAt    int           // the column of metaSchema that names the split, -1 for none
	splitOnly  bool          // which is not one of the dataset

	meanRow atomic.Int64 // bytes of blobs in a row, as seen so far

	in     store.Ingest
	known  known // of the snapshot that is appended to
	report AttachReport
	splits []*splitBuilder
}

// source is one of the two tables.
type source struct {
	keyspace, table string
	session         *gocql.Session
	id              string
	columns         []column
}

// column is one that is taken from a table.
type column struct {
	name  string
	kind  *columnType   // nil for a blob column
	table *foreignTable // of a blob column
}

// splitBuilder collects the rows of a split into chunks.
type splitBuilder struct {
	name    string
	builder *schema.ChunkBuilder
	chunks  []schema.Chunk
	pages   schema.PageList // of the chunk being built
	rows    int64
}

var tableName = regexp.MustCompile(`^([A-Za-z0-9_]{1,48})\.([A-Za-z0-9_]{1,48})$`)

func (a *attachment) run(ctx context.Context) (*schema.Snapshot, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	parent, err := a.parent(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.describe(ctx); err != nil {
		return nil, err
	}
	if a.opts.Append && parent != nil && !parent.Schema.Equal(a.schema) {
		return nil, fmt.Errorf("%w: the tables have the columns %v, and the dataset %v: rows of other columns cannot "+
			"be appended",
			schema.ErrInvalid, a.schema, parent.Schema)
	}
	if a.opts.Append && parent != nil {
		if err := a.known.read(ctx, a.s, parent); err != nil {
			return nil, err
		}
	}
	if err := a.register(ctx); err != nil {
		return nil, err
	}
	in, err := a.s.Begin(ctx, a.opts.Dataset)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	a.in = in
	defer func() {
		for _, sp := range a.splits {
			sp.builder.Release()
		}
	}()
	if err := a.scan(ctx); err != nil {
		return nil, err
	}
	if err := a.known.err(parent); err != nil && !a.opts.SkipExisting {
		return nil, err
	}
	if a.report.Rows == 0 && a.report.Skipped > 0 {
		return parent, nil
	}
	if a.report.Rows == 0 {
		return nil, fmt.Errorf("%w: the table has no rows", schema.ErrInvalid)
	}
	snap, err := a.snapshot(ctx, parent)
	if err != nil {
		return nil, err
	}
	return in.Commit(ctx, *snap)
}

func (a *attachment) check() error {
	o := &a.opts
	if err := schema.CheckName("dataset", o.Dataset); err != nil {
		return err
	}
	if o.Split != "" {
		if o.SplitColumn != "" {
			return bad("split", "both a split and a split column", "one of them")
		}
		if err := schema.CheckName("split", o.Split); err != nil {
			return err
		}
	}
	if o.Split == "" && o.SplitColumn == "" {
		o.Split = defaultSplit
	}
	if o.SkipExisting && !o.Append {
		return bad("skip existing", "no append", "append: nothing else has rows that exist")
	}
	if o.Append && o.Replace {
		return bad("append", "both append and replace", "one of them")
	}
	if o.Media != "" && o.Media != schema.MediaImage && o.Media != schema.MediaAudio {
		return bad("media", o.Media, "image, audio or nothing")
	}
	for field, table := range map[string]string{"data": o.Data, "metadata": o.Metadata} {
		if (field == "data" || table != "") && !tableName.MatchString(table) {
			return bad(field, table, "KEYSPACE.TABLE")
		}
	}
	if o.Workers <= 0 {
		o.Workers = attachWorkers
	}
	if o.ranges == 0 {
		o.ranges = attachRanges
	}
	return nil
}

// parent is the newest snapshot, nil if there is none.
func (a *attachment) parent(ctx context.Context) (*schema.Snapshot, error) {
	newest, err := a.s.Snapshot(ctx, a.opts.Dataset, 0)
	if errors.Is(err, schema.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if !a.opts.Append && !a.opts.Replace {
		return nil, fmt.Errorf("%w: dataset %q has snapshot %d: append to it, replace it, or take another name",
			schema.ErrExists, a.opts.Dataset, newest.Number)
	}
	return newest, nil
}
