package parquet

import (
	"encoding/binary"
	"errors"
)

// maxDeltas bounds the integers of a page: those that are all alike take no bytes.
const maxDeltas = 1 << 24

var errDelta = errors.New("malformed values with a delta encoding")

// undelta makes plain values of a fixed length of those with the encoding DELTA_BYTE_ARRAY: how many bytes each has in
// common with the one before, how many more it has, and these.
func (p *plainPages) undelta(data []byte) ([]byte, error) {
	width := p.column.TypeLength()
	shared, data, err := deltas(data)
	if err != nil {
		return nil, err
	}
	own, data, err := deltas(data)
	if err != nil {
		return nil, err
	}
	if len(shared) != len(own) {
		return nil, errDelta
	}
	var values []byte
	for i, n := range shared {
		if n < 0 || own[i] < 0 || n > int64(width) || n+own[i] != int64(width) || n > 0 && i == 0 ||
			own[i] > int64(len(data)) {
			return nil, errDelta
		}
		if n > 0 {
			values = append(values, values[len(values)-width:][:n]...)
		}
		values = append(values, data[:own[i]]...)
		data = data[own[i]:]
	}
	return values, nil
}

// deltas reads integers with the encoding DELTA_BINARY_PACKED, and returns what stands behind them.
func deltas(data []byte) (values []int64, rest []byte, err error) {
	var head [3]uint64 // values in a block, parts of a block, values in all
	for i := range head {
		v, n := binary.Uvarint(data)
		if n <= 0 {
			return nil, nil, errDelta
		}
		head[i], data = v, data[n:]
	}
	last, n := binary.Varint(data)
	if n <= 0 {
		return nil, nil, errDelta
	}
	data = data[n:]
	block, parts, count := head[0], head[1], head[2]
	if parts == 0 || block == 0 || block > 1<<20 || parts > block || block%parts != 0 || count > maxDeltas {
		return nil, nil, errDelta
	}
	if count > 0 {
		values = append(values, last)
	}
	for uint64(len(values)) < count {
		least, n := binary.Varint(data)
		if n <= 0 || uint64(len(data)-n) < parts {
			return nil, nil, errDelta
		}
		widths := data[n : n+int(parts)]
		data = data[n+int(parts):]
		for _, width := range widths {
			left := count - uint64(len(values))
			if left == 0 {
				break // parts that are not needed have widths, and no bytes
			}
			size := block / parts * uint64(width) / 8
			if width > 64 || block/parts%8 != 0 || size > uint64(len(data)) {
				return nil, nil, errDelta
			}
			for i := range min(block/parts, left) {
				last += least + int64(bitsAt(data[:size], i*uint64(width), width))
				values = append(values, last)
			}
			data = data[size:]
		}
	}
	return values, data, nil
}

// bitsAt is the number of so many bits that begins at a bit, the lowest bit first.
func bitsAt(data []byte, at uint64, width byte) (v uint64) {
	for i := range uint64(width) {
		bit := uint64(data[(at+i)/8]>>((at+i)%8)) & 1
		v |= bit << i
	}
	return v
}
