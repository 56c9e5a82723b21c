package source

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// TestChoice reads some of the columns of each format.
func TestChoice(t *testing.T) {
	photo := map[string]string{"a.jpg": jpg(t, 1)}
	with := func(name, content string) map[string]string {
		return map[string]string{"a.jpg": photo["a.jpg"], name: content}
	}
	table := "path,split,label,id,note\na.jpg,test,cat,7,x\n"
	voice := map[string]string{"clips/a.mp3": "x", "train.tsv": "path\tsentence\tup_votes\na.mp3\thello\t2\n"}
	tars := map[string]string{"x.tar": makeTar(t, entry{"a.jpg", jpg(t, 1)}, entry{"a.cls", "1"},
		entry{"a.npy", "NUMPY"}, entry{"a.json", `{"k": 1, "m": {"x": 2, "y": 3}}`})}
	for name, c := range map[string]struct {
		files          map[string]string
		path           string
		columns, leave []string
		want           string // the columns of the dataset but id
	}{
		"table": {with("t.csv", table), "t.csv", nil, nil,
			"file_name label source_id note image width height format orientation"},
		"some of a table": {with("t.csv", table), "t.csv", []string{"note"}, nil,
			"file_name note image width height format orientation"},
		"a table's paths": {with("t.csv", table), "t.csv", nil, []string{"path", "label", "format"},
			"source_id note image width height orientation"},
		"by the dataset's name": {with("t.csv", table), "t.csv", []string{"source_id", "note"}, []string{"n*"},
			"file_name source_id image width height format orientation"},
		"folders": {map[string]string{"x/a.jpg": jpg(t, 1)}, ".", nil, []string{"label", "file_name", "*t*"}, "image"},
		"metadata": {map[string]string{"x/a.jpg": jpg(t, 1), "metadata.csv": "file_name,label,n\nx/a.jpg,cat,1\n"}, ".",
			[]string{"n"}, []string{"width"}, "label file_name n image height format orientation"},
		"voice":      {voice, ".", []string{"sentence"}, []string{"duration", "file_name"}, "sentence audio sampling_rate channels"},
		"webdataset": {tars, ".", nil, nil, "label file_name k m_x m_y image npy width height format orientation"},
		"some of tars": {tars, ".", nil, []string{"cls", "npy", "m_*", "file_name"},
			"k image width height format orientation"},
		"metadata of tars": {tars, ".", []string{"m_y", "label"}, nil, "label file_name m_y"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(tree(t, c.files), c.path)
			r := readAll(t, path, Options{Columns: c.columns, LeaveOut: c.leave}, ReadOptions{LeaveOut: c.leave})
			want := strings.Fields(c.want)
			got := fieldNames(r.schema.Fields()[1:])
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) || len(r.rows) != 1 || len(r.bad) != 0 {
				t.Errorf("columns %q, want %q; %d rows, bad %v", got, want, len(r.rows), r.bad)
			}
		})
	}
	// A split that is left out has no samples.
	path := filepath.Join(tree(t, with("t.csv", table)), "t.csv")
	if r := readAll(t, path, Options{LeaveOut: []string{"split"}}, ReadOptions{}); len(r.splits) != 0 {
		t.Errorf("splits %q", r.splits)
	}
	for flag, opts := range map[string]Options{"--columns": {Columns: []string{"nota"}},
		"--leave-out": {LeaveOut: []string{"nota"}}} {
		_, err := Open(t.Context(), path, opts)
		if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), flag+": there is no column nota") ||
			!strings.Contains(err.Error(), "did you mean note?") {
			t.Errorf("%v", err)
		}
	}
}

// TestChoiceOfText: numbers in a column of Options.Text are text.
func TestChoiceOfText(t *testing.T) {
	root := tree(t, map[string]string{"a.jpg": jpg(t, 1), "b.jpg": jpg(t, 2),
		"t.csv": "path,label,n,m\na.jpg,1.10,1.50,1.50\nb.jpg,1.1,2,2\n",
		"x.tar": makeTar(t, entry{"a.jpg", jpg(t, 1)}, entry{"a.json", `{"n": 1.50, "m": 1.50, "l": [1.50]}`})})
	text := []string{"label", "n"}
	r := readAll(t, filepath.Join(root, "t.csv"), Options{Text: text}, ReadOptions{})
	if got := strings.Join(r.rows, "\n"); !strings.Contains(got, "label=1 n=1.50 m=1.5 ") ||
		!strings.Contains(got, "label=0 n=2 m=2 ") {
		t.Errorf("%s", got)
	}
	r = readAll(t, filepath.Join(root, "x.tar"), Options{Text: []string{"n", "l"}}, ReadOptions{})
	if got := strings.Join(r.rows, "\n"); !strings.Contains(got, "l=[1.50] m=1.5 n=1.50") {
		t.Errorf("%s", got)
	}
	if _, err := Open(t.Context(), filepath.Join(root, "t.csv"), Options{Text: []string{"width"}}); err == nil ||
		!strings.Contains(err.Error(), "--text: no column width is read from text") {
		t.Errorf("%v", err)
	}
}

// TestChoiceOfParquet leaves out a column that cannot be stored.
func TestChoiceOfParquet(t *testing.T) {
	root := t.TempDir()
	writeParquet(t, filepath.Join(root, "x.parquet"), "", []arrow.Field{
		{Name: "pic", Type: arrow.BinaryTypes.Binary}, {Name: "n", Type: arrow.PrimitiveTypes.Int32},
		{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.String)}},
		jsonText(t, []any{picture(t, "png", 1, 1, 1)}), "[1]", `[[{"key": "a", "value": "b"}]]`)
	r := readAll(t, root, Options{LeaveOut: []string{"m", "orientation"}}, ReadOptions{LeaveOut: []string{"width", "height", "format",
		"orientation"}})
	if got := fieldNames(r.schema.Fields()); !slices.Equal(got, []string{"id", "n", "pic"}) || len(r.rows) != 1 {
		t.Errorf("columns %q, rows %q", got, r.rows)
	}
}

// TestChoiceOfMDS leaves out a column whose encoding is refused.
func TestChoiceOfMDS(t *testing.T) {
	src, err := Open(t.Context(), "testdata/mds/pkl", Options{})
	if err == nil {
		t.Fatalf("opened %v", src)
	}
	_, after, _ := strings.Cut(err.Error(), `column "`)
	column, _, _ := strings.Cut(after, `"`)
	if _, err := Open(t.Context(), "testdata/mds/pkl", Options{LeaveOut: []string{column}}); err != nil {
		t.Errorf("without %q: %v", column, err)
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"a*", "ab", true}, {"*", "", true}, {"a*a", "a", false},
		{"a*a", "aa", true}, {"*b*", "abc", true}, {"*b*b*", "abc", false}, {"a*b*c", "a--b--c", true},
		{"a**c", "ac", true}, {"", "", true}, {"", "a", false}, {"*é", "café", true},
	} {
		if got := matches(c.pattern, c.name); got != c.want {
			t.Errorf("%q of %q: %t", c.name, c.pattern, got)
		}
	}
}
