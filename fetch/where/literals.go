package where

import (
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser/lexer"
)

// literals are the integers of an expression that an int does not hold. The library parses none of them: each is
// written as a name of the same length before, which no column has, and comes to be a node of its own after.
type literals struct {
	name   rune   // the names repeat it: a letter that the text does not have
	runes  []rune // of the text with names; nil if there is none
	places map[int]*big.Int
	texts  map[string]string // of the names, as they were written
	nodes  map[*ast.IntegerNode]number
}

// firstName is where the search for a letter that a text does not have begins. All that follow for 20,000 are letters,
// more than a text has.
const firstName = '\u4e00'

// note takes note of a word of the text, if it is a number that an int does not hold.
func (l *literals) note(text string, word lexer.Token) {
	n, ok := wideLiteral(word.Value)
	if !ok {
		return
	}
	if l.runes == nil {
		l.start(text)
	}
	l.places[word.From] = n
	for i := word.From; i < word.To; i++ {
		l.runes[i] = l.name
	}
	l.texts[string(l.runes[word.From:word.To])] = word.Value
}

// replaced is the text with names for the numbers.
func (l *literals) replaced(text string) string {
	if l.runes == nil {
		return text
	}
	return string(l.runes)
}

func (l *literals) start(text string) {
	l.runes = []rune(text)
	l.places, l.texts, l.nodes = map[int]*big.Int{}, map[string]string{}, map[*ast.IntegerNode]number{}
	has := map[rune]bool{}
	for _, r := range text {
		has[r] = true
	}
	for l.name = firstName; has[l.name]; l.name++ {
	}
}

// wideLiteral is the integer that a number is which an int does not hold.
func wideLiteral(text string) (n *big.Int, ok bool) {
	text = strings.ReplaceAll(strings.ToLower(text), "_", "")
	base, digits := 10, text
	for prefix, b := range map[string]int{"0x": 16, "0o": 8, "0b": 2} {
		if rest, found := strings.CutPrefix(text, prefix); found {
			base, digits = b, rest
		}
	}
	if base != 16 && strings.ContainsAny(digits, ".e") {
		return nil, false
	}
	if _, err := strconv.ParseInt(digits, base, 64); err == nil {
		return nil, false
	}
	return new(big.Int).SetString(digits, base)
}

// node is the literal that a name stands for; nil if it is another name.
func (l *literals) node(n *ast.IdentifierNode) *ast.IntegerNode {
	if r, _ := utf8.DecodeRuneInString(n.Value); l.name == 0 || r != l.name {
		return nil
	}
	value, ok := l.places[n.Location().From]
	if !ok {
		return nil
	}
	return l.add(n, bigNumber(value))
}

// add makes a node of a number that an int may not hold.
func (l *literals) add(place ast.Node, value number) *ast.IntegerNode {
	made := &ast.IntegerNode{}
	made.SetLocation(place.Location())
	if i, ok := value.value().(int); ok {
		made.Value = i
	} else {
		l.nodes[made] = value
	}
	return made
}

// negated is the node of the number below a minus sign; nil if it is none that an int does not hold.
func (l *literals) negated(n *ast.UnaryNode) *ast.IntegerNode {
	below, ok := n.Node.(*ast.IntegerNode)
	if !ok || n.Operator != "-" {
		return nil
	}
	value, ok := l.nodes[below]
	if !ok {
		return nil
	}
	return l.add(n, bigNumber(new(big.Int).Neg(value.big())))
}

// of is the number that a node is, which an int may not hold.
func (l *literals) of(n *ast.IntegerNode) number {
	if value, ok := l.nodes[n]; ok {
		return value
	}
	return intNumber(int64(n.Value))
}

// number is the number that a literal is, with a minus sign or without; ok is false if it is none.
func (l *literals) number(n ast.Node) (value number, ok bool) {
	switch n := n.(type) {
	case *ast.IntegerNode:
		return l.of(n), true
	case *ast.FloatNode:
		return floatNumber(n.Value), true
	case *ast.ConstantNode: // of a node that was made exact
		return numberOf(n.Value)
	case *ast.UnaryNode:
		if value, ok = l.number(n.Node); !ok || n.Operator != "-" {
			return value, false
		}
		if value.isFloat {
			return floatNumber(-value.float), true
		}
		return bigNumber(new(big.Int).Neg(value.big())), true
	}
	return value, false
}

// written puts numbers back into a message for their names.
func (l *literals) written(message string) string {
	if l.name == 0 || !strings.ContainsRune(message, l.name) {
		return message
	}
	longest := ""
	for {
		for name := range l.texts {
			if len(name) > len(longest) && strings.Contains(message, name) {
				longest = name
			}
		}
		if longest == "" {
			return message
		}
		message, longest = strings.ReplaceAll(message, longest, l.texts[longest]), ""
	}
}
