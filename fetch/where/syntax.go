package where

import (
	"fmt"
	"strings"

	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"

	"bowstring/schema"
)

// CheckSyntax checks an expression as far as one can without knowing the columns. An
// error is an *Error.
func CheckSyntax(text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return at(text, file.Location{}, "the expression is empty; leave it out for all rows")
	case len(text) > schema.MaxWhereBytes:
		return at("", file.Location{}, fmt.Sprintf("expression of %d bytes, want at most %d", len(text),
			schema.MaxWhereBytes))
	}
	config := conf.CreateNew()
	config.Strict = false
	if _, err := parser.ParseWithConfig(text, config); err != nil {
		return located(text, err)
	}
	return nil
}
