package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"golang.org/x/sync/errgroup"

	"bowstring/cmd/bowstring/export"
	"bowstring/schema"
)

// TakeCmd is bowstring take. It uses DoExchange, which returns samples by position or id
// in the order of the request. A DoGet would return them in the order of a job.
type TakeCmd struct {
	// Positions and ID are alternatives. Positions are of the snapshot; an id is the same
	// in all snapshots.
	Dataset   datasetRef `arg:"" name:"dataset[@n]" help:"Dataset, of which the newest snapshot, or number or tag N."`
	Positions []int64    `arg:"" optional:"" name:"position" help:"Positions of the samples, from 0."`
	ID        []sampleID `name:"id" placeholder:"UUID" help:"Ids of the samples, instead of positions."`
	Columns   []string   `placeholder:"NAME" help:"Columns, in this order (default: position and the metadata, with --to also the blobs)."`
	JSON      bool       `name:"json" help:"Print a JSON array."`
	To        string     `placeholder:"DIR" help:"Write the blobs to files in this folder, with their metadata in metadata.parquet."`
	Force     bool       `short:"f" help:"Replace the folder, if it is one that take or get made."`
}

// sampleID is an id as an argument.
type sampleID schema.ID

// UnmarshalText reads a UUID.
func (id *sampleID) UnmarshalText(text []byte) error {
	parsed, err := schema.ParseID(string(text))
	*id = sampleID(parsed)
	return err
}

// Validate is called by kong.
func (c *TakeCmd) Validate() error {
	if (len(c.Positions) == 0) == (len(c.ID) == 0) {
		return errors.New("name the samples by position or by --id, and not by both")
	}
	return nil
}

// Run prints the samples or writes them to a folder. Blobs are left out of what is
// printed. The snapshot is fixed by describe, so that the columns and the rows are of the
// same one.
func (c *TakeCmd) Run(ctx context.Context, app *App) error {
	return app.with(ctx, false, func(client *client) error {
		d, err := describe(ctx, client, c.Dataset)
		if err != nil {
			return err
		}
		columns := c.Columns
		if c.To != "" {
			// A folder can be imported again, which takes the id and the split.
			columns = exportColumns(&d, columns)
		} else if len(columns) == 0 {
			columns = []string{schema.PositionColumn}
			for _, col := range d.Columns {
				if col.Kind != "blob" {
					columns = append(columns, col.Name)
				}
			}
		}
		if c.To != "" {
			return c.write(ctx, app, client, d.Snapshot, columns)
		}
		return c.show(ctx, app, client, d.Snapshot, columns)
	})
}

// write writes a folder with the samples. The folder appears only when it is complete.
func (c *TakeCmd) write(ctx context.Context, app *App, client *client, snapshot int64, columns []string) (err error) {
	// Samples are written as a folder, as get does.
	out := &output{to: c.To, format: "folder", opts: export.Options{Force: c.Force},
		left: int64(len(c.Positions) + len(c.ID))}
	defer func() { err = errors.Join(err, out.close()) }()
	if err := c.take(ctx, client, snapshot, columns, out.open, func(rec arrow.Record) (bool, error) {
		_, err := out.write(rec)
		return true, err
	}); err != nil {
		return err
	}
	if err := out.commit(); err != nil {
		return err
	}
	app.Notef("wrote %s to %s", plural(out.rows, "row"), c.To)
	return nil
}

