package where

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"reflect"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/vm/runtime"

	"bowstring/schema"
)

// exactPrefix begins the names of the functions that replace inexact operators and
// functions of the library. It has a space, so no column or function in an expression can
// have such a name.
const exactPrefix = "exact "

// wide is a literal beyond a uint64.
type wide struct{ *big.Int }

// makeExact replaces the operations that the library would compute inexactly by exact
// functions: comparisons of integers beyond an int and of those with floats, arithmetic
// that leaves an int, and functions of lists with nulls. Other operations stay, because
// the library's instructions are several times faster than a call. It fails if a literal
// beyond a uint64 is used for anything but a comparison.
func makeExact(text string, s *shapes, root *ast.Node) error {
	e := &exact{shapes: s}
	ast.Walk(root, e)
	// A literal beyond a uint64 that no comparison has taken remains in the tree.
	left := &finder{is: func(n ast.Node) bool {
		i, ok := n.(*ast.IntegerNode)
		if !ok {
			return false
		}
		_, ok = s.literals.nodes[i]
		if ok && e.beyond == nil {
			e.beyond = i
		}
		return ok
	}}
	if ast.Walk(root, left); left.found {
		return fail(text, e.beyond, "%s is beyond what an integer holds, -2^63 to 2^64-1: it can be compared, and no more",
			s.literals.of(e.beyond).big())
	}
	return nil
}

// exact is the visitor of makeExact.
type exact struct {
	*shapes
	beyond *ast.IntegerNode
}

// Visit implements ast.Visitor. Nodes below a node are visited before it.
func (e *exact) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.IntegerNode:
		if value, ok := e.literals.nodes[n].value().(uint64); ok {
			e.put(node, &ast.ConstantNode{Value: value})
		}
	case *ast.UnaryNode:
		if e.overflows(n) {
			e.call(node, e.ranged("-", e.of[n]), n.Node)
		}
	case *ast.BinaryNode:
		e.binary(node, n)
	case *ast.MemberNode:
		if _, isName := n.Property.(*ast.StringNode); !isName {
			e.index(&n.Property)
		}
	case *ast.SliceNode:
		e.index(&n.From)
		e.index(&n.To)
	case *ast.BuiltinNode:
		e.builtin(node, n)
	}
}

// put replaces a node by another one that has the same value, and keeps its shape and
// place.
func (e *exact) put(node *ast.Node, made ast.Node) {
	e.shapes.put(made, e.of[*node])
	made.SetLocation((*node).Location())
	*node = made
}

// call replaces a node by a call of an exact function.
func (e *exact) call(node *ast.Node, name string, args ...ast.Node) {
	callee := &ast.IdentifierNode{Value: exactPrefix + name}
	callee.SetLocation((*node).Location())
	e.put(node, &ast.CallNode{Callee: callee, Arguments: args})
}

// ranged is the name of the variant of an operator whose result may be up to an int's
// limit or, if the operands may be beyond an int, up to a uint64's.
func (e *exact) ranged(operator string, of shape) string {
	if of.ints > intBits {
		return operator + uintSuffix
	}
	return operator
}

// binary replaces an operator if it would be inexact for the shapes of its operands.
// Comparisons with nil are exact.
func (e *exact) binary(node *ast.Node, n *ast.BinaryNode) {
	a, b := e.of[n.Left], e.of[n.Right]
	switch n.Operator {
	case "==", "!=", "<", "<=", ">", ">=":
		_, left := n.Left.(*ast.NilNode)
		if _, right := n.Right.(*ast.NilNode); left || right || !inexact(a, b) {
			return
		}
		e.call(node, n.Operator, e.literal(n.Left), e.literal(n.Right))
	case "in":
		if !inexact(a, b) {
			return
		}
		list := n.Right
		if array, ok := list.(*ast.ArrayNode); ok {
			if table := e.table(array); table != nil {
				list = &ast.ConstantNode{Value: table}
			} else {
				for i := range array.Nodes {
					array.Nodes[i] = e.literal(array.Nodes[i])
				}
			}
		}
		e.call(node, n.Operator, e.literal(n.Left), list)
	case "+", "-", "*", "%":
		if e.overflows(n) {
			e.call(node, e.ranged(n.Operator, e.of[n]), n.Left, n.Right)
		}
	}
}

