package flight

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"bowstring/schema"
)

// noise is what the messages of noiseServer consist of.
var noise = func() []byte {
	b := make([]byte, 1<<18)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range b {
		b[i] = byte(1 + rng.IntN(255)) // never zero
	}
	return b
}()

// noiseOf is a message of a stream, of a length that both sides can tell.
func noiseOf(stream uint32, message int) []byte {
	rng := rand.New(rand.NewPCG(uint64(stream), uint64(message)))
	at := rng.IntN(len(noise) / 2)
	return noise[at : at+1+rng.IntN(len(noise)/4)]
}

// lengthOf is how many messages a stream has.
func lengthOf(stream uint32) int { return int(stream/2*7%13) + 1 }

// fenced is memory that cannot be read any more when it was released.
type fenced struct {
	memory []byte
	out    *atomic.Int64
}

// Unpin implements schema.Owner.
func (f fenced) Unpin() {
	if err := unix.Mprotect(f.memory, unix.PROT_NONE); err != nil {
		panic(err)
	}
	f.out.Add(-1)
}

// noiseServer serves streams of noise that lies in fenced memory.
type noiseServer struct {
	out, handlers atomic.Int64
	err           atomic.Pointer[error]

	conn atomic.Pointer[gatherConn]

	mu   sync.Mutex
	maps [][]byte // guarded by mu
}

func (s *noiseServer) frame(message []byte, rng *rand.Rand) (*frame, error) {
	m, err := unix.Mmap(-1, 0, len(message), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	copy(m, message)
	s.mu.Lock()
	s.maps = append(s.maps, m)
	s.mu.Unlock()
	var pieces []piece
	held := int32(0)
	for rest := m; len(rest) > 0; {
		n := min(len(rest), 1+rng.IntN(50_000))
		if rng.IntN(4) == 0 {
			n = min(n, inlineBytes)
		}
		if n > inlineBytes {
			pieces = append(pieces, piece{bytes: rest[:n:n], held: true})
			held++
		} else {
			pieces = append(pieces, piece{bytes: bytes.Clone(rest[:n])})
		}
		rest = rest[n:]
	}
	s.out.Add(1)
	b := &schema.Batch{Blobs: [][]schema.Blob{{schema.NewBlob(nil, fenced{m, &s.out})}}}
	return newFrame(pieces, b, held), nil
}

// send is the handler of every stream.
func (s *noiseServer) send(stream grpc.ServerStream) error {
	s.handlers.Add(1)
	defer s.handlers.Add(-1)
	l, err := newLane(stream.Context())
	if err != nil {
		return err
	}
	s.conn.Store(l.conn)
	rng := rand.New(rand.NewPCG(uint64(l.stream), 0))
	for i := range lengthOf(l.stream) {
		f, err := s.frame(noiseOf(l.stream, i), rng)
		if err != nil {
			s.err.Store(&err)
			return err
		}
		if err := l.send(stream.Context(), stream, f); err != nil {
			return err
		}
	}
	return nil
}

// noiseStream is what a client knows of a stream.
type noiseStream struct {
	window int64  // what it has granted
	held   []byte // of a message that has not come wholly
	next   int    // the message
	reset  bool   // nothing of it matters any more
	ended  bool
	silent bool // its message was not sent; of the goroutine that writes
}

// noiseClient speaks HTTP/2 as no client does.
type noiseClient struct {
	conn  net.Conn
	rng   *rand.Rand // of the goroutine that writes
	block bytes.Buffer
	hpack *hpack.Encoder

	mu      sync.Mutex
	streams map[uint32]*noiseStream // guarded by mu
	window  int64                   // of the connection; guarded by mu
	initial int64                   // guarded by mu
}

// read holds what comes against what was to come, until the connection ends.
func (c *noiseClient) read() error {
	fr := http2.NewFramer(io.Discard, c.conn)
	fr.SetMaxReadFrameSize(1<<24 - 1)
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return err
		}
		if err := c.take(f); err != nil {
			return err
		}
	}
}

// errNoise says that something else came than was to come.
var errNoise = errors.New("the server sent what it should not")

