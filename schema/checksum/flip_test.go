//go:build !race

package checksum

// flipper returns what changes the bytes, all over, while others read them: that is a race on purpose.
func flipper(b []byte) (flip func()) {
	at := 0
	return func() {
		at = (at + 4099) % len(b)
		b[at] ^= 0xFF
	}
}
