package object

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// A recordsConn delivers the sent bytes, whatever the lengths of writes and reads, and
// then the end.
func TestRecordsConn(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 20 {
		sent := make([]byte, r.IntN(2<<20))
		for i := range sent {
			sent[i] = byte(r.Uint32())
		}
		var pieces []int
		for left := len(sent); left > 0; {
			n := min(1+r.IntN(1<<r.IntN(20)), left)
			pieces = append(pieces, n)
			left -= n
		}
		here, there := net.Pipe()
		go func() {
			defer there.Close()
			rest := sent
			for _, n := range pieces {
				if _, err := there.Write(rest[:n]); err != nil {
					return // the reader has failed
				}
				rest = rest[n:]
			}
		}()
		c := &recordsConn{Conn: here}
		var got []byte
		for {
			b := make([]byte, 1+r.IntN(1<<r.IntN(18)))
			n, err := c.Read(b)
			got = append(got, b[:n]...)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || n == 0 {
				t.Fatalf("%d bytes, error %v", n, err)
			}
			if c.buf != nil && len(c.left) == 0 {
				t.Fatal("it keeps a buffer that has nothing")
			}
		}
		if err := here.Close(); err != nil {
			t.Fatal(err)
		}
		if c.buf != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes came of %d, or others; a buffer is left: %t", len(got), len(sent), c.buf != nil)
		}
	}
}
