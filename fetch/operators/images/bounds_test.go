package images

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"testing"
)

// blackPNG is a file of zeros, of a colour type of the PNG specification. size is the
// number of bytes of a pixel in the file.
func blackPNG(t testing.TB, width, height int, bits, colours byte, size int, interlaced bool) []byte {
	t.Helper()
	file := []byte("\x89PNG\r\n\x1a\n")
	chunk := func(name string, data []byte) {
		file = binary.BigEndian.AppendUint32(file, uint32(len(data)))
		from := len(file)
		file = append(append(file, name...), data...)
		file = binary.BigEndian.AppendUint32(file, crc32.ChecksumIEEE(file[from:]))
	}
	header := binary.BigEndian.AppendUint32(nil, uint32(width))
	header = binary.BigEndian.AppendUint32(header, uint32(height))
	header = append(header, bits, colours, 0, 0, 0)
	// Adam7: the first pixel of each pass, and the distance of its pixels, by column and row.
	passes := [][4]int{{0, 0, 1, 1}}
	if interlaced {
		header[12] = 1
		passes = [][4]int{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}
	}
	chunk("IHDR", header)
	if colours < 3 {
		chunk("tRNS", make([]byte, 2+2*int(colours))) // one colour is transparent, so the image has alpha
	}
	var data bytes.Buffer
	w := zlib.NewWriter(&data)
	for _, p := range passes {
		across, down := (width-p[0]+p[2]-1)/p[2], (height-p[1]+p[3]-1)/p[3]
		if across < 1 || down < 1 {
			continue
		}
		if _, err := w.Write(make([]byte, down*(1+across*size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	chunk("IDAT", data.Bytes())
	chunk("IEND", nil)
	return file
}

// TestBytesOfPNG checks that decoding a PNG takes no more memory than its header bounds.
func TestBytesOfPNG(t *testing.T) {
	kinds := map[string][3]int{ // bits, type of colours, bytes a pixel in the file
		"grey of 16 bits": {16, 0, 2}, "RGB": {8, 2, 3}, "RGBA of 16 bits": {16, 6, 8},
	}
	for name, k := range kinds {
		for _, size := range [][2]int{{750, 400}, {300_000, 1}} {
			for _, interlaced := range []bool{false, true} {
				file := blackPNG(t, size[0], size[1], byte(k[0]), byte(k[1]), k[2], interlaced)
				t.Run(fmt.Sprintf("%s of %v, interlaced %t", name, size, interlaced), func(t *testing.T) {
					holdsBound(t, file)
				})
			}
		}
	}
}
