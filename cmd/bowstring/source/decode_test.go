package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bowstring/fetch/operators/images/codec"
	"bowstring/fetch/operators/program"
	"bowstring/internal/leaktest"
	"bowstring/internal/programtest"
)

// The test binary runs itself as another process, whose memory is limited.
const (
	childMode = "BOWSTRING_TEST_CHILD"
	childPath = "BOWSTRING_TEST_PATH"
)

func TestMain(m *testing.M) {
	if os.Getenv(childMode) == "" {
		leaktest.Main(m)
		return
	}
	if err := childRead(os.Getenv(childMode), os.Getenv(childPath)); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(3)
	}
}

// childMemory is the address space of a child: room for the runtime, for read-ahead, and
// for one image of the largest size that is decoded.
const childMemory = 4 << 30

// childRead prints what becomes of each sample of a source. An allocation beyond
// childMemory ends the process.
func childRead(verify, path string) error {
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: childMemory, Max: childMemory}); err != nil {
		return err
	}
	ctx := context.Background()
	src, err := Open(ctx, path, Options{})
	if err != nil {
		fmt.Println("refused:", err)
		return nil
	}
	r, err := NewReader(src, ReadOptions{Dataset: "d", Verify: Verify(verify)})
	if err != nil {
		fmt.Println("refused:", err)
		return nil
	}
	for b, err := range r.Batches(ctx) {
		if err != nil {
			return err
		}
		for _, key := range b.Keys {
			fmt.Println("good", key)
		}
		for _, bad := range b.Bad {
			fmt.Printf("bad %s: %s\n", Quoted(bad.Key), bad.Reason)
		}
	}
	return nil
}

// inChild returns what childRead printed.
func inChild(t *testing.T, verify Verify, path string) []string {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector needs more address space than a child may have")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childMode+"="+string(verify), childPath+"="+path, "GOTRACEBACK=none")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("the import ended: %v\n%s%.2000s", err, out.String(), errs.String())
	}
	return strings.Split(strings.TrimSpace(out.String()), "\n")
}

// pngClaiming is a PNG of 69 bytes that claims a size.
func pngClaiming(width, height uint32, colour byte) []byte {
	chunk := func(name string, data []byte) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(len(data)))
		b = append(append(b, name...), data...)
		return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[4:]))
	}
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, width), height)
	return slices.Concat([]byte("\x89PNG\r\n\x1a\n"), chunk("IHDR", append(head, 8, colour, 0, 0, 0)),
		chunk("IDAT", []byte("\x78\x9c\x62\x60\x18\x05\xa3\x60\x14\x0c\x5d\x00")), chunk("IEND", nil))
}

// patched is an image with a 16- or 32-bit number in it replaced.
func patched(b []byte, at int, value []byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], value)
	return b
}

// bombs are images of some bytes that claim gigabytes of pixels, by format.
func bombs(t testing.TB) map[string][]byte {
	t.Helper()
	huge := []byte{0xff, 0xff, 0xff, 0xff}
	jpeg := picture(t, "jpeg", 1, 8, 8)
	sof := bytes.Index(jpeg, []byte{0xff, 0xc0})
	progressive := patched(jpeg, sof+1, []byte{0xc2})
	gif := picture(t, "gif", 1, 8, 8)
	frame := bytes.LastIndex(gif, []byte{0x2c, 0, 0, 0, 0, 8, 0, 8, 0})
	if sof < 0 || frame < 0 {
		t.Fatal("the encoders write other headers than this test knows")
	}
	riff := func(chunks ...[]byte) []byte {
		body := append([]byte("WEBP"), slices.Concat(chunks...)...)
		return append(binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(len(body))), body...)
	}
	chunk := func(name string, data ...byte) []byte {
		b := binary.LittleEndian.AppendUint32([]byte(name), uint32(len(data)))
		return append(append(b, data...), make([]byte, len(data)%2)...)
	}
	// A lossless frame of 2^14 × 2^14, and a canvas of one pixel that hides it.
	lossless := chunk("VP8L", 0x2f, 0xff, 0xff, 0xff, 0x0f, 0x88, 0x88, 0x88, 0x88, 0x88)
	tiny := chunk("VP8X", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	bmp := picture(t, "bmp", 1, 8, 8)
	tiff := picture(t, "tiff", 1, 8, 8)
	for tag := range uint16(2) { // ImageWidth, ImageLength: 256 and 257, as short integers
		entry := binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, 256+tag), 3)
		at := bytes.LastIndex(tiff, entry)
		if at < 0 {
			t.Fatal("the encoder writes other tags than this test knows")
		}
		tiff = patched(tiff, at+8, []byte{0xff, 0xff})
	}
	return map[string][]byte{
		"rgb.png":         pngClaiming(100_000, 100_000, 2),
		"huge.png":        pngClaiming(math.MaxInt32, 2, 2),
		"baseline.jpg":    patched(jpeg, sof+5, huge),
		"progressive.jpg": patched(progressive, sof+5, huge),
		"screen.gif":      patched(patched(gif, 6, huge), frame+5, huge),
		"lossless.webp":   riff(lossless),
		"hidden.webp":     riff(tiny, lossless),
		"bmp.bmp":         patched(bmp, 18, []byte{0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0}),
		"tiff.tiff":       tiff,
	}
}

