package source

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"bowstring/schema"
)

// readJSON reads one object per line, or the objects of one list. Each object is a row.
func (t *looseTable) readJSON(ctx context.Context, file string, in *bufio.Reader) error {
	head, err := in.Peek(in.Size())
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if bytes.HasPrefix(bytes.TrimSpace(head), []byte("[")) {
		return t.readJSONList(ctx, file, in)
	}
	lines := newLineReader(in)
	for {
		line, err := lines.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case strings.TrimSpace(line) == "":
			continue
		}
		if err := t.addObject(place{file, lines.number}, line); err != nil {
			return err
		}
	}
}

// addObject adds an object as a row.
func (t *looseTable) addObject(at place, text string) error {
	members, err := parseObject(text)
	if err != nil {
		return t.refuse(at, "%s", err)
	}
	t.lines = append(t.lines, at)
	for _, m := range members {
		c := t.column(m.name)
		if c == left {
			continue
		}
		m.value.text = strings.Clone(m.value.text) // what is left out must not stay in memory
		if err := t.set(c, m.value); err != nil {
			return err
		}
	}
	if len(t.names) > maxColumns {
		return fmt.Errorf("%w: line %d: there are more than %d different keys, which would each be a column; "+
			"--leave-out leaves some out", schema.ErrLimit, at.line, maxColumns)
	}
	return nil
}

// readJSONList reads a list of objects.
func (t *looseTable) readJSONList(ctx context.Context, file string, in *bufio.Reader) error {
	l := &listReader{in: in, line: 1}
	for {
		text, line, err := l.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.ErrUnexpectedEOF):
			return t.refuse(place{file, line}, "bad JSON: the list does not end")
		case err != nil:
			return fmt.Errorf("%w: line %d: %w", schema.ErrInvalid, line, err)
		}
		if err := t.addObject(place{file, line}, text); err != nil {
			return err
		}
	}
}

// listReader cuts a list of JSON into the texts of its elements.
type listReader struct {
	in    *bufio.Reader
	line  int
	begun bool
	ended bool
}

// next returns an element and the line on which it begins; io.EOF behind the last.
func (l *listReader) next() (text string, line int, err error) {
	var element []byte
	depth, quoted, escaped := 0, false, false
	for {
		c, err := l.in.ReadByte()
		switch {
		case errors.Is(err, io.EOF) && l.ended:
			return "", l.line, io.EOF
		case errors.Is(err, io.EOF):
			return "", l.line, io.ErrUnexpectedEOF
		case err != nil:
			return "", l.line, err
		}
		if c == '\n' {
			l.line++
		}
		space := c == ' ' || c == '\n' || c == '\r' || c == '\t'
		switch {
		case space && len(element) == 0:
			continue
		case l.ended:
			return "", l.line, fmt.Errorf("bad JSON: text behind the list")
		case !l.begun: // with a bracket, as was seen
			l.begun = true
			continue
		case escaped:
			escaped = false
		case quoted:
			quoted, escaped = c != '"', c == '\\'
		case c == '"':
			quoted = true
		case depth == 0 && (c == ',' || c == ']'):
			l.ended = c == ']'
			if l.ended && len(element) == 0 && line == 0 {
				return l.next() // an empty list, or a comma before the bracket
			}
			return string(element), max(line, l.line), nil
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
		if len(element) == 0 {
			line = l.line
		}
		if element = append(element, c); len(element) > maxLine {
			return "", line, fmt.Errorf("a row has more than %d MiB", maxLine>>20)
		}
	}
}
