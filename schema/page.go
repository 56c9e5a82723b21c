package schema

import (
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// Form is what all pages of a snapshot's manifest have in common: columns, and the splits
// of positions. It is immutable and safe for concurrent use. One Form serves all pages,
// so opening a page allocates little.
type Form struct {
	snap     *Snapshot
	physical *arrow.Schema
	message  []byte // schema message of a page, encoded
	blobs    []arrow.Field
	first    int          // index of the first blob column
	splits   []splitRange // ascending and disjoint
	rows     int64
	parts    []formPart // of a form of several snapshots, else nil

	statistics *statisticsLayout
}

type splitRange struct {
	Range
	name string
}

// NewForm checks the record of a snapshot. An impossible record is an ErrDataLoss.
func NewForm(snap *Snapshot) (*Form, error) {
	if err := CheckSchema(snap.Schema); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrDataLoss, err.Error()) // the snapshot is broken, not a request
	}
	f := &Form{snap: snap, physical: ChunkSchema(snap.Schema), blobs: BlobFields(snap.Schema), rows: snap.Rows()}
	f.statistics = newStatisticsLayout(snap.Schema)
	f.first = f.physical.NumFields() - len(f.blobs)
	var err error
	if f.message, err = encodeSchema(f.physical); err != nil {
		return nil, err
	}
	return f, f.openSplits()
}

// openSplits sorts the ranges of all splits, and checks that they are disjoint and within
// the rows.
func (f *Form) openSplits() error {
	for _, s := range f.snap.Splits {
		for _, r := range s.Ranges {
			if r.Start < 0 || r.End < r.Start || r.End > f.rows {
				return fmt.Errorf("%w: split %q has positions %d to %d of %d", ErrDataLoss, s.Name, r.Start, r.End,
					f.rows)
			}
			if r.End > r.Start {
				f.splits = append(f.splits, splitRange{r, s.Name})
			}
		}
	}
	slices.SortFunc(f.splits, func(a, b splitRange) int {
		switch {
		case a.Start < b.Start:
			return -1
		case a.Start > b.Start:
			return 1
		}
		return 0
	})
	for i := 1; i < len(f.splits); i++ {
		if a, b := f.splits[i-1], f.splits[i]; b.Start < a.End {
			return fmt.Errorf("%w: position %d is in split %q and in split %q", ErrDataLoss, b.Start, a.name, b.name)
		}
	}
	return nil
}

// Snapshot is the snapshot of the form.
func (f *Form) Snapshot() *Snapshot { return f.snap }

// Rows is the number of samples in the snapshot.
func (f *Form) Rows() int64 { return f.rows }

// SplitOf names the split that a position is in, "" if it is in none.
func (f *Form) SplitOf(pos int64) string {
	if s := f.splitAt(pos); s != nil {
		return s.name
	}
	return ""
}

// SplitsIn returns the least and the greatest result of SplitOf for positions in [start,
// end), which must not be empty.
func (f *Form) SplitsIn(start, end int64) (low, high string) {
	first := true
	add := func(name string) {
		if first || name < low {
			low = name
		}
		if first || name > high {
			high = name
		}
		first = false
	}
	i := f.splitFrom(start)
	for at := start; at < end; i++ {
		if i == len(f.splits) || f.splits[i].Start >= end {
			add("")
			break
		}
		if f.splits[i].Start > at {
			add("")
		}
		add(f.splits[i].name)
		at = f.splits[i].End
	}
	return low, high
}

// SplitBytes is the total length of SplitOf for positions in [start, end).
func (f *Form) SplitBytes(start, end int64) (n int64) {
	for i := f.splitFrom(start); i < len(f.splits) && f.splits[i].Start < end; i++ {
		s := &f.splits[i]
		n += (min(s.End, end) - max(s.Start, start)) * int64(len(s.name))
	}
	return n
}

