package wire

import (
	"io"
	"net"
	"testing"
	"time"
)

// A writer keeps nothing of what it has sent: a connection without traffic would hold a batch.
func TestVectorWriterKeepsNothing(t *testing.T) {
	near, far := tcpPair(t)
	w := newVectorWriter(near)
	if err := w.write(near, net.Buffers{[]byte("a"), []byte("batch")}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(far, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	for i, v := range w.vectors[:cap(w.vectors)] {
		if v.Base != nil {
			t.Errorf("slice %d of what was sent is kept", i)
		}
	}
}
