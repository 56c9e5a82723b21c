package upload

import (
	"context"
	"fmt"
	"strconv"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/admission"
	"bowstring/flight/wire"
	"bowstring/schema"
	"bowstring/schema/ipc"
)

// upload maps the columns of an incoming stream to those of a dataset. newUpload makes it
// once for a stream. It is immutable.
type upload struct {
	dataset string
	split   string
	schema  *arrow.Schema // of the dataset
	meta    *arrow.Schema // its metadata columns

	first int64 // rows that the split had before; derived ids continue behind them
	found bool  // rows find existing ones by a column; they need no ids of their own

	id        *source // nil if ids are derived
	key       *source // the column that ids are derived from; nil for the row's number
	splitFrom *source // nil if all rows are in split
	metaFrom  []source
	blobFrom  []source
}

// source is where the values of a column come from: a column of the stream, or a child of a
// column that is a struct.
type source struct {
	name   string // for errors
	column int
	child  int // -1: the column itself
}

// uploadedRows are the rows of a record in the form that ingest takes. Their memory is
// valid until release, and belongs to the message. One goroutine uses them.
type uploadedRows struct {
	ids   []schema.ID
	meta  arrow.Record
	blobs [][][]byte
	bytes int64 // of all blobs
	runs  []run // all rows, grouped by split

	mem     memory.Allocator
	lease   *wire.Lease   // accounts for the memory of mem
	columns []arrow.Array // decoded arrays; release frees them
}

// run is the rows [start, end), which are all in one split.
type run struct {
	split      string
	start, end int
}

// rowWriter takes rows. It is an ingest.Writer or an ingest.Alteration.
type rowWriter interface {
	Write(ctx context.Context, split string, ids []schema.ID, meta arrow.Record, blobs [][][]byte) error
}

