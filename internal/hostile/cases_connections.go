package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// connections are cases of HTTP/2 frames, and of connections that are silent. Each flood
// is one of the known attacks on HTTP/2, such as CVE-2023-44487, rapid reset.
func connections() []Case {
	return []Case{
		{Name: "calls that say nothing", Codes: exhausted, Text: "RequestTimeout", Run: silentCalls},
		{Name: "half a message", Codes: exhausted, Text: "RequestTimeout",
			Run: func(ctx context.Context, t Target) error {
				return t.partly(ctx, "DoPut", binary.BigEndian.AppendUint32([]byte{0}, 10<<20), make([]byte, 100))
			}},
		{Name: "request of 4 GiB", Codes: exhausted, Text: "MaxRequestBytes",
			Run: func(ctx context.Context, t Target) error {
				return t.partly(ctx, "DoGet", []byte{0, 0xff, 0xff, 0xff, 0xff})
			}},
		{Name: "unary request of 4 GiB", Codes: exhausted, Text: "MaxRequestBytes",
			Run: func(ctx context.Context, t Target) error {
				return t.partly(ctx, "GetFlightInfo", []byte{0, 0xff, 0xff, 0xff, 0xff})
			}},
		{Name: "message of 4 GiB", Codes: exhausted, Text: "MaxMessageBytes",
			Run: func(ctx context.Context, t Target) error {
				return t.partly(ctx, "DoPut", []byte{0, 0xff, 0xff, 0xff, 0xff})
			}},
		{Name: "compressed by gRPC", Codes: []codes.Code{codes.Unimplemented},
			Run: func(ctx context.Context, t Target) error {
				return t.partly(ctx, "DoGet", []byte{1, 0, 0, 0, 1, 0})
			}},
		{Name: "no request at all", Codes: invalid, Text: "no message", Run: func(ctx context.Context, t Target) error {
			return t.Ask(ctx, "GetSchema")
		}},
		{Name: "messages in pieces of a byte", Codes: either, Run: func(ctx context.Context, t Target) error {
			return t.crumbs(ctx)
		}},
		{Name: "answers that are not read", Heavy: true, Run: unread},
		flood("rapid reset", func(c *Conn, i uint32) error {
			id := 2*i + 1
			if err := c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id,
				BlockFragment: c.block(flightURL + "DoGet"), EndHeaders: true}); err != nil {
				return err
			}
			return c.fr.WriteRSTStream(id, http2.ErrCodeCancel)
		}),
		flood("pings", func(c *Conn, _ uint32) error { return c.fr.WritePing(false, [8]byte{}) }),
		flood("settings", func(c *Conn, i uint32) error {
			return c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000 + i})
		}),
		flood("priorities", func(c *Conn, i uint32) error {
			return c.fr.WritePriority(2*i+1, http2.PriorityParam{StreamDep: 0, Weight: 1})
		}),
		flood("empty data", func(c *Conn, _ uint32) error { return c.fr.WriteData(1, false, nil) }),
		flood("unknown frames", func(c *Conn, _ uint32) error { return c.fr.WriteRawFrame(0xf0, 0, 1, []byte("x")) }),
		flood("windows", func(c *Conn, _ uint32) error { return c.fr.WriteWindowUpdate(1, 1) }),
		flood("continuations", func(c *Conn, i uint32) error {
			if i == 0 {
				return c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1,
					BlockFragment: c.block(flightURL + "DoGet")})
			}
			return c.fr.WriteContinuation(1, false, nil)
		}),
		{Name: "headers of 1 MiB", Run: func(ctx context.Context, t Target) error {
			return t.withHeaders(ctx, hpack.HeaderField{Name: "x", Value: string(bytes.Repeat([]byte("x"), 15<<10))},
				70)
		}},
		{Name: "headers that refer to each other", Run: func(ctx context.Context, t Target) error {
			return t.withHeaders(ctx, hpack.HeaderField{Name: "x", Value: string(bytes.Repeat([]byte("x"), 4000))},
				4000)
		}},
		{Name: "window beyond its bound", Run: func(ctx context.Context, t Target) error {
			return t.frames(ctx, func(c *Conn) error { return c.widen(hugeFlow) })
		}},
		{Name: "frame of 16 MiB", Run: func(ctx context.Context, t Target) error {
			return t.raw(ctx, append([]byte(http2.ClientPreface), 0, 0, 0, 4, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0, 0, 0,
				0, 0, 1))
		}},
		{Name: "no HTTP/2", Run: func(ctx context.Context, t Target) error {
			return t.raw(ctx, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		}},
		{Name: "preface without settings", Run: func(ctx context.Context, t Target) error {
			return t.raw(ctx, []byte(http2.ClientPreface))
		}},
		{Name: "connections that say nothing", Run: silentConnections},
	}
}

