//go:build !cgo || !linux

package codec

func loadNative() (nativeDecoder, string) {
	return nil, "takes a build for Linux with a C compiler"
}
