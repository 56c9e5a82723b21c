package command

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// An update of what is attached to a store in a bucket makes a snapshot where something
// has changed, and none elsewhere. The parts of the previous snapshot that it needs last
// when that is dropped and collected.
func TestAttachUpdateInBucketStore(t *testing.T) {
	root := t.TempDir()
	put := func(name, content string) {
		t.Helper()
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"one", "two", "three"} {
		put(name+".txt", name)
	}
	list := filepath.Join(root, "list.csv")
	put("list.csv", "path,value\none.txt,1\ntwo.txt,2\nthree.txt,3\n")
	store := "file://" + filepath.Join(t.TempDir(), "store")
	if status, _, errs := runCommand(t, "store", "init", "--store", store); status != 0 {
		t.Fatal(errs)
	}
	rows := func(where string) []storedRow {
		_, rows := storedRows(t, where, "d")
		return rows
	}
	imported := func() []storedRow {
		where := filepath.Join(t.TempDir(), "imported")
		if status, _, errs := runImport(t, list, "d", "--verify", "none", "--store", where); status != 0 {
			t.Fatal(errs)
		}
		return rows(where)
	}
	attachJSON(t, list, "d", "--verify", "none", "--store", store)
	for _, step := range []struct {
		name    string
		change  func()
		changed bool
	}{
		{"nothing", func() {}, false},
		{"a file", func() { put("two.txt", "another two") }, true},
		{"nothing after a change", func() {}, false},
		{"a value of the table", func() { put("list.csv", "path,value\none.txt,1\ntwo.txt,5\nthree.txt,3\n") }, true},
		{"a row", func() { put("list.csv", "path,value\none.txt,1\nthree.txt,3\n") }, true},
	} {
		step.change()
		sum := attachJSON(t, "--update", "d", "--store", store)
		if sum.Changed != step.changed {
			t.Errorf("%s: changed %v, want %v", step.name, sum.Changed, step.changed)
		}
		if step.changed {
			if status, _, errs := runCommand(t, "drop", fmt.Sprintf("d@%d", sum.Snapshot-1), "--yes", "--store", store); status != 0 {
				t.Fatal(errs)
			}
			if status, _, errs := runCommand(t, "gc", "--store", store); status != 0 {
				t.Fatal(errs)
			}
		}
		if got, want := rows(store), imported(); !slices.EqualFunc(got, want, sameRow) {
			t.Errorf("%s: rows %+v, want %+v", step.name, got, want)
		}
	}
}