// literal returns the form of a node in a comparison: a literal beyond a uint64 becomes a
// constant.
func (e *exact) literal(n ast.Node) ast.Node {
	i, ok := n.(*ast.IntegerNode)
	if !ok {
		return n
	}
	if value, ok := e.literals.nodes[i]; ok {
		e.put(&n, &ast.ConstantNode{Value: wide{value.big()}})
	}
	return n
}

// table is a hash table of a list of literal numbers; nil if the list has another item.
func (e *exact) table(array *ast.ArrayNode) numberTable {
	t := numberTable{}
	for _, n := range array.Nodes {
		value, ok := e.literals.number(n)
		if !ok {
			return nil
		}
		if !value.isNaN() {
			t[value.key()] = true
		}
	}
	return t
}

// index adds a check to an index or a bound of a slice that may be beyond an int.
func (e *exact) index(node *ast.Node) {
	if *node != nil && e.of[*node].ints > intBits {
		e.call(node, "int", *node)
	}
}

// builtin replaces a function that the library computes inexactly, or that fails on null
// items.
func (e *exact) builtin(node *ast.Node, n *ast.BuiltinNode) {
	var of shape
	lists := false
	for _, a := range n.Arguments {
		of = of.or(e.of[a])
		lists = lists || !scalar(a.Type())
	}
	switch n.Name {
	case "abs":
		if of.negative && of.ints >= intBits {
			e.call(node, e.ranged(n.Name, of), n.Arguments...)
		}
	case "int":
		if of.floats || of.ints > intBits || lists {
			e.call(node, n.Name, n.Arguments...)
		}
	case "max", "min":
		if lists || inexact(of, of) {
			e.call(node, n.Name, n.Arguments...)
		}
	case "mean", "median":
		for i := range n.Arguments {
			if !scalar(n.Arguments[i].Type()) {
				e.call(&n.Arguments[i], "valid", n.Arguments[i])
			}
		}
	case "sum":
		list := n.Arguments[0]
		if len(n.Arguments) > 1 {
			items := &ast.BuiltinNode{Name: "map", Arguments: n.Arguments}
			items.SetLocation(n.Location())
			list = items
		}
		e.call(node, e.ranged(n.Name, e.of[n]), list)
	}
}

// uintSuffix ends the names of the variants of operators whose result may be up to
// 2^64-1.
const uintSuffix = " to uint64"

// exactFunctions are the functions that makeExact calls, by their names.
var exactFunctions = func() map[string]*builtin.Function {
	list := map[string]*builtin.Function{}
	add := func(name string, validate func([]reflect.Type) (reflect.Type, error), f func(...any) (any, error)) {
		name = exactPrefix + name
		list[name] = &builtin.Function{Name: name, Func: f, Validate: validate}
	}
	for name, test := range map[string]func(a, b any) bool{
		"==": equal,
		"!=": func(a, b any) bool { return !equal(a, b) },
		"<":  less,
		">":  func(a, b any) bool { return less(b, a) },
		"<=": func(a, b any) bool { return atMost(a, b) },
		">=": func(a, b any) bool { return atMost(b, a) },
		"in": in,
	} {
		add(name, gives(reflect.TypeFor[bool]()), func(args ...any) (any, error) { return test(args[0], args[1]), nil })
	}
	for suffix, most := range map[string]uint64{"": math.MaxInt64, uintSuffix: math.MaxUint64} {
		for _, operator := range []string{"+", "-", "*", "%"} {
			add(operator+suffix, givesNumber, func(args ...any) (any, error) {
				if len(args) == 1 {
					return compute(operator, 0, args[0], most)
				}
				return compute(operator, args[0], args[1], most)
			})
		}
		add("sum"+suffix, givesItem, func(args ...any) (any, error) { return sum(args[0], most) })
		add("abs"+suffix, givesNumber, func(args ...any) (any, error) {
			if n, ok := numberOf(args[0]); ok && !n.isFloat {
				return within(number{size: n.size}, most)
			}
			return builtin.Abs(args[0]), nil
		})
	}
	add("int", gives(reflect.TypeFor[int]()), func(args ...any) (any, error) { return toInt(args[0]) })
	add("valid", givesSame, func(args ...any) (any, error) { return valid(args[0]), nil })
	for name, before := range map[string]func(a, b any) bool{
		"max": less, "min": func(a, b any) bool { return less(b, a) },
	} {
		add(name, builtin.Builtins[builtin.Index[name]].Validate, func(args ...any) (any, error) {
			return extreme(name, before, args)
		})
	}
	return list
}()

