package flight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/ingest"
	"bowstring/schema"
)

// Values of putCommand.Mode by which rows change those that are there.
const (
	modeMerge  = "merge"
	modeDelete = "delete"
)

// alters reports whether the rows change those that are there.
func (p *putCommand) alters() bool { return p.Mode == modeMerge || p.Mode == modeDelete }

// checkAlters checks the fields of changes of what is there.
func (p *putCommand) checkAlters() error {
	switch {
	case !p.alters() && p.On != "":
		return &schema.FieldError{Field: "put.on", Got: schema.Quote(p.On),
			Want: `nothing, unless the mode is "merge" or "delete"`}
	case !p.alters() && p.Missing != "":
		return &schema.FieldError{Field: "put.missing", Got: schema.Quote(p.Missing),
			Want: `nothing, unless the mode is "merge" or "delete"`}
	case p.Mode != modeMerge && p.Mode != ingest.Replace.String() && len(p.DropColumns) > 0:
		return &schema.FieldError{Field: "put.drop_columns", Got: "some",
			Want: `none, unless the mode is "merge" or "replace"`}
	case !p.alters():
		return nil
	case p.Key != "":
		return &schema.FieldError{Field: "put.key", Got: schema.Quote(p.Key),
			Want: `none where rows are found by "on", of which the ids of new ones are derived`}
	}
	if p.On == "" {
		p.On = schema.IDColumn
	}
	if p.Missing == "" {
		p.Missing = ingest.MissingError.String()
		if p.Mode == modeDelete { // so that it may be repeated where its answer was lost
			p.Missing = ingest.MissingIgnore.String()
		}
	}
	if _, err := ingest.ParseMissing(p.Missing); err != nil {
		return &schema.FieldError{Field: "put.missing", Got: schema.Quote(p.Missing),
			Want: `"error", "insert" or "ignore"`}
	}
	if p.Mode == modeDelete && p.Missing == ingest.MissingInsert.String() {
		return &schema.FieldError{Field: "put.missing", Got: `"insert"`, Want: `"error" or "ignore" where rows are deleted`}
	}
	return nil
}

// mergeAck is the JSON of the last result of a put that changes what is there.
type mergeAck struct {
	putAck
	alterCounts
}

// alterCounts are how many rows were found, added, left out, and deleted.
type alterCounts struct {
	Matched  int64 `json:"matched"`
	Inserted int64 `json:"inserted"`
	Ignored  int64 `json:"ignored"`
	Deleted  int64 `json:"deleted"`
}

func countsOf(a ingest.Altered) alterCounts {
	return alterCounts{a.Matched, a.Inserted, a.Ignored, a.Deleted}
}

