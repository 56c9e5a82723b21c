package flight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/fetch/admission"
	"bowstring/fetch/ingest"
	"bowstring/flight/catalog"
	"bowstring/flight/policy"
	"bowstring/flight/wire"
	"bowstring/schema"
	"bowstring/schema/ipc"
)

// putRequest is the JSON of a DoPut command. One of the two is set.
type putRequest struct {
	Put       *putCommand       `json:"put"`
	Selection *selectionCommand `json:"selection"`
}

// putCommand says where rows go and what their columns are.
type putCommand struct {
	Dataset string            `json:"dataset"`
	Split   string            `json:"split"`
	Mode    string            `json:"mode"`
	Key     string            `json:"key"`
	Blobs   []string          `json:"blobs"`
	Media   map[string]string `json:"media"`
	Source  string            `json:"source"`
	Commit  string            `json:"commit"`
	// On and Missing are for the modes merge and delete, of which the first finds rows by the column On.
	On          string   `json:"on"`
	Missing     string   `json:"missing"`
	DropColumns []string `json:"drop_columns"`
}

// selectionCommand says of which snapshot the positions are.
type selectionCommand struct {
	catalog.Ref
}

// batchAck is the JSON of the result for a batch: sums over the call.
type batchAck struct {
	Batch int64 `json:"batch"`
	Rows  int64 `json:"rows"`
	Bytes int64 `json:"bytes"`
}

// putAck is the JSON of the last result.
type putAck struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	Rows     int64  `json:"rows"`
	Changed  bool   `json:"changed"`
}

// noteAck is the JSON of a result that tells what a put means for those who read the dataset.
type noteAck struct {
	Note string `json:"note"`
}

// selectionAck is the JSON of the result for a selection.
type selectionAck struct {
	Dataset   string `json:"dataset"`
	Snapshot  int64  `json:"snapshot"`
	Selection string `json:"selection"`
	Rows      int64  `json:"rows"`
}

// maxSource bounds the text of putCommand.Source in bytes.
const maxSource = 4 << 10

func parsePut(d *flight.FlightDescriptor) (putRequest, error) {
	var req putRequest
	switch d.GetType() {
	case flight.DescriptorPATH:
		path := d.GetPath()
		if len(path) < 1 || len(path) > 2 {
			return req, &schema.FieldError{Field: "descriptor.path", Got: fmt.Sprintf("%d elements", len(path)),
				Want: "a dataset, and a split if it is not to be " + ingest.DefaultSplit}
		}
		req.Put = &putCommand{Dataset: path[0]}
		if len(path) == 2 {
			req.Put.Split = path[1]
		}
	case flight.DescriptorCMD:
		if err := schema.DecodeJSON("request", d.GetCmd(), &req); err != nil {
			return req, err
		}
	default:
		return req, &schema.FieldError{Field: "descriptor.type", Got: d.GetType().String(), Want: "PATH or CMD"}
	}
	if (req.Put == nil) == (req.Selection == nil) {
		return req, &schema.FieldError{Field: "request", Got: "neither or both of its fields",
			Want: `either "put" or "selection"`}
	}
	if p := req.Put; p != nil {
		if p.Mode == "" {
			p.Mode = ingest.Create.String()
		}
		if p.Split == "" {
			p.Split = ingest.DefaultSplit
		}
		if p.Commit == "" {
			p.Commit = commitAtEnd
		}
		return req, p.check()
	}
	return req, req.Selection.Check()
}