// splitFrom is the index of the first range that ends after a position.
func (f *Form) splitFrom(pos int64) int {
	i, _ := slices.BinarySearchFunc(f.splits, pos, func(s splitRange, pos int64) int {
		if s.End <= pos {
			return -1
		}
		return 1
	})
	return i
}

// splitAt is the range that contains a position; nil if none does.
func (f *Form) splitAt(pos int64) *splitRange {
	i, found := slices.BinarySearchFunc(f.splits, pos, func(s splitRange, pos int64) int {
		switch {
		case s.End <= pos:
			return -1
		case s.Start > pos:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &f.splits[i]
}

// ColumnIndex finds a stored column by its name.
func (f *Form) ColumnIndex(name string) (int, error) {
	if at := f.snap.Schema.FieldIndices(name); len(at) > 0 {
		return at[0], nil
	}
	return 0, fmt.Errorf("%w: %s@%d has no stored column %s", ErrNotFound, f.snap.Dataset, f.snap.Number, Quote(name))
}

// Page is an opened manifest page: some consecutive rows, which are read in place and
// take no heap memory each. It is immutable except for Release, and safe for concurrent
// use.
//
// Rows given to its methods must be in [0, Rows()).
type Page struct {
	rows    int
	columns []view
	ids     []ID
	refs    []refs // by blob column
	blob    Blob
}

// OpenPage opens the page that want names. The page owns the blob from now on, also if
// OpenPage fails. Bytes that contradict want are an ErrDataLoss.
func (f *Form) OpenPage(want Chunk, blob Blob) (*Page, error) {
	p := &Page{blob: blob}
	if err := Guard(func() error { return p.open(f, want) }); err != nil {
		p.Release()
		return nil, err
	}
	return p, nil
}

// open checks the page's checksum, schema, structure and sizes, once. Reading rows
// afterwards needs no checks.
func (p *Page) open(f *Form, want Chunk) error {
	data := p.blob.Bytes()
	if err := want.Check(data); err != nil {
		return err
	}
	if !aligned(data) { // the store could not align it
		data = slices.Concat(alignedBytes(len(data))[:0], data)
	}
	cols, rows, err := decodeStream(data, f.physical, f.message)
	if err != nil {
		return err
	}
	if int64(rows) != want.Rows || rows == 0 {
		return fmt.Errorf("%w: it has %d rows, the snapshot says %d", ErrDataLoss, rows, want.Rows)
	}
	if len(want.BlobBytes) != len(f.blobs) {
		return fmt.Errorf("%w: bytes of %d blob columns are counted, the schema has %d", ErrDataLoss,
			len(want.BlobBytes), len(f.blobs))
	}
	p.setColumns(f, cols, rows)
	for i := range p.refs {
		if err := p.refs[i].check(want.BlobBytes[i]); err != nil {
			return fmt.Errorf("column %q: %w", f.blobs[i].Name, err)
		}
	}
	return nil
}

// setColumns makes the views of ids and references.
func (p *Page) setColumns(f *Form, cols []view, rows int) {
	p.rows, p.columns, p.ids = rows, cols, cast[ID](cols[0].values)
	p.refs = make([]refs, len(f.blobs))
	for i := range p.refs {
		v := &p.columns[f.first+i]
		p.refs[i] = refs{view: v, key: cast[Key](v.children[0].values), size: cast[uint64](v.children[1].values),
			sum: cast[uint64](v.children[2].values)}
	}
}

// Release releases the page's bytes. Nothing obtained from the page may be used
// afterwards.
func (p *Page) Release() {
	p.blob.Release()
	p.columns, p.ids, p.refs = nil, nil, nil
}

// Rows is the number of rows.
func (p *Page) Rows() int { return p.rows }

// ID returns the id of a row. It does not allocate.
func (p *Page) ID(row int) ID { return p.ids[row] }

// Blob returns the reference in blob column col, counted among the blob columns,
// in a row; ok is false if the cell is null. It does not allocate.
func (p *Page) Blob(col, row int) (ref BlobRef, ok bool) {
	r := &p.refs[col]
	if r.view.null(row) {
		return BlobRef{}, false
	}
	return BlobRef{Key: r.key[row], Size: int64(r.size[row]), Sum: Sum(r.sum[row])}, true
}

// TryBlob is Blob, but returns an ErrDataLoss if the manifest's file can no longer be
// read.
func (p *Page) TryBlob(col, row int) (ref BlobRef, ok bool, err error) {
	err = Guard(func() error {
		ref, ok = p.Blob(col, row)
		return nil
	})
	return ref, ok, err
}

// Column returns a stored column, by its index in the schema. A blob column is a
// struct of key, size and sum. The array needs no Release, and lives as long as the page.
func (p *Page) Column(i int) arrow.Array { return p.columns[i].array() }

// Touch reads a byte of each memory page. The caller then reads the rows in a place where
// a fault could not be distinguished from other errors.
func (p *Page) Touch() error {
	return Guard(func() error {
		touch(p.blob.Bytes())
		return nil
	})
}

// Row is the place of a sample: its page, and its row there.
type Row struct {
	Page *Page
	At   int
}

// Blob is the page's, of the row.
func (r Row) Blob(col int) (BlobRef, bool) { return r.Page.Blob(col, r.At) }

// TryBlob is the page's, of the row.
func (r Row) TryBlob(col int) (BlobRef, bool, error) { return r.Page.TryBlob(col, r.At) }

// ID is the page's, of the row.
func (r Row) ID() ID { return r.Page.ID(r.At) }

// Gathering copies rows of many pages into one in memory of its own, so that the
// pages need not be kept. It is not safe for concurrent use.
type Gathering struct {
	form     *Form
	builders []*columnBuilder
	rows     int
}

// NewGathering returns one without rows.
func (f *Form) NewGathering() *Gathering {
	g := &Gathering{form: f}
	for _, field := range f.physical.Fields() {
		g.builders = append(g.builders, newColumnBuilder(memory.DefaultAllocator, field))
	}
	return g
}

// Append copies n rows of a page, from row start on, behind those that are there. It fails
// with ErrLimit where they are too many for one page, and with ErrDataLoss where the
// manifest's file cannot be read.
func (g *Gathering) Append(p *Page, start, n int) error {
	return Guard(func() error {
		for i, b := range g.builders {
			if err := b.check(&p.columns[i], start, n); err != nil {
				return fmt.Errorf("column %q: %w", b.field.Name, err)
			}
		}
		for i, b := range g.builders {
			b.append(&p.columns[i], start, n)
		}
		g.rows += n
		return nil
	})
}

// Rows is how many rows were copied.
func (g *Gathering) Rows() int { return g.rows }

// Page makes a page of what was copied, whose memory is the garbage collector's.
// Nothing may be appended afterwards.
func (g *Gathering) Page() *Page {
	cols := make([]view, len(g.builders))
	for i, b := range g.builders {
		cols[i] = b.view()
	}
	p := &Page{}
	p.setColumns(g.form, cols, g.rows)
	return p
}

// view views what has been appended, in place.
func (c *columnBuilder) view() view {
	v := view{dt: c.field.Type, shape: c.shape, width: c.width, n: c.n, nulls: c.nulls}
	if c.nulls > 0 {
		v.validity = c.validity.b
	}
	switch c.shape {
	case shapeBits, shapeFixed:
		v.values = c.values.b
	case shapeBytes:
		v.off32, v.values = cast[int32](c.offsets.b), c.values.b
	case shapeBytes8:
		v.off64, v.values = cast[int64](c.offsets.b), c.values.b
	case shapeList:
		v.off32 = cast[int32](c.offsets.b)
	}
	for _, sub := range c.children {
		v.children = append(v.children, sub.view())
	}
	return v
}
