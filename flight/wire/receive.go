package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
	"unsafe"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"bowstring/schema"
)

// This package receives messages itself. grpc's own way would allocate what a client
// announces, with one limit for all methods, and it would read unary requests before the
// server could refuse them. Here the length is known before a byte of the message is
// read: the limit depends on the method, and memory is charged as bytes arrive.

const (
	messagePrefix = 5 // compressed or not, length (32 bits)
	// requestSlack is the room for the protobuf fields around a request. A larger message
	// is refused unread.
	requestSlack = 64 << 10
	// requestFactor bounds the memory of a decoded request, as a multiple of its
	// encoding. Lists of short texts are the worst case.
	requestFactor = 10
	// firstPiece is how much of a message is read before more memory is charged, and
	// pieceFactor is the growth of later pieces. So a client has to send a sizeable part
	// of the bytes for which it occupies memory.
	firstPiece  = 64 << 10
	pieceFactor = 16
	// bodyAlign is the alignment of Arrow values in bytes.
	bodyAlign = 8
)

// headerReader is the method of grpc's transport stream that this package uses.
// ReadMessageHeader fills the whole slice, of any length, and opens the client's
// flow-control window by that much.
type headerReader interface {
	ReadMessageHeader(into []byte) error
}

// Limits bound the messages of a call.
type Limits struct {
	MaxMessageBytes, MaxRequestBytes int
	// RequestTimeout bounds the time until the first message is complete. MessageTimeout
	// bounds the time in which a piece of a later message arrives.
	RequestTimeout, MessageTimeout time.Duration
}

// Receiver reads the messages of one call. Only one goroutine at a time may use it.
type Receiver struct {
	limits Limits
	from   headerReader
	plain  grpc.ServerStream // used instead of from, if grpc is another release than the one that was tested
	many   bool              // the client may send several messages
	kill   func(error)

	lease *Lease // of the last message, and what was made of it
	first bool   // one has come
	watch *time.Timer
}

// NewReceiver returns the receiver of a call, which the caller closes. It takes over a
// lease, to which the current message is charged. many says that the client may send
// several messages. kill ends a call that is too slow.
func NewReceiver(ss grpc.ServerStream, limits Limits, lease *Lease, many bool, kill func(error)) (*Receiver, error) {
	r := &Receiver{limits: limits, many: many, kill: kill, lease: lease}
	if isPlain(ss.Context()) {
		r.plain = ss
	} else {
		from, ok := grpc.ServerTransportStreamFromContext(ss.Context()).(headerReader)
		if !ok {
			return nil, errTransport
		}
		r.from = from
	}
	r.watch = time.AfterFunc(limits.RequestTimeout, func() {
		kill(fmt.Errorf("%w: the call has not said what it wants, and RequestTimeout is %s", schema.ErrLimit,
			limits.RequestTimeout))
	})
	return r, nil
}

// Receive decodes the next message into m, or returns io.EOF. The slices of a FlightData
// are valid until the next call.
func (r *Receiver) Receive(m proto.Message) error {
	data, isData := m.(*flight.FlightData)
	b, err := r.next(isData)
	if err != nil {
		return err
	}
	if isData {
		err = r.data(b, data)
	} else if err = r.lease.Grow(requestFactor * int64(len(b))); err == nil {
		if err = proto.Unmarshal(b, m); err != nil {
			err = fmt.Errorf("%w: the message is not the protobuf that the method takes: %v", schema.ErrInvalid, err) //nolint:errorlint // a client's mistake, whatever it wraps
		}
	}
	if err == nil {
		err = r.limits.check(m)
	}
	if err == nil && !r.first {
		r.first = true
		r.watch.Stop()
	}
	return err
}

