package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// printable returns s with characters escaped, as in a Go string, that could harm a
// terminal or a reader of lines. These are line feeds, escape sequences, marks that
// change the direction of writing, and bytes that are not UTF-8. Names in data come from
// the author of the data, and an escape sequence could hide or fake output.
func printable(s string) string {
	// Nearly all texts need no copy.
	if isPrintable(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		s = s[n:]
	}
	return b.String()
}

// isPrintable reports whether printable would change nothing. A RuneError may also be the
// character U+FFFD itself, which is printable.
func isPrintable(s string) bool {
	for i, r := range s {
		if !strconv.IsPrint(r) || r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)) {
			return false
		}
	}
	return true
}

// printableJSON returns a JSON text with the characters escaped that encoding/json leaves
// as they are although a terminal acts upon them. The value is the same. It returns text
// itself if there are none.
func printableJSON(text []byte) []byte {
	var out []byte // text up to start, once a character was escaped
	start := 0
	for i := 0; i < len(text); {
		if text[i] < 0x7f {
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		if !strconv.IsPrint(r) {
			out = append(out, text[start:i]...)
			// JSON escapes a character beyond 16 bits as two surrogates, by RFC 8259.
			if r > 0xffff {
				r -= 0x10000
				out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			} else {
				out = fmt.Appendf(out, `\u%04x`, r)
			}
			start = i + n
		}
		i += n
	}
	if out == nil {
		return text
	}
	return append(out, text[start:]...)
}

// table formats rows of cells for people. Columns are two spaces apart, and those of
// numbers are aligned to the right. The zero value is an empty table without a heading.
type table struct {
	numbers []bool // by column; further columns are text
	rows    [][]string
}

// tableOf returns a table with a heading. A ">" before the name of a column means
// numbers.
func tableOf(names ...string) *table {
	t := &table{}
	for i, name := range names {
		text, number := strings.CutPrefix(name, ">")
		names[i], t.numbers = text, append(t.numbers, number)
	}
	t.add(names...)
	return t
}

// show prints v as JSON, or the table.
func (a *App) show(asJSON bool, v any, t *table) error {
	if asJSON {
		return printJSON(a.Stdout, v)
	}
	return t.print(a.Stdout)
}

// add adds a row. It escapes the cells, so that callers need not.
func (t *table) add(cells ...string) {
	for i, cell := range cells {
		cells[i] = printable(cell)
	}
	t.rows = append(t.rows, cells)
}

// print writes the table, without spaces at the ends of lines. Widths count characters
// and not bytes.
func (t *table) print(w io.Writer) error {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < len(t.numbers) && t.numbers[i] {
				cell = space + cell
			} else {
				cell += space
			}
			if i > 0 {
				line.WriteString("  ")
			}
			line.WriteString(cell)
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}
