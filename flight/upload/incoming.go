package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/flight/wire"
	"bowstring/schema"
	"bowstring/schema/ipc"
)

// Config has the limits and the accounts of a stream.
type Config struct {
	MaxBatchRows, MaxMessageBytes int
	// Work limits the uploads that use the CPU at once. Account is the one that this
	// upload's turns are charged to.
	Work    *admission.Work
	Account string
	// Mem allocates the arrays that are decoded from messages. Lease accounts for them and
	// for the messages.
	Mem   memory.Allocator
	Lease *wire.Lease
	// Moved counts the rows and bytes that were stored.
	Moved interface{ Count(rows int, bytes int64) }
}

// Incoming reads the record batches of a client's stream. It filters out the messages that
// have metadata only. One goroutine uses it.
type Incoming struct {
	Config
	stream flight.DataStreamReader
	ctx    context.Context // the call's
	mem    memory.Allocator
	lease  *wire.Lease // of the last message and its arrays; the next message reuses it
	kept   *wire.Lease // of data that outlives its message; until Close
	// onMetadata is called with each message that has only app_metadata; nil ignores them.
	// onData is called before each other message; nil does nothing.
	onMetadata func([]byte) error
	onData     func() error

	first *flight.FlightData // read by Descriptor, not yet by recv
}

// NewIncoming returns a reader of a call's stream. ctx is the call's context. The caller
// closes the result.
func NewIncoming(ctx context.Context, stream flight.DataStreamReader, c Config) *Incoming {
	return &Incoming{Config: c, stream: stream, ctx: ctx, lease: c.Lease, kept: c.Lease.Another(),
		mem: &ipc.Allocator{Allocator: c.Mem, Memory: c.Lease}}
}

// Close releases the memory that outlived its message. The call releases the last message.
func (in *Incoming) Close() { in.kept.Release() }

// RowsAtOnce is how many rows are processed without waiting for a turn. It takes less time
// than the turn of another upload.
const RowsAtOnce = 1024

// turn runs f in a turn of the upload's account. While f waits for memory, other uploads
// have the turn.
func (in *Incoming) turn(f func(*admission.Turn) error) error {
	return in.Work.DoInPieces(in.ctx, in.Account, func(t *admission.Turn) error {
		in.lease.During(t)
		defer in.lease.During(nil)
		return f(t)
	})
}

// rowsAPiece is how many rows are processed before others get a turn: some milliseconds.
const rowsAPiece = 1 << 15

// turnOf is turn for work on n rows. f gets nil if the rows are few: Pause of a nil turn
// does nothing.
func (in *Incoming) turnOf(n int, f func(*admission.Turn) error) error {
	if n <= RowsAtOnce {
		return f(nil)
	}
	return in.turn(f)
}

// Descriptor returns the descriptor of the first message. It is called before Batches.
func (in *Incoming) Descriptor() (*flight.FlightDescriptor, error) {
	// The descriptor is needed before the schema, so the message is kept for recv.
	first, err := in.stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, &schema.FieldError{Field: "stream", Got: "no message", Want: "a descriptor in the first one"}
	}
	if err != nil {
		return nil, err
	}
	if first.FlightDescriptor == nil {
		return nil, &schema.FieldError{Field: "descriptor", Got: "nothing", Want: "a descriptor in the first message"}
	}
	in.first = first
	return first.FlightDescriptor, nil
}

// recv returns the next message with a schema, dictionary or batch, io.EOF at the end.
func (in *Incoming) recv() (*flight.FlightData, error) {
	for {
		fd := in.first
		in.first = nil
		if fd == nil {
			var err error
			if fd, err = in.stream.Recv(); err != nil {
				return nil, err
			}
		}
		if len(fd.DataHeader) > 0 {
			if in.onData != nil {
				if err := in.onData(); err != nil {
					return nil, err
				}
			}
			return fd, nil
		}
		if len(fd.AppMetadata) > 0 && in.onMetadata != nil {
			if err := in.onMetadata(fd.AppMetadata); err != nil {
				return nil, err
			}
		}
	}
}

