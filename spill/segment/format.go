package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"bowstring/schema"
)

// Sizes of the on-disk format. A file is a 64-byte file header and then
// records: a 64-byte header, the payload, and zeros up to the next multiple of
// Align. All integers are little-endian.
const (
	// Align is what every payload's offset is a multiple of: the alignment
	// that Arrow asks of its buffers, so that manifest chunks are read in place.
	Align = 64
	// HeaderSize is the size of the file header, and of each record's header.
	HeaderSize = 64

	version = 1

	flagVoid = 1 // the record's space was reserved and its write failed
)

var (
	fileMagic   = [8]byte{'B', 'O', 'W', 'S', 'E', 'G', '\r', '\n'}
	recordMagic = [4]byte{'B', 'R', 'E', 'C'}
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
)

// Footprint is the space that a payload of n bytes takes in a segment, header
// and padding included.
func Footprint(n int64) int64 { return HeaderSize + (n+Align-1)/Align*Align }

// Record is what a record's header says.
type Record struct {
	Key    schema.Key
	Offset int64      // of the payload in the file
	Length int64      // of the payload, in bytes
	Sum    schema.Sum // of the payload
	Void   bool       // no blob: the write of this record failed
}

func encodeFileHeader(id uint32) [HeaderSize]byte {
	var h [HeaderSize]byte
	copy(h[:8], fileMagic[:])
	binary.LittleEndian.PutUint32(h[8:], version)
	binary.LittleEndian.PutUint32(h[12:], id)
	binary.LittleEndian.PutUint32(h[60:], crc32.Checksum(h[:60], castagnoli))
	return h
}

func checkFileHeader(h []byte, id uint32) error {
	switch {
	case [8]byte(h[:8]) != fileMagic:
		return fmt.Errorf("%w: not a segment file", schema.ErrDataLoss)
	case binary.LittleEndian.Uint32(h[60:]) != crc32.Checksum(h[:60], castagnoli):
		return fmt.Errorf("%w: the file header's checksum is wrong", schema.ErrDataLoss)
	case binary.LittleEndian.Uint32(h[8:]) != version:
		return fmt.Errorf("%w: segment format %d, this program reads %d", schema.ErrInvalid,
			binary.LittleEndian.Uint32(h[8:]), version)
	case binary.LittleEndian.Uint32(h[12:]) != id:
		return fmt.Errorf("%w: the file is segment %d, not %d", schema.ErrDataLoss,
			binary.LittleEndian.Uint32(h[12:]), id)
	}
	return nil
}

// encodeRecordHeader includes the segment's number, so that a record that
// ended up in the wrong file is not taken for one of it.
func encodeRecordHeader(id uint32, r Record) [HeaderSize]byte {
	var h [HeaderSize]byte
	copy(h[:4], recordMagic[:])
	binary.LittleEndian.PutUint16(h[4:], version)
	if r.Void {
		binary.LittleEndian.PutUint16(h[6:], flagVoid)
	}
	copy(h[8:40], r.Key[:])
	binary.LittleEndian.PutUint64(h[40:], uint64(r.Length))
	binary.LittleEndian.PutUint64(h[48:], uint64(r.Sum))
	binary.LittleEndian.PutUint32(h[56:], id)
	binary.LittleEndian.PutUint32(h[60:], crc32.Checksum(h[:60], castagnoli))
	return h
}

// decodeRecordHeader reads the header at offset at of segment id, a file of
// size bytes. The reason says what is wrong with it.
func decodeRecordHeader(h []byte, id uint32, at, size int64) (r Record, reason string) {
	switch {
	case [4]byte(h[:4]) != recordMagic:
		return r, "no record header"
	case binary.LittleEndian.Uint32(h[60:]) != crc32.Checksum(h[:60], castagnoli):
		return r, "the record header's checksum is wrong"
	case binary.LittleEndian.Uint16(h[4:]) != version:
		return r, "unknown record version"
	case binary.LittleEndian.Uint32(h[56:]) != id:
		return r, "the record belongs to another segment"
	}
	length := binary.LittleEndian.Uint64(h[40:])
	if length > uint64(size-at-HeaderSize) {
		return r, "the record reaches beyond the end of the file"
	}
	r = Record{
		Offset: at + HeaderSize,
		Length: int64(length),
		Sum:    schema.Sum(binary.LittleEndian.Uint64(h[48:])),
		Void:   binary.LittleEndian.Uint16(h[6:])&flagVoid != 0,
	}
	copy(r.Key[:], h[8:40])
	return r, ""
}
