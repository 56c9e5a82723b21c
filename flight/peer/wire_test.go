package peer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// far is the other end of a wire, which says what a test wants.
type far struct {
	t  *testing.T
	fr *http2.Framer
}

// wireTo returns a wire to what serve does, once the preface has come.
func wireTo(t *testing.T, serve func(f far)) *wire {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err == nil {
			fr := http2.NewFramer(conn, conn)
			fr.SetMaxReadFrameSize(maxFrame)
			serve(far{t, fr})
		}
	}()
	w, err := dialWire(t.Context(), lis.Addr().String(), nil, "/x", func() {}, hpack.HeaderField{
		Name: "authorization", Value: "Bearer k"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.close()
		_ = lis.Close()
		<-done
	})
	return w
}

// must ends the test where writing fails.
func (f far) must(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		f.t.Error(err)
	}
}

// await reads frames until one is what is waited for.
func (f far) await(is func(http2.Frame) bool) {
	for {
		fr, err := f.fr.ReadFrame()
		if err != nil {
			f.t.Errorf("waiting for a frame: %v", err)
			return
		}
		if is(fr) {
			return
		}
	}
}

// A message is the same however it is cut into frames, padded, and interleaved with others.
func TestWireReads(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	want := make([]byte, 3<<20)
	for i := range want {
		want[i] = byte(rng.Uint32())
	}
	stream := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(want))), want...)
	w := wireTo(t, func(f far) {
		f.must(f.fr.WriteSettings())
		for b := stream; len(b) > 0; {
			n := min(len(b), 1+rng.IntN(100_000))
			switch rng.IntN(4) {
			case 0:
				n = min(n, 60_000)
				f.must(f.fr.WriteDataPadded(wireStream, false, b[:n], make([]byte, rng.IntN(200))))
			case 1:
				f.must(f.fr.WritePing(false, [8]byte{1}), f.fr.WriteDataPadded(wireStream, false, nil, make([]byte, 3)),
					f.fr.WriteData(wireStream, false, b[:n]))
			default:
				f.must(f.fr.WriteData(wireStream, false, b[:n]))
			}
			b = b[n:]
		}
		f.await(func(fr http2.Frame) bool { // what was read is granted anew
			u, ok := fr.(*http2.WindowUpdateFrame)
			return ok && u.StreamID == wireStream
		})
		var block bytes.Buffer
		e := hpack.NewEncoder(&block)
		f.must(e.WriteField(hpack.HeaderField{Name: "grpc-status", Value: "14"}),
			e.WriteField(hpack.HeaderField{Name: "grpc-message", Value: "gone %2F"}))
		f.must(f.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: wireStream, BlockFragment: block.Bytes(),
			EndHeaders: true, EndStream: true}))
		for _, err := f.fr.ReadFrame(); err == nil; _, err = f.fr.ReadFrame() { // until it closes
			continue
		}
	})
	n, err := w.next()
	if err != nil || n != len(want) {
		t.Fatalf("a message of %d bytes, %v; want %d", n, err, len(want))
	}
	got := make([]byte, n)
	if _, err := io.ReadFull(w, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the message is another one, %v", err)
	}
	if _, err := w.next(); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "gone /" {
		t.Errorf("the call ends with %v", err)
	}
}

// What is sent is no more than the other side lets this one, in frames that it takes; and nobody waits for ever.
func TestWireSends(t *testing.T) {
	value := bytes.Repeat([]byte("x"), 200_000)
	var got int
	known, ended := make(chan struct{}), make(chan struct{})
	w := wireTo(t, func(f far) {
		defer close(ended)
		const initial = 1000
		f.must(f.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: initial}))
		f.await(func(fr http2.Frame) bool {
			s, ok := fr.(*http2.SettingsFrame)
			return ok && s.IsAck()
		})
		close(known) // nothing was sent before
		granted := initial
		for got < len(value)+prefixBytes+4 {
			f.await(func(fr http2.Frame) bool {
				d, ok := fr.(*http2.DataFrame)
				if ok {
					if got += len(d.Data()); len(d.Data()) > 16<<10 || got > granted {
						t.Errorf("a frame of %d bytes, %d in all, of %d that were granted", len(d.Data()), got, granted)
					}
				}
				return ok
			})
			granted += 70_000
			f.must(f.fr.WriteWindowUpdate(0, 70_000), f.fr.WriteWindowUpdate(wireStream, 70_000))
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // it follows what the other side says
		defer cancel()
		_, _ = w.next()
	}()
	<-known
	if err := w.send(value); err != nil {
		t.Fatal(err)
	}
	<-ended
	<-ctx.Done() // the other side has closed the connection
	_ = w.close()
	if err := w.send(value); err == nil {
		t.Error("a closed wire sends")
	}
}

// A write to who takes nothing ends; so nobody who holds the lock for writing keeps others from finding that out.
func TestWritesEnd(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	defer here.Close()
	out := bufio.NewWriter(timely{here, 1})
	if _, err := out.WriteString("ping"); err != nil {
		t.Fatal(err)
	}
	if err := out.Flush(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("to nobody: %v", err)
	}
	// The time is that of one write.
	out.Reset(timely{here, time.Hour})
	var writing sync.WaitGroup
	writing.Go(func() {
		_, err := out.WriteString("pong")
		if err = errors.Join(err, out.Flush()); err != nil {
			t.Error(err)
		}
	})
	b := make([]byte, 4)
	if _, err := io.ReadFull(there, b); err != nil || string(b) != "pong" {
		t.Errorf("%q, %v", b, err)
	}
	writing.Wait()
}
