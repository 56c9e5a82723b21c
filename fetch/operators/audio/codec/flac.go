package codec

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync"

	"bowstring/fetch/operators/program"
)

// readFLAC parses the metadata of a native FLAC stream (RFC 9639, section 8). STREAMINFO
// must be the first block, and there is only one. Other blocks are skipped.
func readFLAC(file []byte) (Info, error) {
	info := Info{Format: FLAC}
	b := file[4:]
	// Blocks of metadata have a flag for the last one, a type, and a length of 24 bits.
	for first, last := true, false; !last; first = false {
		if len(b) < 4 {
			return info, damaged("FLAC: it ends in its metadata")
		}
		last = b[0]&0x80 != 0
		kind, size := b[0]&0x7f, int(b[1])<<16|int(b[2])<<8|int(b[3])
		if size > len(b)-4 {
			return info, damaged("FLAC: it ends in its metadata")
		}
		if first != (kind == 0) || first && size < 34 {
			return info, damaged("FLAC: its metadata does not begin with the one STREAMINFO")
		}
		if first {
			s := b[4:]
			info.block = int(binary.BigEndian.Uint16(s[2:]))
			// Rate (20 bits), channels less 1 (3), bits less 1 (5), and samples (36):
			// section 8.2.
			packed := binary.BigEndian.Uint64(s[10:])
			info.Rate = int(packed >> 44)
			info.Channels = int(packed>>41&7) + 1
			info.Bits = int(packed>>36&31) + 1
			info.Frames = int(packed & (1<<36 - 1))
		}
		b = b[4+size:]
	}
	info.data = b
	if info.Bits < 4 || info.block < 16 {
		return info, damaged("FLAC: samples of %d bits in blocks of %d", info.Bits, info.block)
	}
	// 0 means that the encoder did not know the number, for example because it wrote to a
	// pipe.
	if info.Frames == 0 && len(b) > 0 {
		info.Frames = lastFrame(info)
	}
	// Samples of one block are decoded as int64.
	info.Working = int64(info.block) * int64(info.Channels) * 8
	return info, nil
}

// frameHeader is the header of a frame (RFC 9639, section 9.1).
type frameHeader struct {
	size     int    // bytes of the header
	block    int    // samples of each channel
	number   uint64 // of the frame or of its first sample
	variable bool   // number counts samples instead of frames
	rate     int    // 0: that of the stream
	assigned int    // channels - 1, or 8 to 10 for stereo decorrelation
	bits     int    // 0: those of the stream
}

// begins is the number of the frame's first sample. A stream with blocks of a fixed size
// numbers frames, others number samples.
func (h *frameHeader) begins(info *Info) int {
	if h.variable {
		return int(h.number)
	}
	return int(h.number) * info.block
}

// readFrameHeader parses a frame header and checks its CRC; false if b does not begin with
// one. Reserved values are refused, as the CRC alone would accept one in 256 false headers.
func readFrameHeader(b []byte, h *frameHeader) bool {
	if len(b) < 6 || b[0] != 0xff || b[1]&0xfe != 0xf8 || b[3]&1 != 0 {
		return false
	}
	h.variable = b[1]&1 != 0
	block, rate := b[2]>>4, b[2]&15
	h.assigned = int(b[3] >> 4)
	if block == 0 || rate == 15 || h.assigned > 10 {
		return false
	}
	switch b[3] >> 1 & 7 {
	case 0:
		h.bits = 0
	case 3:
		return false
	default:
		h.bits = [...]int{0, 8, 12, 0, 16, 20, 24, 32}[b[3]>>1&7]
	}
	// The number is coded like a UTF-8 character, extended to 36 bits. more is the number
	// of bytes, by the leading ones of the first.
	at, more := 5, 0
	switch c := b[4]; {
	case c < 0x80:
		h.number = uint64(c)
	case c < 0xc0 || c == 0xff:
		return false
	default:
		for c<<more&0x80 != 0 {
			more++
		}
		h.number = uint64(c & (0x7f >> more))
		for more--; more > 0; more-- {
			if at >= len(b) || b[at]&0xc0 != 0x80 {
				return false
			}
			h.number = h.number<<6 | uint64(b[at]&0x3f)
			at++
		}
	}
	if len(b) < at+5 {
		return false
	}
	switch {
	case block == 1:
		h.block = 192
	case block <= 5:
		h.block = 576 << (block - 2)
	case block == 6:
		h.block = int(b[at]) + 1
		at++
	case block == 7:
		h.block = int(binary.BigEndian.Uint16(b[at:])) + 1
		at += 2
	default:
		h.block = 256 << (block - 8)
	}
	switch rate {
	case 0:
		h.rate = 0
	case 12:
		h.rate = int(b[at]) * 1000
		at++
	case 13:
		h.rate = int(binary.BigEndian.Uint16(b[at:]))
		at += 2
	case 14:
		h.rate = int(binary.BigEndian.Uint16(b[at:])) * 10
		at += 2
	default:
		h.rate = [...]int{0, 88200, 176400, 192000, 8000, 16000, 22050, 24000, 32000, 44100, 48000, 96000}[rate]
	}
	if at >= len(b) || crc8(b[:at]) != b[at] {
		return false
	}
	h.size = at + 1
	return true
}

