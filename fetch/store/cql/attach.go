package cql

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// AttachOptions names tables of another program that become a dataset.
type AttachOptions struct {
	Dataset string
	// Data is the table of the samples, as KEYSPACE.TABLE. Its partition key is one uuid. Its blob columns become
	// blob columns, the others metadata.
	Data string
	// Metadata is a table with more columns of the same samples under the same uuids, or "". Columns that both tables
	// have are taken from Data.
	Metadata string
	// Split is the split of all rows. SplitColumn is a text column that names each row's split. At most one is given.
	// With neither the split is "train". Rows whose SplitColumn is null or empty are in no split.
	Split, SplitColumn string
	// Columns are the columns to take; nil for all.
	Columns []string
	// Media is the content of the blob columns: "", schema.MediaImage or schema.MediaAudio.
	Media string
	// Append adds the rows to the newest snapshot, whose columns must be the same. Replace makes a snapshot with only
	// these rows. With neither, the dataset must be new.
	Append, Replace bool
	// SkipExisting makes Append leave out rows whose ids are in the newest snapshot, such as the old rows of a table
	// that has grown. Without it they are an error.
	SkipExisting bool
	// Workers is how many intervals of the table are scanned at once. Default: 8.
	Workers int
	// Progress, if not nil, is called from time to time with the totals, by one goroutine.
	Progress func(AttachReport)

	ranges int // for tests: overrides attachRanges
}

// AttachReport is the progress and the result of a scan.
type AttachReport struct {
	Rows  int64   `json:"rows"`
	Bytes int64   `json:"bytes"` // of blob cells
	Done  float64 `json:"done"`  // share of the table, 0 to 1
	// NoMetadata counts samples without a row in the metadata table; their columns are null.
	NoMetadata int64 `json:"no_metadata"`
	// NoSample counts rows of the metadata table without a sample; they are left out.
	NoSample int64 `json:"no_sample"`
	// Skipped counts rows that are in the newest snapshot already.
	Skipped int64 `json:"skipped"`
}

const (
	// attachRanges is the number of token intervals that a table is cut into. Each worker
	// holds the rows of one interval in memory, without their blobs, so more intervals
	// need less memory.
	attachRanges = 512
	// attachPage is the target size of a page of rows, in bytes of blobs.
	attachPage = 4 << 20
	// foreignLevel is the consistency of scans of other programs' tables, whose write consistency is unknown.
	foreignLevel = gocql.LocalQuorum
	// defaultSplit is the split of all rows if the options name no split and no split
	// column.
	defaultSplit = "train"
	// attachWorkers is the default of AttachOptions.Workers. Each worker has one query in
	// flight.
	attachWorkers = 8
)

// Attach makes a snapshot of the rows of another program's table without copying them. It
// reads every cell once, for its size and checksum. The bytes stay in the table. If a
// cell changes later, it fails its checksum when it is served. Rows are in the order of
// their tokens, which is the same in every scan, split by split. With SkipExisting and no
// new rows, Attach returns the newest snapshot.
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

// attachment is one run of Attach. Workers scan, and one goroutine takes their results;
// only that one changes known, report and splits while the scan runs.
type attachment struct {
	s    *Store
	opts AttachOptions

	data, meta source // meta has no columns if there is no metadata table
	schema     *arrow.Schema
	metaSchema *arrow.Schema // the metadata columns of both tables
	splitAt    int           // the column of metaSchema that names the split, -1 for none
	splitOnly  bool          // that column is not one of the dataset

	meanRow atomic.Int64 // mean size of a row's blobs so far

	in     store.Ingest
	known  known // ids of the snapshot that is appended to
	report AttachReport
	splits []*splitBuilder
}

// source is one of the two tables, with the columns that are taken from it.
type source struct {
	keyspace, table string
	session         *gocql.Session // knows the replicas of the keyspace; not owned
	id              string         // the key column
	columns         []column
}

// column is a column that is taken from a table.
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
	rows    int64           // rows in chunks and in builder
}

