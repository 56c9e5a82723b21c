package images

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"bowstring/fetch/operators/program"
	"bowstring/internal/programtest"
)

// hostileFiles are small files that would have a decoder allocate, or work, far beyond their size.
func hostileFiles(t testing.TB) map[string][]byte {
	t.Helper()
	files := map[string][]byte{
		"scans.jpg":  manyScans(256),
		"tables.jpg": manyTables(),
	}
	names, err := filepath.Glob("testdata/hostile/*")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	for _, n := range names {
		if files[filepath.Base(n)], err = os.ReadFile(n); err != nil {
			t.Fatal(err)
		}
	}
	// A PNG with chunks of text and a profile that inflate to megabytes, and more pixels than it has.
	png := blackPNG(t, 40, 30, 8, 2, 3, true)
	bomb := deflated(t, make([]byte, 8<<20))
	files["chunks.png"] = withChunks(png, "zTXt", append([]byte("a\x00\x00"), bomb...), "iCCP", append([]byte("a\x00\x00"), bomb...))
	files["pixels.png"] = withChunks(png, "IDAT", bomb)
	// A GIF whose only frame is small on a large screen, after comments; and one of many frames.
	gif := []byte("GIF89a\x00\x01\x00\x01\x80\x00\x00\x00\x00\x00\xff\xff\xff")
	comment := slices.Concat([]byte("\x21\xfe"), bytes.Repeat(append([]byte{255}, make([]byte, 255)...), 20), []byte{0})
	frame := []byte("\x2c\x00\x00\x00\x00\x02\x00\x02\x00\x00\x02\x03\x44\x02\x05\x00")
	files["comments.gif"] = slices.Concat(gif, bytes.Repeat(comment, 10), frame, []byte{0x3b})
	files["frames.gif"] = slices.Concat(gif, bytes.Repeat(frame, 2000), []byte{0x3b})
	// TIFFs: strips that all are the same large part of the file, that become larger than they may, and tags that are not there.
	empty := bytes.Repeat([]byte{0, 0, 0, 0xff, 0xff}, 4000) // stored blocks of no bytes
	again := tiffFile{width: 64, height: 200, bits: 8, samples: 3, compression: 8, rows: 1}
	for range 200 {
		again.blocks = append(again.blocks, append([]byte{0x78, 0x9c}, empty[:500]...))
	}
	files["again.tif"] = again.bytes()
	thin := tiffFile{width: 64, height: 60, bits: 8, samples: 3, compression: 8, rows: 1}
	for range 60 {
		thin.blocks = append(thin.blocks, deflated(t, make([]byte, 64*3)))
	}
	files["thin.tif"] = thin.bytes()
	files["inflates.tif"] = tiffFile{width: 64, height: 64, bits: 8, samples: 1, compression: 8, blocks: [][]byte{bomb}}.bytes()
	files["plain.tif"] = tiffFile{width: 64, height: 64, bits: 8, samples: 1, blocks: [][]byte{make([]byte, 8*64*64)}}.bytes()
	files["tags.tif"] = []byte("II*\x00\x08\x00\x00\x00\xff\xff\x00\x01\x03\x00")
	return files
}

// withChunks puts chunks before a PNG's last one, or before its pixels where they do not have any.
func withChunks(png []byte, chunks ...any) []byte {
	at := bytes.Index(png, []byte("IDAT")) - 4
	out := bytes.Clone(png[:at])
	for i := 0; i < len(chunks); i += 2 {
		name, data := chunks[i].(string), chunks[i+1].([]byte)
		out = binary.BigEndian.AppendUint32(out, uint32(len(data)))
		from := len(out)
		out = append(append(out, name...), data...)
		out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out[from:]))
	}
	return append(out, png[at:]...)
}

// manyTables is a JPEG that defines tables of codes again and again.
func manyTables() []byte {
	scan := manyScans(16)
	at := bytes.Index(scan, []byte("\xff\xda"))
	var tables []byte
	for i := range 300 {
		tables = append(tables, "\xff\xc4\x00\x26"...)
		for k := range 2 { // two that are not alike: one that is the same again is not made anew
			tables = append(tables, byte(k<<4), byte(1-(i+k)%2), byte((i+k)%2))
			tables = append(append(tables, make([]byte, 14)...), 0)
		}
	}
	return slices.Concat(scan[:at], tables, scan[at:])
}

// TestHostileFiles checks that each is refused, or decoded within the bounds of its header.
func TestHostileFiles(t *testing.T) {
	programs := []program.Program{compiledOf(t, everything), compiledOf(t, converted),
		compiledOf(t, `[{"name":"Decode","params":{"mode":"UNCHANGED","apply_exif_orientation":true}}]`)}
	for name, cell := range hostileFiles(t) {
		t.Run(name, func(t *testing.T) {
			for _, p := range programs {
				hostile(t, p, cell, 1)
			}
		})
	}
}

// TestTagsAreThere checks that a TIFF of a few bytes that announces 65,535 tags is refused
// before memory is allocated for them.
func TestTagsAreThere(t *testing.T) {
	p := compiledOf(t, `[{"name":"Decode"}]`)
	cell := hostileFiles(t)["tags.tif"]
	programtest.Within(t, program.Count(0), func() {
		if _, err := p.Cost(cell, program.Limits{}); !errors.Is(err, program.ErrDamaged) {
			t.Error(err)
		}
	})
}
