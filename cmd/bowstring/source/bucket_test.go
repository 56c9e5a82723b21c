package source

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bowstring/schema"
)

// checkPlaces compares the blobs of a batch with the bytes at the extents that the batch
// names. It returns how many have a place.
func checkPlaces(t *testing.T, files *Files, b *Batch, walked bool) (found int) {
	t.Helper()
	for c := range b.Blobs {
		for row, blob := range b.Blobs[c] {
			at := b.At[c][row]
			if at.IsZero() {
				continue
			}
			found++
			f, err := files.Open(t.Context(), at.File)
			if err != nil {
				t.Fatalf("%s: %v", b.Keys[row], err)
			}
			whole, err := io.ReadAll(f)
			if err != nil {
				t.Fatalf("%s: %v", b.Keys[row], err)
			}
			if at.Unit != nil {
				whole = decodeUnit(t, whole, *at.Unit)
			}
			got := whole[at.Offset : at.Offset+at.Length]
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if walked && blob == nil {
				continue
			}
			if blob == nil || !bytes.Equal(got, blob) {
				t.Errorf("%s: the bytes at %+v differ from the blob's", b.Keys[row], at)
			}
		}
	}
	return found
}

// fileURL returns a local path as a URL.
func fileURL(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

// likeABucket reports whether the files at a path could be in a bucket: there are no
// links, no absolute paths in files, and nothing unreadable.
func likeABucket(t *testing.T, path string) bool {
	t.Helper()
	if strings.ContainsAny(path, patternRunes) {
		return false
	}
	ok := true
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			ok = false
			return fs.SkipAll
		}
		if d.IsDir() {
			if entries, err := os.ReadDir(p); err == nil && len(entries) == 0 {
				ok = false // there are no empty folders in buckets
			}
			return nil
		}
		if info, err := d.Info(); err != nil || info.Size() > 64<<20 {
			ok = false
			return fs.SkipAll
		}
		content, err := os.ReadFile(p)
		root := path
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			root = filepath.Dir(path)
		}
		ok = ok && err == nil && (len(content) > 1<<20 || !bytes.Contains(content, []byte(root)))
		return nil
	})
	return ok && err == nil
}

// sameInBucket reads a data set again from a bucket, and compares.
func (r *readResult) sameInBucket(t *testing.T, path string, opts Options, read ReadOptions) {
	t.Helper()
	if !likeABucket(t, path) {
		return
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		t.Fatal(err)
	}
	got := readOnce(t, fileURL(abs), opts, read)
	clean := func(s string) string {
		for _, root := range []string{fileURL(abs), fileURL(filepath.Dir(abs)), abs, filepath.Dir(abs)} {
			s = strings.ReplaceAll(s, root, "ROOT")
		}
		for strings.Contains(s, "../../") { // the depth of a path out of the folder depends on the place
			s = strings.ReplaceAll(s, "../../", "../")
		}
		return s
	}
	if have, want := clean(got.text()), clean(r.text()); have != want {
		t.Errorf("%s in a bucket is\n%s\nand in a folder\n%s", path, have, want)
	}
	if got.placed != r.placed {
		t.Errorf("%s: %d blobs have a place in a bucket, and %d in a folder", path, got.placed, r.placed)
	}
	if fmt.Sprint(got.ids) != fmt.Sprint(r.ids) {
		t.Errorf("%s: ids differ", path)
	}
	opts.Walk = true
	walked := readOnce(t, fileURL(abs), opts, read)
	for key, at := range got.at {
		if have, ok := walked.at[key]; !ok || have != at {
			t.Errorf("%s: %s is at %s by its header, and at %s", path, key, have, at)
		}
	}
	same := func(r *readResult, other *readResult) (ids []schema.ID) {
		for i, key := range r.keys {
			if slices.Contains(other.keys, key) {
				ids = append(ids, r.ids[i])
			}
		}
		return ids
	}
	if !slices.Equal(same(got, walked), same(walked, got)) {
		t.Errorf("%s: walked, the ids differ, or their order", path)
	}
}
