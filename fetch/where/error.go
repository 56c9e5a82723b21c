package where

import (
	"cmp"
	"errors"
	"fmt"

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
	Snippet string // the line, and below it a caret at the place; may be empty
	Field   string // of the request that has the expression; "" stands for where

	kind error // nil stands for schema.ErrInvalid
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s%s", cmp.Or(e.Field, "where"), e.Line, e.Column, e.Message, e.Snippet)
}

// Unwrap returns schema.ErrInvalid or schema.ErrLimit.
func (e *Error) Unwrap() error { return cmp.Or(e.kind, schema.ErrInvalid) }

// fail makes an Error at a node of the expression text.
func fail(text string, node ast.Node, format string, args ...any) error {
	return at(text, node.Location(), fmt.Sprintf(format, args...))
}

// beyond makes an Error of an expression that would take too long.
func beyond(text string, node ast.Node, format string, args ...any) error {
	e := at(text, node.Location(), fmt.Sprintf(format, args...))
	e.kind = schema.ErrLimit
	return e
}

func at(text string, place file.Location, message string) *Error {
	e := (&file.Error{Location: place, Message: message}).Bind(file.NewSource(text))
	return &Error{Line: e.Line, Column: e.Column + 1, Message: e.Message, Snippet: e.Snippet}
}

// located turns an error of the expression library into an Error.
func located(text string, err error) *Error {
	var e *file.Error
	if errors.As(err, &e) {
		return at(text, e.Location, e.Message)
	}
	return at(text, file.Location{}, err.Error())
}
