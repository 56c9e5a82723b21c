package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"

	"bowstring/schema"
)

// picture makes an image of a size whose pixels depend on its number.
func picture(t testing.TB, format string, n, width, height int) []byte {
	t.Helper()
	m := image.NewPaletted(image.Rect(0, 0, width, height), nil)
	for i := range 256 {
		m.Palette = append(m.Palette, color.RGBA{uint8(i), uint8(n), uint8(i * n), 255})
	}
	for i := range m.Pix {
		m.Pix[i] = uint8(i + n)
	}
	var b bytes.Buffer
	var err error
	switch format {
	case "jpeg":
		err = jpeg.Encode(&b, m, nil)
	case "png":
		err = png.Encode(&b, m)
	case "gif":
		err = gif.Encode(&b, m, nil)
	case "bmp":
		err = bmp.Encode(&b, m)
	case "tiff":
		err = tiff.Encode(&b, m, nil)
	default:
		t.Fatalf("no encoder for %s", format)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tree writes files, by their path below a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func jpg(t *testing.T, n int) string { return string(picture(t, "jpeg", n, 4+n, 3)) }

func TestImageFolder(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"imagefolder-classes": {"b/2.png": string(picture(t, "png", 2, 5, 6)), "a/1.jpg": jpg(t, 1),
			"b/deep/3.JPG": jpg(t, 3),
			"a/readme.txt": "?", ".hidden/x.jpg": "", "b/.x.jpg": "", "c/empty.txt": ""},
		"imagefolder-splits": {"test/b/1.jpg": jpg(t, 1), "train/a/2.jpg": jpg(t, 2), "train/b/1.jpg": jpg(t, 3),
			"val/a/1.jpg": jpg(t, 4)},
		"imagefolder-flat": {"2.jpg": jpg(t, 2), "1.jpg": jpg(t, 1)},
		"imagefolder-metadata": {"train/1.jpg": jpg(t, 1), "train/x/2.jpg": jpg(t, 2), "test/1.jpg": jpg(t, 3),
			"train/metadata.csv": "\ufefffile_name,label,id,stars,text\n1.jpg,cat,007,3,a\nx/2.jpg,ant,008,,\"b, c\"\n",
			"test/metadata.csv":  "file_name,text,label,width\n1.jpg,d,cat,12\n"},
		"imagefolder-jsonl": {"a/1.jpg": jpg(t, 1), "b/1.jpg": jpg(t, 2),
			"metadata.jsonl": `{"file_name": "a/1.jpg", "box": [1, 2], "at": {"x": 1, "y": null}, "mixed": 1, "big": 9007199254740993}

{"file_name": "b/1.jpg", "box": [0.5], "at": {"x": 2.5}, "mixed": {"a": 1}, "split": "?"}
`},
		"imagefolder-bad": {"a/ok.jpg": jpg(t, 1), "a/empty.jpg": "", "a/text.jpg": "hello",
			"a/cut.jpg": jpg(t, 2)[:300], "a/head.png": "\x89PNG\r\n\x1a\n",
			"a/cut.png": string(picture(t, "png", 1, 9, 9))[:60], "outside.jpg": jpg(t, 3)},
		"imagefolder-bad-splits": {"train/a/1.jpg": jpg(t, 1), "test/a/1.jpg": jpg(t, 2), "stray.jpg": jpg(t, 3),
			"test/2.jpg": jpg(t, 4)},
		"imagefolder-bad-metadata": {"1.jpg": jpg(t, 1), "2.jpg": jpg(t, 2), "3.jpg": jpg(t, 3), "4.jpg": jpg(t, 4),
			"metadata.csv": "file_name,label\n1.jpg,7\n2.jpg,\n4.jpg,1\n4.jpg,2\nmissing.jpg,3\n"},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, files)
			golden(t, name, readAll(t, root, Options{}, ReadOptions{}).text())
		})
	}
	t.Run("one split", func(t *testing.T) {
		root := tree(t, map[string]string{"train/a/2.jpg": jpg(t, 2), "val/b/1.jpg": jpg(t, 4)})
		r := readAll(t, root, Options{Split: "val"}, ReadOptions{})
		if !slices.Equal(r.keys, []string{"val/b/1.jpg"}) || !slices.Equal(schema.Classes(r.schema.Field(1)),
			[]string{"a", "b"}) {
			t.Errorf("keys %q, classes %q", r.keys, schema.Classes(r.schema.Field(1)))
		}
		if _, err := Open(t.Context(), root, Options{Split: "test"}); !errors.Is(err, schema.ErrNotFound) {
			t.Errorf("split test: %v, want ErrNotFound", err)
		}
	})
}

