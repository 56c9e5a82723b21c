package upload

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	arrowipc "github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/admission"
	"bowstring/flight/wire"
	"bowstring/schema"
	"bowstring/schema/ipc"
)

// received are the messages of a stream.
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
		{Name: "kind", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8,
			ValueType: arrow.BinaryTypes.String}, Nullable: true},
		{Name: "box", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32), Nullable: true},
		{Name: "image", Type: arrow.StructOf(arrow.Field{Name: "bytes", Type: arrow.BinaryTypes.Binary, Nullable: true},
			arrow.Field{Name: "path", Type: arrow.BinaryTypes.String, Nullable: true}), Nullable: true},
	}, nil),
		`[{"id": "6ba7b811-9dad-51d1-80b4-00c04fd430c8", "kind": "cat", "box": [1, 2], "image": {"bytes": "eA==", "path": "x"}}, {"id": "6ba7b811-9dad-51d1-80b4-00c04fd430c9", "kind": null, "box": null, "image": null}]`)
	plain := fromJSONRecord(f, arrow.NewSchema([]arrow.Field{
		{Name: "file_name", Type: arrow.BinaryTypes.String},
		{Name: "label", Type: arrow.PrimitiveTypes.Int64},
		{Name: "image", Type: arrow.BinaryTypes.Binary},
	}, nil), `[{"file_name": "0.jpg", "label": 0, "image": "eA=="}, {"file_name": "1.jpg", "label": 1, "image": "eHk="}]`)
	for _, rec := range []arrow.Record{plain, cat} {
		for _, opts := range [][]arrowipc.Option{nil, {arrowipc.WithZstd()}, {arrowipc.WithLZ4()}} {
			messages := messagesOf(f, rec, opts...)
			for len(messages) < 3 { // no dictionary
				messages = append(messages, &flight.FlightData{})
			}
			f.Add(messages[0].DataHeader, messages[1].DataHeader, messages[1].DataBody, messages[2].DataHeader,
				messages[2].DataBody)
		}
	}
	f.Fuzz(func(t *testing.T, head, one, oneBody, two, twoBody []byte) {
		stream := received{{DataHeader: head}, {DataHeader: one, DataBody: oneBody},
			{DataHeader: two, DataBody: twoBody}}
		in, done := uploading(t, &stream)
		defer done()
		batches, err := in.Batches()
		if err != nil {
			wantRefusal(t, err)
			return
		}
		up, err := newUpload(&Command{Dataset: "d", Split: "s"}, batches.Schema)
		if err != nil {
			wantRefusal(t, err)
			return
		}
		for {
			rec, err := batches.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			var rows *uploadedRows
			if err == nil {
				err = ipc.Bounded(func() (err error) {
					rows, err = up.rows(in.mem, in.lease, rec, 0, nil)
					return err
				})
			}
			if err != nil {
				wantRefusal(t, err)
				return
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

// uploading returns a reader of an upload outside of a call.
func uploading(t testing.TB, stream flight.DataStreamReader) (in *Incoming, done func()) {
	t.Helper()
	ledger := admission.NewLedger(admission.Limits{Windows: 1, Uploads: 8 << 20, Evaluation: 1, Results: 1})
	lease := wire.NewShares(ledger, admission.Uploads).Lease(t.Context(), "somebody")
	in = NewIncoming(t.Context(), stream, Config{MaxMessageBytes: 1 << 20, MaxBatchRows: 4 << 20,
		Work: admission.NewWork(0), Account: "somebody", Mem: memory.DefaultAllocator, Lease: lease})
	return in, func() {
		lease.Release()
		in.Close()
		if used := ledger.Accounts()[admission.Uploads].Used; used != 0 {
			t.Errorf("%d bytes are still counted", used)
		}
	}
}

// wantRefusal checks that an error is the client's to mend.
func wantRefusal(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, schema.ErrInvalid) && !errors.Is(err, schema.ErrLimit) {
		t.Errorf("refused with %v", err)
	}
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
func messagesOf(t testing.TB, rec arrow.Record, opts ...arrowipc.Option) []*flight.FlightData {
	t.Helper()
	var out []*flight.FlightData
	w := flight.NewRecordWriter(sendFunc(func(fd *flight.FlightData) error {
		out = append(out, &flight.FlightData{DataHeader: bytes.Clone(fd.DataHeader),
			DataBody: bytes.Clone(fd.DataBody)})
		return nil
	}), append(opts, arrowipc.WithSchema(rec.Schema()))...)
	if err := w.Write(rec); err != nil {
		t.Fatal(err)
	}
	return out
}

type sendFunc func(*flight.FlightData) error

func (f sendFunc) Send(fd *flight.FlightData) error { return f(fd) }
