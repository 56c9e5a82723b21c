package source

import (
	"strings"
	"testing"
)

// TestTablesWithoutFiles: a table that names no files has rows of metadata, with ids that
// stay.
func TestTablesWithoutFiles(t *testing.T) {
	files := map[string]string{"a.csv": "split,prompt,label\ntest,Why?,b\ntrain,How?,a\n",
		"b.jsonl": `{"prompt": "Why?", "turns": [1, 2]}` + "\n", "c.csv": "n,photo\n1,x\n2,a.png\n"}
	root := tree(t, files)
	r := readAll(t, root+"/a.csv", Options{}, ReadOptions{})
	if len(r.rows) != 2 || len(r.bad) != 0 || !strings.Contains(r.rows[0], "test a.csv#0: prompt=Why? label=1") {
		t.Errorf("rows %q, bad %v", r.rows, r.bad)
	}
	if len(r.notes) != 1 || !strings.Contains(r.notes[0], "no column of paths") {
		t.Errorf("notes %q", r.notes)
	}
	r = readAll(t, root+"/b.jsonl", Options{}, ReadOptions{})
	if len(r.rows) != 1 || r.rows[0] != "train b.jsonl#0: prompt=Why? turns=[1,2]" {
		t.Errorf("rows %q", r.rows)
	}
	// A column with the name of an image may be meant as the paths.
	if _, err := Open(t.Context(), root+"/c.csv", Options{}); err == nil ||
		!strings.Contains(err.Error(), "say which with --path-column") {
		t.Errorf("%v", err)
	}
}
