package source

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// table is metadata of samples, in memory: CSV, TSV, JSON lines or Parquet.
type table struct {
	fields  []arrow.Field
	columns []arrow.Array // one chunk each
	rows    int
	lines   []place // where each row stands, for messages
	bad     []badRow
	notes   []string
}

// badRow is a row that cannot be read, and why.
type badRow struct {
	at     place
	reason string
}

// sample is the row as a bad sample.
func (r *badRow) sample() Sample { return Sample{Key: r.at.String(), Bad: r.reason} }

const (
	// maxColumns bounds the columns that come from the keys of JSON objects.
	maxColumns = 1000
	// maxBadRows bounds the rows that cannot be read: a file with more of them is no table.
	maxBadRows = 1 << 20
)

// place is a row in a file.
type place struct {
	file string
	line int
}

func (p place) String() string { return fmt.Sprintf("%s:%d", Quoted(p.file), p.line) }

var tableExtensions = []string{"csv", "tsv", "jsonl", "ndjson", "json", "parquet"}

// tableOptions say how a table is read.
type tableOptions struct {
	choice *choice
	// text are columns whose cells are text, whatever they look like, and which are read whatever choice says. Of those
	// in paths only the first that there is holds text.
	paths, text []string
	// typed are the columns that may be other than text; nil means all.
	typed []string
}

// readTable reads files of one kind as one table: Parquet with columns of the same names,
// the others with any. files are relative to root.
func readTable(ctx context.Context, root string, files []string, opts tableOptions) (*table, error) {
	kind := extension(files[0])
	for _, f := range files[1:] {
		if extension(f) != kind {
			return nil, fmt.Errorf("%w: %s and %s: metadata in two formats", schema.ErrInvalid, Quoted(files[0]),
				Quoted(f))
		}
	}
	if kind == "parquet" {
		return readParquetTable(ctx, root, files, nil)
	}
	t := newLooseTable(opts)
	for _, f := range files {
		if err := t.readFile(ctx, root, f, kind); err != nil {
			return nil, fmt.Errorf("%s: %w", Quoted(f), err)
		}
	}
	return t.build()
}

// maxTable bounds a table that is read into memory, by the bytes of its file.
const maxTable = 2 << 30

// readFile opens a file of text for read, which gets UTF-8.
func readFile(path string, read func(*bufio.Reader) error) error {
	f, err := openFile(path)
	if err != nil {
		return errors.New(reason(err))
	}
	if info, err := f.Stat(); err != nil || info.Size() > maxTable {
		if err == nil {
			err = fmt.Errorf("%w: %w; a larger table is read as Parquet", schema.ErrLimit, tooLarge(maxTable))
		}
		return errors.Join(err, f.Close())
	}
	in, err := asUTF8(bufio.NewReaderSize(f, 1<<16))
	if err == nil {
		err = read(in)
	}
	return errors.Join(err, f.Close())
}

// find returns the index of the first of the columns that there is, or -1.
func (t *table) find(names ...string) int {
	for _, name := range names {
		if i := slices.IndexFunc(t.fields, func(f arrow.Field) bool { return f.Name == name }); i >= 0 {
			return i
		}
	}
	return -1
}

// choose removes the columns that are not wanted.
func (t *table) choose(c *choice) {
	for i := len(t.fields) - 1; i >= 0; i-- {
		if name := t.fields[i].Name; !c.wants(name, freeName(name, nil)) {
			t.remove(i)
		}
	}
}

// remove takes a column out.
func (t *table) remove(i int) arrow.Array {
	c := t.columns[i]
	t.fields, t.columns = slices.Delete(t.fields, i, i+1), slices.Delete(t.columns, i, i+1)
	return c
}

// classes turns a label column of names into indices of the sorted names.
func (t *table) classes(i int) error {
	text, ok := t.columns[i].(array.StringLike)
	if !ok {
		return nil
	}
	var names []string
	for row := range text.Len() {
		if text.IsValid(row) {
			names = append(names, text.Value(row))
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	b := array.NewInt64Builder(memory.DefaultAllocator)
	for row := range text.Len() {
		if text.IsNull(row) {
			b.AppendNull()
			continue
		}
		class, _ := slices.BinarySearch(names, text.Value(row))
		b.Append(int64(class))
	}
	t.columns[i] = b.NewArray()
	t.fields[i] = schema.ClassField(t.fields[i].Name, names)
	return nil
}

// rename gives columns whose names cannot be those of the dataset others, and says so.
func (t *table) rename(taken ...string) (notes []string) {
	names := freeNames("source_", fieldNames(t.fields), taken)
	for i, f := range t.fields {
		if names[i] != f.Name {
			notes = append(notes, keptAs("column", f.Name, names[i]))
			t.fields[i].Name = names[i]
		}
	}
	return notes
}

// cells returns a row as values of a sample.
func (t *table) cells(row int) []any {
	values := make([]any, len(t.columns))
	for i, c := range t.columns {
		values[i] = Cell{c, row}
	}
	return values
}

// text returns a cell of a column of text, "" for null or another type.
func text(column arrow.Array, row int) string {
	if s, ok := column.(array.StringLike); ok && s.IsValid(row) {
		return s.Value(row)
	}
	return ""
}