func (c *noiseClient) take(f http2.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := f.Header()
	s := c.streams[h.StreamID]
	switch f := f.(type) {
	case *http2.GoAwayFrame:
		return fmt.Errorf("%w: %v, %s", errNoise, f.ErrCode, f.DebugData())
	case *http2.RSTStreamFrame:
		if s != nil && !s.reset && !(s.ended && f.ErrCode == http2.ErrCodeNo) {
			return fmt.Errorf("%w: stream %d is reset: %v", errNoise, h.StreamID, f.ErrCode)
		}
	case *http2.HeadersFrame:
		if s == nil || s.reset || !f.StreamEnded() {
			return nil
		}
		s.ended = true
		if s.next != lengthOf(h.StreamID) || len(s.held) > 0 {
			return fmt.Errorf("%w: stream %d ends after %d messages", errNoise, h.StreamID, s.next)
		}
	case *http2.DataFrame:
		c.window -= int64(h.Length)
		if c.window < 0 {
			return fmt.Errorf("%w: %d bytes beyond the connection's window", errNoise, -c.window)
		}
		if s == nil {
			return fmt.Errorf("%w: data of stream %d", errNoise, h.StreamID)
		}
		if s.window -= int64(h.Length); s.reset {
			return nil
		}
		s.held = append(s.held, f.Data()...)
		for len(s.held) >= 5 {
			n := int(binary.BigEndian.Uint32(s.held[1:]))
			if len(s.held) < 5+n {
				break
			}
			if !bytes.Equal(s.held[5:5+n], noiseOf(h.StreamID, s.next)) {
				return fmt.Errorf("%w: other bytes in message %d of stream %d", errNoise, s.next, h.StreamID)
			}
			s.next++
			s.held = s.held[5+n:]
		}
	}
	return nil
}

// write sends bytes, in two parts now and then.
func (c *noiseClient) write(b []byte) error {
	if c.rng.IntN(3) == 0 {
		n := c.rng.IntN(len(b))
		if c.rng.IntN(4) == 0 {
			n = min(len(b), frameHeader)
		}
		if _, err := c.conn.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
		time.Sleep(time.Duration(c.rng.IntN(1000)) * time.Microsecond) // so that the server may read the first part alone
	}
	_, err := c.conn.Write(b)
	return err
}

// framed is what f writes.
func framed(f func(fr *http2.Framer) error) []byte {
	var b bytes.Buffer
	if err := f(http2.NewFramer(&b, nil)); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// headers are those of a call of DoGet.
func (c *noiseClient) headers() []byte {
	c.block.Reset()
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "test"},
		{":path", "/arrow.flight.protocol.FlightService/DoGet"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = c.hpack.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return bytes.Clone(c.block.Bytes())
}

// request is how a stream begins.
func (c *noiseClient) request(id uint32) []byte {
	block := c.headers()
	return framed(func(fr *http2.Framer) error {
		err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
		return errors.Join(err, fr.WriteData(id, true, make([]byte, 5)))
	})
}

// opened is how a stream may begin: headers in pieces, padded, with a priority; a message and the end, together or not.
// silent says that there is no message.
func (c *noiseClient) opened(id uint32) (b []byte, silent bool) {
	block := c.headers()
	silent = c.rng.IntN(8) == 0
	b = framed(func(fr *http2.Framer) error {
		first := block
		if c.rng.IntN(3) == 0 {
			first = block[:c.rng.IntN(len(block))]
		}
		p := http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndHeaders: len(first) == len(block),
			PadLength: uint8(c.rng.IntN(2) * c.rng.IntN(256))}
		if c.rng.IntN(3) == 0 {
			p.Priority = http2.PriorityParam{StreamDep: id - 1, Exclusive: c.rng.IntN(2) == 0, Weight: 7}
		}
		err := fr.WriteHeaders(p)
		for rest := block[len(first):]; len(rest) > 0; {
			n := 1 + c.rng.IntN(len(rest))
			err = errors.Join(err, fr.WriteContinuation(id, n == len(rest), rest[:n]))
			rest = rest[n:]
		}
		if silent {
			return err
		}
		end := c.rng.IntN(2) == 0
		err = errors.Join(err, fr.WriteDataPadded(id, end, make([]byte, 5), make([]byte, c.rng.IntN(2)*c.rng.IntN(200))))
		if !end {
			err = errors.Join(err, fr.WriteData(id, true, nil))
		}
		return err
	})
	return b, silent
}

// What a client does to some of its streams takes nothing away from the others, whatever it sends: their messages come
// byte for byte. No byte of a batch is read after its release, and each batch is released, of streams that were reset
// while the connection goes on.
func TestFramesOfAWildClient(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for run := range uint64(6) {
		wildClient(t, rand.New(rand.NewPCG(seed, run)), run%2 == 0)
	}
}