// putAltered takes rows in, which it keeps, and changes the dataset by them.
func (s *Server) putAltered(ctx context.Context, put *putCommand, in *incoming, out *results, batches *batches,
	commit *expectedCommit) (err error) {
	cat := s.catalog(ctx)
	base, err := cat.Alterable(ctx, put.Dataset)
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
	missing, err := ingest.ParseMissing(put.Missing)
	if err != nil {
		return err
	}
	a, err := cat.Alter(ctx, ingest.AlterOptions{
		Dataset: put.Dataset, Source: put.Source, Drop: put.DropColumns, Rows: up.schema, On: put.On, Missing: missing,
		Delete: put.Mode == modeDelete, Split: put.Split, Mem: s.mem,
		Turn: func(piece func() error) error {
			return in.turn(func(*admission.Turn) error { return piece() })
		},
		Keep: func(bytes int64) error {
			err := in.kept.Grow(bytes)
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
	ack, err := s.storeBatches(ctx, in, out, up, batches, a)
	if err != nil {
		return err
	}
	if err := commit.check(ack.Rows); err != nil {
		return err
	}
	snap, done, err := cat.CommitAltered(ctx, put.Dataset, a, ack.Bytes)
	if err != nil {
		return err
	}
	return out.add(mergeAck{putAck{Dataset: snap.Dataset, Snapshot: snap.Number, Rows: ack.Rows, Changed: done.Changed},
		countsOf(done)})
}

// like says in the command which columns of an upload hold blobs: those that do in the dataset, and of new ones those
// that would in a new dataset.
func (p *putCommand) like(base, in *arrow.Schema) error {
	named := p.Blobs
	p.Media = maps.Clone(p.Media)
	if p.Media == nil {
		p.Media = map[string]string{}
	}
	blobs := []string{}
	for _, f := range in.Fields() {
		f.Type = valueType(f.Type)
		at := base.FieldIndices(f.Name)
		dropped := slices.Contains(p.DropColumns, f.Name)
		if len(at) > 0 && !dropped {
			if have := base.Field(at[0]); schema.IsBlob(have) {
				media := p.Media[f.Name]
				if media != "" && media != schema.Media(have) {
					return &schema.FieldError{Field: "put.media." + schema.Shown(f.Name), Got: schema.Quote(media),
						Want: schema.Quote(schema.Media(have)) + ", as in the dataset"}
				}
				blobs = append(blobs, f.Name)
				continue
			}
			if slices.Contains(named, f.Name) {
				blobs = append(blobs, f.Name) // which is refused, as it is none in the dataset
			}
			continue
		}
		if f.Name == schema.IDColumn {
			continue
		}
		isBlob, err := p.isBlob(f, in)
		if err != nil {
			return err
		}
		if isBlob {
			blobs = append(blobs, f.Name)
		}
	}
	for _, name := range named {
		if len(in.FieldIndices(name)) == 0 {
			blobs = append(blobs, name) // which is refused, too
		}
	}
	p.Blobs = blobs
	return nil
}

// alterRequest is the body of the action alter.
type alterRequest struct {
	Dataset       string            `json:"dataset"`
	DropColumns   []string          `json:"drop_columns"`
	RenameColumns map[string]string `json:"rename_columns"`
	DeleteWhere   string            `json:"delete_where"`
	Source        string            `json:"source"`
}

// alterAck is the JSON of its result.
type alterAck struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	Changed  bool   `json:"changed"`
	Rows     int64  `json:"rows"` // of the snapshot
	Deleted  int64  `json:"deleted"`
}

// alterDataset changes a dataset by what needs no rows.
func (s actionHandler) alterDataset(ctx context.Context, b []byte, send func([]byte) error) (err error) {
	var req alterRequest
	if err := body(b, &req); err != nil {
		return err
	}
	if err := schema.CheckName("dataset", req.Dataset); err != nil {
		return err
	}
	if len(req.Source) > maxSource {
		return &schema.FieldError{Field: "source", Got: fmt.Sprintf("%d bytes", len(req.Source)),
			Want: fmt.Sprintf("at most %d", maxSource)}
	}
	if n := len(req.DropColumns) + len(req.RenameColumns); n > schema.MaxColumns {
		return &schema.FieldError{Field: "body", Got: fmt.Sprintf("%d columns", n),
			Want: fmt.Sprintf("at most %d", schema.MaxColumns)}
	}
	cat := s.catalog(ctx)
	if _, err := cat.Alterable(ctx, req.Dataset); err != nil {
		return err
	}
	a, err := cat.Alter(ctx, ingest.AlterOptions{Dataset: req.Dataset, Source: req.Source, Drop: req.DropColumns,
		Rename: req.RenameColumns, DeleteWhere: req.DeleteWhere, Mem: s.mem,
		Turn: func(piece func() error) error { return s.work.Do(ctx, fetch.CallerFrom(ctx).Tenant, piece) }})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := a.Close(); err == nil {
			err = cerr
		}
	}()
	snap, done, err := cat.CommitAltered(ctx, req.Dataset, a, 0)
	if err != nil {
		return err
	}
	return sendJSON(send, alterAck{snap.Dataset, snap.Number, done.Changed, snap.Rows(), done.Deleted})
}