// Batches waits for the schema and returns a reader of the batches that follow.
func (in *Incoming) Batches() (*Batches, error) {
	fd, err := in.recv()
	if errors.Is(err, io.EOF) {
		return nil, &schema.FieldError{Field: "stream", Got: "its end", Want: "a schema, then record batches"}
	}
	if err != nil {
		return nil, err
	}
	// The schema outlives its message, so kept accounts for it.
	s, dictionaries, err := ipc.DecodeSchema(fd.DataHeader, schemaLimits, in.kept)
	if err != nil {
		return nil, refused(err)
	}
	if n := s.NumFields(); n == 0 || n > schema.MaxColumns {
		return nil, &schema.FieldError{Field: "schema", Got: fmt.Sprintf("%d columns", n),
			Want: fmt.Sprintf("1 to %d", schema.MaxColumns)}
	}
	r, err := ipc.NewReader(s, dictionaries, ipc.Options{MaxBatchRows: in.MaxBatchRows,
		MaxMessageBytes: in.MaxMessageBytes, Memory: in.lease, Kept: in.kept,
		Work: func(f func() error) error { return in.turn(func(*admission.Turn) error { return f() }) }})
	return &Batches{r, in}, refused(err)
}

// schemaLimits bound the schema of an upload: decoding it takes many times its bytes.
var schemaLimits = ipc.SchemaLimits{Bytes: 2 << 20, Tables: 1 << 15, Depth: 32, Dictionaries: 1}

// Batches reads the record batches of a stream after its schema. One goroutine uses it.
type Batches struct {
	*ipc.Reader
	in *Incoming
}

// Next returns the next batch, and io.EOF if the client has closed the stream. A batch is
// valid until the next call: its memory is that of the message.
func (b *Batches) Next() (*ipc.Batch, error) {
	for {
		fd, err := b.in.recv()
		if err != nil {
			return nil, err
		}
		rec, err := b.Read(fd.DataHeader, fd.DataBody)
		if rec != nil || err != nil {
			return rec, refused(err)
		}
	}
}

// refused classifies an error about a message: schema.ErrLimit if a limit was exceeded, and
// schema.ErrInvalid otherwise. Other errors stay as they are.
func refused(err error) error {
	if wrong, ok := errors.AsType[*ipc.Error](err); ok {
		kind := schema.ErrInvalid
		if wrong.Limit {
			kind = schema.ErrLimit
		}
		return fmt.Errorf("%w: %w", kind, err)
	}
	return err
}

// rowCost returns the memory of a row besides its values while it is converted, in bytes:
// its id and place, and for each blob the slice, the reference and the store's cell.
func rowCost(blobs int, splits bool) int64 {
	cost := int64(32 + 256*blobs)
	if splits {
		cost += 96
	}
	return cost
}

// idCost is the memory of a row's id until its snapshot is committed, in bytes. The list of
// ids may have just grown, so it counts more than the 16 bytes of an id.
const idCost = 40

// rowsTake reserves the memory of n rows at cost bytes each. It fails with schema.ErrLimit
// before the product can overflow.
func rowsTake(l *wire.Lease, n int, cost int64) error {
	if int64(n) > math.MaxInt64/cost {
		return fmt.Errorf("%w: %d rows", schema.ErrLimit, n)
	}
	return l.Grow(int64(n) * cost)
}

// positionCost is the memory of a requested position, in bytes.
const positionCost = 8

// Positions reads the samples that a batch names by its single column "position" or "id".
// Samples that are hidden from the job's caller do not exist: the error is that of an
// unknown id or position.
func (in *Incoming) Positions(ctx context.Context, job *fetch.Job, rec *ipc.Batch) (positions []int64, err error) {
	var wanted []schema.ID
	err = in.turnOf(rec.Rows, func(*admission.Turn) (err error) {
		positions, wanted, err = in.wanted(job, rec)
		return err
	})
	if err != nil || wanted == nil {
		return positions, err
	}
	m := job.Alone() // not nil: an exchange has no mixture
	if positions, err = m.Find(ctx, wanted); err != nil {
		return nil, err
	}
	for i, pos := range positions {
		if pos < 0 || !job.Sees(pos) {
			return nil, fmt.Errorf("%w: %s, row %d: no sample of %s@%d has id %s",
				schema.ErrNotFound, schema.IDColumn, i, m.Snapshot().Dataset, m.Snapshot().Number,
				schema.FormatID(wanted[i]))
		}
	}
	return positions, nil
}

// lookupCost is the memory of an id that is looked up, besides its position, in bytes.
const lookupCost = 64

