// Package codec reads sound files: the contents of their headers, and their samples.
//
// Code of this package reads WAV and FLAC, bit for bit as every other decoder does. A Go
// library reads MP3, and package vorbis Ogg Vorbis. If libsndfile is configured, it reads
// MP3, Ogg Vorbis and Opus instead, in another process: see package sndfile. [Engine]
// names the decoders in use.
//
// Files are untrusted. For any bytes, nothing panics, loops are bounded by the bytes and
// the requested samples, and nothing is allocated because a header says so. The package
// does no I/O except through sndfile, and starts no goroutine.
package codec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"bowstring/fetch/operators/audio/sndfile"
	"bowstring/fetch/operators/audio/vorbis"
	"bowstring/fetch/operators/program"
)

// Format is the format of a file.
type Format string

// The known formats.
const (
	WAV    Format = "WAV"
	FLAC   Format = "FLAC"
	MP3    Format = "MP3"
	Vorbis Format = "Ogg Vorbis"
	Opus   Format = "Ogg Opus"
)

// ErrNoDecoder means that this build cannot read a format.
var ErrNoDecoder = fmt.Errorf("%w: no decoder in this build", program.ErrNotSupported)

// MaxChannels is the maximum of channels in a file.
const MaxChannels = 64

// maxRate is the highest sampling rate that a file may have, in samples a second.
const maxRate = 768_000

// Info is the content of a header.
type Info struct {
	Format Format
	// Rate is in samples a second, of each channel.
	Rate, Channels int
	// Frames is the number of samples in each channel.
	Frames int
	// Bits is the size of a sample, for formats that store integers or floats; 0 for
	// others.
	Bits int
	// Float says that samples are stored as floating-point numbers.
	Float bool
	// Law is the companding law of samples of 8 bits (G.711), or LawNone.
	Law Law
	// Working bounds the memory of decoding besides the result, in bytes.
	Working int64

	width int    // bytes of a stored WAV sample
	data  []byte // stored samples of WAV, frames of FLAC
	steps int64  // maximum of a sample of Ogg Vorbis
	block int    // maximum block size of FLAC in samples; encoder delay of MP3
}

// damaged is an ErrDamaged that describes the damage.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", program.ErrDamaged, fmt.Sprintf(format, args...))
}

// unsupported is an ErrNotSupported that names the variant.
func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", program.ErrNotSupported, fmt.Sprintf(format, args...))
}

// MIME is the media type of a format.
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

// Read parses the header of a file. The result refers to file.
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
	if info.Format != WAV && info.Format != FLAC { // the process that decodes has a copy
		info.Working += int64(len(file)) // another process has it once more
	}
	return info, nil
}

// header recognizes the format by its first bytes and parses the header.
func header(file []byte) (Info, error) {
	body := skipID3(file)
	switch {
	case isWAV(file):
		return readWAV(file)
	case has(body, 0, "fLaC"):
		return readFLAC(body)
	case has(file, 0, "OggS"):
		return readOgg(file)
	case isMP3(body):
		return readMP3(body)
	}
	if name := otherFormat(file); name != "" {
		return Info{}, unsupported("%s; WAV, FLAC, MP3, Ogg Vorbis and Opus can be read", name)
	}
	return Info{}, damaged("these %d bytes are no WAV, FLAC, MP3, Ogg Vorbis or Opus: they begin with %q",
		len(file), file[:min(8, len(file))])
}

// Recognised reports whether the bytes begin like a format that the package reads.
func Recognised(file []byte) bool {
	body := skipID3(file)
	return isWAV(file) || has(body, 0, "fLaC") || has(file, 0, "OggS") || isMP3(body)
}

// has reports whether b has the word at an offset.
func has(b []byte, at int, word string) bool {
	return len(b) >= at+len(word) && string(b[at:at+len(word)]) == word
}

// skipID3 skips ID3v2 tags, which some programs put before files of any format.
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

// Decode decodes samples from frame offset on, one slice of out for each channel, all of
// the same length. Samples are in [-1, 1), as torchaudio's. info must be the result of
// Read for the same bytes. The duration is the CPU time of another process. Decode spends
// steps before it takes them, and ends with ctx, which is the meter's.
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

// Readable fails with ErrNoDecoder if this process cannot decode the file, and with
// program.ErrUnavailable if it cannot at the moment.
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

// Steps for a sample of one channel, about twice the measured cost of usual files.
// Package vorbis has its own.
const (
	ofWAV    = 4
	ofFLAC   = 24
	ofMP3    = 100
	ofNative = 60
)

