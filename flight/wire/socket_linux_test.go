package wire

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// TestOnMachine looks at the socket of a connection over loopback.
func TestOnMachine(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = near.Close() }()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	onMachine(c)
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var control string
	var buffer int
	err = raw.Control(func(fd uintptr) {
		control, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if err == nil {
			buffer, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if control != localCongestion {
		t.Errorf("congestion control is %q, want %q", control, localCongestion)
	}
	// The kernel doubles it, for what it keeps beside the bytes.
	if unix.Geteuid() == 0 && buffer != 2*localBuffer {
		t.Errorf("the buffer is %d bytes, want %d", buffer, 2*localBuffer)
	}
	onMachine(struct{ net.Conn }{c}) // no socket: nothing happens
}

func TestSameMachine(t *testing.T) {
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	for _, c := range []struct {
		local, remote net.Addr
		want          bool
	}{
		{at("127.0.0.1"), at("127.0.0.1"), true},
		{at("127.0.0.1"), at("127.0.0.2"), true},
		{at("::1"), at("::1"), true},
		{at("::ffff:127.0.0.1"), at("127.0.0.1"), true},
		{at("192.0.2.7"), at("192.0.2.7"), true}, // to an address of its own
		{at("192.0.2.7"), at("192.0.2.8"), false},
		{at("2001:db8::7"), at("2001:db8::8"), false},
		{at("127.0.0.1"), &net.UnixAddr{Name: "x"}, false},
		{&net.UnixAddr{Name: "x"}, at("127.0.0.1"), false},
	} {
		if got := sameMachine(c.local, c.remote); got != c.want {
			t.Errorf("%v and %v: %v, want %v", c.local, c.remote, got, c.want)
		}
	}
}