// wanted reads the positions or the ids of a batch. Exactly one result is not nil.
func (in *Incoming) wanted(job *fetch.Job, rec *ipc.Batch) (positions []int64, wanted []schema.ID, err error) {
	byID := !job.Hides(schema.IDColumn)
	want := `one column, "position" or "id"`
	if !byID {
		want = `one column, "position"`
	}
	if len(rec.Columns) != 1 {
		return nil, nil, &schema.FieldError{Field: "columns", Got: fmt.Sprintf("%d", len(rec.Columns)), Want: want}
	}
	if err := rowsTake(in.lease, rec.Rows, positionCost); err != nil {
		return nil, nil, err
	}
	// A position is checked at once. Ids are looked up later, all together.
	col := rec.Columns[0]
	switch name := rec.Schema.Field(0).Name; {
	case name == schema.PositionColumn:
		at, err := integers(name, col)
		if err != nil {
			return nil, nil, err
		}
		positions = make([]int64, rec.Rows)
		for i := range positions {
			if positions[i] = at(i); !job.Sees(positions[i]) {
				return nil, nil, job.CheckPosition(fmt.Sprintf("%s, row %d", name, i), positions[i])
			}
		}
		return positions, nil, nil
	case name == schema.IDColumn && byID:
		if err := rowsTake(in.lease, rec.Rows, lookupCost); err != nil {
			return nil, nil, err
		}
		at, err := ids(name, col)
		if err != nil {
			return nil, nil, err
		}
		wanted = make([]schema.ID, rec.Rows)
		for i := range wanted {
			if wanted[i], err = at(i); err != nil {
				return nil, nil, err
			}
		}
		return nil, wanted, nil
	default:
		return nil, nil, &schema.FieldError{Field: "columns", Got: schema.Quote(name), Want: want}
	}
}

// integers returns the values of an integer column. It fails if the column has nulls.
func integers(name string, a arrow.Array) (func(int) int64, error) {
	at, err := ipc.Integers(a)
	if err != nil {
		return nil, &schema.FieldError{Field: fmt.Sprintf("column %q", name), Got: schema.ShownType(a.DataType()),
			Want: "integers"}
	}
	return at, noNulls(name, a)
}

// noNulls fails with the row of the first null.
func noNulls(name string, a arrow.Array) error {
	for i := range a.Len() {
		if a.IsNull(i) {
			return &schema.FieldError{Field: fmt.Sprintf("column %q, row %d", name, i), Got: "null",
				Want: "a value in every row"}
		}
	}
	return nil
}

// ids returns the values of a column of sample ids: 16 bytes, or text with a UUID. It fails
// if the column has nulls. The accessor parses a text when it is called, not before.
func ids(name string, a arrow.Array) (func(int) (schema.ID, error), error) {
	if ext, ok := a.(array.ExtensionArray); ok {
		a = ext.Storage()
	}
	var at func(int) (schema.ID, error)
	parse := func(i int, s string) (schema.ID, error) {
		id, err := schema.ParseID(s)
		if err != nil {
			return id, &schema.FieldError{Field: fmt.Sprintf("column %q, row %d", name, i), Got: schema.Quote(s),
				Want: "a UUID such as 6ba7b811-9dad-51d1-80b4-00c04fd430c8"}
		}
		return id, nil
	}
	switch a := a.(type) {
	case *array.FixedSizeBinary:
		if a.DataType().(*arrow.FixedSizeBinaryType).ByteWidth == len(schema.ID{}) {
			at = func(i int) (schema.ID, error) { return schema.ID(a.Value(i)), nil }
		}
	case *array.String:
		at = func(i int) (schema.ID, error) { return parse(i, a.Value(i)) }
	case *array.LargeString:
		at = func(i int) (schema.ID, error) { return parse(i, a.Value(i)) }
	}
	if at == nil {
		return nil, &schema.FieldError{Field: fmt.Sprintf("column %q", name), Got: schema.ShownType(a.DataType()),
			Want: "fixed_size_binary[16], arrow.uuid or utf8"}
	}
	return at, noNulls(name, a)
}

// texts returns the values of a string or binary column. Binary values are not copied and
// valid as long as the array. ok is false for null.
func texts(a arrow.Array) (at func(int) (v []byte, ok bool), err error) {
	var value func(int) []byte
	switch a := a.(type) {
	case *array.Binary:
		value = a.Value
	case *array.LargeBinary:
		value = a.Value
	case *array.String:
		value = func(i int) []byte { return []byte(a.Value(i)) }
	case *array.LargeString:
		value = func(i int) []byte { return []byte(a.Value(i)) }
	default:
		return nil, fmt.Errorf("%w: type %s is neither text nor binary", schema.ErrInvalid, a.DataType())
	}
	return func(i int) ([]byte, bool) {
		if a.IsNull(i) {
			return nil, false
		}
		return value(i), true
	}, nil
}