// TestSpecialFiles has special files. They must neither hang nor end the import.
func TestSpecialFiles(t *testing.T) {
	root := tree(t, map[string]string{"a/1.jpg": jpg(t, 1), "a/dir.jpg/2.jpg": jpg(t, 2)})
	if err := errors.Join(
		syscall.Mkfifo(filepath.Join(root, "a/fifo.jpg"), 0o644),
		os.Symlink("1.jpg", filepath.Join(root, "a/link.jpg")),
		os.Symlink("nowhere", filepath.Join(root, "a/dangling.jpg")),
		os.Symlink("a", filepath.Join(root, "b")),
		os.WriteFile(filepath.Join(root, "a/\xff.jpg"), []byte(jpg(t, 1)), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	r := readAll(t, root, Options{}, ReadOptions{})
	golden(t, "imagefolder-special", r.text())
}

func TestUnreadable(t *testing.T) {
	root := tree(t, map[string]string{"a/1.jpg": jpg(t, 1), "a/2.jpg": jpg(t, 2)})
	src, err := Open(t.Context(), root, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(src, ReadOptions{Dataset: "d", Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	// One file is removed between the two walks, one grows between stat and read.
	if err := os.Remove(filepath.Join(root, "a/2.jpg")); err != nil {
		t.Fatal(err)
	}
	size, bad := localFiles(root).statFile(filepath.Join(root, "a/1.jpg"))
	if bad != "" {
		t.Fatal(bad)
	}
	if _, err := localFiles(root).loadFile(t.Context(), filepath.Join(root, "a/1.jpg"), size-1); err == nil ||
		!strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("a file that grew: %v", err)
	}
	if _, err := localFiles(root).loadFile(t.Context(), filepath.Join(root, "a/1.jpg"), size+1); err == nil ||
		!strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("a file that shrank: %v", err)
	}
	rows := 0
	for b, err := range r.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		rows += len(b.Keys)
	}
	if rows != 1 {
		t.Errorf("%d rows, want the file that is left", rows)
	}
}

// TestOrder creates the same files in another order and place. Ids and order must be the
// same.
func TestOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprintf("%c/%d.jpg", 'a'+i%3, i*7919%1000))
	}
	var first *readResult
	for try := range 3 {
		root := t.TempDir()
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			var n int
			if _, err := fmt.Sscanf(filepath.Base(name), "%d.jpg", &n); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, name), picture(t, "jpeg", n, 3, 3), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r := readAll(t, root, Options{}, ReadOptions{Workers: 1 + try*5})
		if first == nil {
			first = r
			if len(r.rows) != 300 {
				t.Fatalf("%d rows, want 300", len(r.rows))
			}
		}
		if !slices.Equal(r.rows, first.rows) || !slices.Equal(r.ids, first.ids) {
			t.Fatal("rows or ids differ")
		}
	}
}

func TestLargeImage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	m := image.NewGray(image.Rect(0, 0, 5000, 4200))
	for i := range m.Pix {
		m.Pix[i] = uint8(random.Uint32())
	}
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.NoCompression}).Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	if b.Len() < 20<<20 {
		t.Fatalf("the image has only %d bytes", b.Len())
	}
	files := map[string]string{}
	for i := range 6 { // more than the budget of memory together
		files[fmt.Sprintf("%d.png", i)] = b.String()
	}
	r := readAll(t, tree(t, files), Options{}, ReadOptions{})
	if len(r.rows) != 6 {
		t.Fatalf("%d rows, bad: %v", len(r.rows), r.bad)
	}
	for _, got := range r.blobs {
		if !bytes.Equal(got, b.Bytes()) {
			t.Fatal("the content differs")
		}
	}
}

