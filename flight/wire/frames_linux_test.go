package wire

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
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

// noiseOf is a message of a stream, of a length that both sides know.
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

// noiseServer serves streams of noise from fenced memory.
type noiseServer struct {
	out, handlers atomic.Int64
	err           atomic.Pointer[error]

	conn atomic.Pointer[Conn]

	mu   sync.Mutex
	maps [][]byte // guarded by mu
}

func (s *noiseServer) frame(message []byte, rng *rand.Rand) (*Frame, error) {
	m, err := unix.Mmap(-1, 0, len(message), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	copy(m, message)
	s.mu.Lock()
	s.maps = append(s.maps, m)
	s.mu.Unlock()
	var pieces []Piece
	for rest := m; len(rest) > 0; {
		n := min(len(rest), 1+rng.IntN(50_000))
		if rng.IntN(4) == 0 {
			n = min(n, InlineBytes)
		}
		if n > InlineBytes {
			pieces = append(pieces, Piece{Bytes: rest[:n:n], Held: true})
		} else {
			pieces = append(pieces, Piece{Bytes: bytes.Clone(rest[:n])})
		}
		rest = rest[n:]
	}
	s.out.Add(1)
	b := &schema.Batch{Blobs: [][]schema.Blob{{schema.NewBlob(nil, fenced{m, &s.out})}}}
	return NewFrame(pieces, b, time.Time{}), nil
}

// send is the handler of every stream.
func (s *noiseServer) send(stream grpc.ServerStream) error {
	s.handlers.Add(1)
	defer s.handlers.Add(-1)
	l, err := NewLane(stream.Context())
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
		if err := l.Send(stream.Context(), stream, f); err != nil {
			return err
		}
	}
	return nil
}

// A client that resets or stalls some of its streams affects no other: their messages
// arrive byte for byte. No byte of a batch is read after its release, and each batch is
// released, of streams that were reset while the connection goes on.
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
	srv := grpc.NewServer(append(ServerOptions(false, Limits{}), grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 1, PermitWithoutStream: true}))...)
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
