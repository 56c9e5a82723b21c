package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"bowstring/fetch/admission"
	"bowstring/fetch/ingest"
	"bowstring/flight/catalog"
	"bowstring/flight/policy"
	"bowstring/flight/wire"
	"bowstring/schema"
	"bowstring/schema/ipc"
)

// Put stores rows as a snapshot, or positions as a selection. The rows become visible only
// after the client has closed its stream without an error. A stream that breaks leaves
// nothing.
func Put(ctx context.Context, cat *catalog.Catalog, req Request, in *Incoming, out *Results) error {
	p := &putting{cat, in, out}
	if req.Selection != nil {
		return p.selection(ctx, req.Selection)
	}
	return p.rows(ctx, req.Put)
}

// putting is the state of one DoPut. Its handler's goroutine uses it.
type putting struct {
	cat *catalog.Catalog
	in  *Incoming
	out *Results
}

// mergeAck is the JSON of the last result of a put that changes existing rows.
type mergeAck struct {
	putAck
	alterCounts
}

// alterCounts count the rows that were matched, inserted, ignored, and deleted.
type alterCounts struct {
	Matched  int64 `json:"matched"`
	Inserted int64 `json:"inserted"`
	Ignored  int64 `json:"ignored"`
	Deleted  int64 `json:"deleted"`
}

func countsOf(a ingest.Altered) alterCounts {
	return alterCounts{a.Matched, a.Inserted, a.Ignored, a.Deleted}
}

