package source

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bowstring/schema"
)

func tarIndex(t *testing.T, path string, kind TarIndex) ([]byte, error) {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	err = localFiles(filepath.Dir(abs)).WriteIndex(t.Context(), filepath.Base(abs), kind, &b)
	return b.Bytes(), err
}

// The index of a tar is what DALI's wds2idx 1.2 and Megatron-Energon 7 write of it.
func TestWriteIndex(t *testing.T) {
	const path = "testdata/webdataset/train-0000.tar"
	got, err := tarIndex(t, path, DALIIndex)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "index-dali", string(got))
	if got, err = tarIndex(t, path, EnergonIndex); err != nil {
		t.Fatal(err)
	}
	var offsets strings.Builder
	for ; len(got) > 0; got = got[8:] {
		fmt.Fprintln(&offsets, binary.LittleEndian.Uint64(got))
	}
	golden(t, "index-energon", offsets.String())
	if EnergonIndex.Name("a/b.c.tar") != "a/b.c.tar.idx" || DALIIndex.Name("a/b.c.tar") != "a/b.idx" {
		t.Errorf("names %s, %s", EnergonIndex.Name("a/b.c.tar"), DALIIndex.Name("a/b.c.tar"))
	}
}

// An index is right at each of its offsets, in tars with names of any length.
func TestWriteIndexOfRandomTars(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		var first, names []string
		content := map[string][]byte{}
		for i := range 1 + rng.IntN(10) {
			key := fmt.Sprintf("%s/%04d", strings.Repeat("d", 1+rng.IntN(150)), i)
			if rng.IntN(5) == 0 {
				if err := w.WriteHeader(&tar.Header{Name: key + "/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
					t.Fatal(err)
				}
			}
			for j := range 1 + rng.IntN(3) {
				name, data := fmt.Sprintf("%s.x%d", key, j), make([]byte, rng.IntN(1500))
				for i := range data {
					data[i] = byte(rng.Uint32())
				}
				if j == 0 {
					first = append(first, name)
				}
				names, content[name] = append(names, name), data
				h := &tar.Header{Name: name, Size: int64(len(data)), Mode: 0o644,
					Format: []tar.Format{tar.FormatPAX, tar.FormatGNU}[rng.IntN(2)]}
				if err := errors.Join(w.WriteHeader(h), func() error { _, err := w.Write(data); return err }()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "x.tar")
		writeFile(t, path, b.Bytes())
		dali, err := tarIndex(t, path, DALIIndex)
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(dali))
		if len(fields) != 2+4*len(names) || fields[1] != fmt.Sprint(len(first)) {
			t.Fatalf("%d members of %d samples, in\n%s", len(names), len(first), dali)
		}
		for i, name := range names {
			var at, size int
			f := fields[2+4*i:]
			if _, err := fmt.Sscan(f[1], &at); err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Sscan(f[2], &size); err != nil {
				t.Fatal(err)
			}
			if f[3] != name || f[0] != name[len(name)-2:] || !bytes.Equal(b.Bytes()[at:at+size], content[name]) {
				t.Errorf("%q is not %s", f[:4], name)
			}
		}
		energon, err := tarIndex(t, path, EnergonIndex)
		if err != nil || len(energon) != 8*(len(first)+1) {
			t.Fatalf("%d bytes, %v", len(energon), err)
		}
		for i, name := range first {
			r := tar.NewReader(bytes.NewReader(b.Bytes()[binary.LittleEndian.Uint64(energon[8*i:]):]))
			if h, err := r.Next(); err != nil || h.Name != name && !strings.HasSuffix(h.Name, "/") {
				t.Errorf("at offset %d stands %+v, %v; want %s", i, h, err, name)
			}
		}
		end := binary.LittleEndian.Uint64(energon[8*len(first):])
		if _, err := tar.NewReader(bytes.NewReader(b.Bytes()[end:])).Next(); !errors.Is(err, io.EOF) {
			t.Errorf("at the end stands %v", err)
		}
	}
}

func TestWriteIndexRefused(t *testing.T) {
	root := t.TempDir()
	whole, err := os.ReadFile("testdata/webdataset/train-0000.tar")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file    string
		kind    TarIndex
		message string
	}{
		"packed.tar.gz": {gzipped(t, string(whole)), DALIIndex, "is compressed"},
		"cut.tar":       {string(whole[:700]), EnergonIndex, "cut short"},
		"short.tar":     {string(whole[:26112+700]), EnergonIndex, "cut short"},
		"empty.tar":     {strings.Repeat("\x00", 1024), DALIIndex, "has no sample"},
		"space.tar":     {makeTar(t, entry{"a b.jpg", "x"}), DALIIndex, "has a space in its name"},
		"kind.tar":      {string(whole), "lhotse", "energon or dali"},
	} {
		writeFile(t, filepath.Join(root, name), []byte(c.file))
		if _, err := tarIndex(t, filepath.Join(root, name), c.kind); err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v, want %q", name, err, c.message)
		}
	}
	if _, err := tarIndex(t, filepath.Join(root, "packed.tar.gz"), EnergonIndex); !errors.Is(err, schema.ErrInvalid) {
		t.Error(err)
	}
}
