package source

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/schema"
)

// tableOf reads a table of one file.
func tableOf(t *testing.T, name, content string) (*table, error) {
	t.Helper()
	root := tree(t, map[string]string{name: content})
	return localFiles(root).readTable(t.Context(), root, []string{name}, tableOptions{})
}

// shown returns a table in one line: columns with values, bad rows, and notes.
func (t *table) shown() string {
	var out []string
	for i, f := range t.fields {
		var cells []string
		for row := range t.rows {
			s := t.columns[i].ValueStr(row)
			if t.columns[i].IsValid(row) && f.Type.ID() == stringID {
				s = strconv.Quote(s)
			}
			cells = append(cells, s)
		}
		out = append(out, fmt.Sprintf("%s %s %s", f.Name, f.Type, strings.Join(cells, " ")))
	}
	for _, b := range t.bad {
		out = append(out, fmt.Sprintf("%s: %s", b.at, b.reason))
	}
	return strings.Join(append(out, t.notes...), "|")
}

var stringID = array.NewStringBuilder(nil).Type().ID()

func utf16Of(s string, little bool) string {
	var b []byte
	for _, u := range utf16.Encode([]rune("\ufeff" + s)) {
		if little {
			b = append(b, byte(u), byte(u>>8))
		} else {
			b = append(b, byte(u>>8), byte(u))
		}
	}
	return string(b)
}

