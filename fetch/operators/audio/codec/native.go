package codec

// Library is the environment variable that names libsndfile's shared library, or is
// "auto" for the system's. Where it is not set the library is not loaded: it is C, and
// reads in this process whatever bytes there are.
const Library = "BOWSTRING_LIBSNDFILE"

// nativeDecoder reads files by a library in C.
type nativeDecoder interface {
	version() string
	// decode is as Decode. It reads no more frames than out has.
	decode(file []byte, info Info, offset int, out [][]float32) error
}

// native is nil where there is none; nativeMissing then says why.
var native, nativeMissing = loadNative()

// Lossy names what decodes MP3 in this process, and Ogg where that can be read.
func Lossy() string {
	if native == nil {
		return "go-mp3"
	}
	return native.version()
}

// Engine names what decodes in this process.
func Engine() string {
	if native == nil {
		return "go"
	}
	return "go, " + native.version()
}