// tableName matches KEYSPACE.TABLE. Names that need other characters cannot be attached.
var tableName = regexp.MustCompile(`^([A-Za-z0-9_]{1,48})\.([A-Za-z0-9_]{1,48})$`)

// run makes the snapshot.
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
	// The schemas are compared before the scan, which may take hours.
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
	// The tables are registered before the first key that refers to them is stored.
	if err := a.register(ctx); err != nil {
		return nil, err
	}
	// From here on pages of the manifest are written.
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
	// The error comes after the scan, so that it names how many rows exist already.
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

// check checks the options, and fills in their defaults.
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

// parent returns the newest snapshot; nil if there is none. If the options say neither
// append nor replace, an existing snapshot is an error.
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

// describe reads the columns of both tables, and determines the schema of the dataset:
// metadata columns first, then blob columns. The columns of each table are in the order
// of their names.
func (a *attachment) describe(ctx context.Context) error {
	var err error
	if a.data, err = a.open(ctx, a.opts.Data, true); err != nil {
		return err
	}
	if a.opts.Metadata != "" {
		if a.meta, err = a.open(ctx, a.opts.Metadata, false); err != nil {
			return err
		}
		a.meta.columns = slices.DeleteFunc(a.meta.columns, func(c column) bool {
			return slices.ContainsFunc(a.data.columns, func(d column) bool { return d.name == c.name })
		})
	}
	var meta, blobs []arrow.Field
	var known []string
	a.splitAt = -1
	for _, src := range []*source{&a.data, &a.meta} {
		src.columns = slices.DeleteFunc(src.columns, func(c column) bool {
			known = append(known, c.name)
			return c.name != a.opts.SplitColumn && a.opts.Columns != nil && !slices.Contains(a.opts.Columns, c.name)
		})
		for _, c := range src.columns {
			if c.table != nil {
				blobs = append(blobs, schema.BlobField(c.name, a.opts.Media, true))
				continue
			}
			if c.name == a.opts.SplitColumn {
				if c.kind.arrow.ID() != arrow.STRING {
					return bad("split column", c.name, "a column of text")
				}
				a.splitAt = len(meta)
			}
			meta = append(meta, arrow.Field{Name: c.name, Type: c.kind.arrow, Nullable: true})
		}
	}
	for _, name := range append(slices.Clone(a.opts.Columns), a.opts.SplitColumn) {
		if name != "" && !slices.Contains(known, name) {
			return bad("columns", name, "some of "+schema.ShownList(known))
		}
	}
	if len(blobs) == 0 {
		return bad("columns", "no blob column", "at least one of table "+a.opts.Data)
	}
	a.metaSchema = arrow.NewSchema(meta, nil)
	// A column that is only used for the split is left out if its name is taken.
	if a.splitAt >= 0 && (a.opts.SplitColumn == schema.SplitColumn || a.opts.Columns != nil &&
		!slices.Contains(a.opts.Columns, a.opts.SplitColumn)) {
		a.splitOnly = true
		meta = slices.Delete(slices.Clone(meta), a.splitAt, a.splitAt+1)
	}
	a.schema, err = schema.NewSchema(meta, blobs)
	return err
}

