package source

import (
	"fmt"
	"strings"

	"bowstring/cmd/bowstring/source/parquet"
	"bowstring/schema"
)

// maxUnit bounds a unit, compressed and decoded: all of it is in memory while a blob is
// taken out of it.
const maxUnit = parquet.MaxPage

// inUnit is the extent of bytes of a decoded unit of a file.
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

// unitCodec is the codec of a compression that decompress knows, or of snappy.
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
