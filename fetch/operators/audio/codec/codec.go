// Package codec reads files of sound: what their headers say, and their samples.
//
// WAV and FLAC are read by code of this package, bit for bit as every other decoder
// has them; MP3 by a library in Go, and Ogg Vorbis by package vorbis. Where libsndfile is named, MP3, Ogg Vorbis and
// Opus are read by it, in another process: see package sndfile. [Engine] says what there is.
//
// Bytes are hostile: whatever they are, nothing panics, no loop is longer than the
// bytes and the samples that were asked for, and nothing is allocated by what a header
// says. The package does no I/O but by sndfile, and starts no goroutine.
package codec

import (
	"context"
	"fmt"
	"io"
	"time"

	"bowstring/fetch/operators/audio/sndfile"
	"bowstring/fetch/operators/audio/vorbis"
	"bowstring/fetch/operators/program"
)

// Format names what a file is.
type Format string

// The formats that are known.
const (
	WAV    Format = "WAV"
	FLAC   Format = "FLAC"
	MP3    Format = "MP3"
	Vorbis Format = "Ogg Vorbis"
	Opus   Format = "Ogg Opus"
)

// ErrNoDecoder says that this build cannot read a format.
var ErrNoDecoder = fmt.Errorf("%w: no decoder in this build", program.ErrNotSupported)

// MaxChannels is the most that a file may have.
const MaxChannels = 64

// maxRate is the highest sampling rate that a file may have, in samples a second.
const maxRate = 768_000

// Info is what a header says.
type Info struct {
	Format Format
	// Rate is in samples a second, of each channel.
	Rate, Channels int
	// Frames is how many samples each channel has.
	Frames int
	// Bits of a sample, where it is a number of so many; 0 where the format has none.
	Bits int
	// Float says that samples are floating-point numbers.
	Float bool
	// Law is what companded samples of 8 bits are: one of G.711's laws, or LawNone.
	Law Law
	// Working bounds what decoding holds besides its result, in bytes.
	Working int64

	width int    // bytes of a sample of WAV
	data  []byte // the samples of WAV, the frames of FLAC
	steps int64  // of a sample of Ogg Vorbis, at most
	block int    // most samples of a block of FLAC, or what comes too much at the beginning of MP3
}

// damaged is an error that says what is wrong with the bytes.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", program.ErrDamaged, fmt.Sprintf(format, args...))
}

// unsupported is an error that names what is not read.
func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", program.ErrNotSupported, fmt.Sprintf(format, args...))
}

// MIME is the type that a format's files are told by.
func (f Format) MIME() string {
	switch f {
	case WAV:
		return "audio/wav"
	case FLAC:
		return "audio/flac"
	case MP3:
		return "audio/mpeg"
	default:
		return "audio/ogg"
	}
}

// Read reads the header of a file. What it returns refers to the bytes.
func Read(file []byte) (Info, error) {
	info, err := header(file)
	if err != nil {
		return Info{}, err
	}
	switch {
	case info.Channels < 1 || info.Channels > MaxChannels:
		return Info{}, damaged("%s has %d channels; 1 to %d can be read", info.Format, info.Channels, MaxChannels)
	case info.Rate < 1 || info.Rate > maxRate:
		return Info{}, damaged("%s has %d samples a second; 1 to %d can be read", info.Format, info.Rate, maxRate)
	case info.Frames < 0:
		return Info{}, damaged("%s has %d samples", info.Format, info.Frames)
	}
	if info.Format != WAV && info.Format != FLAC {
		info.Working += int64(len(file)) // another process has it once more
	}
	return info, nil
}

func header(file []byte) (Info, error) {
	body := skipID3(file)
	switch {
	case looksWAV(file):
		return readWAV(file)
	case has(body, 0, "fLaC"):
		return readFLAC(body)
	case has(file, 0, "OggS"):
		return readOgg(file)
	case looksMP3(body):
		return readMP3(body)
	}
	if name := otherFormat(file); name != "" {
		return Info{}, unsupported("%s; WAV, FLAC, MP3, Ogg Vorbis and Opus can be read", name)
	}
	return Info{}, damaged("these %d bytes are no WAV, FLAC, MP3, Ogg Vorbis or Opus: they begin with %q",
		len(file), file[:min(8, len(file))])
}

// Recognised reports whether the bytes begin as those of a format that the package reads.
func Recognised(file []byte) bool {
	body := skipID3(file)
	return looksWAV(file) || has(body, 0, "fLaC") || has(file, 0, "OggS") || looksMP3(body)
}

func has(b []byte, at int, word string) bool {
	return len(b) >= at+len(word) && string(b[at:at+len(word)]) == word
}

// skipID3 leaves out a tag that some programs put before any file.
func skipID3(b []byte) []byte {
	for has(b, 0, "ID3") && len(b) >= 10 {
		n := 10 + (int(b[6]&0x7f)<<21 | int(b[7]&0x7f)<<14 | int(b[8]&0x7f)<<7 | int(b[9]&0x7f))
		if b[5]&0x10 != 0 {
			n += 10
		}
		if n > len(b) {
			return nil
		}
		b = b[n:]
	}
	return b
}

// Decode gives samples from frame offset on, each channel's in one slice of out, all of
// the same length. They are in [-1, 1), as torchaudio's. The info is what Read gave for the same bytes.
// The duration is processor time that another process has taken for it. Decode spends steps before it takes them, and
// ends when ctx does, which is the meter's.
func Decode(ctx context.Context, m *program.Meter, file []byte, info Info, offset int,
	out [][]float32) (time.Duration, error) {
	if len(out) != info.Channels || offset < 0 || offset > info.Frames {
		return 0, fmt.Errorf("codec: frames from %d of %d channels are asked for, of %d frames of %d channels",
			offset, len(out), info.Frames, info.Channels)
	}
	n := len(out[0])
	if n > info.Frames-offset {
		return 0, fmt.Errorf("codec: %d frames from %d are asked for, of %d", n, offset, info.Frames)
	}
	if n == 0 {
		return 0, nil
	}
	if err := info.Readable(); err != nil {
		return 0, err
	}
	switch info.Format {
	case WAV:
		return 0, decodeWAV(m, info, offset, out)
	case FLAC:
		return 0, decodeFLAC(m, info, offset, out)
	}
	if version, _, err := sndfile.Version(); err != nil {
		return 0, noProcess(info.Format, err)
	} else if version != "" {
		return decodeNative(ctx, m, file, info, offset, out)
	}
	if info.Format == Vorbis {
		got, err := vorbis.Decode(m, file, offset, out)
		if err == nil && got < n {
			err = short(Vorbis, out, got, io.EOF)
		}
		return 0, err
	}
	return 0, decodeMP3(m, info, offset, out)
}

// Readable fails with ErrNoDecoder where this process cannot decode the file, and with program.ErrUnavailable where it
// cannot just now.
func (i Info) Readable() error {
	if i.Format == WAV || i.Format == FLAC {
		return nil
	}
	version, missing, err := sndfile.Version()
	switch {
	case err != nil:
		return noProcess(i.Format, err)
	case version != "" || i.Format == Vorbis || i.Format == MP3 && i.Rate >= lowestGoMP3:
		return nil
	case i.Format == MP3:
		return fmt.Errorf("%w: MP3 of %d samples a second (MPEG 2.5) is read by libsndfile, which %s",
			ErrNoDecoder, i.Rate, missing)
	default:
		return fmt.Errorf("%w: %s is read by libsndfile, which %s", ErrNoDecoder, i.Format, missing)
	}
}