// next reads the next message and returns the memory of the previous one.
func (r *Receiver) next(data bool) ([]byte, error) {
	if r.plain != nil {
		return r.nextPlain(data)
	}
	var prefix [messagePrefix]byte
	if err := r.from.ReadMessageHeader(prefix[:]); err != nil {
		return nil, r.broken(err)
	}
	if prefix[0] != 0 {
		return nil, status.Error(codes.Unimplemented, "compressed messages are not accepted; Arrow's own compression of "+
			"record batches is")
	}
	n := int(binary.BigEndian.Uint32(prefix[1:]))
	if err := r.allowed(n, data); err != nil {
		return nil, err
	}
	r.lease.Shrink(r.lease.Bytes()) // the message before this one is done with
	return r.read(n)
}

// nextPlain lets grpc read the next message, which is charged when it is complete. It is
// less strict than next, and used only if grpc's transport is not the tested one.
func (r *Receiver) nextPlain(data bool) ([]byte, error) {
	var m received
	if err := r.plain.RecvMsg(&m); err != nil {
		return nil, r.broken(err)
	}
	if err := r.allowed(len(m), data); err != nil {
		return nil, err
	}
	r.lease.Shrink(r.lease.Bytes())
	return m, r.lease.Grow(int64(cap(m)))
}

// allowed checks the announced length of a message before any of it is read.
func (r *Receiver) allowed(n int, data bool) error {
	o := &r.limits
	switch {
	case data && n > o.MaxMessageBytes+o.MaxRequestBytes+requestSlack:
		return fmt.Errorf("%w: a message has %d bytes, MaxMessageBytes is %d; send smaller record batches",
			schema.ErrLimit, n, o.MaxMessageBytes)
	case !data && n > o.MaxRequestBytes+requestSlack:
		return fmt.Errorf("%w: the request has %d bytes, MaxRequestBytes is %d", schema.ErrLimit, n, o.MaxRequestBytes)
	}
	return nil
}

// read reads a message of n bytes, in pieces that grow by pieceFactor. The result has
// room for bodyAlign more bytes, which align uses.
func (r *Receiver) read(n int) ([]byte, error) {
	size := min(n, firstPiece)
	if err := r.lease.Grow(int64(size + bodyAlign)); err != nil {
		return nil, err
	}
	b := make([]byte, size, size+bodyAlign)
	for have := 0; ; {
		if err := r.piece(b[have:]); err != nil {
			return nil, err
		}
		if have = len(b); have == n {
			return b, nil
		}
		size = min(n, have*pieceFactor)
		if err := r.lease.Grow(int64(size + bodyAlign)); err != nil {
			return nil, err
		}
		more := make([]byte, size, size+bodyAlign)
		copy(more, b)
		b = more
		r.lease.Shrink(int64(have + bodyAlign))
	}
}

// piece fills b. After the first message it has MessageTimeout for that: a client that
// announces a message and then stops would hold its memory for ever.
func (r *Receiver) piece(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if r.first {
		timeout := r.limits.MessageTimeout
		late := time.AfterFunc(timeout, func() {
			r.kill(fmt.Errorf("%w: %d bytes of a message did not arrive in time, "+
				"MessageTimeout is %s", schema.ErrLimit, len(b), timeout))
		})
		defer late.Stop()
	}
	err := r.from.ReadMessageHeader(b)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return r.broken(err)
	}
	return nil
}

// broken translates an error of the transport.
func (r *Receiver) broken(err error) error {
	switch {
	case errors.Is(err, io.EOF) && !r.first && !r.many:
		return &schema.FieldError{Field: "request", Got: "no message", Want: "one"}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &schema.FieldError{Field: "message", Got: "its end in the middle",
			Want: "as many bytes as it said it had"}
	}
	return err
}

// Answered returns the memory of the decoded request when its answer begins, for methods
// with one request.
func (r *Receiver) Answered() {
	if !r.many {
		r.lease.Shrink(r.lease.Bytes() - r.lease.Bytes()/requestFactor)
	}
}

// Close stops the timer and returns all memory of the call.
func (r *Receiver) Close() {
	r.watch.Stop()
	r.lease.Release()
}