// open reads a table's columns from the servers' catalog. The primary key must be one
// uuid, because a key has room for 16 bytes. Columns of types without a counterpart are
// an error, unless the options name the columns to take.
func (a *attachment) open(ctx context.Context, name string, withBlobs bool) (source, error) {
	keyspace, table, _ := strings.Cut(name, ".")
	src := source{keyspace: keyspace, table: table}
	q := a.s.db.Query("SELECT column_name, kind, type FROM system_schema.columns WHERE keyspace_name = ? AND "+
		"table_name = ?", keyspace, table)
	err := a.s.rows(ctx, q, "system_schema.columns", "look at table "+name, func(scan scanner) (err error) {
		var col, kind, cqlType string
		for scan(&col, &kind, &cqlType) {
			switch {
			case kind == "partition_key" && src.id == "" && cqlType == "uuid":
				src.id = col
			case kind == "partition_key" || kind == "clustering":
				err = fmt.Errorf("%w: table %s: column %s (%s %s): want a primary key of one uuid", schema.ErrInvalid,
					name, col, kind, cqlType)
			case kind != "regular":
				// Static columns need clustering columns, and there are none.
			case cqlType == "blob" && withBlobs:
				src.columns = append(src.columns, column{name: col})
			case columnTypes[cqlType] != nil:
				src.columns = append(src.columns, column{name: col, kind: columnTypes[cqlType]})
			case a.opts.Columns == nil || slices.Contains(a.opts.Columns, col):
				err = fmt.Errorf("%w: table %s: column %s is of type %s, which has no place in a dataset: name the "+
					"columns to take without it", schema.ErrInvalid, name, col, cqlType)
			}
		}
		return err
	})
	switch {
	case err != nil:
		return src, err
	case src.id == "":
		return src, fmt.Errorf("%w: the cluster has no table %s", schema.ErrNotFound, name)
	}
	for i := range src.columns {
		if c := &src.columns[i]; c.kind == nil {
			c.table = newForeignTable(keyspace, table, src.id, c.name)
		}
	}
	slices.SortFunc(src.columns, func(x, y column) int { return strings.Compare(x.name, y.name) })
	src.session, err = a.s.sessionFor(ctx, keyspace)
	return src, err
}

// register records the tables that keys will refer to, so that every process finds them.
func (a *attachment) register(ctx context.Context) error {
	var list []*foreignTable
	for _, c := range a.data.columns {
		if c.table != nil {
			list = append(list, c.table)
		}
	}
	return a.s.register(ctx, list)
}

// register records attached tables, and reads the list of all.
func (s *Store) register(ctx context.Context, list []*foreignTable) error {
	for _, t := range list {
		q := s.db.Query(insertAttached, t.prefix[:], t.keyspace, t.table, t.id, t.data).Consistency(s.catalogLevel())
		if err := s.exec(ctx, q, tableAttached, "register a table"); err != nil {
			return err
		}
	}
	return s.loadAttached(ctx)
}

// interval is the result of scanning the rows between two tokens, in the order of their
// tokens.
type interval struct {
	ids        []schema.ID
	meta       arrow.Record        // of metaSchema
	blobs      [][]*schema.BlobRef // [row][blob column]
	bytes      int64               // size of the blobs
	noMetadata int64               // samples without a row in the metadata table
	noSample   int64               // rows of the metadata table without a sample
}

// scan reads the tables, several intervals at once, and takes the results in the order of
// the intervals, so that the order of rows does not depend on timing.
func (a *attachment) scan(ctx context.Context) error {
	// The queue holds the results of intervals in order. Its length bounds how far the
	// scan runs before the goroutine that takes the results.
	ranges := ring(a.opts.ranges)
	g, ctx := errgroup.WithContext(ctx)
	// At most one finished interval per worker waits here.
	queue := make(chan chan *interval, a.opts.Workers)
	g.Go(func() error {
		defer close(queue)
		workers, ctx := errgroup.WithContext(ctx)
		workers.SetLimit(a.opts.Workers)
		for _, r := range ranges {
			out := make(chan *interval, 1)
			select {
			case queue <- out:
			case <-ctx.Done():
				return errors.Join(workers.Wait(), context.Cause(ctx))
			}
			workers.Go(func() error {
				defer close(out)
				iv, err := a.scanInterval(ctx, r)
				if err == nil {
					out <- iv
				}
				return err
			})
		}
		return workers.Wait()
	})
	g.Go(func() error {
		n := 0
		for out := range queue {
			iv, ok := <-out
			if !ok {
				break // the scan returns the error
			}
			n++
			err := a.take(ctx, iv, float64(n)/float64(len(ranges)))
			iv.meta.Release()
			if err != nil {
				return err
			}
		}
		for out := range queue { // results that came after a failure
			if iv, ok := <-out; ok {
				iv.meta.Release()
			}
		}
		return nil
	})
	return g.Wait()
}

