package source

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/array"
)

// TestRandomTables writes tables of random cells, and reads them again: text byte for
// byte, whole numbers exactly.
func TestRandomTables(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{"a", "é", "1", "0", "7", ".", "-", "+", "e", "E", "\"", "\"\"", ",", "\t", ";", " ", "\n",
		"\r\n",
		"\r", "true", "False", "NaN", "inf", "null", "{", "]", "\\", "\u2028", "\ufeff", "😀", "\x00",
		"18446744073709551615"}
	random := func() string {
		var b strings.Builder
		for range rnd.IntN(5) {
			b.WriteString(pieces[rnd.IntN(len(pieces))])
		}
		return b.String()
	}
	number := func() string {
		u := rnd.Uint64() >> rnd.IntN(64)
		if rnd.IntN(2) == 0 {
			return "-" + strconv.FormatUint(u/2+1, 10)
		}
		return strconv.FormatUint(u, 10)
	}
	for range 100 {
		columns, rows := 1+rnd.IntN(4), 1+rnd.IntN(8)
		var cells [][]string
		for range rows {
			var row []string
			for c := range columns {
				if c == 0 {
					row = append(row, number())
				} else {
					row = append(row, random())
				}
			}
			cells = append(cells, row)
		}
		tabs := slices.Clone(cells)
		for i := range tabs {
			// A line of a cell may have as many tabs as the others: then nothing shows
			// that it is no row.
			tabs[i] = slices.Clone(cells[i])
			for c, s := range tabs[i] {
				if strings.Contains(s, "\n") {
					tabs[i][c] = strings.ReplaceAll(s, "\t", "")
				}
			}
		}
		for kind, content := range map[string]string{"csv": writeTable(cells, ",", rnd),
			"tsv": writeTable(tabs, "\t", rnd), "jsonl": writeJSONLines(cells)} {
			cells := cells
			if kind == "tsv" {
				cells = tabs
			}
			table, err := tableOf(t, "x."+kind, content)
			if err != nil {
				t.Fatalf("%v in\n%s", err, content)
			}
			if table.rows != rows || len(table.bad) > 0 || len(table.fields) != columns {
				t.Fatalf("%s: %s of\n%s", kind, table.shown(), content)
			}
			for i, row := range cells {
				for c, want := range row {
					checkCell(t, kind, table, c, i, want, content)
				}
			}
		}
	}
}

// checkCell compares a cell with what was written: numbers by their digits, texts byte
// for byte, other values by their meaning.
func checkCell(t *testing.T, kind string, table *table, c, row int, want, content string) {
	t.Helper()
	column := table.columns[c]
	switch column := column.(type) {
	case *array.String:
		if got := text(column, row); got != want || column.IsNull(row) {
			t.Errorf("%s: column %d of row %d is %q, want %q, in\n%s", kind, c, row, got, want, content)
		}
	case *array.Float64:
		if f, err := strconv.ParseFloat(want, 64); want != "" && (err != nil || column.IsNull(row) ||
			f != column.Value(row) && f == f) {
			t.Errorf("%s: column %d of row %d is %v, want %q, in\n%s", kind, c, row, column.ValueStr(row), want,
				content)
		}
	default:
		if got := column.ValueStr(row); want != "" && !strings.EqualFold(got, want) && want != "-0" {
			t.Errorf("%s: column %d of row %d is %q, want %q, in\n%s", kind, c, row, got, want, content)
		}
	}
}

// writeTable writes cells by RFC 4180: those that need quotation marks have them, and
// some others as well.
func writeTable(cells [][]string, comma string, rnd *rand.Rand) string {
	var b strings.Builder
	end := []string{"\n", "\r\n"}[rnd.IntN(2)]
	for c := range cells[0] {
		if c > 0 {
			b.WriteString(comma)
		}
		fmt.Fprintf(&b, "c%d", c)
	}
	b.WriteString(end)
	for _, row := range cells {
		for c, s := range row {
			if c > 0 {
				b.WriteString(comma)
			}
			if s == "" || strings.ContainsAny(s, comma+"\"\r\n") || rnd.IntN(4) == 0 {
				s = `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
			}
			b.WriteString(s)
		}
		b.WriteString(end)
	}
	return b.String()
}

// writeJSONLines writes cells as strings, those of the first column as numbers.
func writeJSONLines(cells [][]string) string {
	var b strings.Builder
	for _, row := range cells {
		for c, s := range row {
			if c == 0 {
				fmt.Fprintf(&b, `{"c0": %s`, s)
				continue
			}
			text, _ := json.Marshal(s) // text always is
			fmt.Fprintf(&b, `, "c%d": %s`, c, text)
		}
		b.WriteString("}\n")
	}
	return b.String()
}
