package codec

import (
	"bytes"
	"encoding/binary"

	"bowstring/fetch/operators/audio/vorbis"
)

// readOgg reads the first page, which describes the stream, and the last one, which has its
// length (RFC 3533). The kind of stream decides how positions are counted: Opus counts at
// 48 kHz, and its first samples are to be dropped.
func readOgg(file []byte) (Info, error) {
	info := Info{Format: Vorbis}
	if len(file) < 28 {
		return info, damaged("Ogg: it ends in its first page")
	}
	head := file[min(27+int(file[26]), len(file)):]
	skip, per := 0, 1
	switch {
	case has(head, 0, "\x01vorbis") && len(head) >= 16:
		info.Channels = int(head[11])
		info.Rate = int(binary.LittleEndian.Uint32(head[12:]))
	case has(head, 0, "OpusHead") && len(head) >= 16:
		info.Format = Opus
		info.Channels = int(head[9])
		skip = int(binary.LittleEndian.Uint16(head[10:]))
		info.Rate = opusRate(int(binary.LittleEndian.Uint32(head[12:])))
		per = 48000 / info.Rate
	default:
		return info, unsupported("Ogg: a stream that begins with %q; Vorbis and Opus can be read", head[:min(8, len(head))])
	}
	last := lastGranule(file, file[14:18])
	if last < uint64(skip) || last > 1<<40 {
		return info, damaged("%s: its last page has no position", info.Format)
	}
	info.Frames = (int(last) - skip) / per
	if info.Format == Vorbis {
		// A stream that was cut out of a longer one does not begin at 0. If its headers
		// cannot be parsed, decoding reports that.
		if n, steps, err := vorbis.Length(file, int64(last)); err == nil {
			info.Frames, info.steps = int(n), steps
		}
	}
	info.Working = 1<<20 + int64(info.Frames)*int64(info.Channels)*4
	if info.Format == Vorbis {
		info.Working = max(info.Working, vorbis.Working(info.Channels))
	}
	return info, nil
}

// opusRate is the decoding rate of Opus: the lowest of its rates that preserves the
// source, as libsndfile chooses it.
func opusRate(source int) int {
	for _, rate := range []int{8000, 12000, 16000, 24000} {
		if source > 0 && source <= rate {
			return rate
		}
	}
	return 48000
}

// lastGranule is the last position of the stream with that serial number. It searches
// backwards from the end. A page without the end of a packet has the position -1. Other
// streams may be interleaved.
func lastGranule(file, serial []byte) uint64 {
	for b := file; ; {
		at := bytes.LastIndex(b, []byte("OggS"))
		if at < 0 {
			return 1 << 63
		}
		if page := file[at:]; len(page) >= 27 && bytes.Equal(page[14:18], serial) {
			if v := binary.LittleEndian.Uint64(page[6:]); v>>63 == 0 {
				return v
			}
		}
		b = b[:at]
	}
}
