package peer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// maxFrame is how long a frame may be that the other side sends: as long as its messages usually are.
	maxFrame = 1 << 20
	// wireBuffer is what is read ahead of a frame's header. Of a blob no more than that is copied twice.
	wireBuffer = 8 << 10
	// maxHeaders bounds headers, and all frames but those with data.
	maxHeaders = 64 << 10
	// wireStream is the id of the call: it is the only one of its connection.
	wireStream = 1
	// prefixBytes come before each message: whether it is compressed, and its length.
	prefixBytes = 5
	// leastWindow is what HTTP/2 lets each side send at first.
	leastWindow = 65_535
	// mostWindow is the largest window of HTTP/2.
	mostWindow = 1<<31 - 1
)

// wire is a call of gRPC over a connection of its own, from the frames on. A client of gRPC would have each message in
// memory in pieces of 16 KiB, each of which it has copied, before anybody sees it: here it is read from the socket to
// where it stays. RFC 9113 says what the frames are, and gRPC's PROTOCOL-HTTP2 what is in them.
//
// One goroutine receives, any may send. All ends when the context of dialWire does.
type wire struct {
	conn    net.Conn
	binding []byte       // of TLS, see Binding; nil without
	stop    func() bool  // has the connection outlive the context
	last    atomic.Int64 // when anything came, in nanoseconds since made
	made    time.Time
	heard   func() // told when bytes of a message have come

	// Of the goroutine that receives.
	in      *bufio.Reader
	vectors *vectorReader // nil where there is none
	head    [frameHead]byte
	rest    *bytes.Reader // of head, for frames
	frames  *http2.Framer // of all but data
	left    int           // bytes of data still to come in the present frame
	padding int           // that follow them
	used    uint32        // bytes that came and that the other side may not yet send anew
	ended   error         // what the other side has said at its end

	writing sync.Mutex
	out     *http2.Framer // guarded by writing
	flush   *bufio.Writer // what out writes to; guarded by writing

	mu      sync.Mutex
	grown   sync.Cond // more may be sent, or nothing ever
	own     int64     // bytes that the call may send; guarded by mu
	all     int64     // that the connection may; guarded by mu
	initial int64     // what own began with; guarded by mu
	longest int64     // frame that may be sent; guarded by mu
	gone    bool      // guarded by mu
}

// frameHead is how long the head of a frame is.
const frameHead = 9

// errEnded is the end of a call that has come to its end, errBroken of one that the other side has broken off.
var (
	errEnded  = errors.New("the other side has ended the call")
	errBroken = errors.New("the other side has broken the call off")
)

// dialWire connects and begins a call of a method, with more headers. It waits for no answer.
func dialWire(ctx context.Context, address string, config *tls.Config, method string, heard func(),
	more ...hpack.HeaderField) (*wire, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	scheme, binding := "http", []byte(nil)
	if config != nil {
		scheme = "https"
		config = config.Clone()
		config.NextProtos = []string{"h2"}
		if host, _, err := net.SplitHostPort(address); err == nil && config.ServerName == "" {
			config.ServerName = host
		}
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		if binding, err = Binding(secure.ConnectionState()); err != nil {
			return nil, errors.Join(err, secure.Close())
		}
		conn = secure
	}
	w := &wire{
		conn: conn, binding: binding, made: time.Now(), heard: heard, in: bufio.NewReaderSize(conn, wireBuffer),
		rest:  bytes.NewReader(nil),
		flush: bufio.NewWriter(conn), own: leastWindow, all: leastWindow, initial: leastWindow, longest: 16 << 10,
	}
	if config == nil {
		w.vectors = newVectorReader(conn) // over TLS nothing is where it stays before it was decrypted
	}
	w.grown.L = &w.mu
	w.frames = http2.NewFramer(nil, &headFirst{w})
	w.frames.SetMaxReadFrameSize(maxHeaders)
	w.frames.ReadMetaHeaders, w.frames.MaxHeaderListSize = hpack.NewDecoder(4096, nil), maxHeaders
	w.out = http2.NewFramer(w.flush, nil)
	w.flush.Reset(timely{conn, writeTime})
	w.stop = context.AfterFunc(ctx, func() { _ = w.conn.Close() }) // whoever reads or writes sees why
	fields := append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: scheme}, {Name: ":path", Value: method},
		{Name: ":authority", Value: address},
		{Name: "content-type", Value: "application/grpc"}, {Name: "user-agent", Value: "bowstring-node"},
		{Name: "te", Value: "trailers"},
	}, more...)
	if err := w.open(fields); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// headFirst reads a frame whose head was read already.
type headFirst struct{ wire *wire }

// Read implements io.Reader.
func (h *headFirst) Read(p []byte) (int, error) {
	if h.wire.rest.Len() > 0 {
		return h.wire.rest.Read(p)
	}
	return h.wire.in.Read(p)
}

