package console

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/cmd/bowstring/export"
	"bowstring/schema"
)

// maxHistory is how many snapshots are looked at, the newest.
const maxHistory = 50

// occurrence is a sample in a snapshot.
type occurrence struct {
	Snapshot int64          `json:"snapshot"`
	Created  time.Time      `json:"created"`
	Row      *export.Object `json:"row"` // null where the sample is not in it
}

// history says in which snapshots a sample is, and with what.
func (q *query) history() error {
	id, err := schema.ParseID(q.form.Get("id"))
	if err != nil {
		return &schema.FieldError{Field: "id", Got: schema.Quote(q.form.Get("id")), Want: "the UUID of a sample"}
	}
	var about described
	if _, err := q.one("describe", snapshotBody{q.form.Get("dataset"), 0}, &about); err != nil {
		return err
	}
	slices.Sort(about.Snapshots)
	slices.Reverse(about.Snapshots)
	list := []occurrence{}
	for _, n := range about.Snapshots[:min(len(about.Snapshots), maxHistory)] {
		one, err := q.find(n, id)
		if status.Code(err) == codes.NotFound {
			continue // it was dropped meanwhile
		}
		if err != nil {
			return err
		}
		list = append(list, one)
	}
	answer(q.w, http.StatusOK, map[string]any{"id": schema.FormatID(id), "snapshots": list,
		"more": len(about.Snapshots) > maxHistory})
	return nil
}

// described is what is needed of the description of a snapshot.
type described struct {
	Snapshot  int64     `json:"snapshot"`
	Created   time.Time `json:"created"`
	Snapshots []int64   `json:"snapshots"`
	Columns   []struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
	} `json:"columns"`
}

// find looks a sample up in a snapshot: what is known of it without its blobs.
func (q *query) find(snapshot int64, id schema.ID) (occurrence, error) {
	var about described
	if _, err := q.one("describe", snapshotBody{q.form.Get("dataset"), snapshot}, &about); err != nil {
		return occurrence{}, err
	}
	columns := []string{schema.PositionColumn, schema.SplitColumn}
	for _, c := range about.Columns {
		switch c.Kind {
		case "blob": // equal keys are equal blobs
			columns = append(columns, c.Name+".size", c.Name+".key")
		case "metadata":
			columns = append(columns, c.Name)
		}
	}
	one := occurrence{Snapshot: snapshot, Created: about.Created}
	command, err := json.Marshal(map[string]any{"take": map[string]any{"dataset": q.form.Get("dataset"),
		"snapshot": snapshot, "columns": columns}})
	if err != nil {
		return one, err
	}
	stream, err := q.client.DoExchange(q.ctx)
	if err != nil {
		return one, err
	}
	if err := ask(stream, command, id); err != nil && !errors.Is(err, io.EOF) { // the server's own error comes below
		return one, err
	}
	err = records(stream, func(rec arrow.Record) (bool, error) {
		if rec.NumRows() == 1 {
			r := row(rec, 0)
			one.Row = &r
		}
		return true, nil
	})
	if status.Code(err) == codes.NotFound {
		err = nil // the snapshot is there, so it is the sample that is not
	}
	return one, err
}

// ask sends the one id that is looked for.
func ask(stream arrowflight.FlightService_DoExchangeClient, command []byte, id schema.ID) error {
	b := array.NewFixedSizeBinaryBuilder(memory.DefaultAllocator, &arrow.FixedSizeBinaryType{ByteWidth: len(id)})
	defer b.Release()
	b.Append(id[:])
	ids := b.NewArray()
	defer ids.Release()
	s := arrow.NewSchema([]arrow.Field{schema.IDField()}, nil)
	rec := array.NewRecord(s, []arrow.Array{ids}, 1)
	defer rec.Release()
	w := arrowflight.NewRecordWriter(stream, ipc.WithSchema(s))
	w.SetFlightDescriptor(&arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD, Cmd: command})
	if err := w.Write(rec); err != nil {
		return err
	}
	return errors.Join(w.Close(), stream.CloseSend())
}
