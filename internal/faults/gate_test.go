package faults

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// behindGate is a gate before a server that answers with what it gets.
func behindGate(t *testing.T, nodes bool) (*Gate, func() net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // until either end is gone
			})
		}
	})
	g, err := NewGate("127.0.0.1:0", l.Addr().String(), nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		l.Close()
		all.Wait()
	})
	return g, func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		return c
	}
}

func exchange(t *testing.T, c net.Conn, send, want []byte) {
	t.Helper()
	if _, err := c.Write(send); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got %x, want %x: %v", got, want, err)
	}
}

// nothing comes for a moment.
func nothing(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes came: %v", n, err)
	}
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
}

func ended(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection is still there: %d bytes, %v", n, err)
	}
}

func TestGateCut(t *testing.T) {
	g, dial := behindGate(t, false)
	one := dial()
	exchange(t, one, []byte("one"), []byte("one"))
	g.Set("somebody else", Trouble{Cut: true})
	exchange(t, one, []byte("two"), []byte("two"))
	g.Set("", Trouble{Cut: true})
	ended(t, one)
	ended(t, dial())
	g.Set("", Trouble{})
	exchange(t, dial(), []byte("three"), []byte("three"))
}

func TestGateHold(t *testing.T) {
	g, dial := behindGate(t, false)
	c := dial()
	exchange(t, c, []byte("a"), []byte("a"))
	g.Set("", Trouble{Hold: true})
	if _, err := c.Write([]byte("held")); err != nil {
		t.Fatal(err)
	}
	nothing(t, c)
	g.Set("", Trouble{})
	exchange(t, c, nil, []byte("held"))
}

func TestGateDelay(t *testing.T) {
	g, dial := behindGate(t, false)
	c := dial()
	g.Set("", Trouble{Delay: 20 * time.Millisecond})
	begun := time.Now()
	exchange(t, c, []byte("late"), []byte("late"))
	if took := time.Since(begun); took < 40*time.Millisecond {
		t.Errorf("there and back took %s", took)
	}
}

func TestGateWithoutServer(t *testing.T) {
	g, err := NewGate("127.0.0.1:0", "127.0.0.1:1", false)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ended(t, c)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// hello is a node's greeting.
func hello(last byte, flags uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, greetingMagic)
	b = binary.BigEndian.AppendUint32(b, flags)
	b = append(b, 6, 127, 0, 0, last, 0, 99)
	return append(b, "sum."...)
}

// frame is one with a payload, whole or a part of a message.
func frame(payload string, whole bool) []byte {
	bits := uint32(len(payload))
	if whole {
		bits |= frameWhole
	}
	b := []byte{byte(bits), byte(bits >> 8), byte(bits >> 16)}
	return append(append(append(b, "cr3"...), payload...), "crc4"...)
}

// TestGateNodes: whose messages they are is known from the greeting, and of these whole frames are lost.
func TestGateNodes(t *testing.T) {
	const framed = 14<<8 | framingHigh
	g, dial := behindGate(t, true)
	one, two, stream := dial(), dial(), dial()
	exchange(t, one, hello(1, framed), hello(1, framed))
	exchange(t, two, hello(2, framed), hello(2, framed))
	exchange(t, stream, hello(1, framed|flagStreaming), hello(1, framed|flagStreaming))
	g.Set("127.0.0.1", Trouble{Loss: 1})
	part, large := frame("part", false), frame(string(make([]byte, 70_000)), true)
	for _, f := range [][]byte{frame("lost", true), large, part, frame("", true)} {
		if _, err := one.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	exchange(t, one, nil, part)
	nothing(t, one)
	exchange(t, two, frame("not lost", true), frame("not lost", true))
	exchange(t, stream, []byte("no frames"), []byte("no frames"))
	g.Set("127.0.0.1", Trouble{})
	exchange(t, one, large, large)
	if g.Lost() != 3 {
		t.Errorf("%d frames were lost, want 3", g.Lost())
	}
	g.Set("127.0.0.2", Trouble{Cut: true})
	ended(t, two)
	exchange(t, one, part, part)
}

func TestNoGreeting(t *testing.T) {
	for name, b := range map[string][]byte{
		"too short":     hello(1, 0)[:12],
		"another magic": append([]byte{1}, hello(1, 0)[1:]...),
		"no address":    append(hello(1, 0)[:8:8], 7, 1, 2, 3, 4, 5, 6, 7, 8, 9),
	} {
		if g, err := readGreeting(bytes.NewReader(b)); err == nil {
			t.Errorf("%s: %+v", name, g)
		}
	}
}