// gives is the type check of a function with a fixed result type.
func gives(t reflect.Type) func([]reflect.Type) (reflect.Type, error) {
	return func([]reflect.Type) (reflect.Type, error) { return t, nil }
}

func givesSame(args []reflect.Type) (reflect.Type, error) { return args[0], nil }

// givesNumber is the result type of arithmetic. An int is promised only for integers; the
// value may then be a uint64, which the exact functions around it accept.
func givesNumber(args []reflect.Type) (reflect.Type, error) {
	for _, t := range args {
		if t.Kind() != reflect.Int && t.Kind() != reflect.Uint64 {
			return reflect.TypeFor[any](), nil
		}
	}
	return reflect.TypeFor[int](), nil
}

// givesItem is the type of a list's items.
func givesItem(args []reflect.Type) (reflect.Type, error) {
	if k := args[0].Kind(); k == reflect.Slice || k == reflect.Array {
		return args[0].Elem(), nil
	}
	return reflect.TypeFor[any](), nil
}

// numbers converts two values; ok is false if either is no number.
func numbers(a, b any) (x, y number, ok bool) {
	if x, ok = numberOf(a); !ok {
		return x, y, false
	}
	y, ok = numberOf(b)
	return x, y, ok
}

// equal compares by value if both are numbers, and as the library does otherwise. NaN
// equals nothing.
func equal(a, b any) bool {
	if x, y, ok := numbers(a, b); ok {
		return !x.isNaN() && !y.isNaN() && x.compare(y) == 0
	}
	return runtime.Equal(a, b)
}

func less(a, b any) bool {
	if x, y, ok := numbers(a, b); ok {
		return !x.isNaN() && !y.isNaN() && x.compare(y) < 0
	}
	return runtime.Less(a, b)
}

func atMost(a, b any) bool {
	if x, y, ok := numbers(a, b); ok {
		return !x.isNaN() && !y.isNaN() && x.compare(y) <= 0
	}
	return runtime.LessOrEqual(a, b)
}

// numberTable is a set of numbers, by their keys.
type numberTable map[any]bool

// key is the same for equal numbers, whatever their representation: 1 and 1.0 have one
// key.
func (n number) key() any {
	if n.isFloat {
		if n.float != math.Trunc(n.float) || math.IsInf(n.float, 0) {
			return n.float
		}
		whole, _ := new(big.Float).SetFloat64(n.float).Int(nil)
		n = bigNumber(whole)
	}
	if v := n.value(); v != nil {
		return v
	}
	return n.big().String()
}

// in reports whether a list has the value. Numbers match by value.
func in(a, list any) bool {
	if t, ok := list.(numberTable); ok {
		n, ok := numberOf(a)
		return ok && !n.isNaN() && t[n.key()]
	}
	items, ok := itemsOf(list)
	if !ok {
		return runtime.In(a, list)
	}
	for _, item := range items {
		if equal(a, item) {
			return true
		}
	}
	return false
}

// itemsOf returns the items of a list of any type.
func itemsOf(list any) (items []any, ok bool) {
	if items, ok = list.([]any); ok {
		return items, true
	}
	v := reflect.ValueOf(list)
	if k := v.Kind(); k != reflect.Slice && k != reflect.Array {
		return nil, false
	}
	for i := range v.Len() {
		items = append(items, v.Index(i).Interface())
	}
	return items, true
}

// within converts an integer to a value of expressions, or fails if it is beyond -2^63 to
// most.
func within(n number, most uint64) (any, error) {
	v := n.value()
	if v == nil || !n.negative && n.size > most {
		return nil, fmt.Errorf("it comes to %s, which is beyond what an integer holds here, -2^63 to %d", n.big(), most)
	}
	return v, nil
}

