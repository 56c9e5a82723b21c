package source

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// unfinished is a tar without its end mark.
func unfinished(t *testing.T, files ...entry) string {
	t.Helper()
	whole := makeTar(t, files...)
	return whole[:len(whole)-2*tarBlock]
}

// TestJoinedTars: nothing after the end mark of a tar is dropped, however the tars were
// joined and compressed. Other bytes there are reported with their place.
func TestJoinedTars(t *testing.T) {
	zeros := func(n int) string { return strings.Repeat("\x00", n) }
	a := makeTar(t, entry{"a.jpg", jpg(t, 1)}, entry{"a.txt", "a"})
	b := makeTar(t, entry{"b.jpg", jpg(t, 2)}, entry{"b.txt", "b"})
	c := makeTar(t, entry{"c.jpg", jpg(t, 3)}, entry{"c.txt", "c"})
	openA := unfinished(t, entry{"a.jpg", jpg(t, 1)}, entry{"a.txt", "a"})
	full := a + zeros(10240-len(a)%10240) // as GNU tar and Python's tarfile pad
	gzCut := gzipped(t, b)[:len(gzipped(t, b))-9]
	for name, test := range map[string]struct {
		file, content string
		keys          string
		bad           string // the beginning of the only bad item, "" for none
	}{
		"two":                     {"x.tar", a + b, "ab", ""},
		"three, padded":           {"x.tar", full + full[:0] + b + zeros(5*tarBlock) + c + zeros(512), "abc", ""},
		"with an empty one":       {"x.tar", makeTar(t) + a + makeTar(t) + makeTar(t) + b + makeTar(t), "ab", ""},
		"one block of zeros":      {"x.tar", openA + zeros(tarBlock) + b, "ab", ""},
		"no mark between":         {"x.tar", openA + b, "ab", ""},
		"a sample over two":       {"x.tar", makeTar(t, entry{"a.jpg", jpg(t, 1)}) + makeTar(t, entry{"a.txt", "a"}), "a", ""},
		"joined, then gzip":       {"x.tar.gz", gzipped(t, a+b), "ab", ""},
		"gzip, then joined":       {"x.tar.gz", gzipped(t, a) + gzipped(t, b) + gzipped(t, c), "abc", ""},
		"one tar in two members":  {"x.tgz", gzipped(t, a[:700]) + gzipped(t, a[700:]), "a", ""},
		"gzip, empty member":      {"x.tgz", gzipped(t, a) + gzipped(t, "") + gzipped(t, b), "ab", ""},
		"gzip, padded":            {"x.tgz", gzipped(t, a) + gzipped(t, b) + zeros(1000), "ab", ""},
		"zstd frames":             {"x.tar.zst", zstandard(t, a) + zstandard(t, b), "ab", ""},
		"zstd, skipped frame":     {"x.tar.zst", zstandard(t, a) + "\x51\x2a\x4d\x18\x03\x00\x00\x00abc" + zstandard(t, b), "ab", ""},
		"gzip that says tar":      {"x.tar", gzipped(t, a) + gzipped(t, b), "ab", ""},
		"a tar that says gzip":    {"x.tar.gz", a + b, "ab", ""},
		"junk":                    {"x.tar", a + "junk", "a", fmt.Sprintf("x.tar: after 1 samples: unknown bytes behind the end: at byte %d,", len(a))},
		"much junk":               {"x.tar", a + b + strings.Repeat("junk", 1000), "ab", "x.tar: after 2 samples: unknown bytes behind the end"},
		"junk behind zeros":       {"x.tar", a + zeros(4096) + "junk", "a", fmt.Sprintf("x.tar: after 1 samples: unknown bytes behind the end: at byte %d,", len(a)+4096)},
		"not whole blocks":        {"x.tar", a[:len(a)-1] + b, "", "x.tar: after 0 samples, at a: at byte "},
		"second is cut":           {"x.tar", a + b[:len(b)-2048], "a", "x.tar: after 1 samples, at b: cut short"},
		"second has no mark":      {"x.tar", a + b[:len(b)-2*tarBlock], "a", "x.tar: after 1 samples, at b: cut short: no end-of-archive mark"},
		"junk behind gzip":        {"x.tgz", gzipped(t, a) + gzipped(t, b) + "a text that is no gzip", "ab", "x.tgz: after 2 samples: unknown bytes behind the end: what follows gzip member 2 is none"},
		"few bytes behind gzip":   {"x.tgz", gzipped(t, a) + "ab", "a", "x.tgz: after 1 samples: unknown bytes behind"},
		"gzip member cut at once": {"x.tgz", gzipped(t, a) + gzipped(t, b)[:5], "", "x.tgz: after 0 samples, at a: cut"},
		"junk behind zstd":        {"x.tar.zst", zstandard(t, a) + "a text that is none", "a", "x.tar.zst: after 1 samples: unknown bytes behind the end: what follows the last zstd frame"},
		"second gzip is cut":      {"x.tgz", gzipped(t, a) + gzCut, "a", "x.tgz: after 1 samples, at b: cut short"},
		"zstd is cut":             {"x.tar.zst", zstandard(t, a) + zstandard(t, b)[:50], "", "x.tar.zst: after 0 samples, at a: cut short"},
		"xz":                      {"x.tar.xz", "\xfd7zXZ\x00 and more", "", `x.tar.xz: after 0 samples: unreadable: compression "xz"`},
		"zeros at the end of one": {"x.tar", a + unfinished(t, entry{"b.jpg", jpg(t, 2)}, entry{"b.bin", zeros(4096)}), "a", "x.tar: after 1 samples, at b: cut short: no end-of-archive mark"},
	} {
		t.Run(name, func(t *testing.T) {
			// Another file has samples, so that the source as a whole can be opened.
			root := tree(t, map[string]string{test.file: test.content, "zz.tar": makeTar(t, entry{"z.jpg", jpg(t, 9)},
				entry{"z.txt", "z"})})
			r := readAll(t, root, Options{}, ReadOptions{})
			if got := strings.Join(r.keys, ""); got != test.keys+"z" {
				t.Errorf("keys %q, want %q", got, test.keys+"z")
			}
			bad := badOf(r)
			if test.bad == "" && len(bad) > 0 || test.bad != "" && (len(bad) != 1 || !strings.HasPrefix(bad[0], test.bad)) {
				t.Errorf("bad %q, want %q", bad, test.bad)
			}
			for _, row := range r.rows {
				if strings.Contains(row, "txt=(null)") {
					t.Errorf("a sample lost a member: %s", row)
				}
			}
		})
	}
}

