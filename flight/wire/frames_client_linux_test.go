package wire

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
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

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
		if s != nil && !s.reset && (!s.ended || f.ErrCode != http2.ErrCodeNo) {
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