// Work bounds the steps of decoding n samples of each channel from sample offset on. If
// the format can be searched for a sample, decoding begins a little before it; otherwise
// it begins at the start of the file.
func (i Info) Work(offset, n int) program.Amount {
	frames, before := program.Count(int64(n)), program.Count(int64(offset))
	channels := int64(max(i.Channels, 1))
	switch i.Format {
	case WAV:
		return frames.Times(channels * ofWAV)
	case FLAC:
		return frames.Plus(program.Count(3 * int64(i.block))).Times(channels * ofFLAC)
	case MP3: // the library decodes whole frames of two channels
		return frames.Plus(before).Plus(program.Count(int64(i.block) + 2*1152)).Times(2 * ofMP3)
	case Vorbis:
		around := program.Count(4 * vorbis.LongestBlock)
		return frames.Plus(around).Times(channels * max(i.steps, ofNative)).Plus(program.Count(vorbis.SetupSteps))
	default:
		return frames.Plus(before).Times(channels * ofNative)
	}
}

// otherFormats are sound formats that are not read, by their first bytes. Errors name
// them, because "damaged" would mislead.
var otherFormats = []struct {
	at    int
	begin string
	name  string
}{
	{0, "RIFX", "RIFX, a WAV of big-endian numbers"},
	{8, "AIFF", "AIFF"},
	{8, "AIFC", "AIFF-C"},
	{0, ".snd", "AU"},
	{0, "caff", "CAF"},
	{4, "ftyp", "MPEG-4 (M4A, MP4)"},
	{0, "\x1aE\xdf\xa3", "Matroska or WebM"},
	{0, "\x30\x26\xb2\x75\x8e\x66\xcf\x11", "ASF (WMA)"},
	{0, "#!AMR", "AMR"},
	{0, "NIST_1A", "NIST SPHERE"},
	{0, "wvpk", "WavPack"},
	{0, "MAC ", "Monkey's Audio"},
	{0, "DSD ", "DSF"},
	{0, "FRM8", "DSDIFF"},
	{0, "TTA1", "TTA"},
	{0, "MThd", "MIDI"},
	{0, "ADIF", "AAC"},
	{0, "\xff\xf1", "AAC (ADTS)"},
	{0, "\xff\xf9", "AAC (ADTS)"},
}

// otherFormat names the format of a sound file that is not read; "" if it is unknown.
func otherFormat(file []byte) string {
	for _, f := range otherFormats {
		if has(file, f.at, f.begin) {
			return f.name
		}
	}
	return ""
}

// ours names the decoders of MP3 and Ogg Vorbis without libsndfile.
const ours = "go-mp3+vorbis"

// Lossy names the decoder of MP3 and Ogg. Once known, it does not change. It fails with
// program.ErrUnavailable if libsndfile is configured but cannot be started at the moment,
// since its version is then unknown.
func Lossy() (string, error) {
	switch version, _, err := sndfile.Version(); {
	case err != nil:
		return "", unavailable("what decodes MP3 and Ogg", err)
	case version != "":
		return version, nil
	}
	return ours, nil
}

// Engine names the decoders in use.
func Engine() string {
	switch lossy, err := Lossy(); {
	case err != nil:
		return "go, libsndfile (which cannot be started just now)"
	case lossy != ours:
		return "go, " + lossy
	}
	return "go"
}

// noProcess reports that a file cannot be read at the moment.
func noProcess(f Format, err error) error { return unavailable(string(f), err) }

// unavailable is an ErrUnavailable: the same file may be readable later.
func unavailable(what string, err error) error {
	return fmt.Errorf("%w: %s: %s", program.ErrUnavailable, what, strings.ReplaceAll(err.Error(), "\n", "; "))
}

// decodeNative decodes with libsndfile, in another process.
func decodeNative(ctx context.Context, m *program.Meter, file []byte, info Info, offset int,
	out [][]float32) (time.Duration, error) {
	if err := m.Spend(info.Work(offset, len(out[0])).Int64()); err != nil {
		return 0, err
	}
	got, spent, err := sndfile.Decode(ctx, file, info.Rate, offset, out)
	switch {
	case ctx.Err() != nil && err != nil:
		return spent, context.Cause(ctx)
	case errors.Is(err, sndfile.ErrNoProcess):
		return spent, noProcess(info.Format, err)
	case err != nil:
		return spent, damaged("%s: %s", info.Format, strings.ReplaceAll(err.Error(), "\n", "; "))
	case got < len(out[0]):
		return spent, short(info.Format, out, got, io.EOF)
	}
	return spent, nil
}
