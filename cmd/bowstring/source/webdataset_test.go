package source

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bowstring/schema"
)

// badOf returns the bad items of a source, as KEY: REASON.
func badOf(r *readResult) []string {
	var bad []string
	for _, b := range r.bad {
		bad = append(bad, b.Key+": "+b.Reason)
	}
	return bad
}

// TestMembersApart: read in order, separated members of a key would be several samples,
// each without some members, and nothing would report that.
func TestMembersApart(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string][]entry
		keys  []string
		bad   map[string]string // key to a part of the reason
	}{
		"in one tar": {map[string][]entry{"x.tar": {{"a.jpg", jpg(t, 1)}, {"b.jpg", jpg(t, 2)}, {"b.txt", "of b"},
			{"a.txt", "of a"}}},
			[]string{"b"}, map[string]string{"a": "its members are apart or come twice: .jpg in x.tar, and " +
				".txt in x.tar"}},
		"all of one kind first": {map[string][]entry{"x.tar": {{"a.jpg", jpg(t, 1)}, {"b.jpg", jpg(t, 2)},
			{"a.txt", "of a"}, {"b.txt", "of b"}}},
			nil, map[string]string{"a": "apart", "b": "apart"}},
		"in two tars": {map[string][]entry{"0.tar": {{"a.jpg", jpg(t, 1)}, {"a.txt", "a"}, {"b.jpg", jpg(t, 2)}},
			"1.tar": {{"b.txt", "of b"}, {"c.jpg", jpg(t, 3)}, {"c.txt", "c"}}},
			[]string{"a", "c"}, map[string]string{"b": ".jpg in 0.tar, and .txt in 1.tar"}},
		"in three parts": {map[string][]entry{"x.tar": {{"a.jpg", jpg(t, 1)}, {"b.txt", "b"}, {"a.txt", "a"},
			{"b.jpg", jpg(t, 1)}, {"a.json", "{}"}}},
			nil, map[string]string{"a": "apart", "b": "apart"}},
		"whole ones twice": {map[string][]entry{"x.tar": {{"a.jpg", jpg(t, 1)}, {"a.txt", "a"}, {"b.jpg", jpg(t, 2)},
			{"b.txt", "b"}, {"a.jpg", jpg(t, 1)}, {"a.txt", "a"}}},
			[]string{"a", "b"}, map[string]string{"a": "duplicate: the key is in x.tar already"}},
		"the same key in two splits": {map[string][]entry{"train.tar": {{"a.jpg", jpg(t, 1)}},
			"val.tar": {{"a.jpg", jpg(t, 1)}, {"a.txt", "a"}}},
			[]string{"train/a", "val/a"}, nil},
		"in two folders": {map[string][]entry{"x.tar": {{"l/a.jpg", jpg(t, 1)}, {"r/a.jpg", jpg(t, 2)},
			{"l.x/a.txt", "another key"}, {"l.x/a.jpg", jpg(t, 2)}}},
			[]string{"l/a", "r/a", "l.x/a"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			for path, entries := range c.files {
				files[path] = makeTar(t, entries...)
			}
			root := tree(t, files)
			for range 2 { // a second reading finds the same
				r := readAll(t, root, Options{}, ReadOptions{})
				if !slices.Equal(r.keys, c.keys) {
					t.Errorf("keys %q, want %q", r.keys, c.keys)
				}
				seen := map[string]bool{}
				for _, b := range r.bad {
					seen[b.Key] = true
					if want, ok := c.bad[b.Key]; !ok || !strings.Contains(b.Reason, want) {
						t.Errorf("bad %s: %s; want %q", b.Key, b.Reason, want)
					}
				}
				if len(seen) != len(c.bad) {
					t.Errorf("bad items %q, want %q", badOf(r), c.bad)
				}
			}
		})
	}
}

// TestReadTwice reads the same source a second time.
func TestReadTwice(t *testing.T) {
	root := tree(t, map[string]string{"x.tar": makeTar(t, entry{"a.jpg", jpg(t, 1)}, entry{"b.jpg", jpg(t, 2)})})
	src, err := Open(t.Context(), root, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		n := 0
		for s, err := range src.Samples(t.Context()) {
			if err != nil || s.Bad != "" {
				t.Errorf("%s: %s, %v", s.Key, s.Bad, err)
			}
			s.Release()
			n++
		}
		if n != 2 {
			t.Errorf("%d samples", n)
		}
	}
}

func TestExtensions(t *testing.T) {
	for ext, want := range map[string]bool{
		"jpg": true, "3gp": true, "mask.png": true, "left.npy": true, "seg_2.png": true, "a-b.c+d.webp": true,
		"größe.jpg": true, "_x.jpg": true,
		"": false, "5": false, "5.jpg": false, "5.beta.jpg": false, "beta.5": false, ".jpg": false, "mask..png": false,
		"jpg~": false, "jpg (1)": false,
		"a\nb": false, "\xff": false, "\ufffd": false, "a/b": false, "-": false, "-a.jpg": false,
		strings.Repeat("x", maxExtension+1): false,
	} {
		if got := isExtension(ext); got != want {
			t.Errorf("%q: %t, want %t", ext, got, want)
		}
	}
}

