package codec

import (
	"encoding/binary"
	"math"
	"sync"

	"bowstring/fetch/operators/program"
)

// readFLAC reads the metadata of a native FLAC stream (RFC 9639).
func readFLAC(file []byte) (Info, error) {
	info := Info{Format: FLAC}
	b := file[4:]
	for first, last := true, false; !last; first = false {
		if len(b) < 4 {
			return info, damaged("FLAC: it ends in its metadata")
		}
		last = b[0]&0x80 != 0
		kind, size := b[0]&0x7f, int(b[1])<<16|int(b[2])<<8|int(b[3])
		if size > len(b)-4 {
			return info, damaged("FLAC: it ends in its metadata")
		}
		if first != (kind == 0) || first && size < 34 {
			return info, damaged("FLAC: its metadata does not begin with the one STREAMINFO")
		}
		if first {
			s := b[4:]
			info.block = int(binary.BigEndian.Uint16(s[2:]))
			packed := binary.BigEndian.Uint64(s[10:])
			info.Rate = int(packed >> 44)
			info.Channels = int(packed>>41&7) + 1
			info.Bits = int(packed>>36&31) + 1
			info.Frames = int(packed & (1<<36 - 1))
		}
		b = b[4+size:]
	}
	info.data = b
	if info.Bits < 4 || info.block < 16 {
		return info, damaged("FLAC: samples of %d bits in blocks of %d", info.Bits, info.block)
	}
	if info.Frames == 0 && len(b) > 0 {
		info.Frames = lastFrame(info)
	}
	info.Working = int64(info.block) * int64(info.Channels) * 8
	return info, nil
}

// frameHeader is what the header of a frame says.
type frameHeader struct {
	size     int // bytes of the header
	block    int // samples of each channel
	number   uint64
	variable bool // number counts samples, and not frames
	rate     int  // 0 where it is the stream's
	assigned int  // channels, or 8 to 10 for the ways of stereo
	bits     int  // 0 where it is the stream's
}

// begins is the first sample of the frame.
func (h *frameHeader) begins(info *Info) int {
	if h.variable {
		return int(h.number)
	}
	return int(h.number) * info.block
}

// readFrameHeader is false where b does not begin with the header of a frame.
func readFrameHeader(b []byte, h *frameHeader) bool {
	if len(b) < 6 || b[0] != 0xff || b[1]&0xfe != 0xf8 || b[3]&1 != 0 {
		return false
	}
	h.variable = b[1]&1 != 0
	block, rate := b[2]>>4, b[2]&15
	h.assigned = int(b[3] >> 4)
	if block == 0 || rate == 15 || h.assigned > 10 {
		return false
	}
	switch b[3] >> 1 & 7 {
	case 0:
		h.bits = 0
	case 3:
		return false
	default:
		h.bits = [...]int{0, 8, 12, 0, 16, 20, 24, 32}[b[3]>>1&7]
	}
	// The number is coded as characters of UTF-8 are, to 36 bits.
	at, more := 5, 0
	switch c := b[4]; {
	case c < 0x80:
		h.number = uint64(c)
	case c < 0xc0 || c == 0xff:
		return false
	default:
		for c<<more&0x80 != 0 {
			more++
		}
		h.number = uint64(c & (0x7f >> more))
		for more--; more > 0; more-- {
			if at >= len(b) || b[at]&0xc0 != 0x80 {
				return false
			}
			h.number = h.number<<6 | uint64(b[at]&0x3f)
			at++
		}
	}
	if len(b) < at+5 {
		return false
	}
	switch {
	case block == 1:
		h.block = 192
	case block <= 5:
		h.block = 576 << (block - 2)
	case block == 6:
		h.block = int(b[at]) + 1
		at++
	case block == 7:
		h.block = int(binary.BigEndian.Uint16(b[at:])) + 1
		at += 2
	default:
		h.block = 256 << (block - 8)
	}
	switch rate {
	case 0:
		h.rate = 0
	case 12:
		h.rate = int(b[at]) * 1000
		at++
	case 13:
		h.rate = int(binary.BigEndian.Uint16(b[at:]))
		at += 2
	case 14:
		h.rate = int(binary.BigEndian.Uint16(b[at:])) * 10
		at += 2
	default:
		h.rate = [...]int{0, 88200, 176400, 192000, 8000, 16000, 22050, 24000, 32000, 44100, 48000, 96000}[rate]
	}
	if at >= len(b) || crc8(b[:at]) != b[at] {
		return false
	}
	h.size = at + 1
	return true
}

