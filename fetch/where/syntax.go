package where

import (
	"fmt"

	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/parser/lexer"
)

// maxNesting is how many brackets may be open at once: each takes some of the stack.
const maxNesting = 256

// CheckSyntax checks an expression as far as one can without knowing the columns. An
// error is an *Error.
func CheckSyntax(text string) error {
	if err := checkText(text); err != nil {
		return err
	}
	config := conf.CreateNew()
	config.Strict, config.MaxNodes = false, 0
	_, err := parse(text, config, &literals{})
	return err
}

// parse makes a tree of a text. Its words are looked at before: the parser would bind an error in one of them to the
// text again for each bracket that is open. wide are the integers that the parser does not take.
func parse(text string, config *conf.Config, wide *literals) (*parser.Tree, error) {
	l := lexer.New()
	l.Reset(file.NewSource(text))
	for open := 0; ; {
		t, err := l.Next()
		if err != nil {
			return nil, located(text, err)
		}
		if t.Kind == lexer.EOF {
			break
		}
		if t.Kind == lexer.Number {
			wide.note(text, t)
		}
		if t.Kind != lexer.Bracket {
			continue
		}
		switch t.Value {
		case "(", "[", "{":
			if open++; open > maxNesting {
				return nil, at(text, t.Location, fmt.Sprintf("brackets are nested more than %d deep", maxNesting))
			}
		default:
			open--
		}
	}
	tree, err := parser.ParseWithConfig(wide.replaced(text), config)
	if err != nil {
		e := located(text, err)
		e.Message = wide.written(e.Message)
		return nil, e
	}
	return tree, nil
}
