package tiff

// lzw decompresses TIFF's LZW: codes of 9 to 12 bits, the highest first, which become longer one code early. What a
// code stands for has come before: it is a place in what was made, and a length.
type lzw struct {
	at, n [4096]int32
}

const (
	lzwClear = 256
	lzwEnd   = 257
)

// expand fills dst, and gives how much of it there was.
func (t *lzw) expand(dst, src []byte) int {
	var acc, bits uint
	width, next, made := uint(9), int32(258), 0
	last, lastLen := -1, int32(0)
	for made < len(dst) {
		for bits < width {
			if len(src) == 0 {
				return made
			}
			acc, bits, src = acc<<8|uint(src[0]), bits+8, src[1:]
		}
		bits -= width
		code := int32(acc >> bits & (1<<width - 1))
		if code == lzwEnd {
			return made
		}
		if code == lzwClear {
			width, next, last = 9, 258, -1
			continue
		}
		if last >= 0 && next < 4096 {
			t.at[next], t.n[next] = int32(last), lastLen+1
			next++
			if next == 1<<width-1 && width < 12 {
				width++
			}
		}
		n := int32(1)
		if code < 256 {
			dst[made] = byte(code)
		} else {
			if code >= next || last < 0 {
				return made
			}
			from := int(t.at[code])
			n = t.n[code]
			for i := range min(int(n), len(dst)-made) { // one after the other: a string may reach into itself
				dst[made+i] = dst[from+i]
			}
		}
		last, lastLen = made, n
		made += int(n)
	}
	return len(dst)
}

// unpack undoes PackBits, and gives how much of dst it has filled.
func unpack(dst, src []byte) int {
	made := 0
	for len(src) > 1 && made < len(dst) {
		n := int(int8(src[0]))
		switch {
		case n >= 0:
			k := min(n+1, len(src)-1, len(dst)-made)
			copy(dst[made:], src[1:][:k])
			made += k
			src = src[min(n+2, len(src)):]
		case n == -128:
			src = src[1:]
		default:
			k := min(1-n, len(dst)-made)
			for i := range k {
				dst[made+i] = src[1]
			}
			made += k
			src = src[2:]
		}
	}
	return made
}