func TestLimitAndCancel(t *testing.T) {
	files := map[string]string{}
	for i := range 200 {
		files[fmt.Sprintf("%03d.jpg", i)] = jpg(t, i%20)
	}
	root := tree(t, files)
	if r := readAll(t, root, Options{}, ReadOptions{Limit: 7}); len(r.rows) != 7 || r.keys[6] != "006.jpg" {
		t.Errorf("limit 7: %q", r.keys)
	}
	src, err := Open(t.Context(), root, Options{})
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	inner := &hooked{Source: src, after: func(n int) {
		if n == 100 {
			cancel(cause)
		}
	}}
	r, err := NewReader(inner, ReadOptions{Dataset: "d"})
	if err != nil {
		t.Fatal(err)
	}
	var got error
	for _, err := range r.Batches(ctx) {
		got = err
	}
	if !errors.Is(got, cause) {
		t.Errorf("cancelled: %v, want the cause", got)
	}
	// A consumer that stops leaves no goroutine: TestMain checks that.
	for range r.Batches(t.Context()) {
		break
	}
}

func TestVerify(t *testing.T) {
	for _, format := range []string{"jpeg", "png", "gif", "bmp", "tiff"} {
		whole := picture(t, format, 3, 40, 30)
		for _, v := range []Verify{VerifyNone, VerifyHeader, VerifyDecode} {
			info, err := inspect(whole, v)
			if err != nil || info != (imageInfo{40, 30, format, 1}) {
				t.Errorf("%s, %s: %v, %v", format, v, info, err)
			}
		}
		if format == "tiff" {
			continue // its header is at the end
		}
		trailing := append(bytes.Clone(whole), make([]byte, 1000)...)
		if _, err := inspect(trailing, VerifyHeader); err != nil {
			t.Errorf("%s with bytes behind its end: %v", format, err)
		}
		for cut := 1; cut < len(whole); cut++ {
			if _, err := inspect(whole[:cut], VerifyHeader); err == nil && (format != "gif" || cut < len(whole)-1) {
				t.Fatalf("%s of %d bytes cut to %d is taken for whole", format, len(whole), cut)
			}
		}
	}
	// A thumbnail's end of image is not the image's.
	whole := picture(t, "jpeg", 3, 40, 30)
	thumb := picture(t, "jpeg", 1, 8, 8)
	exif := append([]byte{0xff, 0xe1, byte((len(thumb) + 2) >> 8), byte(len(thumb) + 2)}, thumb...)
	whole = slices.Concat(whole[:2], exif, whole[2:])
	if _, err := inspect(append(whole, 0), VerifyHeader); err != nil {
		t.Errorf("with a thumbnail: %v", err)
	}
	if _, err := inspect(whole[:len(whole)-40], VerifyHeader); !errors.Is(err, errCut) {
		t.Errorf("with a thumbnail, cut: %v, want errCut", err)
	}
	// Only decoding sees damage in the middle.
	damaged := picture(t, "png", 3, 40, 30)
	damaged[len(damaged)-30] ^= 0xff // in the last chunk of pixels
	if _, err := inspect(damaged, VerifyHeader); err != nil {
		t.Errorf("damaged, by header: %v", err)
	}
	if _, err := inspect(damaged, VerifyDecode); err == nil {
		t.Error("damaged, decoded: no error")
	}
}

func FuzzInspect(f *testing.F) {
	for _, format := range []string{"jpeg", "png", "gif", "bmp", "tiff"} {
		f.Add(picture(f, format, 3, 10, 10))
	}
	f.Add([]byte("RIFF\x10\x00\x00\x00WEBPVP8 "))
	f.Fuzz(func(t *testing.T, b []byte) {
		info, err := inspect(b, VerifyHeader)
		if err == nil && (info.Width <= 0 || info.Height <= 0 || info.Format == "") {
			t.Errorf("taken for good: %v", info)
		}
		jpegEnds(b)
		pngEnds(b)
		gifEnds(b)
	})
}

// hooked calls after with the number of samples yielded so far.
type hooked struct {
	Source
	after func(n int)
}

func (h *hooked) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		n := 0
		for s, err := range h.Source.Samples(ctx) {
			n++
			h.after(n)
			if !yield(s, err) {
				return
			}
		}
	}
}
