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

// maxNesting is how many brackets may be open at once. The parser recurses for each, and
// a stack that overflows would end the server.
const maxNesting = 256

// CheckSyntax checks an expression as far as possible without the columns. An error is an
// *Error.
func CheckSyntax(text string) error {
	if err := checkText(text); err != nil {
		return err
	}
	config := conf.CreateNew()
	config.Strict, config.MaxNodes = false, 0
	_, err := parse(text, config, &literals{})
	return err
}

// parse makes a tree of a text. It runs the lexer over the text first, because for an
// error in a word the parser would copy the text once for each open bracket. wide
// collects the integers that the parser does not accept.
func parse(text string, config *conf.Config, wide *literals) (*parser.Tree, error) {
	// The lexer's error names the place once, and the brackets are counted before the
	// parser recurses.
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

// literals are the integers of an expression that an int does not hold. The library's
// parser accepts none of them. Before parsing, each is replaced by a name of the same
// length that no column has, so that locations stay right. After parsing, the name
// becomes a node of its own.
type literals struct {
	name   rune              // the names repeat this letter, which the text does not have
	runes  []rune            // of the text with names; nil if there are no such integers
	places map[int]*big.Int  // by location
	texts  map[string]string // the integers as written, by their names
	nodes  map[*ast.IntegerNode]number
}

// firstName is where the search for a letter that the text does not have begins. The next
// 20,000 code points are letters too, more than a text has.
const firstName = '\u4e00'

// note records a word of the text if it is a number that an int does not hold.
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

// replaced is the text with names in place of the numbers.
func (l *literals) replaced(text string) string {
	if l.runes == nil {
		return text
	}
	return string(l.runes)
}

// start prepares the replacement, at the first such number.
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

// wideLiteral parses a number; ok is false if it is a float or fits into an int.
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

// node is the literal that a name was put in place of; nil if it is another name.
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

// add makes a node for a number that an int may not hold.
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

// negated is the node of the number below a minus sign, nil if that number fits into an
// int. -2^63 is an int although 2^63 is not.
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

// of is the number of a node, which an int may not hold.
func (l *literals) of(n *ast.IntegerNode) number {
	if value, ok := l.nodes[n]; ok {
		return value
	}
	return intNumber(int64(n.Value))
}

// number is the value of a literal, with or without a minus sign; ok is false if n is
// none.
func (l *literals) number(n ast.Node) (value number, ok bool) {
	switch n := n.(type) {
	case *ast.IntegerNode:
		return l.of(n), true
	case *ast.FloatNode:
		return floatNumber(n.Value), true
	case *ast.ConstantNode: // an integer that exact.Visit replaced
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

// written puts the numbers back into a message in place of their names, the longest
// first: a name may contain a shorter one.
func (l *literals) written(message string) string {
	if l.name == 0 || !strings.ContainsRune(message, l.name) {
		return message
	}
	// Map order is random, so the longest name is looked for in each round.
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

// maxNodes is how many nodes the compiled form of an expression may have, with tests for
// nulls. Conditions count as often as they are compiled.
const maxNodes = 1 << 15

// Nodes that count for more than one.
const (
	// textNode is how many bytes of joined literal text count as a node.
	textNode = 64
	// zoneNodes is what a date with a time zone counts for: the zone is looked up in
	// files.
	zoneNodes = 64
)

// checkSize counts the nodes of a tree, and fails if there are too many. It visits each
// node once, however often the node is in the tree.
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

// size is the size of the tree below a node. It is a float, because counts of shared
// nodes grow exponentially and would overflow an int.
type size struct {
	nodes   float64
	literal bool    // text, or folded from several literals to one
	text    float64 // bytes of that
}

// census counts nodes, and remembers the count of each.
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

// children are the nodes directly below a node. Some may be nil.
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

// columns are the names that an expression may use. Looking up a name takes the same time
// for any number of columns.
type columns struct{ schema *arrow.Schema }

// field is the column of a name. It may be a blob column.
func (c *columns) field(name string) (f arrow.Field, ok bool) {
	at := c.schema.FieldIndices(name)
	if len(at) == 0 {
		return f, false
	}
	return c.schema.Field(at[0]), true
}

// part resolves a name such as image.size to a blob column and its part. A column of that
// very name takes precedence.
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

// isBlob reports whether it is a blob column, which has no value except its parts.
func (c *columns) isBlob(name string) bool {
	f, ok := c.field(name)
	return ok && schema.IsBlob(f)
}

// typeOf is the type of a name that has reports. It fails with schema.ErrInvalid for a
// column whose values expressions cannot read.
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

// hiding are the columns that have the names of functions, with their types. Such a
// column hides the function.
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

// Error says what is wrong with an expression, and where. It wraps schema.ErrInvalid, or
// schema.ErrLimit if the expression would take too long.
type Error struct {
	Line    int    // from 1
	Column  int    // in characters, from 1
	Message string // what is wrong and what would be right
	Field   string // field of the request that has the expression; "" means where

	text  string // of the expression; shared, since many rows may fail in the same one
	place file.Location
	kind  error // nil stands for schema.ErrInvalid
}

// Error is the message with its place, then the line of the expression, then a caret
// below the place.
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

// beyond makes an Error for an expression that would take too long.
func beyond(text string, place file.Location, format string, args ...any) error {
	e := at(text, place, fmt.Sprintf(format, args...))
	e.kind = schema.ErrLimit
	return e
}

// at makes an Error at a place, which counts in characters. Lines and columns start at 1.
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

// maxMessage bounds the bytes of a message of the library, which quotes values of the
// row.
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
