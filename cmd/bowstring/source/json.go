package source

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"bowstring/schema"
)

const (
	// maxDepth bounds the nesting of JSON. The type of a column of lists is as deep, and
	// the parser recurses.
	maxDepth = 16
	// maxColumnName bounds a name that is joined from several keys, in bytes. Without it
	// nested objects with long keys could make a name of any size.
	maxColumnName = 1024
)

// property is a value of a JSON object and the name of its column.
type property struct {
	name  string
	value written
}

// parseObject parses a JSON object and keeps the order of its keys. Nested objects become
// columns of their own: "place": {"lat": 1} becomes place_lat. A key that occurs twice is
// an error, because it is not known which value was meant; RFC 8259 leaves that open.
func parseObject(text string) ([]property, error) {
	p := jsonParser{in: text}
	out, err := p.object()
	if err != nil {
		return nil, fmt.Errorf("bad JSON: %w", err)
	}
	// Two different paths can make one name, as a_b and {"a": {"b"}}. That is the same
	// error.
	seen := map[string]bool{}
	for _, m := range out {
		if seen[m.name] {
			return nil, fmt.Errorf("bad JSON: two values for column %s", Quoted(m.name))
		}
		seen[m.name] = true
	}
	return out, nil
}

// elements yields the values of a list whose text the parser has accepted before.
func elements(list string) iter.Seq[written] {
	return func(yield func(written) bool) {
		p := jsonParser{in: list}
		_ = p.list(1, yield)
	}
}

// jsonParser parses JSON and keeps values as they are written: numbers as digits, objects
// within lists as text. encoding/json would round numbers and lose the order of keys. It
// accepts NaN, Infinity and -Infinity, which Python writes, and rejects text that is not
// UTF-8.
type jsonParser struct {
	in string
	at int
}

var (
	errDeep    = fmt.Errorf("it is nested more than %d deep", maxDepth)
	errJSONEnd = io.ErrUnexpectedEOF
)

// wrong returns an error about the character at the current position.
func (p *jsonParser) wrong(want string) error {
	if p.at >= len(p.in) {
		return errJSONEnd
	}
	r, _ := utf8.DecodeRuneInString(p.in[p.at:])
	return fmt.Errorf("got %q at byte %d, want %s", r, p.at+1, want)
}

