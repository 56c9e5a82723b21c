package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"bowstring/schema"
)

// gathered connects a Conn to a peer over TCP; both end with the test.
func gathered(t *testing.T) (*Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	gl := testListener(l, writers.Go)
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := gl.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.Close()
		_ = c.Close()
		_ = peer.Close()
		writers.Wait()
	})
	return c.(*Conn), peer
}

// fakeFrame makes a frame of pieces that are held and some that are not, and
// counts the batch's blob out until it is released.
func fakeFrame(rng *rand.Rand, pieces int, out *atomic.Int64) *Frame {
	out.Add(1)
	f := &Frame{batch: &schema.Batch{Blobs: [][]schema.Blob{{schema.NewBlob(nil, counted{out})}}}}
	for i := range pieces {
		b := make([]byte, 1+rng.IntN(40_000))
		for k := range b {
			b[k] = byte(rng.Uint32())
		}
		f.pieces = append(f.pieces, Piece{Bytes: b, Held: i%3 != 0})
	}
	return f
}

// laneFor returns the lane that g has for a stream, or a new one.
func laneFor(g *Conn, stream uint32) *Lane {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.lanes[stream]; l != nil {
		return l
	}
	return &Lane{conn: g, stream: stream}
}

// dataHeader is the header of a DATA frame.
func dataHeader(stream uint32, n int) []byte {
	h := make([]byte, frameHeader)
	putFrameLength(h, n)
	binary.BigEndian.PutUint32(h[5:], stream)
	return h
}

// The bytes that a transport writes come out as the same payload of the same streams in
// the same order, in frames as long as the client accepts and no longer; other frames are
// unchanged; and each batch is released when its bytes are out, not before.
func TestGatherConn(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, most := range []int{0, defaultMaxFrame, 100_000, 1<<24 - 1} {
		rng := rand.New(rand.NewPCG(seed, uint64(most)))
		g, peer := gathered(t)
		if most > 0 {
			g.reading.see(slices.Concat(make([]byte, clientPreface), settings(false, settingMaxFrame, uint32(most))))
		} else {
			most = defaultMaxFrame
		}
		var out atomic.Int64
		want := map[uint32][]byte{} // payload by stream
		var others []byte           // other frames, in order
		written := make(chan error, 1)
		wantMu := sync.Mutex{}
		go func() {
			written <- func() error {
				for i := range 30 {
					stream := uint32(1 + 2*rng.IntN(3))
					f := fakeFrame(rng, 1+rng.IntN(9), &out)
					if err := laneFor(g, stream).expect(t.Context(), f); err != nil {
						return err
					}
					var message []byte
					for _, p := range f.pieces {
						message = append(message, p.Bytes...)
					}
					wantMu.Lock()
					want[stream] = append(want[stream], message...)
					wantMu.Unlock()
					// As grpc does: frames of up to 16 KiB, of which it writes
					// the header and then each slice.
					at, off := 0, 0
					for left := len(message); left > 0; {
						n := min(left, 1+rng.IntN(defaultMaxFrame))
						left -= n
						if _, err := g.Write(dataHeader(stream, n)); err != nil {
							return err
						}
						for n > 0 {
							p := f.pieces[at].Bytes[off:]
							k := min(n, len(p))
							if _, err := g.Write(p[:k]); err != nil {
								return err
							}
							if n, off = n-k, off+k; k == len(p) {
								at, off = at+1, 0
							}
						}
						if rng.IntN(5) == 0 {
							ping := append([]byte{0, 0, 8, 6, 0, 0, 0, 0, 0}, make([]byte, 8)...)
							ping[16] = byte(i)
							wantMu.Lock()
							others = append(others, ping...)
							wantMu.Unlock()
							if _, err := g.Write(ping); err != nil {
								return err
							}
						}
					}
					g.retire(f)
				}
				return g.Close()
			}()
		}()
		got := map[uint32][]byte{}
		var gotOthers []byte
		frames := 0
		for {
			h := make([]byte, frameHeader)
			if _, err := io.ReadFull(peer, h); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			payload := make([]byte, frameLength(h))
			if _, err := io.ReadFull(peer, payload); err != nil {
				t.Fatal(err)
			}
			if h[3] != 0 {
				gotOthers = append(append(gotOthers, h...), payload...)
				continue
			}
			if len(payload) > most {
				t.Errorf("a frame of %d bytes, the client accepts %d", len(payload), most)
			}
			stream := binary.BigEndian.Uint32(h[5:])
			got[stream] = append(got[stream], payload...)
			frames++
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		for stream := range want {
			if !bytes.Equal(got[stream], want[stream]) {
				t.Errorf("most %d: the payload of stream %d differs: %d bytes, want %d", most, stream, len(got[stream]),
					len(want[stream]))
			}
		}
		if !bytes.Equal(gotOthers, others) {
			t.Errorf("most %d: other frames differ", most)
		}
		waitFor(t, "every batch to be released", func() bool { return out.Load() == 0 })
		t.Logf("most %d: %d DATA frames", most, frames)
	}
}

// A batch stays while its bytes wait for a client that does not read, though
// the transport has freed it, and goes when the connection breaks.
func TestGatherConnHoldsWhatIsPending(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	g, peer := gathered(t)
	var out atomic.Int64
	write := func() error {
		f := fakeFrame(rng, 1, &out)
		f.pieces = []Piece{{Bytes: make([]byte, 64<<10), Held: true}}
		l := laneFor(g, 1)
		if err := l.expect(t.Context(), f); err != nil {
			f.release()
			return err
		}
		_, err := g.Write(dataHeader(1, 64<<10))
		if err == nil {
			_, err = g.Write(f.pieces[0].Bytes)
		}
		l.sent(f)
		g.retire(f)
		return err
	}
	blocked := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			if err = write(); i == 10 {
				close(started)
			}
		}
		blocked <- err
	}()
	<-started
	waitFor(t, "the socket to be full", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.writing && g.size >= gatherBytes
	})
	if out.Load() == 0 {
		t.Error("batches were released before their bytes were out")
	}
	_ = peer.Close()
	if err := <-blocked; err == nil {
		t.Error("writing to a broken connection went well")
	}
	waitFor(t, "every batch to be released", func() bool { return out.Load() == 0 })
}

