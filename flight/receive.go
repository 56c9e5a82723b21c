package flight

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"bowstring/flight/wire"
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

// incomingBytes is what grpc's transport has of a call. ReadMessageHeader fills
// all of the slice, however long it is, and lets the client send that much.
type incomingBytes interface {
	ReadMessageHeader(into []byte) error
}

// receiver reads the messages of one call. It is for one goroutine at a time.
type receiver struct {
	server *Server
	call   *call
	from   incomingBytes
	client bool // whether the client may send several messages

	lease *lease // of the last message, and what was made of it
	first bool   // one has come
	watch *time.Timer
}

func (s *Server) newReceiver(ctx context.Context, c *call, info *grpc.StreamServerInfo) (*receiver, error) {
	from, ok := grpc.ServerTransportStreamFromContext(ctx).(incomingBytes)
	if !ok {
		return nil, wire.ErrTransport
	}
	r := &receiver{server: s, call: c, from: from, client: info.IsClientStream, lease: s.memory.lease(ctx, c.host)}
	c.incoming = r.lease
	r.watch = time.AfterFunc(s.opts.RequestTimeout, func() {
		s.calls.killCall(c, fmt.Errorf("%w: the call has not said what it wants, and RequestTimeout is %s",
			schema.ErrLimit, s.opts.RequestTimeout))
	})
	return r, nil
}

// receive reads the next message into m: io.EOF if there is none.
func (r *receiver) receive(m proto.Message) error {
	var prefix [messagePrefix]byte
	if err := r.from.ReadMessageHeader(prefix[:]); err != nil {
		return r.broken(err)
	}
	if prefix[0] != 0 {
		return status.Error(codes.Unimplemented, "compressed messages are not accepted; Arrow's own compression of "+
			"record batches is")
	}
	n := int(binary.BigEndian.Uint32(prefix[1:]))
	data, isData := m.(*flight.FlightData)
	if err := r.allowed(n, isData); err != nil {
		return err
	}
	r.lease.shrink(r.lease.bytes()) // the message before this one is done with
	b, err := r.read(n)
	if err != nil {
		return err
	}
	if isData {
		err = r.data(b, data)
	} else if err = r.lease.grow(requestFactor * int64(n)); err == nil {
		err = decodeMessage(b, m)
	}
	if err == nil {
		err = r.server.checkRequest(m)
	}
	if err == nil && !r.first {
		r.first = true
		r.watch.Stop()
	}
	return err
}

// allowed checks the length of a message before any of it is taken in.
func (r *receiver) allowed(n int, data bool) error {
	o := &r.server.opts
	switch {
	case data && n > o.MaxMessageBytes+o.MaxRequestBytes+requestSlack:
		return fmt.Errorf("%w: a message has %d bytes, MaxMessageBytes is %d; send smaller record batches",
			schema.ErrLimit, n, o.MaxMessageBytes)
	case !data && n > o.MaxRequestBytes+requestSlack:
		return fmt.Errorf("%w: the request has %d bytes, MaxRequestBytes is %d", schema.ErrLimit, n, o.MaxRequestBytes)
	}
	return nil
}

// read takes in a message of n bytes. What it returns has room for one more
// alignment behind it.
func (r *receiver) read(n int) ([]byte, error) {
	size := min(n, firstPiece)
	if err := r.lease.grow(int64(size + bodyAlign)); err != nil {
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
		if err := r.lease.grow(int64(size + bodyAlign)); err != nil {
			return nil, err
		}
		more := make([]byte, size, size+bodyAlign)
		copy(more, b)
		b = more
		r.lease.shrink(int64(have + bodyAlign))
	}
}

// piece fills b, in time.
func (r *receiver) piece(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if r.first {
		timeout := r.server.opts.MessageTimeout
		late := time.AfterFunc(timeout, func() {
			r.server.calls.killCall(r.call, fmt.Errorf("%w: %d bytes of a message did not arrive in time, "+
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
func (r *receiver) broken(err error) error {
	switch {
	case errors.Is(err, io.EOF) && !r.first && !r.client:
		return &schema.FieldError{Field: "request", Got: "no message", Want: "one"}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &schema.FieldError{Field: "message", Got: "its end in the middle",
			Want: "as many bytes as it said it had"}
	}
	return err
}

// answered: the request is done with, and its client has an answer coming.
func (r *receiver) answered() {
	if !r.client {
		r.lease.shrink(r.lease.bytes() - r.lease.bytes()/requestFactor)
	}
}

// close gives back what the call took.
func (r *receiver) close() {
	r.watch.Stop()
	r.lease.release()
}

func decodeMessage(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: the message is not the protobuf that the method takes: %v", schema.ErrInvalid, err) //nolint:errorlint // a client's mistake, whatever it wraps
	}
	return nil
}
