package source

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// TestMissingShards: if names state the number of shards, a missing one is reported.
func TestMissingShards(t *testing.T) {
	fields := []arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}
	for name, c := range map[string]struct {
		files []string
		rows  int
		bad   []string
	}{
		"the first": {[]string{"data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet"}, 2,
			[]string{"data/train-*-of-00002.parquet: missing of 2 shards, as the names of the others say: " +
				"train-00000-of-00002.parquet"}},
		"the last two": {[]string{"train-000-of-003.parquet"}, 1,
			[]string{"train-*-of-003.parquet: missing of 3 shards, as the names of the others say: " +
				"train-001-of-003.parquet, train-002-of-003.parquet"}},
		"many": {[]string{"train-00003-of-99999.parquet"}, 1,
			[]string{"train-*-of-99999.parquet: missing of 99999 shards, as the names of the others say: " +
				"train-00000-of-99999.parquet, train-00001-of-99999.parquet, train-00002-of-99999.parquet, train-00004-of-99999.parquet, train-00005-of-99999.parquet and 99993 more"}},
		"most that a name can say": {[]string{"train-000000000-of-999999999.parquet"}, 1,
			[]string{"and 999999993 more"}},
		"none":         {[]string{"train-00000-of-00002-0af3.parquet", "train-00001-of-00002-9bc1.parquet"}, 2, nil},
		"none, from 1": {[]string{"train-00001-of-00002.parquet", "train-00002-of-00002.parquet"}, 2, nil},
		"twice": {[]string{"train-00000-of-00001-0af3.parquet", "train-00000-of-00001-9bc1.parquet"}, 2,
			[]string{"train-*-of-00001.parquet: two files are number 0 of 1: train-00000-of-00001-0af3.parquet and " +
				"train-00000-of-00001-9bc1.parquet"}},
		"two numbers": {[]string{"train-00000-of-00002.parquet", "train-00001-of-00003.parquet"}, 2,
			[]string{"train-*-of-00002.parquet: missing", "train-*-of-00003.parquet: missing"}},
		"beyond": {[]string{"train-00000-of-00001.parquet", "train-00007-of-00001.parquet"}, 2,
			[]string{"train-00007-of-00001.parquet is none of 1 shards"}},
		"of nothing": {[]string{"train-00000-of-00000.parquet"}, 1,
			[]string{"train-00000-of-00000.parquet is none of 0 shards"}},
		"other names": {[]string{"train-7.parquet", "of-3.parquet"}, 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for i, file := range c.files {
				writeParquet(t, filepath.Join(root, file), "", fields, fmt.Sprintf("[%d]", i))
			}
			r := readAll(t, root, Options{}, ReadOptions{})
			bad := badOf(r)
			if len(r.rows) != c.rows || len(bad) != len(c.bad) {
				t.Fatalf("%d rows, bad %q; want %d, %q", len(r.rows), bad, c.rows, c.bad)
			}
			for i := range bad {
				if !strings.Contains(bad[i], c.bad[i]) {
					t.Errorf("bad %q, want %q", bad[i], c.bad[i])
				}
			}
		})
	}
	// A single file was asked for.
	root := t.TempDir()
	path := filepath.Join(root, "train-00001-of-00002.parquet")
	writeParquet(t, path, "", fields, "[1]")
	if r := readAll(t, path, Options{}, ReadOptions{}); r.bad != nil {
		t.Errorf("bad %q", badOf(r))
	}
	// A split that is left out lacks nothing.
	writeParquet(t, filepath.Join(root, "test.parquet"), "", fields, "[1]")
	if r := readAll(t, root, Options{Split: "test"}, ReadOptions{}); r.bad != nil {
		t.Errorf("bad %q", badOf(r))
	}
}

func TestMissingTars(t *testing.T) {
	one := func(key string) string { return makeTar(t, entry{key + ".jpg", jpg(t, 1)}) }
	root := tree(t, map[string]string{"a-00000-of-00004.tar": one("a"), "a-00002-of-00004.tar": one("b"),
		"a-00003-of-00004.tar": one("c")})
	for pattern, missing := range map[string]string{
		"": "a-00001-of-00004.tar", "*.tar": "a-00001-of-00004.tar", "a-0000[0-1]-*.tar": "a-00001-of-00004.tar",
		"a-0000[23]-*.tar": "", "a-{00002..00003}-of-00004.tar": "", "a-00000-of-00004.tar": "",
	} {
		r := readAll(t, filepath.Join(root, pattern), Options{}, ReadOptions{})
		if bad := strings.Join(badOf(r), ""); missing == "" && bad != "" || !strings.HasSuffix(bad, missing) ||
			strings.Count(bad, "missing") != min(len(missing), 1) {
			t.Errorf("%s: bad %q, want %q", pattern, bad, missing)
		}
	}
}

// TestFolderNamedLikeAnImage: a rejected folder is no class, and does not shift other
// labels.
func TestFolderNamedLikeAnImage(t *testing.T) {
	root := tree(t, map[string]string{"b.jpg/1.jpg": jpg(t, 1), "a/1.jpg": jpg(t, 1), "c/1.jpg": jpg(t, 2),
		"a\xff/1.jpg": jpg(t, 1), "b\xff.jpg": jpg(t, 1)})
	r := readAll(t, root, Options{}, ReadOptions{})
	if got := schema.Classes(r.schema.Field(1)); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("classes %q", got)
	}
	if len(r.rows) != 2 || !strings.Contains(r.rows[1], "c/1.jpg: label=1 ") {
		t.Errorf("rows %q", r.rows)
	}
	want := []string{"a\ufffd/1.jpg: its name is not valid UTF-8", "b.jpg: a folder, not a file",
		"b\ufffd.jpg: its name is not valid UTF-8"}
	if bad := badOf(r); !slices.Equal(bad, want) {
		t.Errorf("bad %q, want %q", bad, want)
	}
}
