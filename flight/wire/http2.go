package wire

import (
	"encoding/binary"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// The parts of an HTTP/2 connection (RFC 9113) that matter here.
const (
	clientPreface    = 24 // bytes before the first frame
	frameHeader      = 9  // length (24 bits), type, flags, stream
	defaultMaxFrame  = 16 << 10
	typeData         = 0
	typeHeaders      = 1
	typePriority     = 2
	typeReset        = 3
	typeSettings     = 4
	typePing         = 6
	typeContinuation = 9
	flagAck          = 1 // of SETTINGS and PING
	flagEndStream    = 1 // of DATA and HEADERS
	settingSize      = 6 // identifier (16 bits), value (32 bits)
	settingMaxFrame  = 5
)

func frameLength(header []byte) int {
	return int(header[0])<<16 | int(header[1])<<8 | int(header[2])
}

func frameStream(header []byte) uint32 { return binary.BigEndian.Uint32(header[5:]) & math.MaxInt32 }

func putFrameLength(header []byte, n int) {
	header[0], header[1], header[2] = byte(n>>16), byte(n>>8), byte(n)
}

// settingsReader follows what a client sends, to learn how large a frame it
// accepts (SETTINGS_MAX_FRAME_SIZE) and which streams it resets, which the
// transport keeps to itself. see is called by the one goroutine that reads;
// maxFrame by any.
type settingsReader struct {
	max      atomic.Int32 // 0 before the client has said anything
	began    bool
	skip     int    // bytes that do not matter
	settings bool   // part is of a SETTINGS frame's payload, else of a frame's header
	want     int    // bytes of part to wait for
	part     []byte // what there is of it

	newest uint32   // the newest stream that was begun
	ending uint32   // the stream of a RST_STREAM whose payload has not come wholly; 0 for none
	resets []uint32 // streams that were reset, until the reading goroutine has handled them

	control *rate.Limiter // of frames that carry no request
	flooded atomic.Bool   // see has refused to go on
}

// Frames that carry no request, and cost their sender next to nothing, are
// counted: streams that are reset, pings, settings, priorities, continued
// headers, empty data. A client needs a few of them for each call.
const (
	controlBurst  = 10_000
	controlPerSec = 1_000
	// A stream that is begun and reset at once counts as many: the call begins, and its client does not wait for a word
	// of it ("HTTP/2 Rapid Reset", CVE-2023-44487).
	rapidReset = 10
)

// errFlood ends a connection.
var errFlood = errors.New("the client sends more control frames than any client needs")

// costOf is what a frame with that header counts, 0 if it is none of those. Streams beyond known have begun in the bytes
// that the frame came with.
func costOf(header []byte, known uint32) int {
	flags, counted := header[4], false
	switch header[3] {
	case typeReset:
		if frameStream(header) > known {
			return rapidReset
		}
		counted = true
	case typePriority, typeContinuation:
		counted = true
	case typeSettings, typePing:
		counted = flags&flagAck == 0
	case typeData:
		counted = frameLength(header) == 0 && flags&flagEndStream == 0
	}
	if counted {
		return 1
	}
	return 0
}

// maxFrame is the greatest payload of a frame that the client accepts.
func (r *settingsReader) maxFrame() int {
	if n := r.max.Load(); n > 0 {
		return int(n)
	}
	return defaultMaxFrame
}

// see takes note of what has come in; false if it is more than a client needs.
func (r *settingsReader) see(b []byte) bool {
	if !r.began {
		r.began, r.skip, r.want = true, clientPreface, frameHeader
		r.control = rate.NewLimiter(controlPerSec, controlBurst)
	}
	known := r.newest
	for len(b) > 0 {
		if n := min(r.skip, len(b)); n > 0 {
			r.skip, b = r.skip-n, b[n:]
			if r.skip == 0 && r.ending != 0 {
				r.resets, r.ending = append(r.resets, r.ending), 0
			}
			continue
		}
		n := min(r.want-len(r.part), len(b))
		r.part, b = append(r.part, b[:n]...), b[n:]
		if len(r.part) < r.want {
			return true
		}
		if !r.settings {
			if cost := costOf(r.part, known); cost > 0 && !r.control.AllowN(time.Now(), cost) {
				r.flooded.Store(true)
				return false
			}
		}
		if !r.settings {
			r.stream(r.part)
		}
		if r.settings {
			r.take(r.part)
			r.settings, r.want = false, frameHeader
		} else if n := frameLength(r.part); r.part[3] == typeSettings && r.part[4]&flagAck == 0 && n > 0 &&
			n <= defaultMaxFrame {
			r.settings, r.want = true, n
		} else {
			r.skip = n
		}
		r.part = r.part[:0]
	}
	return true
}

// stream takes note of what the header of a frame says of a stream. A reset counts when the whole frame has come: the
// transport knows of it no sooner.
func (r *settingsReader) stream(header []byte) {
	switch id := frameStream(header); header[3] {
	case typeHeaders:
		r.newest = max(r.newest, id)
	case typeReset:
		r.ending = id
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
