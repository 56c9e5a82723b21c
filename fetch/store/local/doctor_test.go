package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bowstring/fetch/store"
)

// TestExamine examines a store that is open, one whose process was killed, and one that
// was closed.
func TestExamine(t *testing.T) {
	says := func(found store.Findings, check string) string {
		t.Helper()
		for _, f := range found {
			if f.Check == check {
				return f.Level + ": " + f.Says
			}
		}
		t.Fatalf("nothing about %s: %+v", check, found)
		return ""
	}
	want := func(found store.Findings, check, part string) {
		t.Helper()
		if got := says(found, check); !strings.Contains(got, part) {
			t.Errorf("%s: %q, want %q", check, got, part)
		}
	}
	dir := filepath.Join(t.TempDir(), "store")
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := s.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Put(t.Context(), []byte("bow")); err != nil {
		t.Fatal(err)
	}
	found := Examine(dir, false)
	want(found, checkOwner, "in use by process")
	for _, f := range found {
		if f.Check == checkIndex || f.Level == store.LevelProblem {
			t.Errorf("of a store that is open: %+v", f)
		}
	}
	killed := filepath.Join(t.TempDir(), "killed")
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	before := listing(t, killed)
	found = Examine(killed, false)
	want(found, checkOwner, "by no process")
	want(found, checkShutdown, "warning: the store was not closed in order")
	want(found, checkSegments, "ok: ")
	if after := listing(t, killed); after != before {
		t.Errorf("looking changed the files from %s to %s", before, after)
	}
	for _, f := range Examine(killed, true) {
		if f.Check == checkIndex || f.Check == checkSync {
			t.Errorf("a cheap look has %+v", f)
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	found = Examine(dir, false)
	want(found, checkShutdown, "ok: ")
	if err := os.Rename(filepath.Join(dir, segmentsDir), filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, segmentsDir), 0o700); err != nil {
		t.Fatal(err)
	}
	want(Examine(dir, false), checkSegments, "problem: missing in")
}

// listing is the names and times of all files but those that are locked.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var list strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().IsRegular() && d.Name() != lockFile {
			list.WriteString(path + " " + info.ModTime().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list.String()
}
