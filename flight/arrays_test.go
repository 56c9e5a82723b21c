package flight

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// bad makes an array of rows rows with the given buffers, unchecked.
func bad(dt arrow.DataType, rows, nulls int, children []arrow.ArrayData, buffers ...[]byte) arrow.ArrayData {
	bufs := make([]*memory.Buffer, len(buffers))
	for i, b := range buffers {
		if b != nil {
			bufs[i] = memory.NewBufferBytes(b)
		}
	}
	return array.NewData(dt, rows, bufs, children, nulls, 0)
}

func offsets32(list ...int32) []byte { return arrow.Int32Traits.CastToBytes(list) }
func offsets64(list ...int64) []byte { return arrow.Int64Traits.CastToBytes(list) }

func TestCheckArray(t *testing.T) {
	int8s := func(n int) arrow.ArrayData { return bad(arrow.PrimitiveTypes.Int8, n, 0, nil, nil, make([]byte, n)) }
	dictionary := func(index byte) arrow.ArrayData {
		dt := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.PrimitiveTypes.Int8}
		return array.NewDataWithDictionary(dt, 1, []*memory.Buffer{nil, memory.NewBufferBytes([]byte{index})}, 0, 0, int8s(2).(*array.Data))
	}
	list := arrow.ListOf(arrow.PrimitiveTypes.Int8)
	pair := arrow.StructOf(arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int8})
	for _, tt := range []struct {
		name string
		data arrow.ArrayData
		ok   bool
	}{
		{"ints", int8s(3), true},
		{"too few ints", bad(arrow.PrimitiveTypes.Int64, 3, 0, nil, nil, make([]byte, 23)), false},
		{"no values", bad(arrow.PrimitiveTypes.Int64, 3, 0, nil, nil, nil), false},
		{"nulls", bad(arrow.PrimitiveTypes.Int8, 9, 1, nil, []byte{255, 0}, make([]byte, 9)), true},
		{"short bitmap", bad(arrow.PrimitiveTypes.Int8, 9, 1, nil, []byte{255}, make([]byte, 9)), false},
		{"no bitmap", bad(arrow.PrimitiveTypes.Int8, 9, 1, nil, nil, make([]byte, 9)), false},
		{"bools", bad(arrow.FixedWidthTypes.Boolean, 9, 0, nil, nil, make([]byte, 1)), false},
		{"wide", bad(&arrow.FixedSizeBinaryType{ByteWidth: 16}, 2, 0, nil, nil, make([]byte, 31)), false},
		{"binary", bad(arrow.BinaryTypes.Binary, 2, 0, nil, nil, offsets32(0, 1, 3), make([]byte, 3)), true},
		{"empty binary", bad(arrow.BinaryTypes.Binary, 0, 0, nil, nil, nil, nil), true},
		{"too few offsets", bad(arrow.BinaryTypes.String, 2, 0, nil, nil, offsets32(0, 1), make([]byte, 3)), false},
		{"beyond the end", bad(arrow.BinaryTypes.String, 2, 0, nil, nil, offsets32(0, 1, 4), make([]byte, 3)), false},
		{"descending", bad(arrow.BinaryTypes.Binary, 2, 0, nil, nil, offsets32(0, 2, 1), make([]byte, 3)), false},
		{"negative", bad(arrow.BinaryTypes.Binary, 2, 0, nil, nil, offsets32(-1, 0, 1), make([]byte, 3)), false},
		{"large", bad(arrow.BinaryTypes.LargeBinary, 2, 0, nil, nil, offsets64(0, 2, 3), make([]byte, 3)), true},
		{"large and wild", bad(arrow.BinaryTypes.LargeString, 2, 0, nil, nil, offsets64(0, 1<<40, 1<<40), make([]byte, 3)), false},
		{"list", bad(list, 1, 0, []arrow.ArrayData{int8s(2)}, nil, offsets32(0, 2)), true},
		{"list beyond its child", bad(list, 1, 0, []arrow.ArrayData{int8s(2)}, nil, offsets32(0, 3)), false},
		{"list of a bad child", bad(list, 1, 0, []arrow.ArrayData{bad(arrow.PrimitiveTypes.Int8, 2, 0, nil, nil, make([]byte, 1))}, nil, offsets32(0, 1)), false},
		{"list of nothing", bad(list, 1, 0, nil, nil, offsets32(0, 2)), false},
		{"fixed list", bad(arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int8), 2, 0, []arrow.ArrayData{int8s(4)}, nil), true},
		{"short fixed list", bad(arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int8), 2, 0, []arrow.ArrayData{int8s(3)}, nil), false},
		{"struct", bad(pair, 2, 0, []arrow.ArrayData{int8s(2)}, nil), true},
		{"short struct", bad(pair, 2, 0, []arrow.ArrayData{int8s(1)}, nil), false},
		{"dictionary", dictionary(1), true},
		{"index beyond the dictionary", dictionary(2), false},
		{"negative index", dictionary(255), false},
	} {
		err := checkArray(tt.data)
		if tt.ok && err != nil || !tt.ok && !errors.Is(err, schema.ErrInvalid) {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
}

// received are messages that came in.
type received []*flight.FlightData

func (r *received) Recv() (*flight.FlightData, error) {
	if len(*r) == 0 {
		return nil, io.EOF
	}
	fd := (*r)[0]
	*r = (*r)[1:]
	return fd, nil
}

// FuzzUpload sends broken batches: they are refused, and nothing panics or
// reads outside of the message.
func FuzzUpload(f *testing.F) {
	cat := fromJSONRecord(f, arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.BinaryTypes.String},
		{Name: "kind", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, Nullable: true},
		{Name: "box", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32), Nullable: true},
		{Name: "image", Type: arrow.StructOf(arrow.Field{Name: "bytes", Type: arrow.BinaryTypes.Binary, Nullable: true}, arrow.Field{Name: "path", Type: arrow.BinaryTypes.String, Nullable: true}), Nullable: true},
	}, nil), `[{"id": "6ba7b811-9dad-51d1-80b4-00c04fd430c8", "kind": "cat", "box": [1, 2], "image": {"bytes": "eA==", "path": "x"}}, {"id": "6ba7b811-9dad-51d1-80b4-00c04fd430c9", "kind": null, "box": null, "image": null}]`)
	for _, rec := range []arrow.Record{samples(0, 3), cat} {
		for _, opts := range [][]ipc.Option{nil, {ipc.WithZstd()}, {ipc.WithLZ4()}} {
			messages := messagesOf(f, rec, opts...)
			for len(messages) < 3 { // no dictionary
				messages = append(messages, &flight.FlightData{})
			}
			f.Add(messages[0].DataHeader, messages[1].DataHeader, messages[1].DataBody, messages[2].DataHeader, messages[2].DataBody)
		}
	}
	f.Fuzz(func(t *testing.T, head, one, oneBody, two, twoBody []byte) {
		stream := received{{DataHeader: head}, {DataHeader: one, DataBody: oneBody}, {DataHeader: two, DataBody: twoBody}}
		in := newIncoming(&stream, memory.DefaultAllocator, 1<<20)
		rdr, err := in.reader()
		if err != nil {
			return
		}
		defer rdr.Release()
		up, err := newUpload(&putCommand{Dataset: "d", Split: "s"}, rdr.Schema())
		if err != nil {
			return
		}
		for rdr.Next() {
			var rows *uploadedRows
			err := in.bounded(func() (err error) {
				rows, err = up.rows(&in.mem, rdr.Record(), 0)
				return err
			})
			if err != nil {
				continue
			}
			var sum int
			for _, column := range rows.blobs {
				for _, b := range column {
					sum += len(bytes.Clone(b))
				}
			}
			if int64(sum) != rows.bytes {
				t.Errorf("%d bytes of blobs, said to be %d", sum, rows.bytes)
			}
			if rows.meta.NumRows() != int64(len(rows.ids)) {
				t.Errorf("%d rows, %d ids", rows.meta.NumRows(), len(rows.ids))
			}
			for _, c := range rows.meta.Columns() {
				_ = c.String() // touches every value
			}
			rows.release()
		}
	})
}

func fromJSONRecord(t testing.TB, s *arrow.Schema, json string) arrow.Record {
	t.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, bytes.NewReader([]byte(json)))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// messagesOf are the messages that carry a record: schema, dictionaries, batch.
func messagesOf(t testing.TB, rec arrow.Record, opts ...ipc.Option) []*flight.FlightData {
	t.Helper()
	var out []*flight.FlightData
	w := flight.NewRecordWriter(sendFunc(func(fd *flight.FlightData) error {
		out = append(out, &flight.FlightData{DataHeader: bytes.Clone(fd.DataHeader), DataBody: bytes.Clone(fd.DataBody)})
		return nil
	}), append(opts, ipc.WithSchema(rec.Schema()))...)
	if err := w.Write(rec); err != nil {
		t.Fatal(err)
	}
	return out
}