// open says what this side takes, and begins the call.
func (w *wire) open(fields []hpack.HeaderField) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range fields {
		if err := encoder.WriteField(f); err != nil {
			return err
		}
	}
	return w.write(func() error {
		if _, err := w.flush.WriteString(http2.ClientPreface); err != nil {
			return err
		}
		return errors.Join(
			w.out.WriteSettings(
				http2.Setting{ID: http2.SettingEnablePush, Val: 0},
				http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
				http2.Setting{ID: http2.SettingMaxFrameSize, Val: maxFrame},
				http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaders}),
			w.out.WriteWindowUpdate(0, streamWindow-leastWindow),
			w.out.WriteHeaders(http2.HeadersFrameParam{StreamID: wireStream, BlockFragment: block.Bytes(),
				EndHeaders: true}))
	})
}

// write writes frames, all of them before any of another goroutine.
func (w *wire) write(frames func() error) error {
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := frames(); err != nil {
		return err
	}
	return w.flush.Flush()
}

// close ends the call and gives the connection up.
func (w *wire) close() error {
	w.stop()
	w.mu.Lock()
	w.gone = true
	w.grown.Broadcast()
	w.mu.Unlock()
	if err := w.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// send sends a message: what it holds is the value of a protobuf BytesValue.
func (w *wire) send(value []byte) error {
	field := protowire.AppendTag(nil, 1, protowire.BytesType)
	field = protowire.AppendVarint(field, uint64(len(value)))
	b := make([]byte, prefixBytes, prefixBytes+len(field)+len(value))
	binary.BigEndian.PutUint32(b[1:], uint32(len(field)+len(value)))
	b = append(append(b, field...), value...)
	for len(b) > 0 {
		n, err := w.claim(len(b))
		if err != nil {
			return err
		}
		if err := w.write(func() error { return w.out.WriteData(wireStream, false, b[:n]) }); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// claim waits until some of n bytes may be sent.
func (w *wire) claim(n int) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for min(w.own, w.all) <= 0 && !w.gone {
		w.grown.Wait()
	}
	if w.gone {
		return 0, net.ErrClosed
	}
	may := min(int64(n), w.own, w.all, w.longest)
	w.own, w.all = w.own-may, w.all-may
	return int(may), nil
}

// next waits for a message and returns its length. What the caller leaves of it he reads with the next.
func (w *wire) next() (int, error) {
	var prefix [prefixBytes]byte
	if _, err := io.ReadFull(w, prefix[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(prefix[1:])
	if prefix[0] != 0 || n > maxMessage {
		return 0, errAnswers
	}
	return int(n), nil
}

// message waits for a message of at most so many bytes, and returns all of it.
func (w *wire) message(most int) ([]byte, error) {
	n, err := w.next()
	if err == nil && n > most {
		err = errAnswers
	}
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(w, b)
	return b, err
}

// Read implements io.Reader: it reads what messages consist of, one after another.
func (w *wire) Read(p []byte) (int, error) {
	for w.left == 0 {
		if err := w.frame(); err != nil {
			return 0, err
		}
	}
	n, err := w.in.Read(p[:min(len(p), w.left)])
	return n, w.came(n, err)
}

// fill reads to several places, the first of them first, as much as is there: at least a byte. They have room for one.
func (w *wire) fill(to [][]byte) (int, error) {
	if w.vectors == nil || w.left == 0 || w.in.Buffered() > 0 {
		return w.Read(to[0])
	}
	n, err := w.vectors.read(to, w.left)
	return n, w.came(n, err)
}

// came takes note of n bytes of data that were read.
func (w *wire) came(n int, err error) error {
	w.left -= n
	w.last.Store(int64(time.Since(w.made)))
	w.heard()
	if err != nil {
		return err
	}
	if w.left == 0 && w.padding > 0 {
		if _, err := w.in.Discard(w.padding); err != nil {
			return err
		}
		w.padding = 0
	}
	return w.grant(uint32(n))
}

// grant lets the other side send as much again as has come, now and then.
func (w *wire) grant(n uint32) error {
	if w.used += n; w.used < streamWindow/4 {
		return nil
	}
	n, w.used = w.used, 0
	return w.write(func() error {
		return errors.Join(w.out.WriteWindowUpdate(0, n), w.out.WriteWindowUpdate(wireStream, n))
	})
}

// frame reads the head of a frame of data, or another frame.
func (w *wire) frame() error {
	if w.ended != nil {
		return w.ended
	}
	if _, err := io.ReadFull(w.in, w.head[:]); err != nil {
		return err
	}
	w.last.Store(int64(time.Since(w.made)))
	length := int(w.head[0])<<16 | int(w.head[1])<<8 | int(w.head[2])
	if http2.FrameType(w.head[3]) == http2.FrameData {
		return w.data(length, http2.Flags(w.head[4]))
	}
	w.rest.Reset(w.head[:])
	f, err := w.frames.ReadFrame()
	if err != nil {
		return err
	}
	return w.take(f)
}

// data begins a frame of data.
func (w *wire) data(length int, flags http2.Flags) error {
	id := binary.BigEndian.Uint32(w.head[5:]) &^ (1 << 31)
	if id != wireStream || length > maxFrame {
		return errAnswers
	}
	if flags.Has(http2.FlagDataPadded) {
		n, err := w.in.ReadByte()
		if err != nil {
			return err
		}
		if w.padding = int(n); w.padding+1 > length {
			return errAnswers
		}
		w.used += uint32(w.padding) + 1
		length -= w.padding + 1
	}
	w.left = length
	if flags.Has(http2.FlagDataEndStream) {
		w.ended = errEnded
	}
	if length == 0 && w.padding > 0 {
		_, err := w.in.Discard(w.padding)
		w.padding = 0
		return err
	}
	return nil
}

// take does what a frame says.
func (w *wire) take(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if err := f.ForeachSetting(http2.Setting.Valid); err != nil {
			return fmt.Errorf("%w: %w", errAnswers, err)
		}
		w.settings(f)
		return w.write(w.out.WriteSettingsAck)
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return w.write(func() error { return w.out.WritePing(true, f.Data) })
	case *http2.WindowUpdateFrame:
		return w.windows(f)
	case *http2.MetaHeadersFrame:
		return w.headers(f)
	case *http2.RSTStreamFrame:
		return fmt.Errorf("%w: %s", errBroken, f.ErrCode)
	case *http2.GoAwayFrame:
		if f.LastStreamID < wireStream { // else it goes on until it ends
			return fmt.Errorf("%w: %s %q", errBroken, f.ErrCode, f.DebugData())
		}
	}
	return nil
}

func (w *wire) settings(f *http2.SettingsFrame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n, ok := f.Value(http2.SettingInitialWindowSize); ok {
		w.own += int64(n) - w.initial
		w.initial = int64(n)
	}
	if n, ok := f.Value(http2.SettingMaxFrameSize); ok {
		w.longest = int64(n)
	}
	w.grown.Broadcast()
}

func (w *wire) windows(f *http2.WindowUpdateFrame) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	window := &w.own
	if f.StreamID == 0 {
		window = &w.all
	}
	if *window += int64(f.Increment); *window > mostWindow {
		return errAnswers
	}
	w.grown.Broadcast()
	return nil
}

// headers looks at headers, which may say that the call is over, and why.
func (w *wire) headers(f *http2.MetaHeadersFrame) error {
	if s := f.PseudoValue("status"); s != "" && s != "200" {
		return fmt.Errorf("%w: HTTP status %s", errBroken, s)
	}
	code, message := codes.OK, ""
	for _, h := range f.RegularFields() {
		switch h.Name {
		case "grpc-status":
			n, err := strconv.ParseUint(h.Value, 10, 8)
			if err != nil {
				return errAnswers
			}
			code = codes.Code(n)
		case "grpc-message":
			message = h.Value
			if plain, err := url.PathUnescape(message); err == nil {
				message = plain
			}
		}
	}
	if code != codes.OK {
		return status.Error(code, message)
	}
	if f.StreamEnded() {
		return errEnded
	}
	return nil
}

// watch asks the other side whether it is there when it has said nothing for long, and ends the call if it is not. It
// returns when ctx ends.
func (w *wire) watch(ctx context.Context, end context.CancelCauseFunc) {
	tick := time.NewTicker(keepaliveAnswer)
	defer tick.Stop()
	quiet := quiet{looked: time.Now()}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		heard := w.made.Add(time.Duration(w.last.Load()))
		switch quiet.look(now, heard) {
		case excused:
			w.last.Store(int64(time.Since(w.made)))
		case gone:
			end(fmt.Errorf("it has said nothing for %s", now.Sub(heard).Round(time.Second)))
			return
		case doubted:
			if !w.writing.TryLock() { // who writes meanwhile may wait for the other side, for a minute at most
				quiet.asked = time.Time{}
				continue
			}
			if w.out.WritePing(false, [8]byte{}) == nil {
				_ = w.flush.Flush() // likewise
			}
			w.writing.Unlock()
		case lively:
		}
	}
}

// quiet is what is made of the silence of the other side.
type quiet struct {
	looked time.Time // the last time
	asked  time.Time // when it was last to be asked whether it is there
}

// liveness is what a look says of the other side.
type liveness int

const (
	lively  liveness = iota
	doubted          // it is to be asked whether it is there
	excused          // this process was not run: what came meanwhile has not been read yet
	gone
)

// look is called every keepaliveAnswer, more or less, with when anything was last heard. Nobody is gone who was not
// asked: looks come a little late at times, and silence may be longer than it was to become.
func (q *quiet) look(now, heard time.Time) liveness {
	late := now.Sub(q.looked) > 2*keepaliveAnswer
	q.looked = now
	switch {
	case late:
		return excused
	case now.Sub(heard) < keepaliveTime:
		return lively
	case !q.asked.After(heard):
		q.asked = now
		return doubted
	case now.Sub(q.asked) < keepaliveAnswer/2: // looks that were late follow each other closely
		return lively
	}
	return gone
}

// writeTime is for how long a write may find no room. It is longer than silence may be, and bounds how long who writes
// keeps others from writing, and a watch from seeing that the other side is gone.
const writeTime = time.Minute

// timely is a connection whose writes end in time.
type timely struct {
	net.Conn
	time time.Duration // of one write
}

// Write implements io.Writer. After an error that is a timeout the connection is of no use any longer.
func (c timely) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.time)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
