package source

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"bowstring/schema"
)

// asUTF8 returns the text of a file in UTF-8, without a byte order mark. A mark of UTF-16
// is believed. Invalid UTF-16 becomes invalid UTF-8, so that
// later checks find it. UTF-32, and UTF-16 without a mark, are errors: read as UTF-8,
// they would become cells with zeros.
func asUTF8(in *bufio.Reader) (*bufio.Reader, error) {
	head, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	little := bytes.HasPrefix(head, []byte{0xff, 0xfe})
	switch {
	case bytes.HasPrefix(head, []byte{0xef, 0xbb, 0xbf}):
		_, err = in.Discard(3)
		return in, err
	// The mark of UTF-32 little endian begins with that of UTF-16, so it is checked
	// first.
	case bytes.Equal(head, []byte{0xff, 0xfe, 0, 0}), bytes.Equal(head, []byte{0, 0, 0xfe, 0xff}):
		return nil, fmt.Errorf("%w: it is UTF-32; want UTF-8 or UTF-16", schema.ErrInvalid)
	case little, bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		_, err = in.Discard(2)
		return bufio.NewReaderSize(&fromUTF16{in: in, little: little}, 1<<16), err
	case len(head) > 1 && (head[0] == 0 || head[1] == 0):
		return nil, fmt.Errorf("%w: it is no UTF-8; UTF-16 begins with a byte order mark", schema.ErrInvalid)
	}
	return in, nil
}

// fromUTF16 reads UTF-16 as UTF-8. One goroutine uses it.
type fromUTF16 struct {
	in     *bufio.Reader
	little bool
	out    []byte // decoded and not yet read
	err    error  // error after out
}

// Read implements io.Reader.
func (r *fromUTF16) Read(b []byte) (int, error) {
	if len(r.out) == 0 && r.err == nil {
		r.out = r.out[:0]
		for len(r.out) < 1<<12 && r.err == nil {
			r.one()
		}
	}
	if len(r.out) == 0 {
		return 0, r.err
	}
	n := copy(b, r.out)
	r.out = r.out[n:]
	return n, nil
}

// one decodes one character. An unpaired surrogate becomes a byte that UTF-8 does not
// have: the replacement character would hide it.
func (r *fromUTF16) one() {
	const no = 0xff // never part of UTF-8
	c, ok := r.unit()
	switch {
	case !ok:
		return
	case !utf16.IsSurrogate(c):
		r.out = utf8.AppendRune(r.out, c)
		return
	}
	// The second half is peeked only: if it does not belong to the first, it is a
	// character of its own.
	next, err := r.in.Peek(2)
	if err == nil {
		if pair := utf16.DecodeRune(c, r.rune(next)); pair != utf8.RuneError {
			_, _ = r.in.Discard(2) // they are buffered
			r.out = utf8.AppendRune(r.out, pair)
			return
		}
	}
	r.out = append(r.out, no)
}

// unit reads two bytes. A single last byte is invalid text.
func (r *fromUTF16) unit() (rune, bool) {
	var b [2]byte
	n, err := io.ReadFull(r.in, b[:])
	if err != nil {
		if n == 1 {
			r.out = append(r.out, 0xff)
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		r.err = err
		return 0, false
	}
	return r.rune(b[:]), true
}

// rune is the value of two bytes in the byte order of the file.
func (r *fromUTF16) rune(b []byte) rune {
	if r.little {
		return rune(b[0]) | rune(b[1])<<8
	}
	return rune(b[0])<<8 | rune(b[1])
}

const (
	// maxLine bounds a line of a table in bytes. A binary file without line ends would
	// otherwise fill the memory.
	maxLine = 64 << 20
	// maxCell bounds a quoted cell in bytes. Such a cell may span lines; a missing
	// quotation mark would make the rest of the file one cell.
	maxCell = 16 << 20
)

// lineReader reads the lines of a text and can put lines back. Lines end with LF. If
// there is a CR and no LF in the first buffer, they end with CR, as old Macs wrote them.
type lineReader struct {
	in     *bufio.Reader
	end    byte
	number int // number of the line read last, from 1
	// back has the lines that were put back, the next one last.
	back []string
	// seen is called once with each line from the file; nil for none.
	seen func(line string)
}

// newLineReader decides about the end of lines by what is buffered.
func newLineReader(in *bufio.Reader) *lineReader {
	r := &lineReader{in: in, end: '\n'}
	head, _ := in.Peek(in.Size()) // reading reports the error
	if bytes.IndexByte(head, '\n') < 0 && bytes.IndexByte(head, '\r') >= 0 {
		r.end = '\r'
	}
	return r
}

// next returns a line with its end; io.EOF after the last. A last line without an end is
// a line.
func (r *lineReader) next() (string, error) {
	if n := len(r.back); n > 0 {
		line := r.back[n-1]
		r.back = r.back[:n-1]
		r.number++
		return line, nil
	}
	var long []byte
	for {
		part, err := r.in.ReadSlice(r.end)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if long = append(long, part...); len(long) > maxLine {
				return "", fmt.Errorf("line %d has more than %d MiB", r.number+1, maxLine>>20)
			}
			continue
		case errors.Is(err, io.EOF) && len(part)+len(long) > 0:
		case err != nil:
			return "", err
		}
		r.number++
		line := string(part)
		if long != nil {
			line = string(append(long, part...))
		}
		if r.seen != nil {
			r.seen(line)
		}
		return line, nil
	}
}