func wildClient(t *testing.T, rng *rand.Rand, large bool) {
	t.Helper()
	s := &noiseServer{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(codecOption(), grpc.WriteBufferSize(0), grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 1, PermitWithoutStream: true}))
	flight.RegisterFlightServiceServer(srv, &frameServer{send: s.send})
	var running sync.WaitGroup
	running.Go(func() { _ = srv.Serve(testListener(l, running.Go)) })
	defer func() {
		srv.Stop()
		running.Wait()
		for _, m := range s.maps {
			_ = unix.Munmap(m)
		}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := &noiseClient{conn: conn, rng: rng, streams: map[uint32]*noiseStream{}, window: 65_535, initial: 65_535}
	c.hpack = hpack.NewEncoder(&c.block)
	read := make(chan error, 1)
	go func() { read <- c.read() }()
	settings := []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 65_535}}
	if large {
		settings = append(settings, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1<<24 - 1})
	}
	send := func(f func(fr *http2.Framer) error) {
		if err := c.write(framed(f)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	send(func(fr *http2.Framer) error { return fr.WriteSettings(settings...) })
	next := uint32(1)
	pick := func() (uint32, *noiseStream) {
		list := c.live()
		if len(list) == 0 {
			return 0, nil
		}
		id := list[rng.IntN(len(list))]
		return id, c.streams[id]
	}
	grant := func(id uint32, n uint32) {
		c.mu.Lock()
		if id == 0 {
			c.window += int64(n)
		} else {
			c.streams[id].window += int64(n)
		}
		c.mu.Unlock()
		send(func(fr *http2.Framer) error { return fr.WriteWindowUpdate(id, n) })
	}
	reset := func(id uint32) []byte {
		c.mu.Lock()
		c.streams[id].reset = true
		c.mu.Unlock()
		return framed(func(fr *http2.Framer) error { return fr.WriteRSTStream(id, http2.ErrCodeCancel) })
	}
	for range 300 {
		select {
		case err := <-read:
			t.Fatal(err)
		default:
		}
		switch op := rng.IntN(20); {
		case op < 6:
			c.mu.Lock()
			c.streams[next] = &noiseStream{window: c.initial}
			c.mu.Unlock()
			b, silent := c.opened(next)
			c.streams[next].silent = silent
			if rng.IntN(3) == 0 {
				b = append(b, reset(next)...)
			}
			if err := c.write(b); err != nil {
				t.Fatal(err)
			}
			next += 2 * (1 + uint32(rng.IntN(3)))
		case op < 9:
			if id, st := pick(); st != nil {
				if err := c.write(reset(id)); err != nil {
					t.Fatal(err)
				}
			}
		case op < 13:
			if id, st := pick(); st != nil {
				grant(id, 1+rng.Uint32N(200_000))
			}
		case op < 16:
			grant(0, 1+rng.Uint32N(1<<20))
		case op == 16:
			send(func(fr *http2.Framer) error { return fr.WritePing(false, [8]byte{1}) })
		case op == 17: // of streams that never were
			send(func(fr *http2.Framer) error { return fr.WriteRSTStream(next+10_000, http2.ErrCodeCancel) })
		case op == 18:
			send(func(fr *http2.Framer) error {
				return fr.WritePriority(1, http2.PriorityParam{StreamDep: 3, Weight: 1})
			})
		default:
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
		}
	}
	// Those whose message has not come are reset; all others go on to their ends.
	grant(0, 1<<29)
	for _, id := range c.live() {
		if c.streams[id].silent {
			if err := c.write(reset(id)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		grant(id, 1<<28)
	}
	until := func(what string, cond func() bool) {
		t.Helper()
		waitFor(t, what, func() bool {
			select {
			case err := <-read:
				t.Fatal(err)
			default:
			}
			return cond()
		})
	}
	until("the streams to end", func() bool { return len(c.live()) == 0 })
	until("the handlers", func() bool { return s.handlers.Load() == 0 })
	until("the batches", func() bool { return s.out.Load() == 0 })
	open := func() {
		c.mu.Lock()
		c.streams[next] = &noiseStream{window: c.initial}
		c.mu.Unlock()
		if _, err := conn.Write(c.request(next)); err != nil {
			t.Fatal(err)
		}
	}
	open()
	grant(next, 1<<28)
	until("another stream", func() bool { return len(c.live()) == 0 })
	until("the lanes", func() bool {
		g := s.conn.Load()
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.lanes) == 0 && g.cut == 0
	})
	for range 10 {
		next += 2
		open()
	}
	until("the handlers to begin", func() bool { return s.handlers.Load() > 0 })
	_ = conn.Close()
	<-read
	waitFor(t, "the batches of a connection that has ended", func() bool {
		return s.handlers.Load() == 0 && s.out.Load() == 0
	})
	if err := s.err.Load(); err != nil {
		t.Fatal(*err)
	}
}

// live are the streams that matter and have not ended.
func (c *noiseClient) live() (list []uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, s := range c.streams {
		if !s.reset && !s.ended {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}
