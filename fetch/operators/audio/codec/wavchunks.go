package codec

import (
	"encoding/binary"
	"math"
)

// A WAV is a file of chunks. There are four forms of it: RIFF has sizes of 32 bits; RF64 (EBU Tech 3306) and BW64
// (ITU-R BS.2088) have a chunk ds64 with those of 64 bits; Sony's Wave64 has GUIDs for names, and sizes of 64 bits.

// unsized is the size of a chunk that is told elsewhere, or by nothing.
const unsized = math.MaxUint32

const (
	w64Riff = "riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
	w64Wave = "wave\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
	// w64Tail ends the GUIDs of the chunks that Wave64 has in common with WAV.
	w64Tail = "\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
	w64Head = 24 // bytes of a GUID and a size
)

func looksWAV(b []byte) bool {
	return has(b, 8, "WAVE") && (has(b, 0, "RIFF") || has(b, 0, "RF64") || has(b, 0, "BW64")) || looksW64(b)
}

func looksW64(b []byte) bool { return has(b, 0, w64Riff) && has(b, w64Head, w64Wave) }

// wavChunks walks over the chunks of a file.
type wavChunks struct {
	rest []byte
	w64  bool
	long bool   // RF64 or BW64
	ds64 []byte // the chunk of that name
}

// wavChunk is one of them.
type wavChunk struct {
	name string
	size uint64 // as the file says
	body []byte // as far as it is there
	rest []byte // what follows the chunk's header
}

// short says that the file ends in the chunk.
func (c *wavChunk) short() bool { return uint64(len(c.body)) < c.size }

func wavChunksOf(file []byte) wavChunks {
	if looksW64(file) {
		return wavChunks{rest: file[w64Head+16:], w64: true}
	}
	return wavChunks{rest: file[12:], long: file[0] != 'R' || file[1] != 'I'}
}

// next gives a chunk; false where there is none. A chunk of no known size reaches to the end of the file.
func (c *wavChunks) next() (chunk wavChunk, ok bool) {
	head, pad := 8, uint64(2)
	if c.w64 {
		head, pad = w64Head, 8
	}
	if len(c.rest) < head {
		return chunk, false
	}
	if c.w64 {
		if string(c.rest[4:16]) == w64Tail {
			chunk.name = string(c.rest[:4])
		}
		chunk.size = binary.LittleEndian.Uint64(c.rest[16:])
		if chunk.size < w64Head {
			return chunk, false
		}
		chunk.size -= w64Head
	} else {
		chunk.name, chunk.size = string(c.rest[:4]), uint64(binary.LittleEndian.Uint32(c.rest[4:]))
	}
	chunk.rest = c.rest[head:]
	if chunk.size == unsized && !c.w64 {
		if chunk.size = uint64(len(chunk.rest)); c.ds64 != nil {
			chunk.size = c.told(chunk.name, chunk.size)
		}
	}
	chunk.body = chunk.rest[:min(chunk.size, uint64(len(chunk.rest)))]
	c.rest = chunk.rest[len(chunk.body):]
	c.rest = c.rest[min((pad-chunk.size%pad)%pad, uint64(len(c.rest))):]
	if c.long && c.ds64 == nil && chunk.name == "ds64" && len(chunk.body) >= 24 {
		c.ds64 = chunk.body
	}
	return chunk, true
}

// told is the size of a chunk by ds64: the file's, the samples', how many there are, and a table of other chunks.
func (c *wavChunks) told(name string, otherwise uint64) uint64 {
	if name == "data" {
		return binary.LittleEndian.Uint64(c.ds64[8:])
	}
	if len(c.ds64) < 28 {
		return otherwise
	}
	table := c.ds64[28:]
	for range binary.LittleEndian.Uint32(c.ds64[24:]) {
		if len(table) < 12 {
			break
		}
		if string(table[:4]) == name {
			return binary.LittleEndian.Uint64(table[4:])
		}
		table = table[12:]
	}
	return otherwise
}

// whole says that nothing but chunks follows, each with a name that is text, and all of it there.
func (c *wavChunks) whole() bool {
	for len(c.rest) > 0 {
		chunk, ok := c.next()
		if !ok || chunk.short() {
			return false
		}
		for i := range len(chunk.name) {
			if chunk.name[i] < ' ' || chunk.name[i] > '~' {
				return false
			}
		}
	}
	return true
}
