package jpeg

import (
	"bytes"
	"encoding/binary"
)

// Steps of work, each about a nanosecond. A scan costs by its blocks, by the coefficients of a block that it looks at,
// and by the bytes of its data.
const (
	blockSteps       = 20 // of a block in a scan
	coefficientSteps = 2  // of a coefficient that a scan of a progressive stream may look at
	transformSteps   = 80 // of a block that is transformed
	byteSteps        = 14 // of a byte of a scan's data
	tableSteps       = 8000
	leastTable       = 17 // bytes of a table of codes in its segment
)

// Steps bounds the work of decoding data whose header this is, without the rows that are asked for afterwards. It looks
// through the data for starts of scans and for tables, and decodes nothing.
func (h *Header) Steps(data []byte) int64 {
	scans, tables := int64(0), int64(4) // of Motion JPEG, which has none
	for at := 2; ; {
		next := bytes.IndexByte(data[min(at, len(data)):], 0xFF)
		if next < 0 {
			break
		}
		at += next + 1
		if at+3 > len(data) {
			break
		}
		m, n := data[at], int64(binary.BigEndian.Uint16(data[at+1:]))
		switch m {
		case markSOS:
			scans += h.scanSteps(data[at+3:])
		case markDHT:
			tables += n/leastTable + 1
		}
	}
	// Bytes that merely look like scans, as those of a thumbnail, count no more than the scans that are decoded.
	scans = min(scans, maxScans*h.scanSteps(nil))
	if !h.Progressive { // each block is in one scan
		scans = h.blocks() * blockSteps
	}
	return scans + h.blocks()*transformSteps + (int64(len(data))+64)*byteSteps + tables*tableSteps
}

// scanSteps bounds the work of a scan by its segment, behind the length; nil stands for the most that a scan takes.
func (h *Header) scanSteps(s []byte) int64 {
	blocks, coefficients := h.blocks(), int64(blockSize)
	if len(s) > 0 {
		n := int(s[0])
		if end := 1 + 2*n; n >= 1 && n <= 4 && len(s) >= end+2 && s[end] <= s[end+1] {
			coefficients = min(int64(s[end+1]-s[end])+1, blockSize)
		}
		if n == 1 && len(s) > 1 {
			for i := range h.Components {
				if h.frame[i].id == s[1] {
					blocks = int64(h.frame[i].blocks)
				}
			}
		}
	}
	return blocks * (blockSteps + coefficients*coefficientSteps)
}

// blocks is how many a whole frame has, with those that pad it.
func (h *Header) blocks() int64 {
	n := int64(0)
	for i := range h.Components {
		n += int64(h.frame[i].blocks)
	}
	return n
}

// steps is what a row of a scan's units costs, without its data.
func (sc *scan) steps(units, blocks int) int64 {
	each := int64(blockSteps)
	if sc.stored {
		each += int64(sc.last-sc.first+1) * coefficientSteps
	}
	return int64(units) * int64(blocks) * each
}

// Bound bounds what decoding takes of any stream of such a frame that is not progressive, with tables that come before
// it: the memory, and the steps without those of its bytes, of tables of its own beyond some, and of rows.
func Bound(width, height, components int, before []byte) (held, steps int64) {
	const own = 16 // tables
	h := Header{Width: width, Height: height, Components: components}
	blocks := int64(ceil(width, 8*maxFactor)) * int64(ceil(height, 8*maxFactor)) * maxFactor * maxFactor
	blocks *= int64(components)
	tables := int64(own + len(before)/leastTable)
	return h.Bytes(), blocks*(blockSteps+blockSize*coefficientSteps+transformSteps) + tables*tableSteps +
		int64(len(before)+64)*byteSteps
}

// ByteSteps bounds the work of a byte of a stream.
const ByteSteps = byteSteps