// check enforces MaxRequestBytes and MaxMessageBytes.
func (l *Limits) check(m any) error {
	what, size := "", 0
	switch m := m.(type) {
	case *flight.Ticket:
		what, size = "ticket", len(m.Ticket)
	case *flight.Criteria:
		what, size = "criteria", len(m.Expression)
	case *flight.Action:
		what, size = "body of an action", len(m.Body)
	case *flight.FlightDescriptor:
		what, size = "descriptor", descriptorSize(m)
	case *flight.FlightData:
		if n := len(m.DataHeader) + len(m.DataBody) + len(m.AppMetadata); n > l.MaxMessageBytes {
			return fmt.Errorf("%w: a message has %d bytes, MaxMessageBytes is %d; send smaller record batches",
				schema.ErrLimit, n, l.MaxMessageBytes)
		}
		what, size = "descriptor", descriptorSize(m.FlightDescriptor)
	}
	if size > l.MaxRequestBytes {
		return fmt.Errorf("%w: the %s has %d bytes, MaxRequestBytes is %d", schema.ErrLimit, what, size,
			l.MaxRequestBytes)
	}
	return nil
}

func descriptorSize(d *flight.FlightDescriptor) int {
	size := len(d.GetCmd())
	for _, p := range d.GetPath() {
		size += len(p)
	}
	return size
}

// Numbers of the fields of FlightData.
const (
	fieldDescriptor = 1
	fieldHeader     = 2
	fieldMetadata   = 3
	fieldBody       = 1000
)

// data splits a FlightData into slices of b, which protobuf would copy. The body begins
// at a multiple of bodyAlign. Unknown fields are skipped, as protobuf does.
func (r *Receiver) data(b []byte, m *flight.FlightData) error {
	m.Reset()
	whole := b
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return notFlightData(n)
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(field, kind, b); n < 0 {
				return notFlightData(n)
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return notFlightData(n)
		}
		b = b[n:]
		switch field {
		case fieldDescriptor:
			if len(v) > r.limits.MaxRequestBytes+requestSlack {
				return fmt.Errorf("%w: the descriptor has %d bytes, MaxRequestBytes is %d", schema.ErrLimit, len(v),
					r.limits.MaxRequestBytes)
			}
			if err := r.lease.Grow(requestFactor * int64(len(v))); err != nil {
				return err
			}
			if m.FlightDescriptor == nil {
				m.FlightDescriptor = &flight.FlightDescriptor{}
			}
			if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(v, m.FlightDescriptor); err != nil {
				return fmt.Errorf("%w: the descriptor is no protobuf: %v", schema.ErrInvalid, err) //nolint:errorlint // a client's mistake, whatever it wraps
			}
		case fieldHeader:
			m.DataHeader = v
		case fieldMetadata:
			m.AppMetadata = v
		case fieldBody:
			m.DataBody = v
		}
	}
	return r.align(whole, m)
}

func notFlightData(n int) error {
	return fmt.Errorf("%w: the message is no FlightData: %v", schema.ErrInvalid, protowire.ParseError(n)) //nolint:errorlint // a client's mistake, whatever it wraps
}

// align makes the body's address a multiple of bodyAlign, so that values can be read in
// place. If the body is at the end of the message, as all writers put it, it is moved by
// a few bytes into the room behind; otherwise it is copied.
func (r *Receiver) align(whole []byte, m *flight.FlightData) error {
	body := m.DataBody
	if len(body) == 0 {
		return nil
	}
	off := int(uintptr(unsafe.Pointer(&body[0])) % bodyAlign)
	if off == 0 {
		return nil
	}
	n := len(body)
	if &body[n-1] == &whole[len(whole)-1] && cap(body) >= n+bodyAlign {
		by := bodyAlign - off
		moved := body[by : by+n]
		copy(moved, body)
		m.DataBody = moved
		return nil
	}
	if err := r.lease.Grow(int64(n)); err != nil {
		return err
	}
	m.DataBody = append(aligned(n)[:0], body...)
	return nil
}

// aligned returns n bytes whose first is at a multiple of bodyAlign.
func aligned(n int) []byte { return make([]byte, (n+bodyAlign-1)/bodyAlign*bodyAlign)[:n:n] }