func (p *putCommand) check() error {
	for field, n := range map[string]int{"put.blobs": len(p.Blobs), "put.media": len(p.Media),
		"put.drop_columns": len(p.DropColumns)} {
		if n > schema.MaxColumns {
			return &schema.FieldError{Field: field, Got: fmt.Sprintf("%d names", n),
				Want: fmt.Sprintf("at most %d", schema.MaxColumns)}
		}
	}
	if err := schema.CheckName("put.dataset", p.Dataset); err != nil {
		return err
	}
	if err := schema.CheckName("put.split", p.Split); err != nil {
		return err
	}
	if _, err := ingest.ParseMode(p.Mode); err != nil && !p.alters() {
		return &schema.FieldError{Field: "put.mode", Got: schema.Quote(p.Mode),
			Want: `"create", "append", "replace", "merge" or "delete"`}
	}
	if err := p.checkAlters(); err != nil {
		return err
	}
	if p.Commit != commitAtEnd && p.Commit != commitByMessage {
		return &schema.FieldError{Field: "put.commit", Got: schema.Quote(p.Commit), Want: `"end" or "message"`}
	}
	if len(p.Source) > maxSource {
		return &schema.FieldError{Field: "put.source", Got: fmt.Sprintf("%d bytes", len(p.Source)),
			Want: fmt.Sprintf("at most %d", maxSource)}
	}
	return nil
}

// DoPut stores rows as a snapshot, or positions as a selection. What it stores
// can be seen once the client has ended its stream in good order, and not
// before; one that breaks off leaves nothing.
func (s *Server) DoPut(stream flight.FlightService_DoPutServer) error {
	in := s.newIncoming(stream.Context(), stream)
	defer in.close()
	d, err := in.descriptor()
	if err != nil {
		return err
	}
	ctx, done, err := s.beginStream(stream.Context(), "DoPut", "")
	if err != nil {
		return err
	}
	defer done()
	req, err := parsePut(d)
	if err != nil {
		return err
	}
	out := newResults(ctx, stream)
	defer out.abandon()
	s.sending.Go(out.run)
	if req.Selection != nil {
		err = s.putSelection(ctx, req.Selection, in, out)
	} else {
		err = s.putRows(ctx, req.Put, in, out)
	}
	if err != nil {
		return err
	}
	return out.flush()
}

// putRows stores one batch after the other; a client that is faster than the
// store is held back by gRPC's flow control.
func (s *Server) putRows(ctx context.Context, put *putCommand, in *incoming, out *results) (err error) {
	commit := expectCommit(put, in)
	batches, err := in.batches()
	if err != nil {
		return err
	}
	if put.alters() {
		return s.putAltered(ctx, put, in, out, batches, commit)
	}
	up, err := newUpload(put, batches.Schema)
	if err != nil {
		return err
	}
	mode, err := ingest.ParseMode(put.Mode)
	if err != nil {
		return err
	}
	cat := s.catalog(ctx)
	if err := cat.MayWrite(ctx, put.Dataset); err != nil {
		return err
	}
	if up.first, err = rowsBefore(ctx, cat, put, mode); err != nil {
		return err
	}
	w, err := cat.Ingest(ctx, ingest.Options{
		Dataset: put.Dataset, Split: put.Split, Source: put.Source, Schema: up.schema, Mode: mode, Mem: s.mem,
		Drop: put.DropColumns,
		Turn: func(piece func() error) error {
			return in.turn(func(*admission.Turn) error { return piece() })
		},
	})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := w.Close(); err == nil {
			err = cerr
		}
	}()

	ack, err := s.storeBatches(ctx, in, out, up, batches, w)
	if err != nil {
		return err
	}
	if err := commit.check(ack.Rows); err != nil {
		return err
	}
	snap, changed, err := cat.Commit(ctx, put.Dataset, w, ack.Rows, ack.Bytes)
	if err != nil {
		return err
	}
	for _, note := range w.Notes() {
		if err := out.add(noteAck{note}); err != nil {
			return err
		}
	}
	return out.add(putAck{Dataset: snap.Dataset, Snapshot: snap.Number, Rows: ack.Rows, Changed: changed})
}

// storeBatches stores the rows of all batches of a stream.
func (s *Server) storeBatches(ctx context.Context, in *incoming, out *results, up *upload, batches *batches,
	w rowWriter) (ack batchAck, err error) {
	chunk := in.kept.Another() // of the metadata that waits for its chunk to be full
	defer chunk.Release()
	for ; ; ack.Batch++ {
		rec, err := batches.next()
		if errors.Is(err, io.EOF) {
			return ack, nil
		}
		if err == nil {
			err = s.storeBatch(ctx, in, up, w, rec, chunk, &ack)
		}
		if err != nil {
			return ack, fmt.Errorf("batch %d: %w", ack.Batch, err)
		}
		if err := out.add(ack); err != nil {
			return ack, err
		}
	}
}

