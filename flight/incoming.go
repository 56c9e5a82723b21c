package flight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/admission"
	"bowstring/flight/wire"
	"bowstring/schema"
	"bowstring/schema/ipc"
)

// incoming reads the record batches of a client's stream, with the messages
// that are none taken out. It is for one goroutine.
type incoming struct {
	stream flight.DataStreamReader
	opts   *Options
	ctx    context.Context // the call's
	work   *admission.Work // bounds what works on uploads at once
	who    string          // on whose account
	mem    memory.Allocator
	lease  *wire.Lease // of the last message and what is made of it; the next one takes it over
	kept   *wire.Lease // of what outlives its message
	// onMetadata is called with each message that holds app_metadata only; nil
	// ignores them. onData is called before each other one; nil does nothing.
	onMetadata func([]byte) error
	onData     func() error

	first *flight.FlightData // read by descriptor, not yet by recv
}

// newIncoming reads the stream of a call, whose context is ctx. The caller
// closes it.
func (s *Server) newIncoming(ctx context.Context, stream flight.DataStreamReader) *incoming {
	c := callFrom(ctx)
	in := &incoming{
		stream: stream, opts: &s.opts, ctx: ctx, work: s.work, who: c.host,
		lease: c.incoming, kept: c.incoming.Another(),
	}
	in.mem = &ipc.Allocator{Allocator: s.mem, Memory: in.lease}
	return in
}

// close gives back what the stream took beyond its last message.
func (in *incoming) close() { in.kept.Release() }

// rowsAtOnce is how many rows may be worked on without waiting for a turn: it
// takes less than a turn of another.
const rowsAtOnce = 1024

// turn runs f when it is its turn. Where what f makes waits for memory, the turn is others' meanwhile.
func (in *incoming) turn(f func(*admission.Turn) error) error {
	return in.work.DoInPieces(in.ctx, in.who, func(t *admission.Turn) error {
		in.lease.During(t)
		defer in.lease.During(nil)
		return f(t)
	})
}

// rowsAPiece is how many rows are worked on before others have a turn: some milliseconds.
const rowsAPiece = 1 << 15

// turnOf is turn for work on n rows.
func (in *incoming) turnOf(n int, f func(*admission.Turn) error) error {
	if n <= rowsAtOnce {
		return f(nil)
	}
	return in.turn(f)
}

// descriptor returns the descriptor, which the first message carries.
func (in *incoming) descriptor() (*flight.FlightDescriptor, error) {
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

// recv returns the next message with a schema, dictionary or batch.
func (in *incoming) recv() (*flight.FlightData, error) {
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

// batches waits for the schema and returns a reader of the batches.
func (in *incoming) batches() (*batches, error) {
	fd, err := in.recv()
	if errors.Is(err, io.EOF) {
		return nil, &schema.FieldError{Field: "stream", Got: "its end", Want: "a schema, then record batches"}
	}
	if err != nil {
		return nil, err
	}
	s, dictionaries, err := ipc.DecodeSchema(fd.DataHeader, schemaLimits, in.kept)
	if err != nil {
		return nil, refused(err)
	}
	if n := s.NumFields(); n == 0 || n > schema.MaxColumns {
		return nil, &schema.FieldError{Field: "schema", Got: fmt.Sprintf("%d columns", n),
			Want: fmt.Sprintf("1 to %d", schema.MaxColumns)}
	}
	r, err := ipc.NewReader(s, dictionaries, ipc.Options{MaxBatchRows: in.opts.MaxBatchRows,
		MaxMessageBytes: in.opts.MaxMessageBytes, Memory: in.lease, Kept: in.kept,
		Work: func(f func() error) error { return in.turn(func(*admission.Turn) error { return f() }) }})
	return &batches{r, in}, refused(err)
}

// schemaLimits bound the schema of an upload.
var schemaLimits = ipc.SchemaLimits{Bytes: 2 << 20, Tables: 1 << 15, Depth: 32, Dictionaries: 1}

// batches reads the record batches of a stream, whose schema has come.
type batches struct {
	*ipc.Reader
	in *incoming
}

// next returns the next batch, io.EOF at the stream's end in good order. A batch
// is valid until the next call.
func (b *batches) next() (*ipc.Batch, error) {
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

// refused says of an error about a message whether it is the client's mistake, or beyond a limit.
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

// rowCost is what each row of an upload takes besides its values, while it is
// taken apart, in bytes: its id and place, and for each blob the slice, the
// reference and the cell by which it goes into the store.
func rowCost(blobs int, splits bool) int64 {
	cost := int64(32 + 256*blobs)
	if splits {
		cost += 96
	}
	return cost
}

// idCost is what a row takes until its snapshot is committed: the ids, in a
// list that may have just grown.
const idCost = 40

// rowsTake counts in what n rows take at cost each.
func rowsTake(l *wire.Lease, n int, cost int64) error {
	if int64(n) > math.MaxInt64/cost {
		return fmt.Errorf("%w: %d rows", schema.ErrLimit, n)
	}
	return l.Grow(int64(n) * cost)
}