// fits reports whether a frame may belong to the stream. A search finds the pattern of a
// header in other data as well: this and the header's CRC exclude almost all of it.
func (h *frameHeader) fits(info *Info) bool {
	channels := h.assigned + 1
	if h.assigned >= 8 {
		channels = 2
	}
	return channels == info.Channels && h.block <= info.block && (h.bits == 0 || h.bits == info.Bits) &&
		h.number < 1<<36 && h.begins(info) >= 0
}

// lastFrame finds the number of samples of a stream without it in STREAMINFO, from the
// header of the last frame. It searches backwards, because the last header is near the end.
func lastFrame(info Info) int {
	var h frameHeader
	// A frame of verbatim samples is the longest that encoders write.
	longest := info.block*info.Channels*(info.Bits+1)/8 + 64
	for at := len(info.data) - 6; at >= max(0, len(info.data)-longest); at-- {
		if info.data[at] == 0xff && readFrameHeader(info.data[at:], &h) && h.fits(&info) {
			return h.begins(&info) + h.block
		}
	}
	return 0
}

// flacRoom is the memory of decoding besides the result. It has one block of all channels.
type flacRoom struct{ samples []int64 }

// flacRooms has rooms of finished calls.
var flacRooms = sync.Pool{New: func() any { return new(flacRoom) }}

// decodeFLAC decodes from the frame that contains the first requested sample. A wrong guess
// of the search costs one more pass and no wrong samples.
func decodeFLAC(m *program.Meter, info Info, offset int, out [][]float32) error {
	room := flacRooms.Get().(*flacRoom)
	defer flacRooms.Put(room)
	if n := info.block * info.Channels; len(room.samples) < n {
		room.samples = make([]int64, n)
	}
	// The search may be wrong: its result is verified by decoding from there.
	if at, sample := seekFLAC(&info, offset); at > 0 {
		if err := flacFrom(m, &info, room, at, sample, offset, out); err == nil || m.Check() != nil {
			return err
		}
		// The bytes found by the search were no frame header. From the beginning no
		// search is needed.
	}
	return flacFrom(m, &info, room, 0, 0, offset, out)
}

// seekFLAC finds a frame that begins at or before sample offset, by bisection. It returns
// its place and first sample, or zeros. Headers have the position, so no index is needed.
func seekFLAC(info *Info, offset int) (at, sample int) {
	var h frameHeader
	// It stops at 4 KiB, where decoding costs less than another step of the search.
	low, high := 0, len(info.data)
	for offset >= 2*info.block && high-low > 4096 {
		middle := low + (high-low)/2
		p := middle
		for ; p < high; p++ {
			if info.data[p] == 0xff && readFrameHeader(info.data[p:], &h) && h.fits(info) {
				break
			}
		}
		switch {
		case p == high || h.begins(info) > offset:
			high = middle
		case h.begins(info) < sample:
			return 0, 0
		default:
			low, at, sample = p+1, p, h.begins(info)
		}
	}
	return at, sample
}

// flacFrom decodes frames from byte at on, whose first sample has the number sample, until
// out is full. It checks every frame's CRC. It checks that frames follow each other without
// a gap.
func flacFrom(m *program.Meter, info *Info, room *flacRoom, at, sample, offset int, out [][]float32) error {
	var channels [8][]int64
	scale := float32(math.Ldexp(1, 1-info.Bits))
	for end := offset + len(out[0]); sample < end; {
		var h frameHeader
		b := info.data[min(at, len(info.data)):]
		switch {
		case len(b) == 0:
			return damaged("FLAC: it ends after %d of %d samples", sample, info.Frames)
		case !readFrameHeader(b, &h):
			return damaged("FLAC: no frame begins at sample %d", sample)
		case !h.fits(info) || h.begins(info) != sample:
			return damaged("FLAC: the frame at sample %d is not of its stream", sample)
		}
		if err := m.Spend(int64(h.block) * int64(info.Channels) * ofFLAC); err != nil {
			return err
		}
		for c := range info.Channels {
			channels[c] = room.samples[c*info.block:][:h.block]
		}
		size, err := h.samples(b, info, channels[:info.Channels], sample)
		if err != nil {
			return err
		}
		// The first and the last frame are used in part.
		from, to := max(offset-sample, 0), min(end-sample, h.block)
		for c := range out {
			if from < to {
				toFloats(out[c][sample+from-offset:], channels[c][from:to], scale)
			}
		}
		at += size
		sample += h.block
	}
	return nil
}