// unread puts back the lines that were read last, in their order.
func (r *lineReader) unread(lines []string) {
	for i := len(lines) - 1; i >= 0; i-- {
		r.back = append(r.back, lines[i])
	}
	r.number -= len(lines)
}

// withoutEnd returns a line without LF, CR or CR LF at its end.
func withoutEnd(line string) string {
	if line, ok := strings.CutSuffix(line, "\n"); ok {
		return strings.TrimSuffix(line, "\r")
	}
	return strings.TrimSuffix(line, "\r")
}

// blank reports whether a line has spaces at most. A tab is not blank: it separates two
// empty cells.
func blank(line string) bool { return strings.Trim(line, " \r\n") == "" }

// delimited reads records of cells with a separator, by the rules of RFC 4180. Where the
// RFC has no rule: a quotation mark inside a cell that does not begin with one is text,
// and blank lines are skipped.
type delimited struct {
	lines   *lineReader
	comma   byte
	literal bool // quotation marks are text everywhere

	// line is the number of the record's first line.
	line int
	// cells are reused by the next record.
	cells []rawCell
	// The forms that occurred in the records so far, for quotesAreText:
	bare    bool // a quotation mark in a cell that does not begin with one
	spans   bool // a cell of several lines
	doubled bool // a doubled quotation mark
}

// rawCell is a cell, and whether it was quoted. A quoted cell is never a null or a
// number.
type rawCell struct {
	text   string
	quoted bool
}

// next reads a record; io.EOF after the last. If the quotation marks of a record are
// wrong, next returns the reason in bad, and continues with the line after the first. One
// wrong mark then costs one record and not the rest of the file.
func (d *delimited) next() (bad string, err error) {
	var line string
	for {
		if line, err = d.lines.next(); err != nil {
			return "", err
		}
		if !blank(line) {
			break
		}
	}
	d.line, d.cells = d.lines.number, d.cells[:0]
	var more []string // further lines of the record
	for {
		if !d.literal && strings.HasPrefix(line, `"`) {
			c, rest, read, bad := d.quoted(line)
			more = append(more, read...)
			if bad != "" {
				d.lines.unread(more)
				return bad, nil
			}
			d.cells = append(d.cells, rawCell{c, true})
			if rest == "" || rest[0] != d.comma {
				return "", nil
			}
			line = rest[1:]
			continue
		}
		text, rest, separated := strings.Cut(line, string(d.comma))
		if !separated {
			text = withoutEnd(text)
		}
		d.bare = d.bare || !d.literal && strings.Contains(text, `"`)
		d.cells = append(d.cells, rawCell{text, false})
		if !separated {
			return "", nil
		}
		line = rest
	}
}

// quoted reads a cell that begins with a quotation mark. more are the further lines that
// it spans. rest begins with the separator or the end of the line.
func (d *delimited) quoted(line string) (text, rest string, more []string, bad string) {
	var b strings.Builder
	line = line[1:]
	for {
		part, behind, closed := strings.Cut(line, `"`)
		if closed && b.Len() == 0 && !strings.HasPrefix(behind, `"`) {
			text, rest = part, behind // the usual cell needs no copy
			break
		}
		b.WriteString(part)
		switch {
		case !closed && b.Len() > maxCell:
			return "", "", more, fmt.Sprintf("a cell in quotation marks has more than %d MiB", maxCell>>20)
		case !closed:
			next, err := d.lines.next()
			if err != nil { // the next read reports it
				return "", "", more, "a quotation mark opens a cell that does not end"
			}
			more = append(more, next)
			line = next
			continue
		case strings.HasPrefix(behind, `"`):
			b.WriteByte('"')
			d.doubled = true
			line = behind[1:]
			continue
		}
		text, rest = b.String(), behind
		break
	}
	if withoutEnd(rest) != "" && rest[0] != d.comma {
		return "", "", more, "there is text behind the quotation mark that ends a cell; within it, a quotation mark " +
			`is written as ""`
	}
	d.spans = d.spans || len(more) > 0
	return text, rest, more, ""
}

// separator guesses the separator of a CSV file by its first line: a comma, unless there
// is none and there is a semicolon, tab or bar. Spreadsheets write semicolons in
// countries with decimal commas.
func separator(header string) byte {
	var found [256]bool
	for i, part := range strings.Split(header, `"`) {
		for _, c := range []byte(part) {
			found[c] = found[c] || i%2 == 0 // every second part is quoted
		}
	}
	for _, c := range []byte(",;\t|") {
		if found[c] {
			return c
		}
	}
	return ','
}

// quotesAreText reports whether the quotation marks of a table with tabs are plain text.
// Many programs write TSV without any quoting. The marks are text in two cases:
//
//   - They break the rules of CSV somewhere.
//   - Cells would span lines, although each line has as many cells as the first, and
//     no mark is doubled.
//
// It reads the whole file, because a single cell can decide.
func quotesAreText(in *bufio.Reader) (bool, error) {
	tabs, even := -1, true
	lines := newLineReader(in)
	lines.seen = func(line string) {
		n := strings.Count(line, "\t")
		if tabs < 0 {
			tabs = n
		}
		even = even && (n == tabs || blank(line))
	}
	d := &delimited{lines: lines, comma: '\t'}
	for {
		bad, err := d.next()
		switch {
		case errors.Is(err, io.EOF):
			return d.spans && !d.doubled && even && tabs > 0, nil
		case err != nil:
			return false, err
		case bad != "" || d.bare:
			return true, nil
		}
	}
}