// rows stores one batch after the other. If a client is faster than the store, gRPC's flow
// control slows it down. The order of checks matters: the form of the stream comes before
// the rights, and the rights before anything that reads the dataset.
func (p *putting) rows(ctx context.Context, put *Command) (err error) {
	// The callbacks are set before messages are read, because recv calls them.
	commit := expectCommit(put, p.in)
	batches, err := p.in.Batches()
	if err != nil {
		return err
	}
	if put.alters() {
		return p.altered(ctx, put, batches, commit)
	}
	up, err := newUpload(put, batches.Schema)
	if err != nil {
		return err
	}
	mode, err := ingest.ParseMode(put.Mode)
	if err != nil {
		return err
	}
	if err := p.cat.MayWrite(ctx, put.Dataset); err != nil {
		return err
	}
	if up.first, err = p.rowsBefore(ctx, put, mode); err != nil {
		return err
	}
	// The right to write was checked before the first row is read.
	w, err := p.cat.Ingest(ctx, ingest.Options{
		Dataset: put.Dataset, Split: put.Split, Source: put.Source, Schema: up.schema, Mode: mode, Mem: p.in.Mem,
		Drop: put.DropColumns,
		Turn: func(piece func() error) error {
			return p.in.turn(func(*admission.Turn) error { return piece() })
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

	// Blobs are stored while they arrive. They become visible by the commit only.
	ack, err := p.storeBatches(ctx, up, batches, w)
	if err != nil {
		return err
	}
	if err := commit.check(ack.Rows); err != nil {
		return err
	}
	snap, changed, err := p.cat.Commit(ctx, put.Dataset, w, ack.Rows, ack.Bytes)
	if err != nil {
		return err
	}
	// Notes come before the last result, so that a client that reads to the end sees them.
	for _, note := range w.Notes() {
		if err := p.out.Add(noteAck{note}); err != nil {
			return err
		}
	}
	return p.out.Add(putAck{Dataset: snap.Dataset, Snapshot: snap.Number, Rows: ack.Rows, Changed: changed})
}

// storeBatches stores the rows of all batches of a stream, and sends a result for each. A
// client can thus see its progress.
func (p *putting) storeBatches(ctx context.Context, up *upload, batches *Batches,
	w rowWriter) (ack batchAck, err error) {
	chunk := p.in.kept.Another() // of metadata whose chunk is not full yet
	defer chunk.Release()
	for ; ; ack.Batch++ {
		rec, err := batches.Next()
		if errors.Is(err, io.EOF) {
			return ack, nil
		}
		if err == nil {
			err = p.storeBatch(ctx, up, w, rec, chunk, &ack)
		}
		if err != nil {
			return ack, fmt.Errorf("batch %d: %w", ack.Batch, err)
		}
		if err := p.out.Add(ack); err != nil {
			return ack, err
		}
	}
}

// storeBatch stores the rows of a batch behind those that ack counts, and adds them to ack.
// chunk accounts for the metadata that the writer collects.
func (p *putting) storeBatch(ctx context.Context, up *upload, w rowWriter, rec *ipc.Batch, chunk *wire.Lease,
	ack *batchAck) error {
	// All memory is reserved before the rows are converted. A small message with a
	// dictionary or with nulls can have very many rows.
	if err := rowsTake(p.in.lease, rec.Rows, rowCost(len(up.blobFrom), up.splitFrom != nil)); err != nil {
		return err
	}
	if err := rowsTake(p.in.kept, rec.Rows, idCost); err != nil {
		return err
	}
	var rows *uploadedRows
	err := p.in.turnOf(rec.Rows, func(turn *admission.Turn) error {
		return ipc.Bounded(func() (err error) {
			rows, err = up.rows(p.in.mem, p.in.lease, rec, up.first+ack.Rows, turn)
			return err
		})
	})
	if err != nil {
		return err
	}
	defer rows.release()
	// The metadata is in memory twice: as collected rows, and as the chunk that they become.
	if err := chunk.Grow(2 * rows.metaBytes()); err != nil {
		return err
	}
	if err := rows.write(ctx, w); err != nil {
		return err
	}
	if before := ack.Rows; before/schema.ChunkRows != (before+int64(rec.Rows))/schema.ChunkRows {
		chunk.Shrink(max(0, chunk.Bytes()-2*rows.metaBytes())) // earlier batches are stored
	}
	ack.Rows += int64(rec.Rows)
	ack.Bytes += rows.bytes
	p.in.Moved.Count(rec.Rows, rows.bytes)
	return nil
}

// rowsBefore returns how many rows the split has already. An append continues to number
// rows behind them.
func (p *putting) rowsBefore(ctx context.Context, put *Command, mode ingest.Mode) (int64, error) {
	if mode != ingest.Append {
		return 0, nil
	}
	snap, err := p.cat.Snapshot(ctx, catalog.Ref{Dataset: put.Dataset}, policy.Write)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(snap.Splits, func(sp schema.Split) bool { return sp.Name == put.Split })
	if i < 0 {
		return 0, nil
	}
	return snap.Splits[i].Rows(), nil
}

// keptPositionCost is the memory of a position of a selection, in bytes. The list may have
// just grown.
const keptPositionCost = 24

// selection collects positions and saves them. It bounds them by the rows of the snapshot
// that the caller sees: more can only be repetitions.
func (p *putting) selection(ctx context.Context, cmd *Selection) error {
	// Positions are checked by a job, which knows the rows that the caller sees.
	req := cmd.Request()
	req.Columns = []string{schema.PositionColumn}
	job, err := p.cat.Open(ctx, req, policy.Read)
	if err != nil {
		return err
	}
	defer job.Close()
	batches, err := p.in.Batches()
	if err != nil {
		return err
	}
	var positions []int64
	for n := 0; ; n++ {
		rec, err := batches.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var more []int64
		if err == nil {
			more, err = p.in.Positions(ctx, job, rec)
		}
		if err == nil {
			err = rowsTake(p.in.kept, len(more), keptPositionCost)
		}
		if err != nil {
			return fmt.Errorf("batch %d: %w", n, err)
		}
		if rows := job.Seen(); int64(len(positions)+len(more)) > rows {
			return &schema.FieldError{Field: "selection", Got: fmt.Sprintf("more than %d positions", rows),
				Want: "each position at most once"}
		}
		positions = append(positions, more...)
		p.in.Moved.Count(len(more), 0)
	}
	// The selection belongs to the snapshot that was opened, also if a tag has moved since.
	snapshot := job.Request().Snapshot
	name, err := p.cat.SaveSelection(ctx, job, positions)
	if err != nil {
		return err
	}
	return p.out.Add(selectionAck{Dataset: cmd.Dataset, Snapshot: snapshot, Selection: name, Rows: int64(len(positions))})
}

// altered collects rows in memory and changes the dataset by them. It cannot store them as
// they arrive: which existing rows they change is known only when all are there.
func (p *putting) altered(ctx context.Context, put *Command, batches *Batches,
	commit *expectedCommit) (err error) {
	base, err := p.cat.Alterable(ctx, put.Dataset)
	if err != nil {
		return err
	}
	if err := put.like(base.Schema, batches.Schema); err != nil {
		return err
	}
	up, err := newUpload(put, batches.Schema)
	if err != nil {
		return err
	}
	// The schema of the rows decides which columns change; the command only names the key.
	missing, err := ingest.ParseMissing(put.Missing)
	if err != nil {
		return err
	}
	a, err := p.cat.Alter(ctx, ingest.AlterOptions{
		Dataset: put.Dataset, Source: put.Source, Drop: put.DropColumns, Rows: up.schema, On: put.On, Missing: missing,
		Delete: put.Mode == modeDelete, Split: put.Split, Mem: p.in.Mem,
		Turn: func(piece func() error) error {
			return p.in.turn(func(*admission.Turn) error { return piece() })
		},
		Keep: func(bytes int64) error {
			err := p.in.kept.Grow(bytes)
			if errors.Is(err, schema.ErrLimit) {
				err = fmt.Errorf("the rows that are to change the dataset are kept in memory: %w, or in several parts", err)
			}
			return err
		},
	})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := a.Close(); err == nil {
			err = cerr
		}
	}()
	ack, err := p.storeBatches(ctx, up, batches, a)
	if err != nil {
		return err
	}
	if err := commit.check(ack.Rows); err != nil {
		return err
	}
	snap, done, err := p.cat.CommitAltered(ctx, put.Dataset, a, ack.Bytes)
	if err != nil {
		return err
	}
	return p.out.Add(mergeAck{putAck{Dataset: snap.Dataset, Snapshot: snap.Number, Rows: ack.Rows, Changed: done.Changed},
		countsOf(done)})
}