// TestDecompressionBombs imports them in a process without so much memory.
func TestDecompressionBombs(t *testing.T) {
	files := map[string]string{"good.jpg": jpg(t, 1)}
	for name, b := range bombs(t) {
		if len(b) > 4096 {
			t.Fatalf("%s has %d bytes", name, len(b))
		}
		files[name] = string(b)
	}
	root := tree(t, files)
	got := inChild(t, VerifyDecode, root)
	if len(got) != len(files) || !slices.Contains(got, "good good.jpg") {
		t.Errorf("%d lines: %q", len(got), got)
	}
	// Those of tiff.tiff and bmp.bmp are not there, as the header shows; the frame of
	// hidden.webp is not its canvas's.
	others := map[string]string{"tiff.tiff": "8192 strips or tiles, with 1 offsets", "bmp.bmp": "its pixels take ",
		"hidden.webp": "it is 1 x 1, and its pixels are 16384 x 16384"}
	for name := range bombs(t) {
		i := slices.IndexFunc(got, func(line string) bool { return strings.HasPrefix(line, "bad "+name+": ") })
		if other, ok := others[name]; ok {
			if i < 0 || !strings.Contains(got[i], other) {
				t.Errorf("%s: want %q: %q", name, other, got)
			}
			continue
		}
		if i < 0 || !strings.Contains(got[i], " pixels, which take ") ||
			!strings.Contains(got[i], "the limit is 1.0 GiB") {
			t.Errorf("%s: want it refused by its size: %q", name, got)
		}
	}
	want := "bad rgb.png: the png claims 100,000 × 100,000 pixels, which take 37 GiB to decode; the limit is 1.0 GiB " +
		"(--verify header takes it without decoding)"
	if !slices.Contains(got, want) {
		t.Errorf("got %q, want %q among them", got, want)
	}
	// An image of the largest decoded size fits, whatever its content is.
	got = inChild(t, VerifyDecode, tree(t, map[string]string{"1.png": string(pngClaiming(1<<14, 1<<13, 2)),
		"2.png": string(pngClaiming(1<<14, 1<<13, 2)), "3.png": string(pngClaiming(1<<14, 1<<13, 2))}))
	for _, line := range got {
		if !strings.Contains(line, ": decode png: ") {
			t.Errorf("got %s, want it decoded, and found to lack pixels", line)
		}
	}
}

// TestManyScans: a scan of some bytes costs a pass over all pixels.
func TestManyScans(t *testing.T) {
	b, err := os.ReadFile("../../../fetch/operators/images/testdata/progressive-17x33.jpg")
	if err != nil {
		t.Fatal(err)
	}
	scan := []byte{0xff, 0xda, 0, 8, 1, 1, 0, 0, 0, 0}
	at := bytes.Index(b, []byte{0xff, 0xda})
	many := slices.Concat(b[:at], bytes.Repeat(scan, 130), b[at:])
	if _, err := inspect(many, VerifyDecode); err == nil || !strings.Contains(err.Error(), "scan") {
		t.Errorf("got %v", err)
	}
	if _, err := inspect(b, VerifyDecode); err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range bombs(f) {
		f.Add(b)
	}
	for _, format := range []string{"jpeg", "png", "gif", "bmp", "tiff"} {
		f.Add(picture(f, format, 3, 10, 10))
	}
	for _, folder := range []string{"hostile", "kinds"} {
		files, err := filepath.Glob("../../../fetch/operators/images/testdata/" + folder + "/*")
		if err != nil || len(files) == 0 {
			f.Fatal(folder, err)
		}
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := codec.Read(b)
		if err != nil {
			return
		}
		if h.Bytes > 300<<20 || h.Width*h.Height > 1<<22 {
			return // allowed, but too slow for fuzzing
		}
		// Windows and tables of decompressors, and buffers of the file's bytes.
		room := int64(1<<20 + 2*len(b))
		var info imageInfo
		programtest.Within(t, program.Count(h.Bytes+room), func() { info, err = inspect(b, VerifyDecode) })
		if err == nil && (int(info.Width) != h.Width || int(info.Height) != h.Height || info.Width < 1) {
			t.Errorf("decoded as %v, the header says %d × %d", info, h.Width, h.Height)
		}
	})
}

// TestOrientation: the orientation in Exif is read.
func TestOrientation(t *testing.T) {
	for name, want := range map[string]int32{
		"exif-2.jpg": 2, "exif-5.jpg": 5, "exif-6.jpg": 6, "444.jpg": 1, "lzw.tif": 1,
	} {
		b, err := os.ReadFile("../../../fetch/operators/images/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := inspect(b, VerifyHeader); err != nil || info.Orientation != want {
			t.Errorf("%s: %+v, %v, want %d", name, info, err, want)
		}
	}
}

// TestKinds: an import accepts the images that the operators decode, and rejects others
// as not supported.
func TestKinds(t *testing.T) {
	const folder = "../../../fetch/operators/images/testdata/"
	text, err := os.ReadFile(folder + "kinds.json")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]string
	if err := json.Unmarshal(text, &want); err != nil || len(want) < 80 {
		t.Fatal(len(want), err)
	}
	for name, sum := range want {
		b, err := os.ReadFile(folder + "kinds/" + name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := inspect(b, VerifyDecode)
		if refused := len(sum) != 64; refused != (err != nil) || refused && (!errors.Is(err, program.ErrNotSupported) ||
			!strings.Contains(err.Error(), sum)) || !refused && (info.Width < 13 || info.Orientation != 1) {
			t.Errorf("%s: %+v, %v, want %q", name, info, err, sum)
		}
	}
	for _, cell := range []string{"\x00\x00\x00\x1cftypheic\x00\x00\x00\x00", "8BPS\x00\x01"} {
		if _, err := inspect([]byte(cell), VerifyHeader); !errors.Is(err, program.ErrNotSupported) {
			t.Errorf("%q: %v", cell, err)
		}
	}
}
