package codec

import (
	"io"
	"strings"
	"time"

	"bowstring/fetch/operators/audio/sndfile"
)

// Lossy names what decodes MP3, and Ogg where that can be read.
func Lossy() string {
	if version, _ := sndfile.Version(); version != "" {
		return version
	}
	return "go-mp3"
}

// Engine names what decodes.
func Engine() string {
	if version, _ := sndfile.Version(); version != "" {
		return "go, " + version
	}
	return "go"
}

// decodeNative decodes by libsndfile, in another process.
func decodeNative(file []byte, info Info, offset int, out [][]float32) (time.Duration, error) {
	got, spent, err := sndfile.Decode(file, info.Rate, offset, out)
	switch {
	case err != nil:
		return spent, damaged("%s: %s", info.Format, strings.ReplaceAll(err.Error(), "\n", "; "))
	case got < len(out[0]):
		return spent, short(info.Format, out, got, io.EOF)
	}
	return spent, nil
}
