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

// A message is received here rather than by grpc, which takes in whatever a
// client claims, with one limit for all methods, and unary requests before
// anybody is asked. Here the length is known before a byte of the message is
// taken: the limit is the method's, and the memory is counted as it comes.

const (
	messagePrefix = 5 // compressed or not, length (32 bits)
	// requestSlack is what the protobuf around a request may have: what is still
	// larger is refused before it is read.
	requestSlack = 64 << 10
	// requestFactor is how much more than its message a decoded request takes:
	// lists of short texts are the worst.
	requestFactor = 10
	// firstPiece is what is taken of a message before there is room for more. So a
	// client has to send a fair part of what it wants to be counted for.
	firstPiece  = 64 << 10
	pieceFactor = 16
	// bodyAlign is what Arrow's values are aligned to.
	bodyAlign = 8
)

// headerReader is what grpc's transport has of a call. ReadMessageHeader fills all of the slice, however long it is, and
// lets the client send that much.
type headerReader interface {
	ReadMessageHeader(into []byte) error
}

// Limits bound what a call sends.
type Limits struct {
	MaxMessageBytes, MaxRequestBytes int
	// RequestTimeout is how long a call may take to say what it wants, MessageTimeout how long a piece of a later message
	// may take to arrive.
	RequestTimeout, MessageTimeout time.Duration
}

// Receiver reads the messages of one call. It is for one goroutine at a time.
type Receiver struct {
	limits Limits
	from   headerReader
	plain  grpc.ServerStream // in place of from, where grpc is not the release that was proven
	many   bool              // the client may send several messages
	kill   func(error)

	lease *Lease // of the last message, and what was made of it
	first bool   // one has come
	watch *time.Timer
}

// NewReceiver returns the receiver of a call, which the caller closes. It takes over a lease, by which the last message
// is counted. many says that the client may send several messages. kill ends the call, which is too slow.
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

// Receive reads the next message into m: io.EOF if there is none. The parts of a FlightData are valid until the next
// call.
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

// next takes in the next message, in place of the one before it.
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

// nextPlain has grpc take in the next message, which is counted when it is there.
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

// allowed checks the length of a message before any of it is taken in.
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

// read takes in a message of n bytes. The result has room for one more alignment behind
// it.
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

// piece fills b, in time.
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

// broken is what a transport's error means.
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

// Answered says that the request is done with, and that its client has an answer coming.
func (r *Receiver) Answered() {
	if !r.many {
		r.lease.Shrink(r.lease.Bytes() - r.lease.Bytes()/requestFactor)
	}
}

// Close gives back what the call took.
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

// data takes a FlightData apart, whose parts are those of b, which protobuf
// would copy. The body begins at a multiple of bodyAlign.
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

// align moves the body to where values can be read in place: into the room
// behind the message if it is its end, as writers have it, else elsewhere.
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
