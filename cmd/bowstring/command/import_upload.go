package command

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/cmd/bowstring/source"
	"bowstring/schema"
)

// uploadSink sends an import to a server by DoPut. Where there are several
// splits, a column of that name says of each row in which it is.
type uploadSink struct {
	client *client
	cancel context.CancelFunc // of the call
	stream arrowflight.FlightService_DoPutClient
	w      *arrowflight.Writer
	schema *arrow.Schema // of the batches sent
	splits bool          // its last column is the split
	rows   int64
	ended  chan putEnd // gets one value, when the server has ended the call
}

// putEnd is how the server ended the call.
type putEnd struct {
	last  putResult
	notes []string
	err   error
}

// putResult is the last result of DoPut. Acknowledgements of batches lack these fields.
type putResult struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	Rows     int64  `json:"rows"`
	Changed  bool   `json:"changed"`
	Note     string `json:"note"` // in a result of its own
	// Of a call that changes rows that are there.
	Matched  int64 `json:"matched"`
	Inserted int64 `json:"inserted"`
	Ignored  int64 `json:"ignored"`
	Deleted  int64 `json:"deleted"`
}

// putCommand is the descriptor of the call.
type putCommand struct {
	Put putOptions `json:"put"`
}

type putOptions struct {
	Dataset string `json:"dataset"`
	Split   string `json:"split,omitempty"`
	Mode    string `json:"mode"`
	Source  string `json:"source"`
	// Blobs names all blob columns, so that no other column of bytes is taken for one.
	Blobs  []string `json:"blobs,omitzero"`
	Commit string   `json:"commit"`

	On          string   `json:"on,omitempty"`
	Missing     string   `json:"missing,omitempty"`
	DropColumns []string `json:"drop_columns,omitempty"`
}

// openUpload begins a DoPut.
func openUpload(ctx context.Context, app *App, c *ImportCmd, src source.Source,
	reader *source.Reader) (_ sink, err error) {
	blobs := []string{}
	for _, f := range schema.BlobFields(reader.Schema()) {
		blobs = append(blobs, f.Name)
	}
	put := putOptions{Dataset: c.Dataset, Blobs: blobs, Split: c.Split, Mode: c.Mode, Source: src.Describe(),
		Commit: "message", DropColumns: c.DropColumn}
	columns, splits := reader.Schema(), src.Splits()
	several := len(splits) != 1 && c.Split == "" // also where only the samples tell
	switch {
	case several:
		field := arrow.Field{Name: schema.SplitColumn, Type: arrow.BinaryTypes.String}
		columns = arrow.NewSchema(append(slices.Clone(columns.Fields()), field), nil)
	case len(splits) == 1:
		put.Split = splits[0]
	}
	client, err := app.connect(ctx, false)
	if err != nil {
		return nil, err
	}
	s, err := beginUpload(ctx, client, put, columns)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	s.splits = several
	return s, nil
}

// beginUpload begins a DoPut of batches with a schema. The sink owns the client from then on.
func beginUpload(ctx context.Context, client *client, put putOptions, columns *arrow.Schema) (*uploadSink, error) {
	command, err := json.Marshal(putCommand{put})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := client.DoPut(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &uploadSink{client: client, cancel: cancel, stream: stream, schema: columns, ended: make(chan putEnd, 1)}
	s.w = arrowflight.NewRecordWriter(stream, ipc.WithSchema(s.schema))
	s.w.SetFlightDescriptor(&arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD, Cmd: command})
	go s.receive()
	return s, nil
}

// receive reads the results, so that the server is not held up by them. It
// ends with the call.
func (s *uploadSink) receive() {
	var end putEnd
	for {
		r, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			end.last = putResult{}
			err = json.Unmarshal(r.GetAppMetadata(), &end.last)
		}
		if end.last.Note != "" {
			end.notes = append(end.notes, end.last.Note)
		}
		if err != nil {
			end.err = err
			break
		}
	}
	s.ended <- end
}

func (s *uploadSink) Write(_ context.Context, b *source.Batch) error {
	rec := s.record(b)
	defer rec.Release()
	return s.send(rec)
}

// send sends a batch.
func (s *uploadSink) send(rec arrow.Record) error {
	if err := s.w.Write(rec); err != nil {
		return s.failed(err)
	}
	s.rows += rec.NumRows()
	return nil
}

// record puts a batch together: id, metadata, blobs.
func (s *uploadSink) record(b *source.Batch) arrow.Record {
	mem := memory.DefaultAllocator
	ids := array.NewFixedSizeBinaryBuilder(mem, schema.IDField().Type.(*arrow.FixedSizeBinaryType))
	defer ids.Release()
	for _, id := range b.IDs {
		ids.Append(id[:])
	}
	columns := []arrow.Array{ids.NewArray()}
	for _, c := range b.Meta.Columns() {
		c.Retain()
		columns = append(columns, c)
	}
	for _, column := range b.Blobs {
		blobs := array.NewBinaryBuilder(mem, arrow.BinaryTypes.LargeBinary)
		size := 0
		for _, data := range column {
			size += len(data)
		}
		blobs.ReserveData(size)
		for _, data := range column {
			if data == nil {
				blobs.AppendNull()
			} else {
				blobs.Append(data)
			}
		}
		columns = append(columns, blobs.NewArray())
		blobs.Release()
	}
	if s.splits {
		names := array.NewStringBuilder(mem)
		for range b.IDs {
			names.Append(b.Split)
		}
		columns = append(columns, names.NewArray())
		names.Release()
	}
	rec := array.NewRecord(s.schema, columns, int64(len(b.IDs)))
	for _, c := range columns {
		c.Release()
	}
	return rec
}

// failed returns why the call ended, where a write only finds that it did.
func (s *uploadSink) failed(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	end := <-s.ended
	s.ended <- end
	if end.err != nil {
		return end.err
	}
	return errors.New("the server ended the upload early")
}

func (s *uploadSink) Commit(_ context.Context, sum *summary) error {
	end, err := s.finish()
	if err != nil {
		return err
	}
	sum.Snapshot, sum.Changed, sum.Notes = end.last.Snapshot, end.last.Changed, append(sum.Notes, end.notes...)
	return nil
}

// finish ends the upload in good order, and returns what the server says of it.
func (s *uploadSink) finish() (putEnd, error) {
	message, err := json.Marshal(map[string]any{"commit": true, "rows": s.rows})
	if err != nil {
		return putEnd{}, err
	}
	if err := s.w.WriteMetadata(message); err != nil {
		return putEnd{}, s.failed(err)
	}
	if err := s.w.Close(); err != nil {
		return putEnd{}, s.failed(err)
	}
	if err := s.stream.CloseSend(); err != nil {
		return putEnd{}, err
	}
	end := <-s.ended
	s.ended <- end
	if end.err != nil {
		return end, end.err
	}
	if end.last.Snapshot == 0 {
		return end, errors.New("the server ended the upload without saying which snapshot it is")
	}
	return end, nil
}

func (s *uploadSink) Close() error {
	s.cancel()
	<-s.ended
	return s.client.Close()
}