// show prints the samples. It reads all of them first, so that it prints none after an
// error, and so that the columns have one width.
func (c *TakeCmd) show(ctx context.Context, app *App, client *client, snapshot int64, columns []string) error {
	var out table
	rows := []export.Object{}
	err := c.take(ctx, client, snapshot, columns, func(s *arrow.Schema) error {
		var names []string
		for _, f := range s.Fields() {
			names = append(names, strings.ToUpper(f.Name))
			// A label is shown by its class, which is text.
			out.numbers = append(out.numbers, schema.Classes(f) == nil && arrow.IsInteger(f.Type.ID()) ||
				arrow.IsFloating(f.Type.ID()))
		}
		out.add(names...)
		return nil
	}, func(rec arrow.Record) (bool, error) {
		for row := range int(rec.NumRows()) {
			if !c.JSON {
				cells := make([]string, rec.NumCols())
				for i, col := range rec.Columns() {
					cells[i] = cell(rec.Schema().Field(i), col, row)
				}
				out.add(cells...)
				continue
			}
			// The record is valid only during this call.
			rows = append(rows, export.Row(rec, row))
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	return app.show(c.JSON, rows, &out)
}

// takeBatch is the number of samples that one message requests. It bounds the memory of
// the server for a message.
const takeBatch = 1024

// take requests the samples and calls each with them, in the order of the request. One
// goroutine sends and another one receives: a server that sends answers while it waits
// for requests would otherwise block both sides.
func (c *TakeCmd) take(ctx context.Context, client *client, snapshot int64, columns []string,
	open func(*arrow.Schema) error, each func(arrow.Record) (more bool, err error)) error {
	// The command goes with the first message of the exchange.
	command, err := json.Marshal(map[string]any{"take": map[string]any{
		"dataset": c.Dataset.Name, "snapshot": snapshot, "columns": columns,
	}})
	if err != nil {
		return err
	}
	// If one side fails, ctx ends the call, and with it the other side.
	group, ctx := errgroup.WithContext(ctx)
	stream, err := client.DoExchange(ctx)
	if err != nil {
		return err
	}
	group.Go(func() error { return c.ask(stream, command) })
	group.Go(func() error { return readRecords(stream, open, each) })
	return group.Wait()
}

// ask sends the positions or ids. It returns nil if the server ended the call, because
// the reader gets the reason.
func (c *TakeCmd) ask(stream arrowflight.FlightService_DoExchangeClient, command []byte) error {
	// A request has one column: positions or ids.
	var keys arrow.Array
	field := arrow.Field{Name: schema.PositionColumn, Type: arrow.PrimitiveTypes.Int64}
	if len(c.Positions) > 0 {
		b := array.NewInt64Builder(memory.DefaultAllocator)
		defer b.Release()
		b.AppendValues(c.Positions, nil)
		keys = b.NewArray()
	} else {
		field = schema.IDField()
		b := array.NewFixedSizeBinaryBuilder(memory.DefaultAllocator,
			&arrow.FixedSizeBinaryType{ByteWidth: len(schema.ID{})})
		defer b.Release()
		for _, id := range c.ID {
			b.Append(id[:])
		}
		keys = b.NewArray()
	}
	defer keys.Release()
	s := arrow.NewSchema([]arrow.Field{field}, nil)
	writer := arrowflight.NewRecordWriter(stream, ipc.WithSchema(s))
	writer.SetFlightDescriptor(&arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD, Cmd: command})
	for start := 0; start < keys.Len(); start += takeBatch {
		end := min(keys.Len(), start+takeBatch)
		// The slice shares the buffers of keys.
		part := array.NewSlice(keys, int64(start), int64(end))
		rec := array.NewRecord(s, []arrow.Array{part}, int64(end-start))
		err := writer.Write(rec)
		rec.Release()
		part.Release()
		if errors.Is(err, io.EOF) {
			return nil // the server ended the call, and the reader gets the reason
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(writer.Close(), stream.CloseSend())
}

// cell returns a value for people. A blob is shown by its size, and a label by its class.
func cell(f arrow.Field, column arrow.Array, row int) string {
	// A null is shown as -, which no value of a column is.
	if column.IsNull(row) {
		return "-"
	}
	switch c := column.(type) {
	case *array.FixedSizeBinary:
		if f.Name == schema.IDColumn {
			return schema.FormatID(schema.ID(c.Value(row)))
		}
	// A blob may have offsets of 64 or of 32 bits.
	case *array.LargeBinary:
		return fmt.Sprintf("(%s)", plural(int64(len(c.Value(row))), "byte"))
	case *array.Binary:
		return fmt.Sprintf("(%s)", plural(int64(len(c.Value(row))), "byte"))
	}
	text := column.ValueStr(row)
	if name := className(f, text); name != "" {
		return name
	}
	return strings.NewReplacer("\n", " ", "\r", " ").Replace(text)
}

// className returns the name of the class of a label, and "" if f is no label.
func className(f arrow.Field, label string) string {
	classes := schema.Classes(f)
	// A label is stored as its index in the list of classes.
	var i int
	if _, err := fmt.Sscanf(label, "%d", &i); err != nil || i < 0 || i >= len(classes) {
		return ""
	}
	return classes[i]
}