// storeBatch stores the rows of a batch behind those of ack, and adds them to it.
// chunk counts the metadata that the writer gathers.
func (s *Server) storeBatch(ctx context.Context, in *incoming, up *upload, w rowWriter, rec *ipc.Batch, chunk *wire.Lease,
	ack *batchAck) error {
	if err := rowsTake(in.lease, rec.Rows, rowCost(len(up.blobFrom), up.splitFrom != nil)); err != nil {
		return err
	}
	if err := rowsTake(in.kept, rec.Rows, idCost); err != nil {
		return err
	}
	var rows *uploadedRows
	err := in.turnOf(rec.Rows, func(turn *admission.Turn) error {
		return ipc.Bounded(func() (err error) {
			rows, err = up.rows(in.mem, in.lease, rec, up.first+ack.Rows, turn)
			return err
		})
	})
	if err != nil {
		return err
	}
	defer rows.release()
	// Twice: as it is gathered, and as the chunk that is made of it.
	if err := chunk.Grow(2 * rows.metaBytes()); err != nil {
		return err
	}
	if err := rows.write(ctx, w); err != nil {
		return err
	}
	if before := ack.Rows; before/schema.ChunkRows != (before+int64(rec.Rows))/schema.ChunkRows {
		chunk.Shrink(max(0, chunk.Bytes()-2*rows.metaBytes())) // what came before this batch is stored
	}
	ack.Rows += int64(rec.Rows)
	ack.Bytes += rows.bytes
	count(ctx, rec.Rows, rows.bytes)
	return nil
}

// rowsBefore counts the rows that the split has already, behind which an
// append goes on numbering.
func rowsBefore(ctx context.Context, cat *catalog.Catalog, put *putCommand, mode ingest.Mode) (int64, error) {
	if mode != ingest.Append {
		return 0, nil
	}
	snap, err := cat.Snapshot(ctx, catalog.Ref{Dataset: put.Dataset}, policy.Write)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(snap.Splits, func(sp schema.Split) bool { return sp.Name == put.Split })
	if i < 0 {
		return 0, nil
	}
	return snap.Splits[i].Rows(), nil
}

// keptPositionCost is what a position of a selection takes, in a list that may
// have just grown, in bytes.
const keptPositionCost = 24

// putSelection collects positions, at most as many as the snapshot has.
func (s *Server) putSelection(ctx context.Context, cmd *selectionCommand, in *incoming, out *results) error {
	req, cat := cmd.Request(), s.catalog(ctx)
	req.Columns = []string{schema.PositionColumn}
	job, err := cat.Open(ctx, req, policy.Read)
	if err != nil {
		return err
	}
	defer job.Close()
	batches, err := in.batches()
	if err != nil {
		return err
	}
	var positions []int64
	for n := 0; ; n++ {
		rec, err := batches.next()
		if errors.Is(err, io.EOF) {
			break
		}
		var more []int64
		if err == nil {
			more, err = in.positions(ctx, job, rec)
		}
		if err == nil {
			err = rowsTake(in.kept, len(more), keptPositionCost)
		}
		if err != nil {
			return fmt.Errorf("batch %d: %w", n, err)
		}
		if rows := job.Seen(); int64(len(positions)+len(more)) > rows {
			return &schema.FieldError{Field: "selection", Got: fmt.Sprintf("more than %d positions", rows),
				Want: "each position at most once"}
		}
		positions = append(positions, more...)
		count(ctx, len(more), 0)
	}
	snapshot := job.Request().Snapshot
	name, err := cat.SaveSelection(ctx, job, positions)
	if err != nil {
		return err
	}
	return out.add(selectionAck{Dataset: cmd.Dataset, Snapshot: snapshot, Selection: name, Rows: int64(len(positions))})
}
