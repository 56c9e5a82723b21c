package source

import (
	"errors"
	"strings"
	"testing"

	"bowstring/schema"
)

// TestBadRowsOfMetadata: every reader of a table names a row that cannot be read.
func TestBadRowsOfMetadata(t *testing.T) {
	root := tree(t, map[string]string{"a.jpg": jpg(t, 1), "b.jpg": jpg(t, 2),
		"metadata.csv": "left_file_name,right_file_name,n\na.jpg,b.jpg,1\na.jpg\n"})
	r := readAll(t, root, Options{}, ReadOptions{})
	if len(r.rows) != 1 || len(r.bad) != 1 || !strings.Contains(r.bad[0].Key+r.bad[0].Reason, "metadata.csv:3") {
		t.Errorf("rows %q, bad %v", r.rows, r.bad)
	}
	_, err := ReadFrame(t.Context(), root+"/metadata.csv", nil)
	want := "1 rows cannot be read; the first is metadata.csv:3"
	if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}
}