// TestTarVariants reads names as the formats of tar keep them.
func TestTarVariants(t *testing.T) {
	long := strings.Repeat("d/", 80) + strings.Repeat("n", 120)
	prefixed := strings.Repeat("folder/", 20) + "a" // fits a prefix and a name of ustar
	const composed, decomposed = "gr\u00f6\u00dfe", "gro\u0308\u00dfe"
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	var want []string
	add := func(format tar.Format, key, ext, content string) {
		t.Helper()
		h := &tar.Header{Name: key + "." + ext, Mode: 0o644, Size: int64(len(content)), Format: format}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		format tar.Format
		key    string
	}{
		{tar.FormatGNU, "gnu/" + long}, {tar.FormatPAX, "pax/" + long}, {tar.FormatUSTAR, prefixed},
		{tar.FormatPAX, composed}, {tar.FormatPAX, decomposed}, {tar.FormatGNU, "x/" + decomposed},
		{tar.FormatPAX, `back\slash`}, {tar.FormatPAX, "a b"},
	} {
		add(c.format, c.key, "jpg", jpg(t, i))
		add(c.format, c.key, "note.txt", c.key)
		if c.format == tar.FormatUSTAR { // holds ASCII alone
			want = append(want, c.key)
			continue
		}
		add(c.format, c.key, decomposed+".png", string(picture(t, "png", i, 2, 2)))
		want = append(want, c.key)
	}
	add(tar.FormatPAX, "last", "jpg", jpg(t, 1))
	add(tar.FormatPAX, "last", composed+".png", string(picture(t, "png", 9, 2, 2)))
	want = append(want, "last")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if h, err := tar.NewReader(bytes.NewReader(b.Bytes())).Next(); err != nil || h.Format != tar.FormatGNU {
		t.Fatalf("the first header is of format %v, %v", h.Format, err)
	}
	r := readAll(t, tree(t, map[string]string{"x.tar": b.String()}), Options{}, ReadOptions{})
	if !slices.Equal(r.keys, want) || len(r.bad) > 0 {
		t.Errorf("keys %q, want %q; bad %q", r.keys, want, badOf(r))
	}
	if blobs := fieldNames(r.schema.Fields()); !slices.Contains(blobs, composed) || slices.Contains(blobs, decomposed) {
		t.Errorf("columns %q, want one named %q", blobs, composed)
	}
	for i, row := range r.rows[:len(r.rows)-1] {
		if !strings.Contains(row, "note="+want[i]+" ") || want[i] != prefixed && strings.Contains(row, composed+"=null") {
			t.Errorf("row %d, of %q: %s", i, want[i], row)
		}
	}
}

// TestDecompressEnds: each stream is read to its end, so that its checksum counts.
func TestDecompressEnds(t *testing.T) {
	a := makeTar(t, entry{"a.jpg", jpg(t, 1)})
	damaged := []byte(gzipped(t, a))
	damaged[len(damaged)-6] ^= 1 // the checksum
	_, err := Open(t.Context(), tree(t, map[string]string{"x.tgz": string(damaged)}), Options{})
	if err != nil && !errors.Is(err, errCut) {
		t.Logf("refused as a whole: %v", err)
		return
	}
	r := readAll(t, tree(t, map[string]string{"x.tgz": string(damaged)}), Options{}, ReadOptions{})
	if len(r.rows) != 0 || len(r.bad) != 1 || !strings.Contains(r.bad[0].Reason, "invalid checksum") {
		t.Errorf("%d rows, bad %q", len(r.rows), badOf(r))
	}
}
