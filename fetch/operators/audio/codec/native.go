package codec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"bowstring/fetch/operators/audio/sndfile"
	"bowstring/fetch/operators/program"
)

// ours names what decodes MP3 and Ogg Vorbis where libsndfile is not named.
const ours = "go-mp3+vorbis"

// Lossy names what decodes MP3 and Ogg. Once it is known it stays what it is. It is a
// program.ErrUnavailable where libsndfile is named and cannot be asked just now: which it is, nobody knows then.
func Lossy() (string, error) {
	switch version, _, err := sndfile.Version(); {
	case err != nil:
		return "", unavailable("what decodes MP3 and Ogg", err)
	case version != "":
		return version, nil
	}
	return ours, nil
}

// Engine names what decodes.
func Engine() string {
	switch lossy, err := Lossy(); {
	case err != nil:
		return "go, libsndfile (which cannot be started just now)"
	case lossy != ours:
		return "go, " + lossy
	}
	return "go"
}

// noProcess says that a file cannot be read just now.
func noProcess(f Format, err error) error { return unavailable(string(f), err) }

func unavailable(what string, err error) error {
	return fmt.Errorf("%w: %s: %s", program.ErrUnavailable, what, strings.ReplaceAll(err.Error(), "\n", "; "))
}

// decodeNative decodes by libsndfile, in another process.
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
