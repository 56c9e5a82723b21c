package wire

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"
)

// tcpPair connects two ends over TCP, whose first has little room for what was not read.
func tcpPair(t *testing.T) (near *net.TCPConn, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if far, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	near = c.(*net.TCPConn)
	if err := near.SetWriteBuffer(32 << 10); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// Written bytes arrive whole and in order, with any slices: empty ones, more than the
// kernel takes at once, larger than one call sends, and more than the socket has room
// for.
func TestVectorWriter(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	near, far := tcpPair(t)
	w := newVectorWriter(near)
	var want []byte
	var writes []net.Buffers
	for _, shape := range []struct{ slices, most int }{{1, 0}, {1, 1}, {3, 1 << 20}, {5000, 40}, {40, 100_000}, {0, 0},
		{2000, 3}} {
		var list net.Buffers
		for range shape.slices {
			b := make([]byte, rng.IntN(shape.most+1))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			want = append(want, b...)
			list = append(list, b)
		}
		writes = append(writes, list)
	}
	failed := make(chan error, 1)
	go func() {
		for _, list := range writes {
			if err := w.write(near, list, time.Time{}); err != nil {
				failed <- err
				break
			}
		}
		failed <- near.CloseWrite()
	}()
	got, err := io.ReadAll(far)
	if err := errors.Join(err, <-failed); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes arrived of %d, or other ones", len(got), len(want))
	}
}

// A peer that does not read is waited for until the deadline, one that is gone not at all.
func TestVectorWriterFails(t *testing.T) {
	large := func() net.Buffers { return net.Buffers{make([]byte, 64<<20)} }
	near, _ := tcpPair(t)
	if err := near.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if err := newVectorWriter(near).write(near, large(), time.Time{}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a peer that does not read: %v, want the deadline's error", err)
	}
	near, far := tcpPair(t)
	_ = far.Close()
	if err := newVectorWriter(near).write(near, large(), time.Time{}); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a peer that is gone: %v", err)
	}
	near, far = tcpPair(t)
	go func() { // closes the near end while it waits for room
		_, _ = io.ReadFull(far, make([]byte, 1<<20))
		_ = near.Close()
	}()
	if err := newVectorWriter(near).write(near, large(), time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed meanwhile: %v, want net.ErrClosed", err)
	}
}
