package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// maxFrame is the largest frame that HTTP/2 allows by default. hugeFlow is the largest
// window.
const (
	maxFrame  = 16 << 10
	hugeFlow  = 1<<31 - 1 // the most that a window can be
	flightURL = "/arrow.flight.protocol.FlightService/"
)

// Conn is an HTTP/2 connection whose owner may write any frames. net/http and gRPC would
// not send most of what the cases need. A goroutine reads until the connection ends.
// Other goroutines may open streams at once.
type Conn struct {
	net.Conn
	fr *http2.Framer

	// mu guards the fields below. changed is signalled after each frame of the server,
	// and when the context of a waiting call ends.
	mu      sync.Mutex
	changed *sync.Cond
	headers bytes.Buffer       // what enc has written; guarded by mu
	enc     *hpack.Encoder     // guarded by mu
	next    uint32             // id of the next stream; guarded by mu
	window  int64              // what the server grants the connection; guarded by mu
	initial int64              // what the server grants each stream at first; guarded by mu
	streams map[uint32]*Stream // open calls by id; guarded by mu
	err     error              // the reason for which reading ended; guarded by mu
	closed  chan struct{}      // closed when the reader has ended
}

// Stream is a call on a Conn. ID and conn are constant.
type Stream struct {
	ID   uint32
	conn *Conn

	window  int64      // bytes that the server grants; guarded by conn.mu
	ended   bool       // whether a status or a reset arrived; guarded by conn.mu
	code    codes.Code // guarded by conn.mu
	message string     // guarded by conn.mu
	data    []byte     // received data; guarded by mu
}

// RefusedError is the server's error status of a call: the answer that most cases expect.
type RefusedError struct {
	Code    codes.Code
	Message string
}

// Error implements error.
func (r *RefusedError) Error() string { return fmt.Sprintf("%s: %s", r.Code, r.Message) }

// errGone is the end of a connection, or of a call, without a status.
var errGone = errors.New("the server ended the connection or the stream")

// Target is the server's address and the client's own. Limits by address apply to From,
// so that honest clients can have another address on the same machine.
type Target struct {
	Addr string // host:port, of loopback
	From net.IP // the address to call from
	// Admin is host:port of the admin listener, of loopback; "" if there is none.
	Admin string
}

// dialRaw opens a connection and sends nothing. It returns an error for an address of
// another machine: the cases must never attack one.
func (t Target) dialRaw(ctx context.Context) (net.Conn, error) {
	addr, err := net.ResolveTCPAddr("tcp", t.Addr)
	if err != nil {
		return nil, err
	}
	if !addr.IP.IsLoopback() {
		return nil, fmt.Errorf("%s is not an address of this machine", t.Addr)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: t.From}}
	return d.DialContext(ctx, "tcp", t.Addr)
}

// Dial opens a connection and sends the preface and settings. The caller closes it.
func (t Target) Dial(ctx context.Context, settings ...http2.Setting) (*Conn, error) {
	raw, err := t.dialRaw(ctx)
	if err != nil {
		return nil, err
	}
	c := &Conn{Conn: raw, fr: http2.NewFramer(raw, raw), next: 1, window: 65535, initial: 65535,
		streams: map[uint32]*Stream{}, closed: make(chan struct{})}
	c.changed = sync.NewCond(&c.mu)
	c.enc = hpack.NewEncoder(&c.headers)
	// The framer decodes headers, and joins their continuations.
	c.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	// A client begins with the preface and its settings (RFC 9113, 3.4).
	if _, err := raw.Write([]byte(http2.ClientPreface)); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	if err := c.fr.WriteSettings(settings...); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	go c.read()
	return c, nil
}

// Close ends the connection, and waits for its reader.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	<-c.closed
	return err
}

// read handles frames from the server until the connection ends. An error of one stream
// does not end it.
func (c *Conn) read() {
	defer close(c.closed)
	for {
		f, err := c.fr.ReadFrame()
		c.mu.Lock()
		if err == nil {
			c.take(f)
		} else if _, stream := errors.AsType[http2.StreamError](err); !stream {
			c.err = err
			for _, s := range c.streams {
				s.ended = true
			}
		}
		gone := c.err != nil
		c.changed.Broadcast()
		c.mu.Unlock()
		if gone {
			return
		}
	}
}

// take handles a frame. The caller holds mu. It follows RFC 9113 only as far as a server
// can notice: it acknowledges pings, and keeps account of windows.
func (c *Conn) take(f http2.Frame) {
	s := c.streams[f.Header().StreamID]
	switch f := f.(type) {
	case *http2.SettingsFrame:
		// A change of the initial window applies to open streams as well (RFC 9113,
		// 6.9.2).
		if n, ok := f.Value(http2.SettingInitialWindowSize); ok {
			for _, s := range c.streams {
				s.window += int64(n) - c.initial
			}
			c.initial = int64(n)
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = c.fr.WritePing(true, f.Data) // the reader gets the error too
		}
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.window += int64(f.Increment)
		} else if s != nil {
			s.window += int64(f.Increment)
		}
	case *http2.MetaHeadersFrame:
		if s == nil {
			return
		}
		for _, h := range f.Fields {
			switch h.Name {
			case "grpc-status":
				n, _ := strconv.Atoi(h.Value)
				s.code, s.ended = codes.Code(n), true //nolint:gosec // a status of grpc
			case "grpc-message":
				s.message = h.Value
			}
		}
		// A status may come in the first headers, if a call fails at once.
		s.ended = s.ended || f.StreamEnded()
	case *http2.DataFrame:
		if s != nil {
			s.data = append(s.data, f.Data()...)
		}
	case *http2.RSTStreamFrame:
		if s != nil && !s.ended {
			s.ended, s.code = true, codes.Unknown
			s.message = "reset: " + f.ErrCode.String()
		}
	case *http2.GoAwayFrame:
		// After GOAWAY the server answers nothing more that the cases need.
		c.err = fmt.Errorf("%w: %s %s", errGone, f.ErrCode, f.DebugData())
		for _, s := range c.streams {
			s.ended = true
		}
	}
}

