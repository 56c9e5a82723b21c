package source

import (
	"slices"
	"strings"
	"testing"
)

// TestJSONMembers: a member .json need not hold an object, and what several dots name is
// read by the last word, as the library of WebDataset decodes it.
func TestJSONMembers(t *testing.T) {
	for name, c := range map[string]struct {
		members []string // of one sample each: extension=content, separated by |
		rows    []string // the columns behind file_name
		bad     string
	}{
		"a list":         {[]string{`json=[1, 2]`, `json= [3]`, `json=[]`}, []string{"json=[1,2]", "json=[3]", "json=[]"}, ""},
		"a text":         {[]string{`json="a \u00e4"`, `json=" "`}, []string{"json=a ä", "json= "}, ""},
		"a number, true": {[]string{`json=5`, `json=-7`}, []string{"json=5", "json=-7"}, ""},
		"true":           {[]string{`json=true`, `json=null`}, []string{"json=true", "json=(null)"}, ""},
		"of all kinds": {[]string{`json={"a": 1}`, `json=[1]`, `json="x"`},
			[]string{"json=(null) a=1", "json=[1] a=(null)", "json=x a=(null)"}, ""},
		"a key of that name": {[]string{`json={"json": 1}`, `json=[1]`},
			[]string{"json=(null) json_2=1", "json=[1] json_2=(null)"}, ""},
		"info.json": {[]string{`info.json={"a": 1, "b": {"c": "x"}}|json={"a": "y"}`, `info.json=[2]|json={"a": "z"}`},
			[]string{"a=y info=(null) info_a=1 info_b_c=x", "a=z info=[2] info_a=(null) info_b_c=(null)"}, ""},
		"the same names": {[]string{`info.json={"a": 1}|json={"info_a": "y", "info": {"a": 1.5}}`}, nil,
			`two values for column info_a`},
		"one name from two": {[]string{`info.json={"a": 1}|json={"info_a": "y"}`},
			[]string{"info_a=y info_a_2=1"}, ""},
		"jsn": {[]string{`jsn={"a": 1}`}, []string{"a=1"}, ""},
		"texts and numbers": {[]string{`en.txt=one|de.txt=eins|count.cls=3|txt=none`, `de.txt=zwei|count.cls= 4`},
			[]string{"count=3 de=eins en=one", "count=4 de=zwei en=(null)"}, ""},
		"many words":    {[]string{`a.b.txt=x|a.b.json=[1]|a.b.png.json=2`}, []string{"a_b=x json_a_b=[1] a_b_png=2"}, ""},
		"no JSON":       {[]string{`json=[1`}, nil, "bad JSON: unexpected EOF"},
		"two values":    {[]string{`json=[1] [2]`}, nil, "bad JSON: more than one value"},
		"nothing":       {[]string{`json= `}, nil, "bad JSON: unexpected EOF"},
		"deep":          {[]string{`json=` + strings.Repeat("[", 40) + strings.Repeat("]", 40)}, nil, "nested more than 16"},
		"no number":     {[]string{`count.cls=three`}, nil, `member .count.cls holds "three", want a whole number`},
		"mixed in list": {[]string{`json=[1, "a", {"b": 2}]`}, []string{`json=["1","a","{\"b\": 2}"]`}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			entries := []entry{{"zz.jpg", jpg(t, 1)}} // always a good sample
			for i, sample := range c.members {
				key := string(rune('a' + i))
				entries = append(entries, entry{key + ".jpg", jpg(t, 1)})
				for member := range strings.SplitSeq(sample, "|") {
					ext, content, _ := strings.Cut(member, "=")
					entries = append(entries, entry{key + "." + ext, content})
				}
			}
			r := readAll(t, tree(t, map[string]string{"x.tar": makeTar(t, entries...)}), Options{}, ReadOptions{})
			if c.bad != "" {
				if len(r.bad) != 1 || !strings.Contains(r.bad[0].Reason, c.bad) {
					t.Errorf("bad %q, want %q", badOf(r), c.bad)
				}
				return
			}
			var rows []string
			for _, row := range r.rows[1:] {
				_, row, _ = strings.Cut(row, "file_name=")
				row, _, _ = strings.Cut(row, " width=")
				_, row, _ = strings.Cut(row, " ")
				rows = append(rows, row)
			}
			if !slices.Equal(rows, c.rows) || len(r.bad) > 0 {
				t.Errorf("rows\n%s\nwant\n%s\nbad %q, notes %q", strings.Join(rows, "\n"), strings.Join(c.rows, "\n"),
					badOf(r), r.notes)
			}
		})
	}
}
