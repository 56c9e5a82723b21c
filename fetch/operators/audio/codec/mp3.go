package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/hajimehoshi/go-mp3"

	"bowstring/fetch/operators/program"
)

// mp3Frame is the header of a frame of MPEG audio, layer III (ISO/IEC 11172-3 and
// 13818-3).
type mp3Frame struct {
	size, samples  int
	rate, channels int
	side           int // bytes of side information, after which a Xing header is
}

// readMP3Frame parses a frame header; false if b does not begin with one. Bit rates of 0
// (free) and 15 (invalid) are refused: the first gives no size.
func readMP3Frame(b []byte, f *mp3Frame) bool {
	if len(b) < 4 || b[0] != 0xff || b[1]&0xe0 != 0xe0 {
		return false
	}
	version, layer, rate, kbps := b[1]>>3&3, b[1]>>1&3, b[2]>>2&3, b[2]>>4
	if version == 1 || layer != 1 || rate == 3 || kbps == 0 || kbps == 15 {
		return false
	}
	f.rate = [...]int{44100, 48000, 32000}[rate]
	bits := [...]int{0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320}[kbps]
	f.samples, f.side = 1152, 32
	if version != 3 { // MPEG 2 and 2.5
		f.rate /= 2
		if version == 0 {
			f.rate /= 2
		}
		bits = [...]int{0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160}[kbps]
		f.samples, f.side = 576, 17
	}
	f.channels = 2
	if b[3]>>6 == 3 {
		f.channels = 1
		f.side = map[int]int{32: 17, 17: 9}[f.side]
	}
	f.size = f.samples/8*bits*1000/f.rate + int(b[2]>>1&1)
	return true
}

// isMP3 reports whether there are two consecutive frames. One header alone occurs by
// chance in other data.
func isMP3(b []byte) bool {
	at, f := firstMP3(b)
	var next mp3Frame
	return at >= 0 && (at+f.size == len(b) || readMP3Frame(b[min(at+f.size, len(b)):], &next))
}

// firstMP3 finds the first frame, within 64 KiB of other bytes. The bytes before may be a
// tag that is not recognised.
func firstMP3(b []byte) (int, mp3Frame) {
	var f, next mp3Frame
	for at := 0; at < min(len(b), 1<<16); at++ {
		if b[at] == 0xff && readMP3Frame(b[at:], &f) && at+f.size <= len(b) &&
			(at+f.size == len(b) || readMP3Frame(b[at+f.size:], &next) && next.rate == f.rate) {
			return at, f
		}
	}
	return -1, f
}

// lowestGoMP3 is the lowest sample rate of MPEG 2. The library does not support MPEG 2.5,
// whose rates are lower.
const lowestGoMP3 = 16000

// mp3Decoder is the delay of every layer III decoder in samples, which LAME's header does
// not include.
const mp3Decoder = 529

// readMP3 gets the length from the header that encoders put into the first frame (Xing,
// with LAME's delays), or by walking over all frames. The number of the header is not
// trusted beyond the frames that exist.
func readMP3(body []byte) (Info, error) {
	info := Info{Format: MP3}
	at, f := firstMP3(body)
	if at < 0 {
		return info, damaged("MP3: no frame")
	}
	info.Rate, info.Channels = f.rate, f.channels
	info.data = body[at:]
	frames, skip, end := 0, 0, 0
	if b := body[at : at+f.size][min(4+f.side, f.size):]; has(b, 0, "Xing") || has(b, 0, "Info") {
		info.data = body[at+f.size:]
		frames, skip, end = xing(b)
	}
	count := 0
	for b := info.data; ; count++ {
		var next mp3Frame
		if !readMP3Frame(b, &next) || next.rate != f.rate || next.size > len(b) {
			break
		}
		b = b[next.size:]
	}
	if frames == 0 || frames > count {
		frames = count
	}
	info.Frames = max(frames*f.samples-skip-max(end-mp3Decoder, 0), 0)
	info.block = skip
	info.Working = 1<<20 + int64(info.Frames)*int64(info.Channels)*4
	return info, nil
}

// xing parses the number of frames, and the numbers of padding samples at the beginning and
// the end. The fields are optional: four flags say which of them exist.
func xing(b []byte) (frames, skip, end int) {
	if len(b) < 8 {
		return 0, 0, 0
	}
	flags, at := b[7], 8
	if flags&1 != 0 && len(b) >= at+4 {
		frames = int(binary.BigEndian.Uint32(b[at:]))
	}
	at += 4*int(flags&1) + 4*int(flags>>1&1) + 100*int(flags>>2&1) + 4*int(flags>>3&1)
	if len(b) >= at+24 && (has(b, at, "LAME") || has(b, at, "Lavc") || has(b, at, "Lavf") || has(b, at, "GOGO")) {
		delays := int(b[at+21])<<16 | int(b[at+22])<<8 | int(b[at+23])
		skip, end = delays>>12+mp3Decoder, delays&0xfff
	}
	return min(frames, 1<<30), skip, end
}

// decodeMP3 decodes from the beginning, because frames refer to the frames before (bit
// reservoir).
func decodeMP3(m *program.Meter, info Info, offset int, out [][]float32) (err error) {
	defer func() {
		// The library indexes tables by values of the file without checks.
		if r := recover(); r != nil {
			err = damaged("MP3: it leads the decoder out of its tables")
		}
	}()
	// If the reader cannot seek, the library does not scan all frames first.
	d, err := mp3.NewDecoder(struct{ io.Reader }{bytes.NewReader(info.data)})
	if err != nil {
		return damaged("MP3: %v", err)
	}
	const width = 4 // two channels of 16 bits, for any file
	buffer := make([]byte, 1152*width)
	for at, done := -info.block-offset, 0; done < len(out[0]); {
		if err := m.Spend(1152 * 2 * ofMP3); err != nil {
			return err
		}
		// The library returns 16-bit samples; at counts from the first sample that is
		// wanted.
		n, err := io.ReadFull(d, buffer)
		for b := buffer[:n-n%width]; len(b) > 0 && done < len(out[0]); b = b[width:] {
			if at++; at <= 0 {
				continue
			}
			out[0][done] = float32(int16(binary.LittleEndian.Uint16(b))) * 0x1p-15
			if len(out) > 1 {
				out[1][done] = float32(int16(binary.LittleEndian.Uint16(b[2:]))) * 0x1p-15
			}
			done++
		}
		if err != nil {
			return short(MP3, out, done, err)
		}
	}
	return nil
}

// mp3Slack is how many samples may be missing at the end, because the last frame was cut
// off.
const mp3Slack = 2 * 1152

// short replaces the missing samples of a lossy decoder by zeros if they are few;
// otherwise the file is damaged.
func short(f Format, out [][]float32, done int, err error) error {
	if missing := len(out[0]) - done; missing > mp3Slack || err != nil && !errors.Is(err, io.EOF) &&
		!errors.Is(err, io.ErrUnexpectedEOF) {
		return damaged("%s: it ends %d samples too early: %v", f, missing, err)
	}
	for _, x := range out {
		clear(x[done:])
	}
	return nil
}