// compute applies an operator to two values. Integers are exact, with results up to most.
// The common case of two ints takes no big.Int.
func compute(operator string, a, b any, most uint64) (any, error) {
	x, y, ok := numbers(a, b)
	if !ok || x.isFloat || y.isFloat {
		switch operator {
		case "+":
			return runtime.Add(a, b), nil
		case "-":
			return runtime.Subtract(a, b), nil
		case "*":
			return runtime.Multiply(a, b), nil
		}
		return runtime.Modulo(a, b), nil
	}
	// The fast path, without allocations; on overflow the big path below decides.
	if i, ok := a.(int); ok {
		if j, ok := b.(int); ok {
			if v, ok := computeInts(operator, i, j); ok {
				return boxInt(v), nil
			}
		}
	}
	p, q, out := x.big(), y.big(), new(big.Int)
	switch operator {
	case "+":
		out.Add(p, q)
	case "-":
		out.Sub(p, q)
	case "*":
		out.Mul(p, q)
	default:
		if q.Sign() == 0 {
			return nil, errors.New("integer divide by zero")
		}
		out.Rem(p, q) // with the sign of the first, as for ints
	}
	return within(bigNumber(out), most)
}

// computeInts applies an operator to two ints; ok is false if the result overflows. A sum
// overflows if it moves against the sign of the second operand.
func computeInts(operator string, a, b int) (c int, ok bool) {
	switch operator {
	case "+":
		c = a + b
		return c, (c > a) == (b > 0)
	case "-":
		c = a - b
		return c, (c < a) == (b > 0)
	case "*":
		high, low := bits.Mul64(intNumber(int64(a)).size, intNumber(int64(b)).size)
		return a * b, high == 0 && low <= math.MaxInt64
	}
	if b == 0 {
		return 0, false
	}
	return a % b, true
}

// sum adds up the items that are not null. The sum of integers is exact and may be up to
// most; intermediate sums may be beyond it. From the first float on the sum is a float.
func sum(list any, most uint64) (any, error) {
	items, ok := itemsOf(list)
	if !ok {
		return nil, fmt.Errorf("invalid argument for sum (type %T)", list)
	}
	var acc any = 0
	var beyond *big.Int // the sum so far, if an int does not hold it
	for _, item := range items {
		if item == nil {
			continue
		}
		n, isNumber := numberOf(item)
		if !isNumber || n.isFloat || !isInt(acc) {
			if beyond != nil {
				acc, _ = new(big.Float).SetInt(beyond).Float64()
				beyond = nil
			}
			acc = runtime.Add(item, acc)
			continue
		}
		i, fits := item.(int)
		if v, ok := computeInts("+", acc.(int), i); beyond == nil && fits && ok {
			acc = v
			continue
		}
		if beyond == nil {
			beyond = big.NewInt(int64(acc.(int)))
		}
		beyond.Add(beyond, n.big())
	}
	if beyond != nil {
		return within(bigNumber(beyond), most)
	}
	return acc, nil
}

func isInt(v any) bool { _, ok := v.(int); return ok }

// toInt is the function int. A value beyond an int is an error; fractions are cut off.
func toInt(v any) (any, error) {
	n, ok := numberOf(v)
	if !ok {
		return builtin.Int(v), nil
	}
	if n.isFloat {
		if !(n.float >= -1<<63 && n.float < 1<<63) {
			return nil, fmt.Errorf("int: %v is beyond what an integer holds", n.float)
		}
		return int(n.float), nil
	}
	return within(n, math.MaxInt64)
}

// valid is a list without its nulls. Other values are returned as they are.
func valid(v any) any {
	items, ok := v.([]any)
	if !ok {
		return v
	}
	out := make([]any, 0, len(items))
	for _, item := range items {
		if item != nil {
			out = append(out, item)
		}
	}
	return out
}

// extreme is the maximum or minimum of all arguments, nil if there is none. It descends
// into lists and skips their nulls. before(a, b) reports whether b is to be preferred.
func extreme(name string, before func(a, b any) bool, args []any) (out any, err error) {
	for _, v := range args {
		if items, ok := itemsOf(v); ok {
			if v, err = extreme(name, before, items); err != nil {
				return nil, err
			}
		}
		if v == nil {
			continue
		}
		if _, ok := numberOf(v); !ok {
			if _, ok := v.(time.Duration); !ok {
				return nil, fmt.Errorf("invalid argument for %s (type %T)", name, v)
			}
		}
		if out == nil || before(out, v) {
			out = v
		}
	}
	return out, nil
}

// number is an integer of any size or a float. Comparisons are by value: no integer is
// rounded to a float. Exactly one of whole (if not nil), float (if isFloat), and the
// integer of negative and size is the value.
type number struct {
	float    float64
	isFloat  bool
	negative bool     // the integer is -size
	size     uint64   // of an integer within ±(2^64-1)
	whole    *big.Int // an integer beyond that
}