// fits says whether a frame may be of the stream.
func (h *frameHeader) fits(info *Info) bool {
	channels := h.assigned + 1
	if h.assigned >= 8 {
		channels = 2
	}
	return channels == info.Channels && h.block <= info.block && (h.bits == 0 || h.bits == info.Bits) &&
		h.number < 1<<36 && h.begins(info) >= 0
}

// lastFrame finds how many samples a stream has that does not say so, by the header of its last frame.
func lastFrame(info Info) int {
	var h frameHeader
	// A frame of verbatim samples is the longest that encoders write.
	longest := info.block*info.Channels*(info.Bits+1)/8 + 64
	for at := len(info.data) - 6; at >= max(0, len(info.data)-longest); at-- {
		if info.data[at] == 0xff && readFrameHeader(info.data[at:], &h) && h.fits(&info) {
			return h.begins(&info) + h.block
		}
	}
	return 0
}

// flacRoom is what decoding needs beside its result.
type flacRoom struct{ samples []int64 }

var flacRooms = sync.Pool{New: func() any { return new(flacRoom) }}

// decodeFLAC decodes from the frame that has the first sample asked for.
func decodeFLAC(m *program.Meter, info Info, offset int, out [][]float32) error {
	room := flacRooms.Get().(*flacRoom)
	defer flacRooms.Put(room)
	if n := info.block * info.Channels; len(room.samples) < n {
		room.samples = make([]int64, n)
	}
	if at, sample := seekFLAC(&info, offset); at > 0 {
		if err := flacFrom(m, &info, room, at, sample, offset, out); err == nil || m.Look() != nil {
			return err
		}
		// What looked like a header was not one. From the beginning nothing has to be guessed.
	}
	return flacFrom(m, &info, room, 0, 0, offset, out)
}

// seekFLAC finds a frame that begins at or before sample offset, by halving. It gives its place, or zeros.
func seekFLAC(info *Info, offset int) (at, sample int) {
	var h frameHeader
	low, high := 0, len(info.data)
	for offset >= 2*info.block && high-low > 4096 {
		middle := low + (high-low)/2
		p := middle
		for ; p < high; p++ {
			if info.data[p] == 0xff && readFrameHeader(info.data[p:], &h) && h.fits(info) {
				break
			}
		}
		switch {
		case p == high || h.begins(info) > offset:
			high = middle
		case h.begins(info) < sample:
			return 0, 0
		default:
			low, at, sample = p+1, p, h.begins(info)
		}
	}
	return at, sample
}

// flacFrom decodes frames from byte at, whose first sample is number sample, until out is full.
func flacFrom(m *program.Meter, info *Info, room *flacRoom, at, sample, offset int, out [][]float32) error {
	var channels [8][]int64
	scale := float32(math.Ldexp(1, 1-info.Bits))
	for end := offset + len(out[0]); sample < end; {
		var h frameHeader
		b := info.data[min(at, len(info.data)):]
		switch {
		case len(b) == 0:
			return damaged("FLAC: it ends after %d of %d samples", sample, info.Frames)
		case !readFrameHeader(b, &h):
			return damaged("FLAC: no frame begins at sample %d", sample)
		case !h.fits(info) || h.begins(info) != sample:
			return damaged("FLAC: the frame at sample %d is not of its stream", sample)
		}
		if err := m.Spend(int64(h.block) * int64(info.Channels) * ofFLAC); err != nil {
			return err
		}
		for c := range info.Channels {
			channels[c] = room.samples[c*info.block:][:h.block]
		}
		size, err := h.samples(b, info, channels[:info.Channels], sample)
		if err != nil {
			return err
		}
		from, to := max(offset-sample, 0), min(end-sample, h.block)
		for c := range out {
			if from < to {
				toFloats(out[c][sample+from-offset:], channels[c][from:to], scale)
			}
		}
		at += size
		sample += h.block
	}
	return nil
}

// toFloats is as long as src.
func toFloats(dst []float32, src []int64, scale float32) {
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] = float32(int32(v)) * scale
	}
}