// block encodes the headers of a call. The caller holds mu, because the encoder has state
// that both ends share.
func (c *Conn) block(method string, more ...hpack.HeaderField) []byte {
	c.headers.Reset()
	for _, h := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method},
		{Name: ":authority", Value: "hostile"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, more...) {
		_ = c.enc.WriteField(h) // into a buffer, which cannot fail
	}
	return bytes.Clone(c.headers.Bytes())
}

// Open begins a call. Clients use odd ids in ascending order.
func (c *Conn) Open(method string, more ...hpack.HeaderField) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	s := &Stream{ID: c.next, conn: c, window: c.initial, code: codes.Unknown}
	c.next += 2
	c.streams[s.ID] = s
	return s, c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: s.ID, BlockFragment: c.block(method, more...),
		EndHeaders: true})
}

// awaken wakes the goroutines that wait on the connection when ctx ends: a sync.Cond
// knows no context.
func (c *Conn) awaken(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})
}

// Write sends bytes of the call as fast as the server's windows allow. It returns nil if
// the call has ended, because the status has the reason.
func (s *Stream) Write(ctx context.Context, b []byte, end bool) error {
	c := s.conn
	defer c.awaken(ctx)()
	c.mu.Lock()
	defer c.mu.Unlock()
	for first := true; first || len(b) > 0; first = false {
		// A call without data sends its end at once, also without a window.
		for len(b) > 0 && min(s.window, c.window) <= 0 && !s.ended && c.err == nil && ctx.Err() == nil {
			c.changed.Wait()
		}
		if s.ended || c.err != nil || ctx.Err() != nil {
			return ctx.Err() // the status has the reason
		}
		n := min(int64(len(b)), maxFrame, s.window, c.window)
		if err := c.fr.WriteData(s.ID, end && n == int64(len(b)), b[:max(0, n)]); err != nil {
			return nil // the status has the reason, or there is none
		}
		s.window, c.window, b = s.window-n, c.window-n, b[max(0, n):]
	}
	return nil
}

// forget removes a call that has ended. Cases with very many calls would otherwise run
// out of memory before the server does.
func (s *Stream) forget() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	delete(s.conn.streams, s.ID)
}

// Status waits for the end of the call. It returns nil, a *RefusedError, errGone for an
// end without a status, or the cause of ctx.
func (s *Stream) Status(ctx context.Context) error {
	c := s.conn
	defer c.awaken(ctx)()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !s.ended && ctx.Err() == nil {
		c.changed.Wait()
	}
	switch {
	case !s.ended:
		return context.Cause(ctx)
	case s.code == codes.OK:
		return nil
	// Neither a status nor a reset: the connection ended.
	case s.code == codes.Unknown && s.message == "":
		return errGone
	}
	return &RefusedError{s.code, s.message}
}

// framed returns a message with gRPC's prefix: a byte 0, that is uncompressed, and the
// length in 4 bytes.
func framed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// Ask makes a call with those messages over a connection of its own, and returns its
// status. It grants the largest windows, so that only the server limits itself. A nil
// message sends an empty frame.
func (t Target) Ask(ctx context.Context, method string, messages ...[]byte) error {
	c, err := t.Dial(ctx, http2.Setting{ID: http2.SettingInitialWindowSize, Val: hugeFlow})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.widen(hugeFlow - 65535); err != nil {
		return err
	}
	s, err := c.Open(flightURL+method, timeoutOf(ctx)...)
	if err != nil {
		return err
	}
	if len(messages) == 0 {
		messages = [][]byte{nil}
	}
	for i, m := range messages {
		if m != nil {
			m = framed(m)
		}
		if err := s.Write(ctx, m, i == len(messages)-1); err != nil {
			return err
		}
	}
	return s.Status(ctx)
}

// widen grants the server a larger window of the connection.
func (c *Conn) widen(by uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fr.WriteWindowUpdate(0, by)
}

// timeoutOf returns gRPC's header with the deadline of ctx, and nothing without a
// deadline.
func timeoutOf(ctx context.Context) []hpack.HeaderField {
	at, ok := ctx.Deadline()
	if !ok {
		return nil
	}
	return []hpack.HeaderField{{Name: "grpc-timeout", Value: fmt.Sprintf("%dm", max(1, time.Until(at).Milliseconds()))}}
}
