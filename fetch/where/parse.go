package where

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/parser/lexer"
	"github.com/expr-lang/expr/types"

	"bowstring/schema"
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

// maxNodes is how many nodes an expression may have in the form that is compiled: with tests for nulls, and a
// condition counted as often as it is compiled.
const maxNodes = 1 << 15

const (
	// textNode is how many bytes of text that literals are joined to count for a node.
	textNode = 64
	// zoneNodes is what a date counts for whose time zone is looked up in files.
	zoneNodes = 64
)

// checkSize counts the nodes of a tree, and fails if they are too many. It looks at each node once, however often it is
// in the tree.
func checkSize(text string, root ast.Node) (int, error) {
	c := &census{sizes: map[ast.Node]size{}}
	n := c.count(root).nodes
	if n > maxNodes {
		return 0, fail(text, root, "the expression comes to %.0f nodes with its tests for nulls, at most %d are allowed: "+
			"each name, literal, operator and call is one, and conditions count again where what they choose may be null",
			n, maxNodes)
	}
	return int(n), nil
}

// size is how large the tree below a node is. Counts of shared nodes grow beyond what an int holds.
type size struct {
	nodes   float64
	literal bool    // it is text, or becomes one literal of several
	text    float64 // bytes of that
}

// census counts nodes.
type census struct{ sizes map[ast.Node]size }

func (c *census) count(n ast.Node) size {
	if n == nil {
		return size{}
	}
	if s, ok := c.sizes[n]; ok {
		return s
	}
	s := size{nodes: 1}
	switch n := n.(type) {
	case *ast.StringNode:
		s.literal, s.text = true, float64(len(n.Value))
		s.nodes += s.text / textNode
	case *ast.BinaryNode:
		left, right := c.count(n.Left), c.count(n.Right)
		s.nodes += left.nodes + right.nodes
		if n.Operator == "+" && left.literal && right.literal {
			s.literal, s.text = true, left.text+right.text
			s.nodes += s.text / textNode // the optimizer joins each to all before it
		}
	default:
		for _, below := range children(n) {
			s.nodes += c.count(below).nodes
		}
		if name, args := callOf(n); name == "date" && len(args) > 2 {
			s.nodes += zoneNodes
		}
	}
	c.sizes[n] = s
	return s
}

// children are the nodes below a node, some of which may be nil.
func children(n ast.Node) []ast.Node {
	switch n := n.(type) {
	case *ast.UnaryNode:
		return []ast.Node{n.Node}
	case *ast.BinaryNode:
		return []ast.Node{n.Left, n.Right}
	case *ast.ChainNode:
		return []ast.Node{n.Node}
	case *ast.MemberNode:
		return []ast.Node{n.Node, n.Property}
	case *ast.SliceNode:
		return []ast.Node{n.Node, n.From, n.To}
	case *ast.CallNode:
		return n.Arguments
	case *ast.BuiltinNode:
		return n.Arguments
	case *ast.PredicateNode:
		return []ast.Node{n.Node}
	case *ast.ConditionalNode:
		return []ast.Node{n.Cond, n.Exp1, n.Exp2}
	case *ast.ArrayNode:
		return n.Nodes
	case *ast.VariableDeclaratorNode:
		return []ast.Node{n.Value, n.Expr}
	}
	return nil
}

// columns are what an expression may name. To look a name up takes the same time whatever the number of columns.
type columns struct{ schema *arrow.Schema }

// field is the column of a name, which may be a blob column.
func (c *columns) field(name string) (f arrow.Field, ok bool) {
	at := c.schema.FieldIndices(name)
	if len(at) == 0 {
		return f, false
	}
	return c.schema.Field(at[0]), true
}

// part is the blob column of which a name is a part, such as image.size.
func (c *columns) part(name string) (blob arrow.Field, part string, ok bool) {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return blob, "", false
	}
	if part = name[dot+1:]; part != schema.SizePart && part != schema.KeyPart {
		return blob, "", false
	}
	if _, taken := c.field(name); taken {
		return blob, "", false
	}
	if blob, ok = c.field(name[:dot]); !ok || !schema.IsBlob(blob) {
		return blob, "", false
	}
	return blob, part, true
}

// has reports whether an expression may name it.
func (c *columns) has(name string) bool {
	if name == schema.PositionColumn || name == schema.SplitColumn {
		return true
	}
	if f, ok := c.field(name); ok {
		return !schema.IsBlob(f)
	}
	_, _, ok := c.part(name)
	return ok
}

// isBlob reports whether it is a blob column, which has no value but its parts.
func (c *columns) isBlob(name string) bool {
	f, ok := c.field(name)
	return ok && schema.IsBlob(f)
}

// typeOf is the type of what has a value.
func (c *columns) typeOf(name string) (types.Type, error) {
	f, ok := c.field(name)
	switch {
	case ok && name == schema.IDColumn:
		return types.String, nil
	case ok:
		if t := typeOf(f.Type); t != nil {
			return t, nil
		}
		return nil, fmt.Errorf("%w: column %q has type %s, which expressions cannot read", schema.ErrInvalid, name, f.Type)
	case name == schema.PositionColumn:
		return types.Int, nil
	case name == schema.SplitColumn:
		return types.String, nil
	}
	if _, part, _ := c.part(name); part == schema.SizePart {
		return types.Int, nil
	}
	return types.String, nil
}

// isNullable reports whether it may be null.
func (c *columns) isNullable(name string) bool {
	if f, ok := c.field(name); ok {
		return f.Nullable && name != schema.IDColumn
	}
	blob, _, ok := c.part(name)
	return ok && blob.Nullable
}

// isStruct reports whether it is a column of structs.
func (c *columns) isStruct(name string) bool {
	f, ok := c.field(name)
	return ok && f.Type.ID() == arrow.STRUCT
}

// hiding are the columns that have names of functions.
func (c *columns) hiding() (types.Map, error) {
	env := types.Map{}
	for _, name := range functions {
		if !c.has(name) {
			continue
		}
		t, err := c.typeOf(name)
		if err != nil {
			return nil, err
		}
		env[name] = t
	}
	return env, nil
}

// shownNames is how many names an error lists.
const shownNames = 64

// names lists what an expression may name.
func (c *columns) names() []string {
	meta, _ := metaNames(c.schema)
	return meta
}

// listed is a list of names as an error shows it.
func listed(names []string) string {
	if more := len(names) - shownNames; more > 0 {
		return fmt.Sprintf("%s, and %d more", schema.ShownList(names[:shownNames]), more)
	}
	return schema.ShownList(names)
}

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
