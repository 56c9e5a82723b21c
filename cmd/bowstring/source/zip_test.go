package source

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bowstring/schema"
)

// zipOf writes the files of a folder, below a folder in the zip; method is that of a
// member by its name.
func zipOf(t testing.TB, dir, below string, method func(name string) uint16) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		name := below + filepath.ToSlash(rel)
		m, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: method(name), Extra: []byte{0xfe, 0xca, 1, 0, 7}})
		if err != nil {
			return err
		}
		content, err := os.ReadFile(p)
		if err == nil {
			_, err = m.Write(content)
		}
		return err
	})
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A data set of any format in a zip equals the one in a folder, and its extents are
// right.
func TestZip(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	folder := tree(t, map[string]string{"train/a/1.jpg": jpg(t, 1), "train/b/2.jpg": jpg(t, 2), "val/a/3.jpg": jpg(t, 3)})
	annotated := tree(t, map[string]string{"1.jpg": jpg(t, 1), "2.jpg": jpg(t, 2),
		"metadata.csv": "file_name,text\n1.jpg,one\n2.jpg,two\n"})
	for name, dir := range map[string]string{"folder": folder, "annotated": annotated, "mds": "testdata/mds/plain",
		"mds-zstd": "testdata/mds/zstd", "litdata": "testdata/litdata/batch", "tfrecord": "testdata/tfrecord/records",
		"parquet": "testdata/huggingface/data", "webdataset": "testdata/webdataset"} {
		t.Run(name, func(t *testing.T) {
			want := readAll(t, dir, Options{}, ReadOptions{})
			for how, method := range map[string]func(string) uint16{
				"stored":   func(string) uint16 { return zip.Store },
				"deflated": func(string) uint16 { return zip.Deflate },
				"mixed":    func(string) uint16 { return []uint16{zip.Store, zip.Deflate}[rng.IntN(2)] },
			} {
				path := filepath.Join(t.TempDir(), "x.zip")
				writeFile(t, path, zipOf(t, dir, []string{"", "photos/", "a/b/"}[rng.IntN(3)], method))
				if got := readAll(t, path, Options{}, ReadOptions{}); got.text() != want.text() {
					t.Errorf("%s: got\n%s\nwant\n%s", how, got.text(), want.text())
				}
				found := checkExtents(t, path, Options{})
				twice := how != "stored" && (strings.HasSuffix(name, "zstd") || name == "litdata")
				if found.rows != len(want.rows) || found.none > 0 && !twice || how == "stored" && name != "mds-zstd" &&
					name != "litdata" && found.packed > 0 || how == "deflated" && found.plain > 0 {
					t.Errorf("%s: %+v", how, found)
				}
				for _, why := range found.whys {
					if !strings.Contains(why, "compressed within a member") {
						t.Errorf("%s: %s", how, why)
					}
				}
			}
		})
	}
}

// TestZip64: a zip with more members than the older format can count.
func TestZip64(t *testing.T) {
	const n = 1<<16 + 10
	image := jpg(t, 1)
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i := range n {
		name, content := fmt.Sprintf("x/%06d.txt", i), "text"
		if i%9000 == 0 {
			name, content = fmt.Sprintf("x/%06d.jpg", i), image
		}
		m, err := w.CreateHeader(&zip.FileHeader{Name: name})
		if err == nil {
			_, err = io.WriteString(m, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.zip")
	writeFile(t, path, b.Bytes())
	if got := checkExtents(t, path, Options{}); got.rows != 8 || got.plain != 8 {
		t.Errorf("%+v", got)
	}
}

// TestZipRefused: members that cannot be read are named, and the others are read.
func TestZipRefused(t *testing.T) {
	dir := tree(t, map[string]string{"1.jpg": jpg(t, 1), "2.jpg": jpg(t, 2)})
	stored := func(string) uint16 { return zip.Store }
	whole := zipOf(t, dir, "", stored)
	second := bytes.LastIndex(whole, []byte("PK\x01\x02")) // the entry of the second member in the table
	local := bytes.LastIndex(whole, []byte("PK\x03\x04"))
	put16 := func(at int, v uint16) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint16(b[at:], v) }
	}
	for name, c := range map[string]struct {
		change func(b []byte)
		bad    string
	}{
		"encrypted": {put16(second+8, 1), "2.jpg: unreadable: it is encrypted"},
		"method":    {put16(second+10, 93), "2.jpg: unreadable: it is compressed by method 93"},
		"sum":       {put16(second+16, 1), "2.jpg: unreadable: its CRC-32 is not"},
		"content":   {func(b []byte) { b[local+100] ^= 1 }, "2.jpg: unreadable: its CRC-32 is not"},
		"size":      {put16(second+26, 1000), "cannot hold"},
		"header":    {put16(local, 0), "2.jpg: unreadable: at byte"},
		"place":     {put16(second+44, 0x7fff), "2.jpg: unreadable: cut short"},
	} {
		t.Run(name, func(t *testing.T) {
			b := bytes.Clone(whole)
			c.change(b)
			path := filepath.Join(t.TempDir(), "x.zip")
			writeFile(t, path, b)
			r := readAll(t, path, Options{}, ReadOptions{})
			if bad := strings.Join(badOf(r), "\n"); !strings.Contains(bad, c.bad) || len(r.rows) > 1 {
				t.Errorf("%d rows, bad %q; want %q", len(r.rows), bad, c.bad)
			}
		})
	}
	twice := bytes.Clone(whole)
	twice[second+46] = '1'
	for name, b := range map[string][]byte{"twice": twice, "cut": whole[:len(whole)-10], "none": []byte("no zip"), "empty": nil} {
		path := filepath.Join(t.TempDir(), "x.zip")
		writeFile(t, path, b)
		if _, err := Open(t.Context(), path, Options{}); !errors.Is(err, schema.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzZip: for any bytes, reading ends, and served bytes are in the zip.
func FuzzZip(f *testing.F) {
	dir := f.TempDir()
	for i := range 3 {
		writeFile(f, filepath.Join(dir, fmt.Sprintf("%d.jpg", i)), picture(f, "jpeg", i+1, 3, 3))
	}
	for _, method := range []uint16{zip.Store, zip.Deflate} {
		b := zipOf(f, dir, "", func(string) uint16 { return method })
		f.Add(b)
		f.Add(b[:len(b)-30])
		for at := 0; at < len(b); at += len(b) / 20 {
			damaged := bytes.Clone(b)
			damaged[at] ^= 0x41
			f.Add(damaged)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(writeFuzzed(t, map[string][]byte{"x.zip": b}), "x.zip")
		if n := readFuzzed(t, path, "imagefolder"); n > deflateRatio*int64(len(b)+1) {
			t.Errorf("%d bytes of samples from %d", n, len(b))
		}
		src, err := Open(t.Context(), path, Options{Format: "imagefolder"})
		if err != nil {
			return
		}
		for s, err := range src.Samples(t.Context()) {
			if err != nil || s.Bad != "" || s.Load == nil {
				continue
			}
			blobs, err := s.Load()
			if err == nil && s.At[0].Unit == nil && !s.At[0].IsZero() &&
				!bytes.Equal(blobs[0], b[s.At[0].Offset:s.At[0].Offset+s.At[0].Length]) {
				t.Errorf("%s: other bytes at %+v", s.Key, s.At[0])
			}
			if s.Release != nil {
				s.Release()
			}
		}
	})
}
