package codec

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"bowstring/fetch/operators/audio/sndfile"
	"bowstring/fetch/operators/program"
)

// Lossy names what decodes MP3, and Ogg where that can be read.
//
// It is "libsndfile" where that is named and cannot be asked just now: nothing is decoded by another then.
func Lossy() string {
	switch version, _, err := sndfile.Version(); {
	case err != nil:
		return "libsndfile"
	case version != "":
		return version
	}
	return "go-mp3"
}

// Engine names what decodes.
func Engine() string {
	if lossy := Lossy(); lossy != "go-mp3" {
		return "go, " + lossy
	}
	return "go"
}

// noProcess says that a file cannot be read just now.
func noProcess(f Format, err error) error {
	return fmt.Errorf("%w: %s: %s", program.ErrUnavailable, f, strings.ReplaceAll(err.Error(), "\n", "; "))
}

// decodeNative decodes by libsndfile, in another process.
func decodeNative(file []byte, info Info, offset int, out [][]float32) (time.Duration, error) {
	got, spent, err := sndfile.Decode(file, info.Rate, offset, out)
	switch {
	case errors.Is(err, sndfile.ErrNoProcess):
		return spent, noProcess(info.Format, err)
	case err != nil:
		return spent, damaged("%s: %s", info.Format, strings.ReplaceAll(err.Error(), "\n", "; "))
	case got < len(out[0]):
		return spent, short(info.Format, out, got, io.EOF)
	}
	return spent, nil
}
