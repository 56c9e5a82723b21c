package flight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/admission"
	"bowstring/flight/wire"
	"bowstring/schema"
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
	in.mem = &countedAllocator{s.mem, in.lease}
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
	head, err := checkSchema(fd.DataHeader)
	if err != nil {
		return nil, err
	}
	if err := in.kept.Grow(head.memory); err != nil {
		return nil, err
	}
	s, err := decodeSchema(fd)
	if err != nil {
		return nil, err
	}
	b := &batches{in: in, schema: s, ids: make([]int64, s.NumFields()), dictionaries: map[int64]*dictionary{}}
	for i, f := range s.Fields() {
		b.ids[i] = noDictionary
		dict, ok := storageType(f.Type).(*arrow.DictionaryType)
		if !ok {
			continue
		}
		b.ids[i] = head.dictionaries[i]
		dt := storageType(dict.ValueType)
		if known := b.dictionaries[b.ids[i]]; known != nil && !arrow.TypeEqual(known.dt, dt) {
			return nil, fmt.Errorf("%w: two columns of different types have the dictionary of id %d", schema.ErrInvalid,
				b.ids[i])
		}
		b.dictionaries[b.ids[i]] = &dictionary{dt: dt}
	}
	return b, nil
}

// oneMessage is a stream of one message.
type oneMessage struct{ fd *flight.FlightData }

// Recv implements flight.DataStreamReader.
func (o *oneMessage) Recv() (*flight.FlightData, error) {
	fd := o.fd
	if o.fd = nil; fd == nil {
		return nil, io.EOF
	}
	return fd, nil
}

// libraryPanic is in the errors that the Arrow library makes of its panics.
const libraryPanic = "unknown error while reading"

// decodeSchema reads a schema that has passed checkSchema.
func decodeSchema(fd *flight.FlightData) (s *arrow.Schema, err error) {
	broken := func(why any) error {
		if _, ok := errors.AsType[runtime.Error](err); ok {
			why = "it leads out of itself" // a panic is nothing that a client could read
		} else if err != nil && strings.Contains(err.Error(), libraryPanic) {
			why = "it holds what the library does not expect" // nor is one that the library has made an error of
		}
		return fmt.Errorf("%w: the stream does not begin with a schema of Arrow IPC: %.200v", schema.ErrInvalid, why)
	}
	rdr, err := flight.NewRecordReader(&oneMessage{&flight.FlightData{DataHeader: fd.DataHeader}})
	if err != nil {
		return nil, broken(err)
	}
	defer rdr.Release()
	if n := rdr.Schema().NumFields(); n == 0 || n > schema.MaxColumns {
		return nil, &schema.FieldError{Field: "schema", Got: fmt.Sprintf("%d columns", n),
			Want: fmt.Sprintf("1 to %d", schema.MaxColumns)}
	}
	return rdr.Schema(), nil
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