func intNumber(n int64) number {
	if n < 0 {
		return number{negative: true, size: -uint64(n)}
	}
	return number{size: uint64(n)}
}

func uintNumber(n uint64) number { return number{size: n} }

func floatNumber(f float64) number { return number{float: f, isFloat: true} }

// bigNumber is an integer of any size.
func bigNumber(n *big.Int) number {
	if n.BitLen() > 64 {
		return number{whole: n}
	}
	return number{negative: n.Sign() < 0, size: new(big.Int).Abs(n).Uint64()}
}

// numberOf converts a value of an expression; ok is false if it is no number.
func numberOf(v any) (n number, ok bool) {
	switch v := v.(type) {
	case int:
		return intNumber(int64(v)), true
	case uint64:
		return uintNumber(v), true
	case float64:
		return floatNumber(v), true
	case wide:
		return bigNumber(v.Int), true
	}
	return n, false
}

// value is the integer as a value of expressions: an int, a uint64 if it is beyond an
// int, or nil if it is beyond both.
func (n number) value() any {
	switch {
	case n.whole != nil || n.isFloat:
		return nil
	case !n.negative && n.size <= math.MaxInt64:
		return boxInt(int(n.size))
	case !n.negative:
		return n.size
	case n.size <= 1<<63:
		return int(-n.size)
	}
	return nil
}

// big is the integer. The caller must not change it.
func (n number) big() *big.Int {
	if n.whole != nil {
		return n.whole
	}
	b := new(big.Int).SetUint64(n.size)
	if n.negative {
		b.Neg(b)
	}
	return b
}

// bits is the number of bits of the integer's absolute value.
func (n number) bits() int {
	if n.whole != nil {
		return n.whole.BitLen()
	}
	return bits.Len64(n.size)
}

// nearest is the float nearest to the number.
func (n number) nearest() float64 {
	if n.isFloat {
		return n.float
	}
	f, _ := new(big.Float).SetInt(n.big()).Float64()
	return f
}

func (n number) isNaN() bool { return n.isFloat && n.float != n.float }

// compare returns -1, 0 or 1 if n is less than, equal to or greater than b. Neither may
// be NaN.
func (n number) compare(b number) int {
	switch {
	case n.isFloat && b.isFloat:
		return cmp.Compare(n.float, b.float)
	case b.isFloat:
		return -b.compareFloat(n)
	case n.isFloat:
		return n.compareFloat(b)
	case n.whole != nil || b.whole != nil:
		return n.big().Cmp(b.big())
	case n.negative != b.negative && n.size|b.size != 0:
		if n.negative {
			return -1
		}
		return 1
	case n.negative:
		return cmp.Compare(b.size, n.size)
	}
	return cmp.Compare(n.size, b.size)
}

// compareFloat compares the float n with the integer b. It compares the whole parts as
// integers first, because converting b to a float could round it to n.
func (n number) compareFloat(b number) int {
	if math.IsInf(n.float, 0) {
		return cmp.Compare(n.float, 0)
	}
	const two64 = 1 << 64
	size := math.Abs(n.float)
	if b.whole != nil || size >= two64 {
		// No float of this size has a fraction.
		whole, _ := new(big.Float).SetFloat64(n.float).Int(nil)
		if c := whole.Cmp(b.big()); c != 0 || size >= two64 {
			return c
		}
	}
	floor := math.Floor(size)
	whole := number{negative: n.float < 0, size: uint64(floor)}
	if c := whole.compare(b); c != 0 || floor == size {
		return c
	}
	return cmp.Compare(n.float, 0) // the fraction leads away from zero
}

// Sizes of integers, in bits without the sign.
const (
	intBits   = 63  // of an int
	uintBits  = 64  // of a uint64, which arithmetic can also give
	floatBits = 53  // every integer of this size is a float
	countBits = 48  // of lengths and indexes, which memory limits
	wholeBits = 200 // of a larger literal
)

// shape is the set of numbers that a value may be or contain, as far as types and
// literals show. It decides which operations must be replaced by exact ones.
type shape struct {
	ints     int            // bits of the largest integer; 0 if there is none
	negative bool           // an integer may be negative
	floats   bool           // floats may be 2^53 or more, or are not known
	of       arrow.DataType // type of a list or struct that comes from a column
}