// write stores the rows run by run, because the writer takes one split at a time. Slices
// share the memory of the record.
func (r *uploadedRows) write(ctx context.Context, w rowWriter) error {
	for _, run := range r.runs {
		// The slices share the memory of the batch; only the headers of the columns are
		// new.
		meta := r.meta.NewSlice(int64(run.start), int64(run.end))
		blobs := make([][][]byte, len(r.blobs))
		for c := range blobs {
			blobs[c] = r.blobs[c][run.start:run.end]
		}
		var ids []schema.ID
		if r.ids != nil {
			ids = r.ids[run.start:run.end]
		}
		err := w.Write(ctx, run.split, ids, meta, blobs)
		meta.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// splits divides n rows into runs of one split. A row whose split is null or empty belongs
// to the split of the command.
func (u *upload) splits(columns []arrow.Array, n int) ([]run, error) {
	if u.splitFrom == nil {
		return []run{{u.split, 0, n}}, nil
	}
	// Neighbouring rows of one split make one run, so a sorted upload has few runs.
	at, err := u.text(columns, *u.splitFrom)
	if err != nil {
		return nil, err
	}
	var runs []run
	for i := range n {
		split := u.split
		if v, ok := at(i); ok && len(v) > 0 {
			split = string(v)
		}
		if last := len(runs) - 1; last >= 0 && runs[last].split == split {
			runs[last].end = i + 1
		} else {
			runs = append(runs, run{split, i, i + 1})
		}
	}
	return runs, nil
}

// release frees the decoded arrays. The rows must not be used afterwards.
func (r *uploadedRows) release() {
	if r.meta != nil {
		r.meta.Release()
	}
	for _, a := range r.columns {
		a.Release()
	}
}

// rows converts a batch of the stream. first is the number of the batch's first row in its
// split. Long loops pause, so that other uploads get turns. The caller releases the result;
// if there is an error, rows has released it.
func (u *upload) rows(mem memory.Allocator, lease *wire.Lease, rec *ipc.Batch, first int64,
	turn *admission.Turn) (_ *uploadedRows, err error) {
	r := &uploadedRows{mem: mem, lease: lease}
	defer func() {
		if err != nil {
			r.release()
		}
	}()
	// Dictionaries are decoded first: all later code sees plain values.
	columns := make([]arrow.Array, len(rec.Columns))
	for i := range columns {
		if columns[i], err = r.values(rec.Columns[i]); err != nil {
			return nil, fmt.Errorf("decoding column %q: %w", rec.Schema.Field(i).Name, err)
		}
	}
	n := rec.Rows

	// Then the metadata columns, in the order of the dataset's schema.
	meta := make([]arrow.Array, len(u.metaFrom))
	for i, from := range u.metaFrom {
		if meta[i], err = r.child(columns, from); err != nil {
			return nil, err
		}
	}
	r.meta = array.NewRecord(u.meta, meta, int64(n))

	// Then the blobs. Binary values are not copied: their bytes are the message's.
	r.blobs = make([][][]byte, len(u.blobFrom))
	for c, from := range u.blobFrom {
		at, err := u.text(columns, from)
		if err != nil {
			return nil, err
		}
		column := make([][]byte, n)
		for i := range column {
			if i%rowsAPiece == rowsAPiece-1 {
				if err := turn.Pause(); err != nil {
					return nil, err
				}
			}
			v, ok := at(i)
			if !ok {
				continue
			}
			if v == nil {
				v = []byte{} // empty, not null
			}
			column[i] = v
			r.bytes += int64(len(v))
		}
		r.blobs[c] = column
	}

	if r.runs, err = u.splits(columns, n); err != nil {
		return nil, err
	}
	// Rows that find existing ones by another column need no ids.
	if u.found && u.id == nil {
		return r, nil
	}
	r.ids, err = u.ids(columns, n, first, turn)
	return r, err
}

// values decodes a dictionary into a dense array, which r releases. It returns any other
// array unchanged.
func (r *uploadedRows) values(a arrow.Array) (arrow.Array, error) {
	dict, ok := a.(*array.Dictionary)
	if !ok {
		return a, nil
	}
	v, err := ipc.Dense(dict, r.mem, r.lease)
	if err != nil {
		return nil, refused(err)
	}
	r.columns = append(r.columns, v)
	return v, nil
}

// metaBytes returns the size of the metadata columns.
func (r *uploadedRows) metaBytes() int64 {
	// Children are counted as well: lists and structs have their values there.
	var sum int64
	var add func(d arrow.ArrayData)
	add = func(d arrow.ArrayData) {
		for _, b := range d.Buffers() {
			if b != nil {
				sum += int64(b.Len())
			}
		}
		for _, c := range d.Children() {
			add(c)
		}
	}
	for _, c := range r.meta.Columns() {
		add(c.Data())
	}
	return sum
}

// child returns the values of a metadata column. A child of a struct is null if the struct
// is null: Arrow keeps the two validity maps apart, so the array is copied.
func (r *uploadedRows) child(columns []arrow.Array, from source) (arrow.Array, error) {
	col := columns[from.column]
	if from.child < 0 {
		return col, nil
	}
	at, err := structText(col.(*array.Struct), from.child)
	if err != nil {
		return nil, err
	}
	t := col.(*array.Struct).Field(from.child).DataType()
	b := array.NewBuilder(r.mem, t)
	defer b.Release()
	for i := range col.Len() {
		v, ok := at(i)
		if !ok {
			b.AppendNull()
		} else if err := b.AppendValueFromString(string(v)); err != nil {
			return nil, err
		}
	}
	a := b.NewArray()
	r.columns = append(r.columns, a)
	return a, nil
}

// text returns the values of a binary or text source.
func (u *upload) text(columns []arrow.Array, from source) (func(int) ([]byte, bool), error) {
	if from.child < 0 {
		return texts(columns[from.column])
	}
	return structText(columns[from.column].(*array.Struct), from.child)
}

// structText returns the values of a child of a struct, null if the struct is null.
func structText(s *array.Struct, child int) (func(int) ([]byte, bool), error) {
	at, err := texts(s.Field(child))
	if err != nil {
		return nil, err
	}
	return func(i int) ([]byte, bool) {
		if s.IsNull(i) {
			return nil, false
		}
		return at(i)
	}, nil
}

// ids reads the ids of the rows from their column, or derives them. A derived id is a hash
// of the dataset and the key, so a repeated upload gets the same ids.
func (u *upload) ids(columns []arrow.Array, n int, first int64, turn *admission.Turn) ([]schema.ID, error) {
	out := make([]schema.ID, n)
	if u.id != nil {
		at, err := ids(u.id.name, columns[u.id.column])
		if err != nil {
			return nil, err
		}
		for i := range out {
			if i%rowsAPiece == rowsAPiece-1 {
				if err := turn.Pause(); err != nil {
					return nil, err
				}
			}
			if out[i], err = at(i); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	// Without a column of ids each id is derived from the row's key.
	at, err := u.keys(columns, first)
	if err != nil {
		return nil, err
	}
	for i := range out {
		if i%rowsAPiece == rowsAPiece-1 {
			if err := turn.Pause(); err != nil {
				return nil, err
			}
		}
		key, ok := at(i)
		if !ok {
			return nil, &schema.FieldError{Field: fmt.Sprintf("column %q, row %d of its batch", u.key.name, i),
				Got: "null", Want: "a value, as the ids are derived from it"}
		}
		out[i] = schema.SampleID(u.dataset, key)
	}
	return out, nil
}

// keys returns the text from which a row's id is derived: the value of the key column, or
// else the split and the row's number.
func (u *upload) keys(columns []arrow.Array, first int64) (func(int) (string, bool), error) {
	if u.key == nil {
		return func(i int) (string, bool) {
			return "put:" + u.split + ":" + strconv.FormatInt(first+int64(i), 10), true
		}, nil
	}
	col := columns[u.key.column]
	if u.key.child < 0 && arrow.IsInteger(col.DataType().ID()) {
		at, err := ipc.Integers(col)
		if err != nil {
			return nil, refused(err)
		}
		return func(i int) (string, bool) { return strconv.FormatInt(at(i), 10), col.IsValid(i) }, nil
	}
	at, err := u.text(columns, *u.key)
	if err != nil {
		return nil, &schema.FieldError{Field: "put.key", Got: fmt.Sprintf("%q, a column of type %s", u.key.name,
			schema.ShownType(col.DataType())), Want: "a column of text, binary or integers"}
	}
	return func(i int) (string, bool) {
		v, ok := at(i)
		return string(v), ok
	}, nil
}
