package where

import (
	"fmt"
	"reflect"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
)

// patternPrefix is how the names of functions begin that stand for patterns.
const patternPrefix = "matches "

// maxPatterns is how many instructions the patterns of an expression may have in
// all. Matching takes time and memory in proportion to them.
const maxPatterns = 2048

// pattern is a regular expression, compiled once.
type pattern struct {
	re   *regexp.Regexp
	size int64 // instructions
}

// patterns are the regular expressions of an expression, by the name of the
// function that stands for the test. No function that people can write has such a
// name.
type patterns struct {
	byText map[string]string // names
	byName map[string]*pattern
	size   int64
	wide   int // classes
}

// maxWideClasses is how many classes of characters the patterns of an expression may have that take long to read, each
// some milliseconds.
const maxWideClasses = 16

// wideClasses counts classes that take long to read whatever they compile to: those of Unicode, such as \pL, of which
// each has hundreds of ranges, and ranges beyond ASCII, such as [a-\x{1E942}], of which each character is looked up
// where case is folded.
func wideClasses(text string) (n int) {
	n = strings.Count(text, `\p`) + strings.Count(text, `\P`)
	for _, from := range strings.SplitAfter(text, "-")[1:] {
		if from != "" && (from[0] >= utf8.RuneSelf || strings.HasPrefix(from, `\x`)) {
			n++
		}
	}
	return n
}

// add compiles a pattern, unless that was done, and returns the function's name.
func (p *patterns) add(text string) (name string, err error) {
	if name, ok := p.byText[text]; ok {
		return name, nil
	}
	if p.wide += wideClasses(text); p.wide > maxWideClasses {
		return "", fmt.Errorf(`the patterns of the expression have %d classes such as \pL or [a-ÿ], at most %d are `+
			"allowed: they take long to read", p.wide, maxWideClasses)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return "", err
	}
	size := instructions(tree)
	if p.size += size; p.size > maxPatterns {
		return "", fmt.Errorf("the patterns of the expression come to %d instructions and more, at most %d are "+
			"allowed: counts multiply, (x{30}){30} is 900 times x",
			min(p.size, tooMany), maxPatterns)
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return "", err
	}
	if p.byText == nil {
		p.byText, p.byName = map[string]string{}, map[string]*pattern{}
	}
	name = fmt.Sprint(patternPrefix, len(p.byName))
	p.byText[text], p.byName[name] = name, &pattern{re, size}
	return name, nil
}

// call is the test of a value by the function of that name.
func (p *patterns) call(name string, n *ast.BinaryNode) ast.Node {
	callee := &ast.IdentifierNode{Value: name}
	callee.SetLocation(n.Location())
	c := &ast.CallNode{Callee: callee, Arguments: []ast.Node{n.Left}}
	c.SetLocation(n.Location())
	return c
}

// functions are what the expression library calls.
func (p *patterns) functions() map[string]*builtin.Function {
	list := map[string]*builtin.Function{}
	for name, pt := range p.byName {
		list[name] = &builtin.Function{
			Name: name,
			Func: func(args ...any) (any, error) {
				s, ok := args[0].(string)
				return ok && pt.re.MatchString(s), nil
			},
			Validate: func(args []reflect.Type) (reflect.Type, error) {
				if k := args[0].Kind(); k != reflect.String && k != reflect.Interface {
					return nil, fmt.Errorf("invalid operation: matches (mismatched types %s and string)", args[0])
				}
				return reflect.TypeFor[bool](), nil
			},
		}
	}
	return list
}

// tooMany is more instructions than any pattern may have.
const tooMany = 1 << 30

// instructions is about how many instructions a regular expression compiles to,
// without compiling it, and tooMany at most. Large classes count for the memory
// that they take.
func instructions(re *syntax.Regexp) int64 {
	var n int64
	for _, sub := range re.Sub {
		n = min(tooMany, n+instructions(sub))
	}
	switch re.Op {
	case syntax.OpLiteral:
		n = int64(len(re.Rune))
	case syntax.OpCharClass:
		n = 1 + int64(len(re.Rune)/16)
	case syntax.OpCapture:
		n += 2
	case syntax.OpRepeat:
		// x{2,5} is xx(x(x(x)?)?)?, x{2,} is xx+.
		count := int64(max(re.Max, re.Min, 1))
		n = count*(n+1) + 1
	default:
		n += max(1, int64(len(re.Sub)))
	}
	return min(tooMany, n)
}