// settings is a SETTINGS frame with one setting, or an acknowledgement.
func settings(ack bool, id uint16, value uint32) []byte {
	if ack {
		return []byte{0, 0, 0, typeSettings, flagAck, 0, 0, 0, 0}
	}
	b := []byte{0, 0, settingSize, typeSettings, 0, 0, 0, 0, 0}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, id), value)
}

// The reader finds the settings wherever reads cut the stream.
func FuzzSettingsReader(f *testing.F) {
	f.Add([]byte{3, 200, 1}, uint32(1<<20))
	f.Add([]byte{1}, uint32(1<<24))
	f.Fuzz(func(t *testing.T, cuts []byte, value uint32) {
		stream := slices.Concat(
			make([]byte, clientPreface),
			settings(false, 4, 65_535),
			dataHeader(1, 300), bytes.Repeat([]byte{0, 0, 6, 4, 0}, 60), // looks like settings
			settings(true, 0, 0),
			settings(false, settingMaxFrame, value),
		)
		want := defaultMaxFrame
		if value >= defaultMaxFrame && value < 1<<24 {
			want = int(value)
		}
		var r settingsReader
		for i := 0; len(stream) > 0; i++ {
			n := len(stream)
			if len(cuts) > 0 {
				n = min(n, 1+int(cuts[i%len(cuts)]))
			}
			r.see(stream[:n])
			stream = stream[n:]
		}
		if got := r.maxFrame(); got != want {
			t.Errorf("max frame %d, want %d", got, want)
		}
	})
}

// testListener has the limits of a server.
func testListener(l net.Listener, spawn func(func())) *listener {
	return listen(l, spawn, Listening{Logger: slog.New(slog.DiscardHandler), Most: 1000, MostOf: 1000})
}

// A piece that the transport has cut is whole again when the kernel or TLS gets it, as long
// as nothing else comes between.
func TestPiecesAreJoined(t *testing.T) {
	for name, tt := range map[string]struct {
		most   int // of a frame
		slices int // that are to be written
	}{
		"one frame":  {1 << 20, 4}, // header, head; piece; piece
		"many, each": {defaultMaxFrame, 0},
	} {
		g := newConn(nil, false) // its writer does not run
		g.reading.see(slices.Concat(make([]byte, clientPreface), settings(false, settingMaxFrame, uint32(tt.most))))
		pieces := [][]byte{make([]byte, 100), make([]byte, 110_000), make([]byte, 50_000)}
		f := &Frame{}
		var message []byte
		for i, p := range pieces {
			for j := range p {
				p[j] = byte(i + j)
			}
			f.pieces = append(f.pieces, Piece{Bytes: p})
			message = append(message, p...)
		}
		if err := laneFor(g, 1).expect(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		left := 0 // of a DATA frame
		for _, p := range pieces {
			for len(p) > 0 {
				if left == 0 {
					left = defaultMaxFrame
					if _, err := g.Write(dataHeader(1, left)); err != nil {
						t.Fatal(err)
					}
				}
				n := min(left, len(p))
				if _, err := g.Write(p[:n:n]); err != nil { // whatever room the transport leaves
					t.Fatal(err)
				}
				left, p = left-n, p[n:]
			}
		}
		var got []byte
		for _, b := range g.pending {
			got = append(got, b...)
		}
		if tt.slices > 0 {
			got = got[frameHeader:]
			if len(g.pending) > tt.slices || !bytes.Equal(got, message) {
				t.Errorf("%s: %d slices, want %d at most; %d bytes", name, len(g.pending), tt.slices, len(got))
			}
		} else if len(got) != len(message)+frameHeader*((len(message)+defaultMaxFrame-1)/defaultMaxFrame) {
			t.Errorf("%s: %d bytes of a message of %d", name, len(got), len(message))
		}
	}
}
