package flight

import (
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"

	"bowstring/schema"
)

// The Arrow library's reader takes a client's lengths, offsets and claims as
// they are, and copies every buffer. What comes in is decoded here instead: each
// length is checked against the bytes that are there before anything is made of
// it, values are read where they lie, and what decompression takes is counted.

// batch is a record batch that came in. All that its columns can reach was
// checked. Extensions are unwrapped, dictionaries are as they came.
type batch struct {
	schema  *arrow.Schema
	rows    int
	columns []arrow.Array
}

// batches decodes the record batches of a stream, whose schema has come.
type batches struct {
	in           *incoming
	schema       *arrow.Schema
	ids          []int64 // of the columns' dictionaries, noDictionary for those without
	dictionaries map[int64]*dictionary
	deltas       int
}

// dictionary is what columns index.
type dictionary struct {
	dt     arrow.DataType // of its values
	values arrow.Array    // nil before it came
}

const (
	noDictionary = math.MinInt64
	// maxDeltas is how many additions to dictionaries a stream may have: each
	// costs a copy of what there was.
	maxDeltas = 4096

	headerDictionary = 2 // MessageHeader.DictionaryBatch
	headerBatch      = 3 // MessageHeader.RecordBatch

	slotBatchRows        = 4
	slotBatchNodes       = 6
	slotBatchBuffers     = 8
	slotBatchCompression = 10
	slotDictionaryID     = 4
	slotDictionaryData   = 6
	slotDictionaryDelta  = 8
	slotCodec            = 4

	notCompressed = -1
)

// next returns the next batch, io.EOF at the stream's end in good order. A batch
// is valid until the next call.
func (b *batches) next() (*batch, error) {
	for {
		fd, err := b.in.recv()
		if err != nil {
			return nil, err
		}
		rec, err := b.decode(fd)
		if rec != nil || err != nil {
			return rec, err
		}
	}
}

// decode makes a batch of a message; nil if it was a dictionary.
func (b *batches) decode(fd *flight.FlightData) (rec *batch, err error) {
	defer func() { err = brokenFlatbuffer(recover(), err) }()
	msg := flatbuffers.Table{Bytes: fd.DataHeader, Pos: flatbuffers.GetUOffsetT(fd.DataHeader)}
	var header flatbuffers.Table
	at := flatbuffers.UOffsetT(msg.Offset(slotMessageHeader))
	if at == 0 {
		return nil, fmt.Errorf("%w: a message has no header", schema.ErrInvalid)
	}
	msg.Union(&header, at)
	switch kind := msg.GetByteSlot(slotMessageHeaderType, 0); kind {
	case headerBatch:
		return b.record(&header, fd.DataBody)
	case headerDictionary:
		return nil, b.dictionary(&header, fd)
	default:
		return nil, fmt.Errorf("%w: a message of type %d comes where record batches and dictionaries do",
			schema.ErrInvalid, kind)
	}
}

func (b *batches) record(header *flatbuffers.Table, body []byte) (*batch, error) {
	d, rows, err := b.in.decoder(header, body)
	if err != nil {
		return nil, err
	}
	rec := &batch{schema: b.schema, rows: int(rows), columns: make([]arrow.Array, b.schema.NumFields())}
	for i, f := range b.schema.Fields() {
		if rec.columns[i], err = b.column(d, f.Type, rows, b.ids[i]); err != nil {
			return nil, fmt.Errorf("column %q: %w", f.Name, err)
		}
	}
	return rec, d.end()
}

func (b *batches) column(d *decoder, dt arrow.DataType, rows, id int64) (arrow.Array, error) {
	dt = storageType(dt)
	dict, ok := dt.(*arrow.DictionaryType)
	if !ok {
		return d.array(dt, rows)
	}
	indices, err := d.array(dict.IndexType, rows)
	if err != nil {
		return nil, err
	}
	values := b.dictionaries[id].values
	if values == nil {
		return nil, fmt.Errorf("%w: its dictionary, of id %d, has not come", schema.ErrInvalid, id)
	}
	at, err := anyIntegers(indices)
	if err != nil {
		return nil, err
	}
	for i := range indices.Len() {
		if v := at(i); indices.IsValid(i) && (v < 0 || v >= int64(values.Len())) {
			return nil, fmt.Errorf("%w: row %d has index %d of a dictionary of %d", schema.ErrInvalid, i, v,
				values.Len())
		}
	}
	return array.NewDictionaryArray(dict, indices, values), nil
}

// dictionary takes in the values of a dictionary, or more of them.
func (b *batches) dictionary(header *flatbuffers.Table, fd *flight.FlightData) error {
	id := header.GetInt64Slot(slotDictionaryID, 0)
	dict := b.dictionaries[id]
	if dict == nil {
		return fmt.Errorf("%w: a dictionary has id %d, which no column has", schema.ErrInvalid, id)
	}
	at := flatbuffers.UOffsetT(header.Offset(slotDictionaryData))
	if at == 0 {
		return fmt.Errorf("%w: the dictionary of id %d has no values", schema.ErrInvalid, id)
	}
	data := flatbuffers.Table{Bytes: header.Bytes, Pos: header.Indirect(header.Pos + at)}
	d, rows, err := b.in.decoder(&data, fd.DataBody)
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
	// It outlives its message.
	if err := b.in.kept.Grow(int64(len(fd.DataHeader)+len(fd.DataBody)) + d.inflated); err != nil {
		return err
	}
	if header.GetBoolSlot(slotDictionaryDelta, false) && dict.values != nil {
		if b.deltas++; b.deltas > maxDeltas {
			return fmt.Errorf("%w: the stream adds to its dictionaries more than %d times; send them again as a whole",
				schema.ErrLimit, maxDeltas)
		}
		old := dict.values
		if err := b.in.kept.Grow(2 * int64(len(fd.DataBody))); err != nil {
			return err
		}
		err = bounded(func() (err error) {
			values, err = array.Concatenate([]arrow.Array{old, values},
				&countedAllocator{memory.DefaultAllocator, b.in.kept})
			return err
		})
		if err != nil {
			return err
		}
	}
	dict.values = values
	return nil
}
