package source

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

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
}

// maxColumns bounds the columns that come from the keys of JSON objects.
const maxColumns = 1000

// place is a row in a file.
type place struct {
	file string
	line int
}

func (p place) String() string { return fmt.Sprintf("%s:%d", Quoted(p.file), p.line) }

var tableExtensions = []string{"csv", "tsv", "jsonl", "parquet"}

// readTable reads files of one kind as one table: Parquet with the same columns,
// the others with any. files are relative to root.
func readTable(ctx context.Context, root string, files []string) (*table, error) {
	kind := extension(files[0])
	for _, f := range files[1:] {
		if extension(f) != kind {
			return nil, fmt.Errorf("%w: %s and %s: metadata in two formats", schema.ErrInvalid, Quoted(files[0]),
				Quoted(f))
		}
	}
	if kind == "parquet" {
		return readParquetTable(ctx, root, files)
	}
	t := &looseTable{index: map[string]int{}}
	for _, f := range files {
		read := t.readCSV
		switch kind {
		case "tsv":
			read = t.readTSV
		case "jsonl":
			read = t.readJSONL
		case "txt":
			read = t.readTranscripts
		}
		if err := readFile(filepath.Join(root, f), func(r io.Reader) error { return read(f, r) }); err != nil {
			return nil, fmt.Errorf("%s: %w", Quoted(f), err)
		}
	}
	return t.build()
}

// maxTable bounds a table that is read into memory, by the bytes of its file.
const maxTable = 2 << 30

func readFile(path string, read func(io.Reader) error) error {
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
	return errors.Join(read(bufio.NewReaderSize(f, 1<<16)), f.Close())
}

// maxGaps bounds the cells that no row wrote: a few bytes of a new key in each row would
// make as many columns as there are rows.
const maxGaps = 1 << 26

// looseTable collects rows whose columns and types show only as they are read.
type looseTable struct {
	names  []string
	index  map[string]int // of names
	values [][]any        // by column, shorter where the last rows have none
	lines  []place
	gaps   int // cells that no row wrote
}

func (t *looseTable) column(name string) int {
	c, ok := t.index[name]
	if !ok {
		c = len(t.names)
		t.index[name] = c
		t.names = append(t.names, name)
		t.values = append(t.values, nil)
	}
	return c
}

func (t *looseTable) set(column int, v any) error {
	row := len(t.lines) - 1
	t.gaps += row - len(t.values[column])
	if t.gaps > maxGaps {
		return fmt.Errorf("%w: line %d: more than %d cells are empty in the lines before, as few of them have "+
			"the same keys", schema.ErrLimit, t.lines[row].line, maxGaps)
	}
	if missing := row - len(t.values[column]); missing > 0 {
		t.values[column] = append(t.values[column], make([]any, missing)...)
	}
	t.values[column] = append(t.values[column], v)
	return nil
}

func (t *looseTable) readCSV(file string, r io.Reader) error { return t.readDelimited(file, r, ',') }
func (t *looseTable) readTSV(file string, r io.Reader) error { return t.readDelimited(file, r, '\t') }

func (t *looseTable) readDelimited(file string, r io.Reader, comma rune) error {
	in := csv.NewReader(r)
	in.Comma, in.ReuseRecord = comma, true
	header, err := in.Read()
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the file is empty, want a line with the names of the columns", schema.ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
	}
	var columns []int
	for i, name := range header {
		if i == 0 {
			name = strings.TrimPrefix(name, "\ufeff") // byte order mark
		}
		name = strings.TrimSpace(name)
		c := t.column(name)
		if slices.Contains(columns, c) {
			return fmt.Errorf("%w: two columns are named %q", schema.ErrInvalid, name)
		}
		columns = append(columns, c)
	}
	for {
		cells, err := in.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
		}
		line, _ := in.FieldPos(0)
		t.lines = append(t.lines, place{file, line})
		for i, c := range columns {
			if !utf8.ValidString(cells[i]) {
				return fmt.Errorf("%w: line %d: column %s is not valid UTF-8", schema.ErrInvalid, line,
					Quoted(t.names[c]))
			}
			if err := t.set(c, textValue(cells[i])); err != nil {
				return err
			}
		}
	}
}

func (t *looseTable) readJSONL(file string, r io.Reader) error {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 64<<20)
	for line := 1; in.Scan(); line++ {
		if len(strings.TrimSpace(in.Text())) == 0 {
			continue
		}
		object, err := parseObject(in.Bytes())
		if err != nil {
			return fmt.Errorf("%w: line %d: %w", schema.ErrInvalid, line, err)
		}
		t.lines = append(t.lines, place{file, line})
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if err := t.set(t.column(name), object[name]); err != nil {
				return err
			}
		}
		if len(t.names) > maxColumns {
			return fmt.Errorf("%w: line %d: there are more than %d different keys, which would each be a column",
				schema.ErrLimit, line, maxColumns)
		}
	}
	return in.Err()
}

// build finds each column's type and makes its array.
func (t *looseTable) build() (*table, error) {
	out := &table{rows: len(t.lines), lines: t.lines}
	for c, name := range t.names {
		var typ inferred
		for _, v := range t.values[c] {
			typ.observe(v)
		}
		b := array.NewBuilder(memory.DefaultAllocator, typ.dataType())
		for row := range out.rows {
			var v any
			if row < len(t.values[c]) {
				v = typ.convert(t.values[c][row])
			}
			if err := appendValue(b, v); err != nil {
				return nil, fmt.Errorf("%s, column %q: %w", t.lines[row], name, err)
			}
		}
		out.fields = append(out.fields, arrow.Field{Name: name, Type: typ.dataType(), Nullable: true})
		out.columns = append(out.columns, b.NewArray())
		t.values[c] = nil
	}
	return out, nil
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

// rename gives names that are not free another one, source_NAME, and says so.
func (t *table) rename(taken ...string) (notes []string) {
	for i, f := range t.fields {
		name := freeName(f.Name, taken)
		if name != f.Name {
			notes = append(notes, fmt.Sprintf("column %q is kept as %q", f.Name, name))
			t.fields[i].Name = name
		}
	}
	return notes
}

// freeName returns a name for a column of the source that is not one of
// Bowstring's own nor among taken.
func freeName(name string, taken []string) string {
	if name == schema.IDColumn || name == schema.PositionColumn || name == schema.SplitColumn ||
		slices.Contains(taken, name) {
		return "source_" + name
	}
	return name
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