// silentCalls opens more calls than streams may exist, on three connections, and sends
// nothing. The answer is that of the first call.
func silentCalls(ctx context.Context, t Target) error {
	var first *Stream
	for range 3 {
		c, err := t.Dial(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		for range 400 {
			s, err := c.Open(flightURL + "DoPut")
			if err != nil {
				return err
			}
			if first == nil {
				first = s
			}
		}
	}
	return first.Status(ctx)
}

// partly sends the beginning of a call and never its end.
func (t Target) partly(ctx context.Context, method string, pieces ...[]byte) error {
	c, err := t.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Open(flightURL + method)
	if err != nil {
		return err
	}
	for _, p := range pieces {
		if err := s.Write(ctx, p, false); err != nil {
			return err
		}
	}
	return s.Status(ctx)
}

// crumbs sends a message in frames of one byte. Each frame costs the server more than its
// byte.
func (t Target) crumbs(ctx context.Context) error {
	c, err := t.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Open(flightURL + "DoPut")
	if err != nil {
		return err
	}
	for _, b := range framed(make([]byte, 100_000)) {
		if err := s.Write(ctx, []byte{b}, false); err != nil {
			return err
		}
	}
	return s.Status(ctx)
}

// unread requests answers and grants no window for them, so that the server has to buffer
// them.
func unread(ctx context.Context, t Target) error {
	c, err := t.Dial(ctx, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	if err != nil {
		return err
	}
	defer c.Close()
	var s *Stream
	for range 200 {
		if s, err = c.Open(flightURL + "GetFlightInfo"); err != nil {
			return err
		}
		if err := s.Write(ctx, framed(descriptor(`{"dataset": "`+Dataset+`", "world": {"size": 4096}}`)),
			true); err != nil {
			return err
		}
	}
	return s.Status(ctx)
}

// floodFrames is the number of frames of a flood. It is far more than a server should
// accept.
const floodFrames = 60_000

// flood returns a case that sends one kind of frame again and again, on one connection.
func flood(name string, frame func(c *Conn, i uint32) error) Case {
	return Case{Name: "flood of " + name, Run: func(ctx context.Context, t Target) error {
		return t.frames(ctx, func(c *Conn) error {
			for i := range uint32(floodFrames) {
				c.mu.Lock()
				err := frame(c, i)
				c.mu.Unlock()
				if err != nil {
					return nil //nolint:nilerr // the server has had enough
				}
			}
			return nil
		})
	}}
}

// frames writes to a connection, and waits a moment for the server to close it.
func (t Target) frames(ctx context.Context, write func(*Conn) error) error {
	c, err := t.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Conn.Close() })
	defer stop()
	err = write(c)
	select {
	case <-c.closed:
	case <-ctx.Done():
	case <-time.After(moment):
	}
	return err
}

// moment is how long a case waits for the server to close the connection, if it may.
const moment = 200 * time.Millisecond

// withHeaders sends a header n times in one call. HPACK encodes a repeated header in a
// byte, so that a small request can expand to many megabytes.
func (t Target) withHeaders(ctx context.Context, h hpack.HeaderField, n int) error {
	return t.frames(ctx, func(c *Conn) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		block := c.block(flightURL + "DoGet")
		for range n {
			c.headers.Reset()
			_ = c.enc.WriteField(h) // into a buffer
			block = append(block, c.headers.Bytes()...)
		}
		first := true
		for len(block) > 0 {
			piece := block[:min(len(block), maxFrame)]
			block = block[len(piece):]
			var err error
			if first {
				err = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: piece,
					EndHeaders: len(block) == 0})
			} else {
				err = c.fr.WriteContinuation(1, len(block) == 0, piece)
			}
			if first = false; err != nil {
				return nil // the server has had enough
			}
		}
		return nil
	})
}

// raw sends bytes that are no valid HTTP/2, and waits for the server to close the
// connection.
func (t Target) raw(ctx context.Context, b []byte) error {
	c, err := t.dialRaw(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if _, err := c.Write(b); err != nil {
		return nil // the server has had enough
	}
	_, err = io.Copy(io.Discard, c)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return ignoreReset(err)
}

// ignoreReset returns nil for errors of the network: a server may reset such a
// connection.
func ignoreReset(err error) error {
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return nil
	}
	return err
}

// silentConnections opens 1,200 connections, sends nothing, and waits until the server
// closes them.
func silentConnections(ctx context.Context, t Target) error {
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for range 1200 {
		c, err := t.dialRaw(ctx)
		if err != nil {
			return err
		}
		open = append(open, c)
	}
	for _, c := range open {
		if at, ok := ctx.Deadline(); ok {
			_ = c.SetReadDeadline(at)
		}
		if _, err := io.Copy(io.Discard, c); err != nil && ignoreReset(err) != nil {
			return err
		}
	}
	return context.Cause(ctx)
}