// or is the shape of a value that may be either.
func (s shape) or(t shape) shape {
	return shape{ints: max(s.ints, t.ints), negative: s.negative || t.negative, floats: s.floats || t.floats}
}

// shapes computes the shapes of the nodes of an expression.
type shapes struct {
	columns  *columns
	literals *literals
	of       map[ast.Node]shape // only nodes with numbers, lists or structs
	names    map[string]shape   // of values that have a name
	items    []shape            // items of the lists around the current node, innermost last
}

// shapesOf computes the shapes of all nodes of a tree.
func shapesOf(c *columns, l *literals, root ast.Node) *shapes {
	s := &shapes{columns: c, literals: l, of: map[ast.Node]shape{}, names: map[string]shape{}}
	s.visit(root)
	return s
}

// visit computes and notes the shape of a node and of those below it.
func (s *shapes) visit(n ast.Node) shape {
	if n == nil {
		return shape{}
	}
	out := s.find(n)
	s.put(n, out)
	return out
}

// put notes the shape of a node. Most nodes have no numbers and take no entry.
func (s *shapes) put(n ast.Node, of shape) {
	if of != (shape{}) {
		s.of[n] = of
	}
}

// find computes the shape of a node, after those below it.
func (s *shapes) find(n ast.Node) shape {
	switch n := n.(type) {
	case *ast.IntegerNode:
		value := s.literals.of(n)
		return shape{ints: value.bits(), negative: value.negative || value.whole != nil && value.whole.Sign() < 0}
	case *ast.FloatNode:
		return shape{floats: !(math.Abs(n.Value) < 1<<floatBits)}
	case *ast.IdentifierNode:
		if named, ok := s.names[n.Value]; ok {
			return named
		}
		return s.column(n.Value)
	case *ast.PointerNode:
		if len(s.items) == 0 {
			return shape{}
		}
		if n.Name != "" { // #index
			return shape{ints: countBits}
		}
		return s.items[len(s.items)-1]
	case *ast.MemberNode:
		of, _ := s.visit(n.Node), s.visit(n.Property)
		if name, ok := n.Property.(*ast.StringNode); ok {
			return of.field(name.Value)
		}
		return of.item()
	case *ast.VariableDeclaratorNode:
		s.names[n.Name] = s.visit(n.Value)
		return s.visit(n.Expr)
	case *ast.BuiltinNode:
		return s.call(n)
	case *ast.BinaryNode:
		return s.binary(n)
	case *ast.UnaryNode:
		of := s.visit(n.Node)
		if n.Operator == "-" {
			of = shape{ints: of.ints, negative: of.ints > 0, floats: of.floats}
		}
		return of
	case *ast.ConditionalNode:
		s.visit(n.Cond)
		return s.visit(n.Exp1).or(s.visit(n.Exp2))
	case *ast.SliceNode:
		s.visit(n.From)
		s.visit(n.To)
		return s.visit(n.Node)
	case *ast.ChainNode:
		return s.visit(n.Node)
	}
	var all shape
	for _, below := range children(n) {
		all = all.or(s.visit(below))
	}
	return all
}

// binary is the shape of an operator's result. Division and powers give floats, tests
// give no number.
func (s *shapes) binary(n *ast.BinaryNode) shape {
	a, b := s.visit(n.Left), s.visit(n.Right)
	both := a.or(b)
	switch n.Operator {
	case "??":
		return both
	case "+", "-", "*":
		if both.ints == 0 {
			return both
		}
		both.ints = sumBits(n.Operator, a, b)
		both.negative = both.negative || n.Operator == "-"
		return both
	case "%":
		return shape{ints: a.ints, negative: a.negative}
	case "/", "**", "^":
		return shape{floats: true}
	}
	return shape{}
}

// sumBits is how many bits the result of +, - or * may have. A result that could exceed
// its type is limited to it, since a larger one is an error of the row.
func sumBits(operator string, a, b shape) int {
	bits := max(a.ints, b.ints) + 1
	if operator == "*" {
		bits = a.ints + b.ints
	}
	if bits <= intBits {
		return bits
	}
	if max(a.ints, b.ints) > intBits {
		return uintBits
	}
	return intBits
}

