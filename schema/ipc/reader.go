package ipc

import (
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
)

// Batch is a record batch. Everything that its columns can reach was checked. Extension
// types are unwrapped, dictionaries are as they were sent. It is valid until the next
// message is read.
type Batch struct {
	Schema  *arrow.Schema
	Rows    int
	Columns []arrow.Array
}

// Reader reads the record batches of a stream whose schema is known. It is for one
// goroutine.
type Reader struct {
	Schema *arrow.Schema

	o            Options
	ids          []int64 // of the columns' dictionaries, noDictionary for columns without one
	dictionaries map[int64]*dictionary
	deltas       int
}

// dictionary is a dictionary that columns index.
type dictionary struct {
	dt     arrow.DataType // of its values
	values arrow.Array    // nil before it was sent
}

const (
	noDictionary = math.MinInt64
	// maxDeltas is how many additions to dictionaries a stream may have, since each
	// copies the whole dictionary.
	maxDeltas = 4096

	slotDictionaryID    = 4
	slotDictionaryData  = 6
	slotDictionaryDelta = 8
)

// NewReader returns a reader of the batches of a schema. ids are the ids of its columns'
// dictionaries, as DecodeSchema returns them.
func NewReader(s *arrow.Schema, ids map[int]int64, o Options) (*Reader, error) {
	r := &Reader{Schema: s, o: o, ids: make([]int64, s.NumFields()), dictionaries: map[int64]*dictionary{}}
	for i, f := range s.Fields() {
		r.ids[i] = noDictionary
		dict, ok := Storage(f.Type).(*arrow.DictionaryType)
		if !ok {
			continue
		}
		r.ids[i] = ids[i]
		dt := Storage(dict.ValueType)
		if known := r.dictionaries[ids[i]]; known != nil && !arrow.TypeEqual(known.dt, dt) {
			return nil, broken("two columns of different types have the dictionary of id %d", ids[i])
		}
		r.dictionaries[ids[i]] = &dictionary{dt: dt}
	}
	return r, nil
}

// Read reads a message's header and body. It returns nil for a dictionary.
func (r *Reader) Read(head, body []byte) (b *Batch, err error) {
	defer func() { err = leadsOut(recover(), err) }()
	kind, t, _, err := header(head)
	if err != nil {
		return nil, err
	}
	switch kind {
	case kindBatch:
		return r.batch(&t, body)
	case kindDictionary:
		return nil, r.dictionary(&t, head, body)
	default:
		return nil, broken("a message of type %d comes where record batches and dictionaries do", kind)
	}
}

func (r *Reader) batch(t *flatbuffers.Table, body []byte) (*Batch, error) {
	d, rows, err := r.o.decoder(t, body)
	if err != nil {
		return nil, err
	}
	b := &Batch{Schema: r.Schema, Rows: int(rows), Columns: make([]arrow.Array, r.Schema.NumFields())}
	for i, f := range r.Schema.Fields() {
		if b.Columns[i], err = r.column(d, f.Type, rows, r.ids[i]); err != nil {
			return nil, fmt.Errorf("column %q: %w", f.Name, err)
		}
	}
	return b, d.end()
}

// column reads a column. It checks indices of a dictionary against the values that were
// sent so far.
func (r *Reader) column(d *decoder, dt arrow.DataType, rows, id int64) (arrow.Array, error) {
	dt = Storage(dt)
	dict, ok := dt.(*arrow.DictionaryType)
	if !ok {
		return d.array(dt, rows)
	}
	indices, err := d.array(dict.IndexType, rows)
	if err != nil {
		return nil, err
	}
	values := r.dictionaries[id].values
	if values == nil {
		return nil, broken("its dictionary, of id %d, has not come", id)
	}
	at, err := Integers(indices)
	if err != nil {
		return nil, err
	}
	for i := range indices.Len() {
		if v := at(i); indices.IsValid(i) && (v < 0 || v >= int64(values.Len())) {
			return nil, broken("row %d has index %d of a dictionary of %d", i, v,
				values.Len())
		}
	}
	return array.NewDictionaryArray(dict, indices, values), nil
}

// dictionary reads the values of a dictionary, or additions to it.
func (r *Reader) dictionary(t *flatbuffers.Table, head, body []byte) error {
	id := t.GetInt64Slot(slotDictionaryID, 0)
	dict := r.dictionaries[id]
	if dict == nil {
		return broken("a dictionary has id %d, which no column has", id)
	}
	at := flatbuffers.UOffsetT(t.Offset(slotDictionaryData))
	if at == 0 {
		return broken("the dictionary of id %d has no values", id)
	}
	data := flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(t.Pos + at)}
	d, rows, err := r.o.decoder(&data, body)
	if err != nil {
		return err
	}
	values, err := d.array(dict.dt, rows)
	if err == nil {
		err = d.end()
	}
	if err != nil {
		return fmt.Errorf("the dictionary of id %d: %w", id, err)
	}
	// The dictionary outlives its message.
	if err := r.o.Kept.Grow(int64(len(head)+len(body)) + d.inflated); err != nil {
		return err
	}
	if t.GetBoolSlot(slotDictionaryDelta, false) && dict.values != nil {
		if r.deltas++; r.deltas > maxDeltas {
			return tooMuch("the stream adds to its dictionaries more than %d times; send them again as a whole", maxDeltas)
		}
		old := dict.values
		if err := r.o.Kept.Grow(2 * int64(len(body))); err != nil {
			return err
		}
		err = Bounded(func() (err error) {
			values, err = array.Concatenate([]arrow.Array{old, values},
				&Allocator{memory.DefaultAllocator, r.o.Kept})
			return err
		})
		if err != nil {
			return err
		}
	}
	dict.values = values
	return nil
}
