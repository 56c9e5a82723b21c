package source

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/cmd/bowstring/source/parquet"
	"bowstring/schema"
)

// parquetLayout is the columns of files that belong together. They are matched by name, and have the narrowest type
// that holds the values of all files.
type parquetLayout struct {
	choice *choice
	files  []parquetColumns
	times  map[string]parquet.Times // of INT96, by column
	fields []arrow.Field            // set by settle
	first  string                   // the file that the others are held against
	notes  []string
}

// parquetColumns are the columns of a file that are wanted.
type parquetColumns struct {
	name    string
	columns []parquet.Column
	info    string // what the `datasets` library says of them
}

func newParquetLayout(c *choice) *parquetLayout {
	return &parquetLayout{choice: c, times: map[string]parquet.Times{}}
}

// look reads the columns of a file. Its error is why the file cannot be read.
func (l *parquetLayout) look(name, path string) (err error) {
	f, err := openParquetFile(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return l.add(name, f)
}

// add is look at an open file.
func (l *parquetLayout) add(name string, f *parquet.File) error {
	wants := func(name string) bool { return l.choice.wants(name, freeName(name, nil)) }
	columns, err := f.Columns(wants)
	if err != nil {
		return err
	}
	columns = slices.DeleteFunc(columns, func(c parquet.Column) bool { return !wants(c.Name) })
	for i, c := range columns {
		if c.Err != nil {
			return fmt.Errorf("column %s cannot be read: %w; --leave-out leaves it out", Quoted(c.Name), c.Err)
		}
		if columnNamed(columns[:i], c.Name) >= 0 {
			return fmt.Errorf("two columns are named %s", Quoted(c.Name))
		}
	}
	for _, c := range columns {
		l.times[c.Name] = l.times[c.Name].Or(c.Times)
	}
	l.files = append(l.files, parquetColumns{name, columns, f.Metadata("huggingface")})
	return nil
}

func columnNamed(columns []parquet.Column, name string) int {
	return slices.IndexFunc(columns, func(c parquet.Column) bool { return c.Name == name })
}

// micro says whether the INT96 timestamps of a column become microseconds: where nanoseconds do not reach one of them,
// and all are whole microseconds.
func (l *parquetLayout) micro(column string) bool {
	t := l.times[column]
	return t.Far && !t.Fine
}

// settle finds the types that the columns have, when all files were looked at. It yields the files whose columns are
// not those of the files before, and why.
func (l *parquetLayout) settle() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var whole []arrow.Field
		for _, f := range l.files {
			if l.first == "" {
				l.first, whole = f.name, l.fieldsOf(f)
				continue
			}
			joined, err := l.join(whole, f)
			if err != nil {
				if !yield(f.name, err) {
					return
				}
				continue
			}
			whole = joined
		}
		for _, f := range whole {
			if f.Type.ID() == arrow.NULL {
				l.notes = append(l.notes, fmt.Sprintf("column %s holds nothing: it is kept as text, all null",
					Quoted(f.Name)))
			}
			f.Type = storedType(f.Type, true)
			l.fields = append(l.fields, f)
		}
	}
}

func (l *parquetLayout) fieldsOf(f parquetColumns) []arrow.Field {
	var fields []arrow.Field
	for _, c := range f.columns {
		if l.micro(c.Name) {
			c.Type = c.Micro
		}
		fields = append(fields, c.Field)
	}
	return fields
}

// join widens the columns so that they hold those of one more file.
func (l *parquetLayout) join(whole []arrow.Field, f parquetColumns) ([]arrow.Field, error) {
	whole = slices.Clone(whole)
	have := l.fieldsOf(f)
	for i, w := range whole {
		at := columnNamed(f.columns, w.Name)
		if at < 0 {
			return nil, fmt.Errorf("its columns are not those of %s: %s is missing", Quoted(l.first), Quoted(w.Name))
		}
		t, ok := unify(w.Type, have[at].Type)
		if !ok {
			return nil, fmt.Errorf("column %s is %s here and %s in %s, and no type holds both; --leave-out leaves it out",
				Quoted(w.Name), schema.ShownType(have[at].Type), schema.ShownType(w.Type), Quoted(l.first))
		}
		whole[i].Type = t
	}
	for _, c := range have {
		if !slices.ContainsFunc(whole, func(w arrow.Field) bool { return w.Name == c.Name }) {
			return nil, fmt.Errorf("its columns are not those of %s: %s is one more; --leave-out leaves it out",
				Quoted(l.first), Quoted(c.Name))
		}
	}
	return whole, nil
}

// info is what the first file says that the `datasets` library knows of the columns, "" if it says nothing.
func (l *parquetLayout) info() string {
	for _, f := range l.files {
		if f.name == l.first {
			return f.info
		}
	}
	return ""
}
