package flight

import (
	"encoding/binary"
	"sync/atomic"
)

// What an HTTP/2 connection consists of (RFC 9113), as far as it matters here.
const (
	clientPreface   = 24 // bytes before the first frame
	frameHeader     = 9  // length (24 bits), type, flags, stream
	defaultMaxFrame = 16 << 10
	typeSettings    = 4
	flagAck         = 1
	settingSize     = 6 // identifier (16 bits), value (32 bits)
	settingMaxFrame = 5
)

func frameLength(header []byte) int {
	return int(header[0])<<16 | int(header[1])<<8 | int(header[2])
}

func putFrameLength(header []byte, n int) {
	header[0], header[1], header[2] = byte(n>>16), byte(n>>8), byte(n)
}

// settingsReader follows what a client sends, to learn how large a frame it
// accepts (SETTINGS_MAX_FRAME_SIZE), which the transport keeps to itself. see
// is called by the one goroutine that reads; maxFrame by any.
type settingsReader struct {
	max      atomic.Int32 // 0 before the client has said anything
	began    bool
	skip     int    // bytes that do not matter
	settings bool   // part is of a SETTINGS frame's payload, else of a frame's header
	want     int    // bytes of part to wait for
	part     []byte // what there is of it
}

// maxFrame is the greatest payload of a frame that the client accepts.
func (r *settingsReader) maxFrame() int {
	if n := r.max.Load(); n > 0 {
		return int(n)
	}
	return defaultMaxFrame
}

// see takes note of what has come in.
func (r *settingsReader) see(b []byte) {
	if !r.began {
		r.began, r.skip, r.want = true, clientPreface, frameHeader
	}
	for len(b) > 0 {
		if n := min(r.skip, len(b)); n > 0 {
			r.skip, b = r.skip-n, b[n:]
			continue
		}
		n := min(r.want-len(r.part), len(b))
		r.part, b = append(r.part, b[:n]...), b[n:]
		if len(r.part) < r.want {
			return
		}
		if r.settings {
			r.take(r.part)
			r.settings, r.want = false, frameHeader
		} else if n := frameLength(r.part); r.part[3] == typeSettings && r.part[4]&flagAck == 0 && n > 0 {
			r.settings, r.want = true, n
		} else {
			r.skip = n
		}
		r.part = r.part[:0]
	}
}

// take reads the payload of a SETTINGS frame.
func (r *settingsReader) take(payload []byte) {
	for ; len(payload) >= settingSize; payload = payload[settingSize:] {
		if binary.BigEndian.Uint16(payload) == settingMaxFrame {
			// Out of its range it is an error, which the transport answers.
			if n := binary.BigEndian.Uint32(payload[2:]); n >= defaultMaxFrame && n < 1<<24 {
				r.max.Store(int32(n))
			}
		}
	}
}
