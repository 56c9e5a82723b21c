package command

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table lays out rows of cells for people: columns two spaces apart, those of
// numbers to the right.
type table struct {
	numbers []bool // by column; those beyond are text
	rows    [][]string
}

// add adds a row, of which only what is printable is shown as it is.
func (t *table) add(cells ...string) {
	for i, cell := range cells {
		cells[i] = printable(cell)
	}
	t.rows = append(t.rows, cells)
}

// print writes the table, without spaces at the ends of lines.
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