// query returns a query for the rows of an interval, in pages of that many rows.
func (src *source) query(r pair, page int) *gocql.Query {
	names := []string{identifier(src.id)}
	for _, c := range src.columns {
		names = append(names, identifier(c.name))
	}
	id := identifier(src.id)
	stmt := fmt.Sprintf("SELECT %s FROM %s.%s WHERE token(%s) > ? AND token(%s) <= ?",
		strings.Join(names, ", "), identifier(src.keyspace), identifier(src.table), id, id)
	return src.session.Query(stmt, r.start, r.end).PageSize(page).Consistency(foreignLevel)
}

// scanInterval reads one interval of both tables, and joins their rows. The caller
// releases meta.
func (a *attachment) scanInterval(ctx context.Context, r pair) (*interval, error) {
	// The metadata rows of the interval are read first and held, because the samples are
	// joined to them one by one.
	meta, err := a.scanMetadata(ctx, r)
	if err != nil {
		return nil, err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, a.metaSchema)
	defer b.Release()
	iv := &interval{}
	var id gocql.UUID
	dest := []any{&id}
	var cells []*digest
	for _, c := range a.data.columns {
		if c.table != nil {
			d := &digest{table: c.table}
			cells = append(cells, d)
			dest = append(dest, d)
		} else {
			dest = append(dest, c.kind.dest())
		}
	}
	// A page of rows is held by the server and the driver as a whole, so its size in
	// bytes is what counts.
	page := 8 // until the size of rows is known
	if mean := a.meanRow.Load(); mean > 0 {
		page = int(min(max(attachPage/mean, 1), rowsAtOnce))
	}
	err = a.s.rows(ctx, a.data.query(r, page), a.opts.Data, "scan", func(scan scanner) error {
		for scan(dest...) {
			iv.ids = append(iv.ids, schema.ID(id))
			col := 0
			for i, c := range a.data.columns {
				if c.table == nil {
					c.kind.put(b.Field(col), dest[i+1])
					col++
				}
			}
			row, found := meta[id]
			delete(meta, id)
			if !found && a.opts.Metadata != "" {
				iv.noMetadata++
			}
			for i, c := range a.meta.columns {
				if found {
					c.kind.put(b.Field(col), row[i])
				} else {
					b.Field(col).AppendNull()
				}
				col++
			}
			refs := make([]*schema.BlobRef, len(cells))
			for i, d := range cells {
				if ref, ok := d.ref(schema.ID(id)); ok {
					refs[i] = &ref
					iv.bytes += ref.Size
				}
			}
			iv.blobs = append(iv.blobs, refs)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if n := int64(len(iv.ids)); n > 0 {
		a.meanRow.Store(iv.bytes/n + 1)
	}
	iv.noSample = int64(len(meta))
	rec := b.NewRecord()
	defer rec.Release()
	// The number of rows is given, because a record without columns has none.
	iv.meta = array.NewRecord(a.metaSchema, rec.Columns(), int64(len(iv.ids)))
	return iv, nil
}

// scanMetadata reads one interval of the metadata table, by key; nil if there is no such
// table. The values are those that columnType.put takes.
func (a *attachment) scanMetadata(ctx context.Context, r pair) (map[gocql.UUID][]any, error) {
	if a.opts.Metadata == "" {
		return nil, nil
	}
	rows := map[gocql.UUID][]any{}
	err := a.s.rows(ctx, a.meta.query(r, rowsAtOnce), a.opts.Metadata, "scan", func(scan scanner) error {
		for {
			var id gocql.UUID
			dest := []any{&id}
			for _, c := range a.meta.columns {
				dest = append(dest, c.kind.dest())
			}
			if !scan(dest...) {
				return nil
			}
			rows[id] = dest[1:]
		}
	})
	return rows, err
}

// digest receives a cell and keeps only its size and checksum.
type digest struct {
	table *foreignTable
	size  int64
	sum   schema.Sum
	null  bool
}

// UnmarshalCQL implements gocql.Unmarshaler.
func (d *digest) UnmarshalCQL(_ gocql.TypeInfo, data []byte) error {
	d.null, d.size, d.sum = data == nil, int64(len(data)), schema.Checksum(data)
	return nil
}

// ref is the reference of the cell in a row; false for a null.
func (d *digest) ref(id schema.ID) (schema.BlobRef, bool) {
	return schema.BlobRef{Key: d.table.key(id, d.sum), Size: d.size, Sum: d.sum}, !d.null
}

// take adds an interval's rows to the chunks of their splits, and stores pages that are
// full. One goroutine calls it, in the order of the intervals.
func (a *attachment) take(ctx context.Context, iv *interval, done float64) error {
	var names *array.String
	meta := iv.meta
	if a.splitAt >= 0 {
		names = meta.Column(a.splitAt).(*array.String)
	}
	if a.splitOnly {
		fields := slices.Delete(slices.Clone(meta.Schema().Fields()), a.splitAt, a.splitAt+1)
		columns := slices.Delete(slices.Clone(meta.Columns()), a.splitAt, a.splitAt+1)
		meta = array.NewRecord(arrow.NewSchema(fields, nil), columns, meta.NumRows())
		defer meta.Release()
	}
	skipped := int64(0)
	for row, id := range iv.ids {
		if a.known.has(id) {
			skipped++
			for _, ref := range iv.blobs[row] {
				if ref != nil {
					iv.bytes -= ref.Size
				}
			}
			continue
		}
		// A null in the split column, or an empty text, is no split.
		split := a.opts.Split
		if names != nil && names.IsValid(row) {
			split = names.Value(row)
		}
		sp, err := a.split(split)
		if err != nil {
			return err
		}
		if err := sp.builder.Append(id, meta, row, iv.blobs[row]); err != nil {
			return err
		}
		sp.rows++
		if sp.builder.Full(schema.PageRows) {
			if err := a.flushPage(ctx, sp); err != nil {
				return err
			}
		}
		if sp.pages.Len() == schema.ChunkPages {
			if err := a.flush(ctx, sp); err != nil {
				return err
			}
		}
	}
	a.report.Rows += int64(len(iv.ids)) - skipped
	a.report.Skipped += skipped
	a.report.Bytes += iv.bytes
	a.report.NoMetadata += iv.noMetadata
	a.report.NoSample += iv.noSample
	a.report.Done = done
	if a.opts.Progress != nil {
		a.opts.Progress(a.report)
	}
	return nil
}

// split returns the builder of a split, and makes it if needed. There are at most 256,
// because each holds up to a page of rows in memory.
func (a *attachment) split(name string) (*splitBuilder, error) {
	for _, sp := range a.splits {
		if sp.name == name {
			return sp, nil
		}
	}
	if name != "" {
		if err := schema.CheckName("split", name); err != nil {
			return nil, err
		}
	}
	const most = 256
	if len(a.splits) == most {
		return nil, bad("split column", a.opts.SplitColumn, fmt.Sprintf("a column of at most %d values", most))
	}
	sp := &splitBuilder{name: name, builder: schema.NewChunkBuilder(memory.DefaultAllocator, a.schema)}
	a.splits = append(a.splits, sp)
	return sp, nil
}

// flush stores the list of pages of a split's current chunk.
func (a *attachment) flush(ctx context.Context, sp *splitBuilder) error {
	if err := a.flushPage(ctx, sp); err != nil || sp.pages.Len() == 0 {
		return err
	}
	data, chunk := sp.pages.Finish()
	if data != nil {
		var err error
		if chunk.BlobRef, err = a.in.Put(ctx, data); err != nil {
			return err
		}
	}
	sp.chunks = append(sp.chunks, chunk)
	return nil
}

// flushPage stores the current page of a split, if it has rows.
func (a *attachment) flushPage(ctx context.Context, sp *splitBuilder) error {
	if sp.builder.Rows() == 0 {
		return nil
	}
	data, page, err := sp.builder.Finish()
	if err != nil {
		return err
	}
	if page.BlobRef, err = a.in.Put(ctx, data); err != nil {
		return err
	}
	sp.pages.Add(page)
	return nil
}

// snapshot concatenates the splits, in the order of their names, behind the rows of the
// parent if they are appended to it.
func (a *attachment) snapshot(ctx context.Context, parent *schema.Snapshot) (*schema.Snapshot, error) {
	source := "table " + a.opts.Data
	if a.opts.Metadata != "" {
		source += " with " + a.opts.Metadata
	}
	snap := &schema.Snapshot{Source: source, Schema: a.schema}
	if parent != nil {
		snap.Parent = parent.Number
		if a.opts.Append {
			snap.Splits, snap.Chunks = slices.Clone(parent.Splits), slices.Clone(parent.Chunks)
			snap.Sets = slices.Clone(parent.Sets)
		}
	}
	slices.SortFunc(a.splits, func(x, y *splitBuilder) int { return strings.Compare(x.name, y.name) })
	// Each split is one range of positions, so its rows are contiguous in the snapshot.
	at := snap.Rows()
	for _, sp := range a.splits {
		if err := a.flush(ctx, sp); err != nil {
			return nil, err
		}
		snap.Chunks = append(snap.Chunks, sp.chunks...)
		// A split that the parent has as well gets a second range, or a longer last one.
		rows := schema.Range{Start: at, End: at + sp.rows}
		at = rows.End
		if sp.name == "" {
			continue
		}
		i := slices.IndexFunc(snap.Splits, func(s schema.Split) bool { return s.Name == sp.name })
		if i < 0 {
			snap.Splits = append(snap.Splits, schema.Split{Name: sp.name, Ranges: []schema.Range{rows}})
			continue
		}
		ranges := slices.Clone(snap.Splits[i].Ranges)
		if last := &ranges[len(ranges)-1]; last.End == rows.Start {
			last.End = rows.End
		} else {
			ranges = append(ranges, rows)
		}
		snap.Splits[i].Ranges = ranges
	}
	return snap, nil
}

// known holds the ids of the snapshot that is appended to, 16 bytes each, and those that
// the scan found again. If an id were in two rows of a snapshot, two samples would have
// the same id.
type known struct {
	ids   []schema.ID // sorted
	named []string    // the first few that were found again
	met   int64       // how many were found again
}

// knownNamed is how many ids an error names.
const knownNamed = 5

// read reads the ids of a snapshot, page by page, and sorts them.
func (k *known) read(ctx context.Context, s *Store, snap *schema.Snapshot) error {
	k.ids = make([]schema.ID, 0, snap.Rows())
	err := store.EachPage(ctx, snap, snap.Chunks, s.get, func(_ schema.Chunk, m *schema.Manifest) error {
		for pos := range m.Rows() {
			k.ids = append(k.ids, m.ID(pos))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the manifest of %s@%d: %w", snap.Dataset, snap.Number, err)
	}
	slices.SortFunc(k.ids, compareIDs)
	return nil
}

// has reports whether an id is known, and records that it was found again.
func (k *known) has(id schema.ID) bool {
	if _, found := slices.BinarySearchFunc(k.ids, id, compareIDs); !found {
		return false
	}
	if k.met++; k.met <= knownNamed {
		k.named = append(k.named, gocql.UUID(id).String())
	}
	return true
}

// err is the error that names some of the ids that were found again; nil if none were.
func (k *known) err(snap *schema.Snapshot) error {
	if k.met == 0 {
		return nil
	}
	list := strings.Join(k.named, ", ")
	if more := k.met - int64(len(k.named)); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("%w: %d of the ids are in %s@%d already: %s; skip those that exist, or replace the snapshot",
		schema.ErrInvalid, k.met, snap.Dataset, snap.Number, list)
}

// compareIDs orders ids by their bytes.
func compareIDs(a, b schema.ID) int { return bytes.Compare(a[:], b[:]) }
