package where

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"

	"bowstring/schema"
)

// Error tells what is wrong with an expression, and where. It is a
// schema.ErrInvalid, or a schema.ErrLimit if the expression would take too long.
type Error struct {
	Line    int    // from 1
	Column  int    // in characters, from 1
	Message string // what is wrong and what would be right
	Field   string // of the request that has the expression; "" stands for where

	text  string // of the expression: many rows may have an error in the same
	place file.Location
	kind  error // nil stands for schema.ErrInvalid
}

// Error is the message with its place, the line, and below it a caret at the place.
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s%s", cmp.Or(e.Field, "where"), e.Line, e.Column, e.Message, e.shown())
}

// shownAround is how many characters of a long line are shown on each side of the place.
const shownAround = 80

// shown is the line, and below it a caret at the place; "" if the line is empty.
func (e *Error) shown() string {
	lines := strings.SplitN(e.text, "\n", e.Line+1)
	line, at := []rune(strings.ReplaceAll(lines[min(e.Line, len(lines))-1], "\t", " ")), e.Column-1
	if len(line) == 0 {
		return ""
	}
	before, after := "", ""
	if cut := at - shownAround; cut > 0 {
		line, at, before = line[cut:], shownAround, "…"
	}
	if most := at + shownAround; len(line) > most {
		line, after = line[:most], "…"
	}
	dots := strings.Repeat(".", utf8.RuneCountInString(before)+at)
	return fmt.Sprintf("\n | %s%s%s\n | %s^", before, string(line), after, dots)
}

// Unwrap returns schema.ErrInvalid or schema.ErrLimit.
func (e *Error) Unwrap() error { return cmp.Or(e.kind, schema.ErrInvalid) }

// fail makes an Error at a node of the expression text.
func fail(text string, node ast.Node, format string, args ...any) error {
	return at(text, node.Location(), fmt.Sprintf(format, args...))
}

// beyond makes an Error of an expression that would take too long.
func beyond(text string, place file.Location, format string, args ...any) error {
	e := at(text, place, fmt.Sprintf(format, args...))
	e.kind = schema.ErrLimit
	return e
}

func at(text string, place file.Location, message string) *Error {
	e := &Error{Line: 1, Column: 1, Message: message, text: text, place: place}
	count := 0
	for _, r := range text {
		if count == place.From {
			break
		}
		if count++; r == '\n' {
			e.Line, e.Column = e.Line+1, 1
		} else {
			e.Column++
		}
	}
	return e
}

// maxMessage bounds what the library says of a row in bytes: it quotes the row's values.
const maxMessage = 1024

// located turns an error of the expression library into an Error.
func located(text string, err error) *Error {
	var e *file.Error
	if !errors.As(err, &e) {
		e = &file.Error{Message: err.Error()}
	}
	place, message := e.Location, e.Message
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	return at(text, place, message)
}