// TestDotsInKeys: an extension that may be the end of a key does not silently become a
// column.
func TestDotsInKeys(t *testing.T) {
	for name, c := range map[string]struct {
		entries []entry
		columns []string // of blobs
		keys    []string
		bad     map[string]string
	}{
		"a version": {[]entry{{"v1.5.beta.jpg", jpg(t, 1)}, {"v1.6.beta.jpg", jpg(t, 2)}, {"w.jpg", jpg(t, 3)}},
			[]string{"image"}, []string{"w"},
			map[string]string{"v1": `member v1.5.beta.jpg: a key ends at the first dot of a name, as WebDataset has it, which makes this 5.beta.jpg of sample v1; if the dot belongs to the key, name it without, such as v1_5_beta.jpg`}},
		"names of people": {[]entry{{"ann.lee.jpg", jpg(t, 1)}, {"ann.lee.txt", "Ann"}, {"bob.ray.jpg", jpg(t, 2)},
			{"bob.ray.txt", "Bob"}}, nil, nil,
			map[string]string{"ann": "no other sample has a member .lee.jpg",
				"bob": "no other sample has a member .ray.jpg"}},
		"columns": {[]entry{{"a.left.jpg", jpg(t, 1)}, {"a.right.jpg", jpg(t, 2)}, {"b.left.jpg", jpg(t, 3)},
			{"b.right.png", string(picture(t, "png", 1, 2, 2))}},
			[]string{"left", "right"}, []string{"a", "b"}, nil},
		"one mask": {[]entry{{"a.jpg", jpg(t, 1)}, {"a.mask.png", string(picture(t, "png", 1, 2, 2))},
			{"b.jpg", jpg(t, 3)}}, []string{"image", "mask"}, []string{"a", "b"}, nil},
		"taken names": {[]entry{{"a.jpg", jpg(t, 1)}, {"a.width.png", string(picture(t, "png", 1, 2, 2))},
			{"a.txt.jpg", jpg(t, 2)}, {"a.txt", "x"}, {"a.json", `{"json_label": 1, "label": 2, "txt": 3}`}},
			[]string{"image", "source_txt", "source_width"}, []string{"a"}, nil},
		"numbered": {[]entry{{"a.0.jpg", jpg(t, 1)}, {"a.1.jpg", jpg(t, 2)}, {"b.jpg", jpg(t, 2)}}, []string{"image"},
			[]string{"b"}, map[string]string{"a": "which makes this 0.jpg of sample a"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := readAll(t, tree(t, map[string]string{"x.tar": makeTar(t, c.entries...)}), Options{}, ReadOptions{})
			if got := fieldNames(schema.BlobFields(r.schema)); !slices.Equal(got, c.columns) {
				t.Errorf("blob columns %q, want %q", got, c.columns)
			}
			if !slices.Equal(r.keys, c.keys) || len(r.bad) != len(c.bad) {
				t.Errorf("keys %q, want %q; bad %q, want %q", r.keys, c.keys, badOf(r), c.bad)
			}
			for _, b := range r.bad {
				if want, ok := c.bad[b.Key]; !ok || !strings.Contains(b.Reason, want) {
					t.Errorf("bad %s: %s; want %q", b.Key, b.Reason, want)
				}
			}
		})
	}
	var many []entry
	for i := range maxExtensions + 1 {
		many = append(many, entry{fmt.Sprintf("k%d.x%d", i, i), "x"})
	}
	_, err := Open(t.Context(), tree(t, map[string]string{"x.tar": makeTar(t, many...)}), Options{})
	if !errors.Is(err, schema.ErrLimit) || !strings.Contains(err.Error(), "more than 1000 different extensions") ||
		!strings.Contains(err.Error(), "dots in the keys") {
		t.Errorf("many extensions: %v", err)
	}
}

