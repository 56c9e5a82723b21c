package codec

import "encoding/binary"

// samples decodes the frame b, whose header is h, and gives its size in bytes.
func (h *frameHeader) samples(b []byte, info *Info, channels [][]int64, sample int) (int, error) {
	r := bitReader{data: b, pos: h.size}
	for c := range channels {
		width := uint(info.Bits)
		if h.assigned == 8 && c == 1 || h.assigned == 9 && c == 0 || h.assigned == 10 && c == 1 {
			width++ // a difference
		}
		if why := subframe(&r, channels[c], width); why != "" || r.over() {
			if why == "" {
				why = "it ends within"
			}
			return 0, damaged("FLAC: the frame at sample %d, channel %d: %s", sample, c, why)
		}
	}
	r.align()
	end := r.at()
	if end+2 > len(b) {
		return 0, damaged("FLAC: the frame at sample %d: it ends within", sample)
	}
	if crc16(b[:end]) != binary.BigEndian.Uint16(b[end:]) {
		return 0, damaged("FLAC: the frame at sample %d: its checksum fails", sample)
	}
	if h.assigned >= 8 {
		unmix(h.assigned, channels[0], channels[1])
	}
	return end + 2, nil
}

// unmix makes left and right of the ways of stereo.
func unmix(assigned int, a, b []int64) {
	b = b[:len(a)]
	switch assigned {
	case 8: // left and left less right
		for i := range a {
			b[i] = a[i] - b[i]
		}
	case 9: // left less right, and right
		for i := range a {
			a[i] += b[i]
		}
	default: // middle, and left less right
		for i := range a {
			side := b[i]
			mid := a[i]<<1 | side&1
			a[i], b[i] = (mid+side)>>1, (mid-side)>>1
		}
	}
}

// subframe decodes one channel of a block. It says what is wrong, or nothing.
func subframe(r *bitReader, out []int64, width uint) string {
	head := r.unsigned(8)
	if head&0x80 != 0 {
		return "its first bit is set"
	}
	wasted := uint(0)
	if head&1 != 0 {
		k := r.unary() + 1
		if k >= uint64(width) {
			return "all of its bits are wasted"
		}
		wasted = uint(k)
		width -= wasted
	}
	why := ""
	switch kind := int(head >> 1); {
	case kind == 0:
		v := r.signed(width)
		for i := range out {
			out[i] = v
		}
	case kind == 1:
		for i := range out {
			out[i] = r.signed(width)
		}
	case kind >= 8 && kind <= 12:
		why = fixed(r, out, width, kind-8)
	case kind >= 32:
		why = linear(r, out, width, kind-31)
	default:
		why = "its kind is reserved"
	}
	if wasted > 0 && why == "" {
		for i := range out {
			out[i] <<= wasted
		}
	}
	return why
}

// warm reads the samples that a predictor starts from.
func warm(r *bitReader, out []int64, width uint, order int) bool {
	if order > len(out) {
		return false
	}
	for i := range out[:order] {
		out[i] = r.signed(width)
	}
	return true
}

const tooShort = "it is shorter than what it is predicted from"

// fixed decodes differences of an order of 0 to 4.
func fixed(r *bitReader, out []int64, width uint, order int) string {
	if !warm(r, out, width, order) {
		return tooShort
	}
	if why := residual(r, out, order); why != "" {
		return why
	}
	// The order-th difference is summed up as many times.
	switch order {
	case 1:
		for i := 1; i < len(out); i++ {
			out[i] += out[i-1]
		}
	case 2:
		for i := 2; i < len(out); i++ {
			out[i] += 2*out[i-1] - out[i-2]
		}
	case 3:
		for i := 3; i < len(out); i++ {
			out[i] += 3*(out[i-1]-out[i-2]) + out[i-3]
		}
	case 4:
		for i := 4; i < len(out); i++ {
			out[i] += 4*(out[i-1]+out[i-3]) - 6*out[i-2] - out[i-4]
		}
	}
	return ""
}

// linear decodes a linear prediction of an order of 1 to 32.
func linear(r *bitReader, out []int64, width uint, order int) string {
	if !warm(r, out, width, order) {
		return tooShort
	}
	precision := uint(r.unsigned(4)) + 1
	shift := r.signed(5)
	if precision == 16 || shift < 0 {
		return "its prediction has a reserved precision or a negative shift"
	}
	var c [32]int64
	for i := range order {
		c[i] = r.signed(precision)
	}
	if why := residual(r, out, order); why != "" {
		return why
	}
	restore(out, &c, order, uint(shift))
	return ""
}

// residual decodes partitions of Rice's code after the first order samples.
func residual(r *bitReader, out []int64, order int) string {
	method, parts := r.unsigned(2), uint(r.unsigned(4))
	if method > 1 {
		return "its residual is coded in a reserved way"
	}
	wide := uint(4 + method)
	size := len(out) >> parts
	if size<<parts != len(out) || size < order {
		return "its residual is not cut evenly"
	}
	for at, end := order, size; end <= len(out); at, end = end, end+size {
		k := uint(r.unsigned(wide))
		if k == 1<<wide-1 { // not coded: so many bits each
			k = uint(r.unsigned(5))
			for i := range out[at:end] {
				out[at+i] = 0
				if k > 0 {
					out[at+i] = r.signed(k)
				}
			}
		} else if !r.rice(out[at:end], k) {
			return "its residual ends within, or is larger than 32 bits"
		}
		if r.over() {
			return "it ends within"
		}
	}
	return ""
}

// restore adds predictions to residuals. The orders that encoders use by default have loops of their own.
func restore(s []int64, c *[32]int64, order int, shift uint) {
	shift &= 31
	switch {
	case order <= 8:
		restoreFrom(s, c, order, min(8, len(s)), order, shift)
		restore8(s, c, shift)
	case order <= 12:
		restoreFrom(s, c, order, min(12, len(s)), order, shift)
		restore12(s, c, shift)
	default:
		restoreFrom(s, c, order, len(s), order, shift)
	}
}

func restoreFrom(s []int64, c *[32]int64, from, to, order int, shift uint) {
	for i := from; i < to; i++ {
		sum := int64(0)
		for j, v := range c[:order] {
			sum += v * s[i-1-j]
		}
		s[i] += sum >> shift
	}
}

// restore8 takes coefficients beyond the order as zero.
func restore8(s []int64, c *[32]int64, shift uint) {
	c0, c1, c2, c3, c4, c5, c6, c7 := c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]
	if len(s) <= 8 {
		return
	}
	last := s[7]
	for len(s) > 8 {
		h := (*[9]int64)(s)
		sum := c7*h[0] + c6*h[1] + c5*h[2] + c4*h[3] + c3*h[4] + c2*h[5] + c1*h[6]
		last = h[8] + (sum+c0*last)>>shift
		h[8] = last
		s = s[1:]
	}
}

func restore12(s []int64, c *[32]int64, shift uint) {
	if len(s) <= 12 {
		return
	}
	c0, c1, c2, c3, c4, c5 := c[0], c[1], c[2], c[3], c[4], c[5]
	c6, c7, c8, c9, c10, c11 := c[6], c[7], c[8], c[9], c[10], c[11]
	last := s[11]
	for len(s) > 12 {
		h := (*[13]int64)(s)
		sum := c11*h[0] + c10*h[1] + c9*h[2] + c8*h[3] + c7*h[4] + c6*h[5] + c5*h[6] + c4*h[7] + c3*h[8] + c2*h[9] + c1*h[10]
		last = h[12] + (sum+c0*last)>>shift
		h[12] = last
		s = s[1:]
	}
}