// peek skips spaces and returns the next byte; 0 at the end.
func (p *jsonParser) peek() byte {
	for ; p.at < len(p.in); p.at++ {
		switch c := p.in[p.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// take skips a byte if it is the next after spaces.
func (p *jsonParser) take(c byte) bool {
	if p.peek() != c || p.at >= len(p.in) {
		return false
	}
	p.at++
	return true
}

// object parses an object that must be the whole text.
func (p *jsonParser) object() ([]property, error) {
	if p.peek() != '{' {
		return nil, p.wrong("an object")
	}
	out, err := p.columns(nil, "", 1)
	return out, cmp.Or(err, p.end())
}

// whole parses a value that must be the whole text.
func (p *jsonParser) whole() (written, error) {
	v, err := p.value(1)
	return v, cmp.Or(err, p.end())
}

// end returns an error if anything follows.
func (p *jsonParser) end() error {
	if p.peek(); p.at < len(p.in) {
		return errors.New("more than one value")
	}
	return nil
}

// columns parses an object into properties whose names begin with prefix.
func (p *jsonParser) columns(into []property, prefix string, depth int) ([]property, error) {
	err := p.keys(func(key string) (err error) {
		name := prefix + key
		if len(name) > maxColumnName {
			return fmt.Errorf("a column would have a name of %d bytes, more than %d: %s", len(name), maxColumnName,
				Quoted(name))
		}
		// Only objects become columns. A list of objects has no fixed number of elements.
		if p.peek() == '{' {
			if depth == maxDepth {
				return errDeep
			}
			into, err = p.columns(into, name+"_", depth+1)
			return err
		}
		v, err := p.value(depth)
		into = append(into, property{name, v})
		return err
	})
	return into, err
}

// keys parses an object and calls value after each key and colon.
func (p *jsonParser) keys(value func(key string) error) error {
	p.at++ // the brace
	if p.take('}') {
		return nil
	}
	for {
		if p.peek() != '"' {
			return p.wrong("a key")
		}
		// The grammar allows no comma before the closing brace, and no key without
		// quotation marks.
		key, err := p.str()
		if err != nil {
			return err
		}
		if !p.take(':') {
			return p.wrong(`":"`)
		}
		if err := value(key); err != nil {
			return err
		}
		if p.take('}') {
			return nil
		}
		if !p.take(',') {
			return p.wrong(`"," or "}"`)
		}
	}
}

// list parses a list and calls each with its elements, until each returns false.
func (p *jsonParser) list(depth int, each func(written) bool) error {
	if p.peek() != '[' {
		return p.wrong("a list")
	}
	p.at++
	if p.take(']') {
		return nil
	}
	for {
		v, err := p.value(depth)
		if err != nil || !each(v) {
			return err
		}
		if p.take(']') {
			return nil
		}
		if !p.take(',') {
			return p.wrong(`"," or "]"`)
		}
	}
}

// value parses one value.
func (p *jsonParser) value(depth int) (written, error) {
	c := p.peek()
	start := p.at
	switch c {
	case '"':
		// Bowstring itself writes such floats as strings.
		s, err := p.str()
		if s == "NaN" || s == "Infinity" || s == "-Infinity" {
			return written{s, formWord}, err
		}
		return textOf(s), err
	case '{', '[':
		// The bound is checked before the recursion, so that hostile input cannot exhaust
		// the stack.
		if depth == maxDepth {
			return written{}, errDeep
		}
		if c == '[' {
			err := p.list(depth+1, func(written) bool { return true })
			return written{p.in[start:p.at], formList}, err
		}
		// An object within a list stays text, but must be valid: it may be parsed again
		// later.
		seen := map[string]bool{}
		err := p.keys(func(key string) error {
			if seen[key] {
				return fmt.Errorf("two values for %s", Quoted(key))
			}
			seen[key] = true
			_, err := p.value(depth + 1)
			return err
		})
		return textOf(p.in[start:p.at]), err
	}
	for _, word := range jsonWords {
		if c == word.text[0] && strings.HasPrefix(p.in[p.at:], word.text) {
			p.at += len(word.text)
			if word.form == formNull {
				return written{}, nil
			}
			return word, nil
		}
	}
	return p.number()
}

// jsonWords are the values that are words. NaN and the infinities are not in RFC 8259.
var jsonWords = []written{{"null", formNull}, {"true", formBool}, {"false", formBool}, {"NaN", formDecimal},
	{"Infinity", formDecimal}, {"-Infinity", formDecimal}}

// number parses a number by the grammar of RFC 8259, which has no leading zeros and no
// plus sign.
func (p *jsonParser) number() (written, error) {
	start := p.at
	// The digits stay text: inferred decides later whether int64, uint64 or float64 holds
	// them all.
	p.skip('-')
	n := digits(p.in[p.at:])
	if n == 0 || n > 1 && p.in[p.at] == '0' {
		return written{}, p.wrong("a value")
	}
	p.at += n
	f := formWhole
	if p.skip('.') {
		f = formDecimal
		if n = digits(p.in[p.at:]); n == 0 {
			return written{}, p.wrong("a digit")
		}
		p.at += n
	}
	if p.skip('e') || p.skip('E') {
		f = formDecimal
		_ = p.skip('+') || p.skip('-')
		if n = digits(p.in[p.at:]); n == 0 {
			return written{}, p.wrong("a digit")
		}
		p.at += n
	}
	return written{p.in[start:p.at], f}, nil
}

// skip skips a byte if it is the next one, without spaces before it.
func (p *jsonParser) skip(c byte) bool {
	if p.at >= len(p.in) || p.in[p.at] != c {
		return false
	}
	p.at++
	return true
}

// str parses a string, whose quotation mark is next. Most have no escape and need no
// copy.
func (p *jsonParser) str() (string, error) {
	p.at++
	start := p.at
	for p.at < len(p.in) {
		switch c := p.in[p.at]; {
		case c == '"':
			s := p.in[start:p.at]
			p.at++
			return validString(s)
		case c == '\\':
			return p.escaped(start)
		// RFC 8259 allows control characters in strings only as escapes.
		case c < ' ':
			return "", p.wrong("an escape in its place")
		}
		p.at++
	}
	return "", errJSONEnd
}

var errNotUTF8 = errors.New("a string is not valid UTF-8")

// validString rejects a string that is not UTF-8: Arrow's strings must be.
func validString(s string) (string, error) {
	if !utf8.ValidString(s) {
		return "", errNotUTF8
	}
	return s, nil
}

// escaped parses the rest of a string from its first escape on.
func (p *jsonParser) escaped(start int) (string, error) {
	out := []byte(p.in[start:p.at])
	for p.at < len(p.in) {
		c := p.in[p.at]
		switch {
		case c == '"':
			p.at++
			return validString(string(out))
		case c < ' ':
			return "", p.wrong("an escape in its place")
		case c != '\\':
			out = append(out, c)
			p.at++
			continue
		}
		p.at++
		if p.at >= len(p.in) {
			break
		}
		// The two-character escapes of RFC 8259.
		i := strings.IndexByte(`"\/bfnrt`, p.in[p.at])
		if i >= 0 {
			out = append(out, "\"\\/\b\f\n\r\t"[i])
			p.at++
			continue
		}
		if p.in[p.at] != 'u' {
			return "", p.wrong("a known escape")
		}
		r, err := p.unicode()
		if err != nil {
			return "", err
		}
		out = utf8.AppendRune(out, r)
	}
	return "", errJSONEnd
}

// unicode parses what follows a backslash: u and four digits, or both halves of a
// surrogate pair. Half a pair is an error, because UTF-8 cannot hold it.
func (p *jsonParser) unicode() (rune, error) {
	r, err := p.unit()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	// Characters beyond U+FFFF are written as a pair of UTF-16 surrogates.
	if strings.HasPrefix(p.in[p.at:], `\u`) {
		p.at++
		low, err := p.unit()
		if err != nil {
			return 0, err
		}
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, nil
		}
	}
	return 0, fmt.Errorf(`the escape \u%04x is half of a character, which is no text`, r)
}

// unit parses u and four hexadecimal digits.
func (p *jsonParser) unit() (rune, error) {
	p.at++
	var r rune
	for range 4 {
		if p.at >= len(p.in) {
			return 0, errJSONEnd
		}
		i := strings.IndexByte("0123456789abcdef", p.in[p.at]|0x20)
		if i < 0 || p.in[p.at] < '0' {
			return 0, p.wrong("four hexadecimal digits")
		}
		r = r<<4 | rune(i)
		p.at++
	}
	return r, nil
}

// readJSON reads one object a line, or the objects of one list. Each object is a row.
func (t *looseTable) readJSON(ctx context.Context, file string, in *bufio.Reader) error {
	head, err := in.Peek(in.Size())
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	// A list begins with a bracket, and an object a line with a brace. The ending of the
	// name is not reliable.
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

// addObject adds an object as a row. Invalid JSON makes a bad row.
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
		m.value.text = strings.Clone(m.value.text) // the rest of the line must not stay in memory
		if err := t.set(c, m.value); err != nil {
			return err
		}
	}
	// The check comes after the row, so that the row's own keys are counted.
	if len(t.names) > maxColumns {
		return fmt.Errorf("%w: line %d: there are more than %d different keys, which would each be a column; "+
			"--leave-out leaves some out", schema.ErrLimit, at.line, maxColumns)
	}
	return nil
}

// readJSONList reads a list of objects, one at a time: the list may be larger than
// memory.
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

// listReader cuts a JSON list into the texts of its elements. It only counts brackets and
// quotation marks; the parser checks the elements.
type listReader struct {
	in    *bufio.Reader
	line  int
	begun bool
	ended bool
}

// next returns an element and the line on which it begins; io.EOF after the last.
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
		// A comma or bracket counts only outside strings and nested values.
		space := c == ' ' || c == '\n' || c == '\r' || c == '\t'
		switch {
		case space && len(element) == 0:
			continue
		case l.ended:
			return "", l.line, fmt.Errorf("bad JSON: text behind the list")
		case !l.begun: // the opening bracket
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