// TestStrangeMembers: a member that is no file makes its sample bad, instead of being
// dropped.
func TestStrangeMembers(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, content string) {
		t.Helper()
		h.Mode, h.Size = 0o644, int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	add(tar.Header{Name: "a.jpg"}, jpg(t, 1))
	add(tar.Header{Name: "a.txt"}, "a")
	add(tar.Header{Name: "b.txt"}, "b")
	add(tar.Header{Name: "b.jpg", Typeflag: tar.TypeLink, Linkname: "a.jpg"}, "")
	add(tar.Header{Name: "c.jpg"}, jpg(t, 1))
	add(tar.Header{Name: "c.txt", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, "")
	add(tar.Header{Name: "d.jpg", Typeflag: tar.TypeFifo}, "")
	add(tar.Header{Name: "../../e.jpg"}, jpg(t, 2))
	add(tar.Header{Name: "/f.jpg"}, jpg(t, 3))
	add(tar.Header{Name: "g.x", Typeflag: tar.TypeDir}, "")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r := readAll(t, tree(t, map[string]string{"x.tar": b.String()}), Options{}, ReadOptions{})
	want := []string{
		"b: member b.jpg is a link to a.jpg, not a file; tar --hard-dereference --dereference stores files",
		"c: member c.txt is a link to /etc/passwd, not a file; tar --hard-dereference --dereference stores files",
		"d: member d.jpg is no plain file, but of type '6'",
	}
	if !slices.Equal(r.keys, []string{"a", "../../e", "f"}) || !slices.Equal(badOf(r), want) {
		t.Errorf("keys %q, bad %q; want %q", r.keys, badOf(r), want)
	}
}

// sparseTar has a member that claims many gigabytes of zeros and has some bytes.
func sparseTar(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	const extents = "1\n0\n512\n" // one, from 0, of 512 bytes
	content := extents + strings.Repeat("\x00", 512-len(extents)) + strings.Repeat("x", 512)
	h := &tar.Header{Name: "GNUSparseFile.0/a.jpg", Size: int64(len(content)), Format: tar.FormatPAX,
		PAXRecords: map[string]string{"bowstring.x": "1"}}
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// archive/tar does not write these records: put them in the place of the one it does.
	records := ""
	for _, kv := range [][2]string{{"GNU.sparse.major", "1"}, {"GNU.sparse.minor", "0"}, {"GNU.sparse.name", "a.jpg"},
		{"GNU.sparse.realsize", "2000000000"}} {
		line := fmt.Sprintf(" %s=%s\n", kv[0], kv[1])
		n := len(line) + 2
		records += fmt.Sprintf("%d%s", n, line)
	}
	out := b.Bytes()
	copy(out[512:], records)
	copy(out[124:136], fmt.Sprintf("%011o\x00", len(records)))
	sum := 0
	copy(out[148:156], "        ")
	for _, c := range out[:512] {
		sum += int(c)
	}
	copy(out[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return out
}

func TestSparseMember(t *testing.T) {
	root := tree(t, map[string]string{"x.tar": string(sparseTar(t)), "y.tar": makeTar(t, entry{"b.jpg", jpg(t, 1)})})
	r := readAll(t, root, Options{}, ReadOptions{})
	if bad := badOf(r); len(bad) != 1 || !strings.HasPrefix(bad[0], "a: member a.jpg is no plain file") {
		t.Errorf("bad %q", bad)
	}
}

// TestNotFiles: special files are rejected without being opened; opening a pipe would
// block.
func TestNotFiles(t *testing.T) {
	for format, name := range map[string]string{"webdataset": "x.tar", "parquet": "x.parquet", "mds": "index.json",
		"list": "x.csv"} {
		root := t.TempDir()
		if err := syscall.Mkfifo(filepath.Join(root, name), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{root, filepath.Join(root, name)} {
			if format == "list" && path == root {
				continue
			}
			if _, err := Open(t.Context(), path, Options{Format: format}); err == nil ||
				!errors.Is(err, schema.ErrInvalid) && !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	// Special files next to good ones, and as metadata.
	root := tree(t, map[string]string{"train-1.tar": makeTar(t, entry{"b.jpg", jpg(t, 1)})})
	if err := syscall.Mkfifo(filepath.Join(root, "train-0.tar"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := readAll(t, root, Options{}, ReadOptions{}); !slices.Equal(badOf(r),
		[]string{"train-0.tar: after 0 samples: not a regular file"}) || len(r.rows) != 1 {
		t.Errorf("%d rows, bad %q", len(r.rows), badOf(r))
	}
	root = tree(t, map[string]string{"b.jpg": jpg(t, 1)})
	if err := syscall.Mkfifo(filepath.Join(root, "metadata.csv"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), root, Options{}); err == nil ||
		!strings.Contains(err.Error(), "metadata.csv: not a regular file") {
		t.Errorf("a pipe of metadata: %v", err)
	}
}

// TestHugeFiles: a file of any size takes no room on a disk.
func TestHugeFiles(t *testing.T) {
	root := tree(t, map[string]string{"a.jpg": "", "b.jpg": jpg(t, 1)})
	if err := os.Truncate(filepath.Join(root, "a.jpg"), 1<<42); err != nil {
		t.Skip(err)
	}
	if r := readAll(t, root, Options{}, ReadOptions{}); !slices.Equal(badOf(r),
		[]string{"a.jpg: it has 4,398,046,511,104 bytes, more than the 2,147,483,648 that a sample may have"}) {
		t.Errorf("bad %q", badOf(r))
	}
	for _, name := range []string{"x.csv", "x.jsonl", "index.json"} {
		path := filepath.Join(t.TempDir(), name)
		if err := errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 1<<42)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), path, Options{}); err == nil ||
			!strings.Contains(err.Error(), "the most that is read into memory") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