// toFloats converts samples; dst is at least as long as src. scale is a power of two, so
// the product is exact for up to 24 bits.
func toFloats(dst []float32, src []int64, scale float32) {
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] = float32(int32(v)) * scale
	}
}

// samples decodes the frame b with the header h, and returns its size in bytes. A frame is
// decoded whole even if out needs a part of it.
func (h *frameHeader) samples(b []byte, info *Info, channels [][]int64, sample int) (int, error) {
	r := bitReader{data: b, pos: h.size}
	for c := range channels {
		width := uint(info.Bits)
		if h.assigned == 8 && c == 1 || h.assigned == 9 && c == 0 || h.assigned == 10 && c == 1 {
			width++ // side channels have one bit more
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

// unmix restores left and right from decorrelated stereo (RFC 9639, section 4.2). a and b
// are the two coded channels, and the two results.
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
			// The sum of left and right has the parity of their difference, so its last bit
			// need not be stored.
			mid := a[i]<<1 | side&1
			a[i], b[i] = (mid+side)>>1, (mid-side)>>1
		}
	}
}

// subframe decodes one channel of a block (RFC 9639, section 9.2). It returns a description
// of what is wrong, or "". Wasted bits are zeros at the low end of all samples: they are
// removed before coding.
func subframe(r *bitReader, out []int64, width uint) string {
	head := r.unsigned(8)
	if head&0x80 != 0 {
		return "its first bit is set"
	}
	// The number of wasted bits is unary, if the flag is set.
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

// warm reads the warm-up samples of a predictor. It returns false if the block is shorter
// than order.
func warm(r *bitReader, out []int64, width uint, order int) bool {
	if order > len(out) {
		return false
	}
	for i := range out[:order] {
		out[i] = r.signed(width)
	}
	return true
}

// tooShort is the error of a block that is shorter than the order of its predictor.
const tooShort = "it is shorter than what it is predicted from"

// fixed decodes a fixed predictor of order 0 to 4: the samples' differences. The order-th
// difference of the samples is the residual.
func fixed(r *bitReader, out []int64, width uint, order int) string {
	if !warm(r, out, width, order) {
		return tooShort
	}
	if why := residual(r, out, order); why != "" {
		return why
	}
	// The order-th difference is integrated as many times.
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

// linear decodes a linear prediction of order 1 to 32. All arithmetic is in integers, so
// every decoder gets the same bits.
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

// residual decodes the partitions of the Rice-coded residual after the first order samples.
// Each partition has its own Rice parameter. The first one is shorter by the warm-up
// samples.
func residual(r *bitReader, out []int64, order int) string {
	// The method decides whether a Rice parameter has 4 or 5 bits.
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
		if k == 1<<wide-1 { // escape: k bits each
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

// restore adds predictions to residuals. The orders that encoders use by default have
// unrolled loops, which are several times faster.
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

// restoreFrom restores samples [from, to) with a predictor of any order. Predictions use
// samples that were restored just before, so it cannot run in parallel.
func restoreFrom(s []int64, c *[32]int64, from, to, order int, shift uint) {
	for i := from; i < to; i++ {
		sum := int64(0)
		for j, v := range c[:order] {
			sum += v * s[i-1-j]
		}
		s[i] += sum >> shift
	}
}

// restore8 is unrolled for order 8; lower orders have zero coefficients. The newest sample
// stays in a register: the next sum waits for it.
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

// restore12 is restore for order 12, which most encoders use, with the coefficients in
// registers.
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

// bitReader reads big-endian bits. Beyond the end it reads zeros, which over reports. A
// reader without errors keeps the loops short.
type bitReader struct {
	data []byte
	pos  int    // first byte that n does not count
	acc  uint64 // next bits, from the top; below the n counted ones are correct bits or zeros
	n    uint
}

// refill makes at least 56 bits available.
func (b *bitReader) refill() {
	if b.pos+8 <= len(b.data) {
		b.acc |= binary.BigEndian.Uint64(b.data[b.pos:]) >> (b.n & 63)
		b.pos += int((63 - b.n) >> 3)
		b.n |= 56
		return
	}
	for ; b.n < 56; b.n += 8 {
		if b.pos < len(b.data) {
			b.acc |= uint64(b.data[b.pos]) << (56 - b.n)
		}
		b.pos++
	}
}

// over reports whether more bits were read than exist.
func (b *bitReader) over() bool { return b.pos-int(b.n>>3) > len(b.data) }

// at is the byte of the next bit. It is exact only after align.
func (b *bitReader) at() int { return b.pos - int(b.n>>3) }

// align skips the rest of a byte.
func (b *bitReader) align() {
	k := b.n & 7
	b.acc <<= k
	b.n -= k
}

// unsigned reads up to 56 bits.
func (b *bitReader) unsigned(k uint) uint64 {
	if b.n < k {
		b.refill()
	}
	v := b.acc >> (64 - k)
	b.acc <<= k
	b.n -= k
	return v
}

// signed reads a two's complement number of 1 to 56 bits.
func (b *bitReader) signed(k uint) int64 {
	if b.n < k {
		b.refill()
	}
	v := int64(b.acc) >> (64 - k)
	b.acc <<= k
	b.n -= k
	return v
}

// unary counts the zeros before a one. If there is no one, over reports it.
func (b *bitReader) unary() uint64 {
	for total := uint64(0); ; {
		zeros := uint(bits.LeadingZeros64(b.acc))
		if zeros < b.n {
			b.acc <<= zeros + 1
			b.n -= zeros + 1
			return total + uint64(zeros)
		}
		total += uint64(b.n)
		b.acc <<= b.n
		b.n = 0
		if b.over() {
			return total
		}
		b.refill()
	}
}

// rice reads Rice-coded numbers with k low bits; false if a number has more than 32 bits.
// The reader's state is in local variables, which makes the loop about twice as fast. The
// quotient is unary and the remainder has k bits; the lowest bit is the sign.
func (b *bitReader) rice(out []int64, k uint) bool {
	data, pos, acc, n := b.data, b.pos, b.acc, b.n
	k &= 31
	for i := range out {
		if pos+8 <= len(data) {
			acc |= binary.BigEndian.Uint64(data[pos:]) >> (n & 63)
			pos += int((63 - n) >> 3)
			n |= 56
		} else {
			b.pos, b.acc, b.n = pos, acc, n
			b.refill()
			pos, acc, n = b.pos, b.acc, b.n
		}
		zeros := uint(bits.LeadingZeros64(acc))
		if used := zeros + 1 + k; used <= n {
			acc <<= (zeros + 1) & 63
			u := uint64(zeros)<<k | acc>>1>>(63-k)
			acc <<= k
			n -= used
			out[i] = int64(u>>1) ^ -int64(u&1)
			continue
		}
		b.pos, b.acc, b.n = pos, acc, n
		q := b.unary()
		if b.over() || q>>(32-k) != 0 {
			return false
		}
		u := q<<k | b.unsigned(k)
		out[i] = int64(u>>1) ^ -int64(u&1)
		pos, acc, n = b.pos, b.acc, b.n
	}
	b.pos, b.acc, b.n = pos, acc, n
	return true
}

// FLAC's checksums: CRC-8 with polynomial 0x07 for headers, CRC-16 with 0x8005 for
// frames.
var (
	table8  [256]uint8
	table16 [8][256]uint16
)

// init computes the tables of crc8 and crc16.
func init() {
	for i := range 256 {
		a, b := uint8(i), uint16(i)<<8
		for range 8 {
			a = a<<1 ^ 0x07*(a>>7)
			b = b<<1 ^ 0x8005*(b>>15)
		}
		table8[i], table16[0][i] = a, b
	}
	for k := 1; k < 8; k++ {
		for i := range 256 {
			b := table16[k-1][i]
			table16[k][i] = b<<8 ^ table16[0][b>>8]
		}
	}
}

// crc8 has the polynomial x^8 + x^2 + x + 1, of frame headers.
func crc8(b []byte) uint8 {
	var c uint8
	for _, v := range b {
		c = table8[c^v]
	}
	return c
}

// crc16 processes eight bytes at a time ("slicing by 8"). A table for each of the eight
// bytes replaces eight dependent steps by one.
func crc16(b []byte) uint16 {
	var c uint16
	for len(b) >= 8 {
		v := binary.BigEndian.Uint64(b) ^ uint64(c)<<48
		c = table16[7][v>>56] ^ table16[6][v>>48&255] ^ table16[5][v>>40&255] ^ table16[4][v>>32&255] ^
			table16[3][v>>24&255] ^ table16[2][v>>16&255] ^ table16[1][v>>8&255] ^ table16[0][v&255]
		b = b[8:]
	}
	for _, v := range b {
		c = c<<8 ^ table16[0][uint8(c>>8)^v]
	}
	return c
}