// call is the shape of a function's result.
func (s *shapes) call(n *ast.BuiltinNode) shape {
	var all shape
	for i, a := range n.Arguments {
		p, ok := a.(*ast.PredicateNode)
		if !ok {
			all = all.or(s.visit(a))
			continue
		}
		s.items = append(s.items, s.of[n.Arguments[0]].item())
		of := s.visit(p.Node)
		s.put(p, of)
		s.items = s.items[:len(s.items)-1]
		if i == 1 && (n.Name == "map" || n.Name == "sum") {
			all = of
		}
	}
	switch n.Name {
	case "len", "count", "indexOf", "lastIndexOf", "findIndex", "findLastIndex":
		return shape{ints: countBits, negative: true}
	case "int":
		return shape{ints: intBits, negative: true}
	case "abs":
		return shape{ints: all.ints, floats: all.floats}
	case "sum":
		if all.ints > 0 {
			all.ints = max(all.ints, intBits)
		}
		return shape{ints: all.ints, negative: all.negative, floats: all.floats}
	case "float", "ceil", "floor", "round", "mean", "median":
		return shape{floats: true}
	case "first", "last", "find", "findLast":
		return s.of[n.Arguments[0]].item()
	case "filter":
		return s.of[n.Arguments[0]]
	case "map", "max", "min":
		return all
	}
	return shape{}
}

// column is the shape of a column's cells.
func (s *shapes) column(name string) shape {
	f, ok := s.columns.field(name)
	switch {
	case ok && name != schema.IDColumn:
		return typeShape(f.Type)
	case name == schema.PositionColumn:
		return shape{ints: intBits}
	}
	if _, part, ok := s.columns.part(name); ok && part == schema.SizePart {
		return shape{ints: intBits}
	}
	return shape{}
}

// typeShape is the shape of everything that cells of a type contain.
func typeShape(t arrow.DataType) shape {
	var out shape
	switch t := t.(type) {
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type:
		out.ints, out.negative = t.(arrow.FixedWidthDataType).BitWidth()-1, true
		if out.ints < intBits {
			out.ints++ // the least value has one bit more
		}
	case *arrow.Uint8Type, *arrow.Uint16Type, *arrow.Uint32Type, *arrow.Uint64Type:
		out.ints = t.(arrow.FixedWidthDataType).BitWidth()
	case *arrow.Float16Type, *arrow.Float32Type, *arrow.Float64Type, *arrow.Decimal128Type:
		out.floats = true
	case *arrow.StructType:
		for _, f := range t.Fields() {
			out = out.or(typeShape(f.Type))
		}
		out.of = t
	case arrow.ListLikeType:
		out = typeShape(t.Elem())
		out.of = t
	}
	return out
}

// item is the shape of a list's items.
func (s shape) item() shape {
	if list, ok := s.of.(arrow.ListLikeType); ok {
		return typeShape(list.Elem())
	}
	return shape{ints: s.ints, negative: s.negative, floats: s.floats}
}

// field is the shape of a struct's field.
func (s shape) field(name string) shape {
	if t, ok := s.of.(*arrow.StructType); ok {
		if f, ok := t.FieldByName(name); ok {
			return typeShape(f.Type)
		}
	}
	return shape{ints: s.ints, negative: s.negative, floats: s.floats}
}

// inexact reports whether the library would compare two values inexactly: integers beyond
// an int, or an integer with a float that cannot represent it.
func inexact(a, b shape) bool {
	return a.ints > intBits || b.ints > intBits || a.ints > floatBits && b.floats || b.ints > floatBits && a.floats
}

// overflows reports whether arithmetic on integers may leave an int.
func (s *shapes) overflows(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.UnaryNode:
		return n.Operator == "-" && s.of[n.Node].ints >= intBits && mayBeInt(n.Node)
	case *ast.BinaryNode:
		if !mayBeInt(n.Left) || !mayBeInt(n.Right) {
			return false
		}
		a, b := s.of[n.Left], s.of[n.Right]
		switch n.Operator {
		case "%":
			return max(a.ints, b.ints) > intBits
		case "*":
			return a.ints+b.ints > intBits
		case "+", "-":
			return max(a.ints, b.ints)+1 > intBits
		}
	}
	return false
}

// mayBeInt reports whether a value may be an integer, as far as its static type shows.
func mayBeInt(n ast.Node) bool {
	t := n.Type()
	return t == nil || t.Kind() == reflect.Int || t.Kind() == reflect.Interface
}
