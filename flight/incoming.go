package flight

import (
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// incoming reads the record batches of a client's stream, with the messages
// that are none taken out. It is for one goroutine.
type incoming struct {
	stream flight.DataStreamReader
	mem    boundedAllocator
	// onMetadata is called with each message that holds app_metadata only; nil
	// ignores them. onData is called before each other one; nil does nothing.
	onMetadata func([]byte) error
	onData     func() error

	first *flight.FlightData // read by descriptor, not yet by Recv
	ended bool               // Recv has seen the end of the stream
	err   error              // that Recv returned, but for io.EOF
}

// newIncoming reads from stream messages of up to maxMessage bytes. A record
// batch may take twice as much in memory, decompressed and its dictionaries
// decoded.
func newIncoming(stream flight.DataStreamReader, mem memory.Allocator, maxMessage int) *incoming {
	return &incoming{stream: stream, mem: boundedAllocator{Allocator: mem, limit: 2 * int64(maxMessage)}}
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

// Recv returns the next message with a schema, dictionary or batch, for the
// reader.
func (in *incoming) Recv() (*flight.FlightData, error) {
	fd, err := in.next()
	switch {
	case errors.Is(err, io.EOF):
		in.ended = true
	case err != nil:
		in.err = err
	}
	return fd, err
}

func (in *incoming) next() (*flight.FlightData, error) {
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
			if err := checkHeader(fd.DataHeader); err != nil {
				return nil, err
			}
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

// reader waits for the schema and returns a reader of the batches. When its
// Next returns false, end says why.
func (in *incoming) reader() (*flight.Reader, error) {
	rdr, err := flight.NewRecordReader(in, ipc.WithAllocator(&in.mem))
	if errors.Is(err, io.EOF) {
		return nil, &schema.FieldError{Field: "stream", Got: "its end", Want: "a schema, then record batches"}
	}
	if err != nil {
		return nil, in.end(err)
	}
	return rdr, nil
}

// end is why a reader came to its end, given its Err; nil if the client ended
// the stream in good order.
func (in *incoming) end(err error) error {
	switch {
	case in.err != nil:
		return in.err
	case err == nil && in.ended:
		return nil
	}
	// Not wrapped: among the reader's errors is io.EOF, for a message cut short.
	return in.limited(fmt.Errorf("%w: the stream is not Arrow IPC as Flight carries it: %v", schema.ErrInvalid, err)) //nolint:errorlint // see above
}

// limited is err, or what is behind it if memory was refused.
func (in *incoming) limited(err error) error {
	if in.mem.exceeded {
		return fmt.Errorf("%w: a record batch, decompressed and its dictionaries decoded, takes more than twice MaxMessageBytes, which is %d", schema.ErrLimit, in.mem.limit/2)
	}
	return err
}

// bounded runs f, which allocates from mem, and makes an error of a refusal.
func (in *incoming) bounded(f func() error) (err error) {
	defer func() {
		if in.mem.exceeded {
			_ = recover() // the allocator's
			err = in.limited(err)
		}
	}()
	return f()
}

// boundedAllocator refuses to hold more than limit bytes: a few compressed
// ones can claim to be any number. It panics, as its interface leaves no other
// way; the IPC reader makes an error of that.
type boundedAllocator struct {
	memory.Allocator
	limit    int64
	used     int64
	exceeded bool
}

func (a *boundedAllocator) reserve(n int) {
	if int64(n) > a.limit-a.used {
		a.exceeded = true
		panic(fmt.Sprintf("more than %d bytes", a.limit))
	}
	a.used += int64(n)
}

// Allocate implements memory.Allocator.
func (a *boundedAllocator) Allocate(size int) []byte {
	a.reserve(size)
	return a.Allocator.Allocate(size)
}

// Reallocate implements memory.Allocator.
func (a *boundedAllocator) Reallocate(size int, b []byte) []byte {
	a.reserve(size - len(b))
	return a.Allocator.Reallocate(size, b)
}

// Free implements memory.Allocator.
func (a *boundedAllocator) Free(b []byte) {
	a.used -= int64(len(b))
	a.Allocator.Free(b)
}
