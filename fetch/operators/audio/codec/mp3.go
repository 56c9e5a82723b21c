package codec

func looksMP3(b []byte) bool { return false }

func readMP3(file, body []byte) (Info, error) { return Info{}, nil }

func decodeMP3(file []byte, info Info, offset int, out [][]float32) error { return nil }

func readOgg(file []byte) (Info, error) { return Info{}, nil }

type nativeDecoder interface {
	decode(file []byte, info Info, offset int, out [][]float32) error
}

var native nativeDecoder
var nativeMissing = ""

func Engine() string { return "go" }
