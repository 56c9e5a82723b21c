package source

import (
	"fmt"
	"strings"

	"bowstring/cmd/bowstring/source/parquet"
	"bowstring/schema"
)

// maxUnit bounds a unit in bytes, compressed and decoded. Reading one blob decodes the
// whole unit in memory.
const maxUnit = parquet.MaxPage

// inUnit returns the extent of bytes in a decoded unit of a file. If the unit is too
// large, or the bytes are not within it, the extent is zero and has the reason.
func inUnit(file string, u *schema.Unit, offset, size int64) Extent {
	switch {
	case u.Size > maxUnit || u.Length > maxUnit:
		return Extent{Why: fmt.Sprintf("it is in a compressed part of %d bytes, %d decoded, more than the %d that are "+
			"decoded for one blob: import it instead", u.Length, u.Size, int64(maxUnit))}
	case offset < 0 || size < 0 || size > u.Size-offset:
		return Extent{Why: "it is after the end of what is compressed"}
	}
	return Extent{File: file, Offset: offset, Length: size, Unit: u}
}

// unitCodec returns the codec for a compression that decompress knows, or for snappy; ""
// for any other.
func unitCodec(compression string) schema.Codec {
	algorithm, _, _ := strings.Cut(compression, ":")
	switch algorithm {
	case "gz":
		return schema.CodecGzip
	case "zstd":
		return schema.CodecZstd
	case "bz2":
		return schema.CodecBzip2
	case "br":
		return schema.CodecBrotli
	case "snappy":
		return schema.CodecSnappy
	}
	return ""
}