// TestTables reads tables as people and programs write them.
func TestTables(t *testing.T) {
	const extra = "there is text behind the quotation mark that ends a cell; within it, a quotation mark is written " +
		`as ""`
	for name, c := range map[string]struct{ file, content, want string }{
		"pandas' index": {"x.csv", ",a\n0,x\n1,y\n",
			`column_1 int64 0 1|a utf8 "x" "y"|a column without a name is kept as "column_1"`},
		"a comma at each end": {"x.csv", "a,b,\n1,2,\n",
			`a int64 1|b int64 2|a column without a name holds nothing and was left out`},
		"more commas": {"x.csv", "a,b\n1,2,,\n3,4,5\n",
			`a int64 1|b int64 2|x.csv:3: the number of its cells is 3, and that of columns 2`},
		"no index but its name": {"x.csv", "column_1,\nx,y\n",
			`column_1 utf8 "x"|column_2 utf8 "y"|a column without a name is kept as "column_2"`},
		"names twice": {"x.csv", "a,a,a_2,a\n1,2,3,4\n", `a int64 1|a_3 int64 2|a_2 int64 3|a_4 int64 4|` +
			`column 2 has the name of one before it: "a" is kept as "a_3"|column 4 has the name of one before it: ` +
			`"a" is kept as "a_4"`},
		"a bare quotation mark": {"x.csv", "a,b\n5\" disk,1\nx,\"say \"\"hi\"\"\"\n",
			`a utf8 "5\" disk" "x"|b utf8 "1" "say \"hi\""`},
		"text behind a mark": {"x.csv", "a,b\n\"x\"y,1\nx,2\n", `a utf8 "x"|b int64 2|x.csv:2: ` + extra},
		"a mark that opens all": {"x.csv", "a,b\n\"x,1\ny,2\n",
			`a utf8 "y"|b int64 2|x.csv:2: a quotation mark opens a cell that does not end`},
		"marks in marks": {"x.csv", "a,b\n\"x \"quoted\" y\",1\n\"z\",2\n",
			`a utf8 "z"|b int64 2|x.csv:2: ` + extra},
		"lines in cells": {"x.csv", "a,b\r\n\"x\r\n\r\ny\",1\r\nz,2\r\n",
			`a utf8 "x\r\n\r\ny" "z"|b int64 1 2`},
		"lines are counted": {"x.csv", "a,b\n\"x\ny\",1\n\n  \nz\n",
			`a utf8 "x\ny"|b int64 1|x.csv:6: the number of its cells is 1, and that of columns 2`},
		"empty and null": {"x.csv", "a,b,c\n\"\",\"\",\nx,1,\n,,\n",
			`a utf8 "" "x" (null)|b int64 (null) 1 (null)|c utf8 (null) (null) (null)`},
		"spaces stay":    {"x.csv", " a , b\n x , 1\n", `a utf8 " x "|b utf8 " 1"`},
		"no end of line": {"x.csv", "a,b\n1,2", "a int64 1|b int64 2"},
		"old lines":      {"x.csv", "a,b\r1,2\r3,4", "a int64 1 3|b int64 2 4"},
		"a CR in a cell": {"x.csv", "a,b\nx\ry,2\n", `a utf8 "x\ry"|b int64 2`},
		"semicolons": {"x.csv", "a;b\n1;\"x;y\"\n",
			`a int64 1|b utf8 "x;y"|x.csv: its cells are separated by ";"`},
		"as Excel says": {"x.csv", "sep=;\r\na;b,c\r\n1;2\r\n",
			`a int64 1|b,c int64 2|x.csv: its cells are separated by ";"`},
		"a comma in a name": {"x.csv", "\"a,b\";c\n1;2\n",
			`a,b int64 1|c int64 2|x.csv: its cells are separated by ";"`},
		"a byte order mark":      {"x.csv", "\ufeffa,b\n1,\ufeffx\n", "a int64 1|b utf8 \"\\ufeffx\""},
		"a mark and a quotation": {"x.csv", "\ufeff\"a\",b\n1,x\n", `a int64 1|b utf8 "x"`},
		"UTF-16, little":         {"x.csv", utf16Of("a,é\n1,😀\n", true), `a int64 1|é utf8 "😀"`},
		"UTF-16, big":            {"x.tsv", utf16Of("a\té\r\n1\t😀\r\n", false), `a int64 1|é utf8 "😀"`},
		"UTF-16, cut": {"x.csv", utf16Of("a,b\nx,1\ny,z", true) + "z",
			`a utf8 "x"|b int64 1|x.csv:3: cell 2 is not valid UTF-8`},
		"UTF-16, half a pair": {"x.csv", utf16Of("a,b\nx,1\n", true) +
			"\x00\xd8,\x002\x00\n\x00z\x00,\x00\x3d\xd8\x00\xde",
			`a utf8 "x" "z"|b utf8 "1" "😀"|x.csv:3: cell 1 is not valid UTF-8`},
		"Latin-1": {"x.csv", "a,b\ncaf\xe9,1\nx,2\n",
			`a utf8 "x"|b int64 2|x.csv:2: cell 1 is not valid UTF-8`},
		"tabs, as pandas writes": {"x.tsv", "a\tb\n\"x\ty\"\t1\n\"say \"\"hi\"\"\"\t2\n\"l\nm\"\t3\n",
			`a utf8 "x\ty" "say \"hi\"" "l\nm"|b int64 1 2 3`},
		"tabs, as people write": {"x.tsv", "a\tb\n\"Hello,\" she said\t1\n5\"\t2\n",
			`a utf8 "\"Hello,\" she said" "5\""|b int64 1 2|x.tsv: quotation marks are text`},
		"tabs, a mark that opens": {"x.tsv", "a\tb\n\"Hello\t1\ninch 5\"\t2\n",
			`a utf8 "\"Hello" "inch 5\""|b int64 1 2|x.tsv: quotation marks are text`},
		"tabs, one mark": {"x.tsv", "a\tb\n\"\t1\n",
			"a utf8 \"\\\"\"|b int64 1|x.tsv: quotation marks are text"},
		"tabs, a ragged line": {"x.tsv", "a\tb\nx\n\"\ty\n",
			"a utf8 \"\\\"\"|b utf8 \"y\"|x.tsv:2: the number of its cells is 1, and that of columns 2|x.tsv: " +
				"quotation marks are text"},
		"one column of lines": {"x.tsv", "a\n\"x\ny\"\n", `a utf8 "x\ny"`},

		"JSON lines": {"x.jsonl", "\ufeff{\"a\": 1, \"b\": \"x\"}\r\n\r\n{\"b\": NaN}\n",
			`a int64 1 (null)|b utf8 "x" "NaN"`},
		"JSON, NaN": {"x.jsonl", "{\"a\": NaN}\n{\"a\": -Infinity}\n{\"a\": 1}\n{\"a\": null}\n",
			"a float64 NaN -Inf 1 (null)"},
		"JSON, a bad line": {"x.ndjson", "{\"a\": 1}\n{\"a\": }\n[2]\n{\"a\": 3}",
			"a int64 1 3|x.ndjson:2: bad JSON: got '}' at byte 7, want a value|x.ndjson:3: bad JSON: got '[' at " +
				"byte 1, want an object"},
		"JSON list": {"x.json", "\ufeff [\n {\"a\": 1, \"s\": \"],}\\\"\"},\n\n {\"a\": [1,\n2]}]\n ",
			`a utf8 "1" "[1,\n2]"|s utf8 "],}\"" (null)`},
		"JSON list, empty":    {"x.json", " [ ] ", ""},
		"JSON list, a last ,": {"x.json", `[{"a": 1},]`, "a int64 1"},
		"JSON list, bad": {"x.json", "[{\"a\": 1},\n 5,\n{\"a\": 01}, {\"a\": 2}, \n{\"a\": 3",
			"a int64 1 2|x.json:2: bad JSON: got '5' at byte 1, want an object|x.json:3: bad JSON: got '0' at " +
				"byte 7, want a value|x.json:4: bad JSON: the list does not end"},
		"JSON list by its text": {"x.jsonl", `[{"a": 1}]`, "a int64 1"},
		"JSON in .json lines":   {"x.json", "{\"a\": 1}\n{\"a\": 2}\n", "a int64 1 2"},
		"JSON names": {"x.jsonl", `{"b": {"y": 1, "x": {"z": true}}, "a": {}, "": 0}`,
			"b_y int64 1|b_x_z bool true| int64 0"},
	} {
		t.Run(name, func(t *testing.T) {
			table, err := tableOf(t, c.file, c.content)
			if err != nil {
				t.Fatal(err)
			}
			if got := table.shown(); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
	for name, c := range map[string]struct{ file, content, want string }{
		"nothing":             {"x.csv", "", "the file is empty"},
		"blank":               {"x.csv", "\n \n", "no line with the names"},
		"a name that is none": {"x.csv", "caf\xe9,b\n", "convert the file, such as by iconv"},
		"UTF-16, not marked":  {"x.csv", "a\x00,\x00b\x00\n\x00", "UTF-16 begins with a byte order mark"},
		"UTF-32":              {"x.csv", "\xff\xfe\x00\x00a\x00\x00\x00", "it is UTF-32"},
		"a header that opens": {"x.csv", "\"a,b\n1,2\n", "line 1: a quotation mark opens a cell that does not end"},
		"no JSON":             {"x.jsonl", "{\n", "no line can be read; the first of 1 is x.jsonl:1: bad JSON"},
		"text behind a list":  {"x.json", "[{\"a\": 1}]\n x", "line 2: bad JSON: text behind the list"},
	} {
		if table, err := tableOf(t, c.file, c.content); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want %q", name, table, err, c.want)
		}
	}
}

// TestWideTable selects from more columns than a dataset may have.
func TestWideTable(t *testing.T) {
	var head, row []string
	for i := range 20_000 {
		head, row = append(head, fmt.Sprintf("c%d", i)), append(row, strconv.Itoa(i))
	}
	root := tree(t, map[string]string{"a.jpg": jpg(t, 1), "t.csv": "path," + strings.Join(head, ",") + "\na.jpg," +
		strings.Join(row, ",") + "\n"})
	path := filepath.Join(root, "t.csv")
	if _, err := Open(t.Context(), path, Options{}); !errors.Is(err, schema.ErrLimit) ||
		!strings.Contains(err.Error(), "it has 20001 columns, more than the 4096") {
		t.Errorf("%v", err)
	}
	r := readAll(t, path, Options{Columns: []string{"c19999", "c1999*"}}, ReadOptions{})
	if len(r.rows) != 1 || !strings.Contains(r.rows[0], "c19999=19999") || r.schema.HasField("c0") {
		t.Errorf("%q", r.rows)
	}
}

// TestPathsAndSplitsAreText: they may look like numbers.
func TestPathsAndSplitsAreText(t *testing.T) {
	root := tree(t, map[string]string{"007": jpg(t, 1), "8": jpg(t, 2),
		"t.csv":   "path,split,label\n007,1,1.10\n8,2,1.1\n",
		"t.jsonl": `{"path": 8, "split": 2, "label": true}`})
	r := readAll(t, filepath.Join(root, "t.csv"), Options{}, ReadOptions{})
	if !slices.Equal(r.keys, []string{"007", "8"}) || !slices.Equal(r.splits, []string{"1", "2"}) {
		t.Errorf("%q in %q, bad %v", r.keys, r.splits, r.bad)
	}
	r = readAll(t, filepath.Join(root, "t.jsonl"), Options{}, ReadOptions{})
	if !slices.Equal(r.keys, []string{"8"}) || !slices.Equal(r.splits, []string{"2"}) {
		t.Errorf("%q in %q, bad %v", r.keys, r.splits, r.bad)
	}
}

// TestManyBadRows: a file with bad lines only is no table.
func TestManyBadRows(t *testing.T) {
	_, err := tableOf(t, "x.csv", "a,b\n"+strings.Repeat("x\n", maxBadRows+1))
	if !errors.Is(err, schema.ErrLimit) || !strings.Contains(err.Error(), "the first is x.csv:2") {
		t.Errorf("%v", err)
	}
}

// TestOpenMarks reads many cells whose quotation does not end. The reader does not read
// the rest of the file for each.
func TestOpenMarks(t *testing.T) {
	in := strings.NewReader("a,b\n" + strings.Repeat("\"x,1\n\"\"\"y,2\n\"\"z,3\n", 100_000))
	d := &delimited{lines: newLineReader(bufio.NewReader(in)), comma: ','}
	records := 0
	for {
		if _, err := d.next(); err != nil {
			break
		}
		records++
	}
	if records != 300_001 {
		t.Errorf("%d records", records)
	}
}

// TestLongNames: names that a dataset does not allow are replaced by distinct ones.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("é", 100)
	names := []string{"a", "id", "source_id", "", long, long + "x", "image", "unnamed"}
	got := freeNames("source_", names, []string{"image"})
	seen := map[string]bool{}
	for i, name := range got {
		if name == "" || len(name) > schema.MaxNameLen || seen[name] || name == "id" || name == "image" ||
			!strings.HasPrefix(name, "éééé") && i >= 4 && i < 6 || strings.ContainsRune(name, '\ufffd') {
			t.Errorf("%q becomes %q", names[i], name)
		}
		seen[name] = true
	}
	if again := freeNames("source_", names, []string{"image"}); !slices.Equal(got, again) || got[0] != "a" ||
		got[1] != "source_id_2" || got[2] != "source_id" || got[6] != "source_image" || got[7] != "unnamed" {
		t.Errorf("%q", got)
	}
	root := tree(t, map[string]string{"a.jpg": jpg(t, 1), "t.csv": "path," + long + ",source_id,id\na.jpg,x,y,z\n",
		"t.jsonl": `{"path": "a.jpg", "` + long + `": {"k": 1}, "": 2}`,
		"x.tar": makeTar(t, entry{"a.jpg", jpg(t, 1)}, entry{"a.json", `{"` + long +
			`": 1, "json_id": 2, "id": 3, "": 4}`})})
	for name, notes := range map[string]int{"t.csv": 2, "t.jsonl": 2, "x.tar": 3} {
		r := readAll(t, filepath.Join(root, name), Options{}, ReadOptions{})
		if len(r.rows) != 1 || len(r.notes) != notes {
			t.Errorf("%s: %d rows, notes %q", name, len(r.rows), r.notes)
		}
	}
}

// FuzzTable: for any bytes, each column has one value or null for each row.
func FuzzTable(f *testing.F) {
	for kind, s := range map[string]string{"csv": "path,a\nx,1\ny,\n", "tsv": "a\tb\n\"x\"y\t1\n\"\n",
		"json":  `[{"a": 1}, 2]`,
		"jsonl": "{\"a\": [1]}\n{\"b\": {}}"} {
		f.Add(kind, []byte(s))
		f.Add(kind, []byte(utf16Of(s, true)))
	}
	f.Fuzz(func(t *testing.T, kind string, data []byte) {
		if !slices.Contains(tableExtensions, kind) || kind == "parquet" {
			return
		}
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "x."+kind), data, 0o644); err != nil {
			t.Fatal(err)
		}
		built, err := localFiles(root).readTable(t.Context(), root, []string{"x." + kind}, tableOptions{})
		if err != nil {
			return
		}
		for i, c := range built.columns {
			if c.Len() != built.rows {
				t.Errorf("%d values in %d rows", c.Len(), built.rows)
			}
			for row := range built.rows {
				if !validText(Cell{c, row}) {
					t.Errorf("column %q is no UTF-8 in row %d", built.fields[i].Name, row)
				}
			}
		}
	})
}
