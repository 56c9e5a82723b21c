package ingest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// frame are rows to merge: columns by name, in order, each a list of nil, int64, float64, string or []byte (a blob).
type frame struct {
	ids    []schema.ID
	names  []string
	values [][]any
	types  map[string]arrow.DataType // types of columns whose values do not determine them
	split  string
}

func (f *frame) column(name string, values ...any) *frame {
	f.names, f.values = append(f.names, name), append(f.values, values)
	return f
}

// parts are the frame as an alteration takes it.
func (f *frame) parts(t *testing.T) (s *arrow.Schema, meta arrow.Record, blobs [][][]byte, n int) {
	t.Helper()
	var metaFields, blobFields []arrow.Field
	var columns []arrow.Array
	n = len(f.ids)
	for c, name := range f.names {
		n = len(f.values[c])
		dt, blob := f.types[name], false
		for _, v := range f.values[c] {
			switch v.(type) {
			case int64:
				dt = arrow.PrimitiveTypes.Int64
			case float64:
				dt = arrow.PrimitiveTypes.Float64
			case string:
				dt = arrow.BinaryTypes.String
			case []byte:
				blob = true
			}
		}
		if blob {
			blobFields = append(blobFields, schema.BlobField(name, "", true))
			var column [][]byte
			for _, v := range f.values[c] {
				b, _ := v.([]byte)
				column = append(column, b)
			}
			blobs = append(blobs, column)
			continue
		}
		if dt == nil {
			dt = arrow.BinaryTypes.String
		}
		b := array.NewBuilder(memory.DefaultAllocator, dt)
		for _, v := range f.values[c] {
			switch v := v.(type) {
			case nil:
				b.AppendNull()
			case int64:
				b.(*array.Int64Builder).Append(v)
			case float64:
				b.(*array.Float64Builder).Append(v)
			case string:
				b.(*array.StringBuilder).Append(v)
			}
		}
		metaFields = append(metaFields, arrow.Field{Name: name, Type: dt, Nullable: true})
		columns = append(columns, b.NewArray())
	}
	s, err := schema.NewSchema(metaFields, blobFields)
	if err != nil {
		t.Fatal(err)
	}
	return s, record(metaFields, columns, n), blobs, n
}

// alter makes an alteration with the options, and with the rows of the frame if it is not
// nil.
func alter(t *testing.T, st store.Store, opts AlterOptions, f *frame) (*schema.Snapshot, Altered, error) {
	t.Helper()
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	opts.Mem = mem
	if opts.Dataset == "" {
		opts.Dataset = "d"
	}
	var meta arrow.Record
	var blobs [][][]byte
	if f != nil {
		opts.Rows, meta, blobs, _ = f.parts(t)
	}
	a, err := Alter(t.Context(), st, opts)
	if err != nil {
		return nil, Altered{}, err
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	if f != nil {
		if err := a.Write(t.Context(), f.split, f.ids, meta, blobs); err != nil {
			return nil, Altered{}, err
		}
	}
	return a.Commit(t.Context())
}

func mustAlter(t *testing.T, st store.Store, opts AlterOptions, f *frame) (*schema.Snapshot, Altered) {
	t.Helper()
	snap, done, err := alter(t, st, opts, f)
	if err != nil {
		t.Fatal(err)
	}
	return snap, done
}

// table reads a snapshot back: a line for each sample, of its id, split and cells in the order of columns.
func table(t *testing.T, st store.Store, snap *schema.Snapshot) []string {
	t.Helper()
	form, err := schema.NewForm(snap)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	pos := int64(0)
	err = store.EachPage(t.Context(), snap, snap.Chunks, st.Get, func(_ schema.Chunk, m *schema.Manifest) error {
		p := m.Page(0)
		for i := range p.Rows() {
			id := p.ID(i)
			line := []string{schema.FormatID(id), form.SplitOf(pos)}
			pos++
			blob := 0
			for c, f := range snap.Schema.Fields()[1:] {
				cell := "null"
				if schema.IsBlob(f) {
					if ref, ok := p.Blob(blob, i); ok {
						b, err := st.Get(t.Context(), ref)
						if err != nil {
							return err
						}
						cell = fmt.Sprintf("%x", b.Bytes())
						b.Release()
					}
					blob++
				} else if a := p.Column(c + 1); a.IsValid(i) {
					cell = a.ValueStr(i)
				}
				line = append(line, f.Name+"="+cell)
			}
			lines = append(lines, strings.Join(line, " "))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// idOf is the id of row i of makeRows.
func idOf(i int) schema.ID { return schema.SampleID("d", fmt.Sprint(i)) }

func idsOf(numbers ...int) (ids []schema.ID) {
	for _, i := range numbers {
		ids = append(ids, idOf(i))
	}
	return ids
}
