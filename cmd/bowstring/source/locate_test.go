package source

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
)

// TestNamesWrittenOtherwise: tables from Windows and macOS name the files of this folder.
func TestNamesWrittenOtherwise(t *testing.T) {
	nfc, nfd := norm.NFC.String("é"), norm.NFD.String("é")
	for name, c := range map[string]struct {
		files []string // of the folder
		rows  []string // of the table
		keys  []string // of the list
		bad   []string // part of the bad samples of the list, then of the folder
	}{
		"as they are": {[]string{"a/1.jpg", nfd + ".jpg", `b\2.jpg`}, []string{"a/1.jpg", nfd + ".jpg",
			`b\2.jpg`}, []string{"a/1.jpg", nfd + ".jpg", `b\2.jpg`}, nil},
		"a table in NFC": {[]string{nfd + "/" + nfd + ".jpg"}, []string{nfc + "/" + nfc + ".jpg"}, []string{nfc +
			"/" + nfc + ".jpg"}, nil},
		"a table in NFD": {[]string{nfc + "/a" + nfc + ".jpg"}, []string{nfd + "/a" + nfd + ".jpg"}, []string{nfd +
			"/a" + nfd + ".jpg"}, nil},
		"both ways": {[]string{nfc + "/" + nfd + ".jpg"}, []string{nfd + "/" + nfc + ".jpg"}, []string{nfd +
			"/" + nfc + ".jpg"}, nil},
		"backslashes": {[]string{"a/b/1.jpg", "2.jpg"}, []string{`a\b\1.jpg`, `.\2.jpg`}, []string{"a/b/1.jpg",
			"2.jpg"}, nil},
		"both": {[]string{"a/" + nfd + ".jpg"}, []string{`a\` + nfc + ".jpg"}, []string{"a/" + nfc +
			".jpg"}, nil},
		"two files": {[]string{nfc + ".jpg", nfd + ".jpg"}, []string{nfc + ".jpg", nfd + ".jpg"},
			[]string{nfc + ".jpg", nfd + ".jpg"}, nil},
		"one row of two": {[]string{nfc + ".jpg", nfd + ".jpg"}, []string{nfc + ".jpg"}, []string{nfc + ".jpg"},
			[]string{"", "no row of the metadata"}},
		"two rows of one": {[]string{nfc + ".jpg"}, []string{nfc + ".jpg", nfd + ".jpg"}, []string{nfc + ".jpg",
			nfd + ".jpg"}, []string{"", "there is no such image"}},
		"named twice": {[]string{"a/1.jpg"}, []string{`a\1.jpg`, "a/1.jpg"}, []string{"a/1.jpg"},
			[]string{"duplicate", "there is no such image"}},
		"out of the folder": {[]string{"1.jpg"}, []string{"1.jpg", `..\..\1.jpg`}, []string{"1.jpg"},
			[]string{"no such file", "there is no such image"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			for i, f := range c.files {
				files["in/"+f] = jpg(t, i+1)
			}
			table := "file_name,label\n"
			for _, r := range c.rows {
				table += r + ",1\n"
			}
			files["in/t.csv"] = table
			root := filepath.Join(tree(t, files), "in")
			if err := os.WriteFile(filepath.Join(root, "../../1.jpg"), []byte(jpg(t, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			r := readAll(t, filepath.Join(root, "t.csv"), Options{}, ReadOptions{})
			check := func(what string, keys []string, part int) {
				got := slices.Clone(r.keys)
				slices.Sort(got)
				slices.Sort(keys)
				if !slices.Equal(got, keys) {
					t.Errorf("%s: %q, want %q; bad %q", what, got, keys, badOf(r))
				}
				bad := ""
				if c.bad != nil {
					bad = c.bad[part]
				}
				if !strings.Contains(strings.Join(badOf(r), "\n"), bad) || bad == "" && len(r.bad) > 0 {
					t.Errorf("%s: bad %q, want %q", what, badOf(r), bad)
				}
			}
			check("list", slices.Clone(c.keys), 0)
			if err := os.Rename(filepath.Join(root, "t.csv"), filepath.Join(root, "metadata.csv")); err != nil {
				t.Fatal(err)
			}
			r = readAll(t, root, Options{}, ReadOptions{})
			keys := slices.Clone(c.files)
			if name == "one row of two" {
				keys = []string{nfc + ".jpg"}
			}
			check("folder", keys, 1)
		})
	}
}
