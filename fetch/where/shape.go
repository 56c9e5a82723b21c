package where

import (
	"math"
	"reflect"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/expr-lang/expr/ast"

	"bowstring/schema"
)

// Bits that integers take.
const (
	intBits   = 63  // of an int
	uintBits  = 64  // of a uint64, which arithmetic can make, too
	floatBits = 53  // up to here every integer is a float
	countBits = 48  // of lengths and indexes
	wholeBits = 200 // of a literal beyond
)

// shape is what numbers a value may be, or may have in it.
type shape struct {
	ints     int            // bits of the largest integer; 0 if there is none
	negative bool           // an integer may be negative
	floats   bool           // there may be floats that are 2^53 or more, or are not known
	of       arrow.DataType // of a list or struct, where it is a column's, or a part of one
}

func (s shape) or(t shape) shape {
	return shape{ints: max(s.ints, t.ints), negative: s.negative || t.negative, floats: s.floats || t.floats}
}

// shapes are those of the nodes of an expression.
type shapes struct {
	columns  *columns
	literals *literals
	of       map[ast.Node]shape // of those that have numbers, lists or structs
	names    map[string]shape   // of values that have a name
	items    []shape            // of the lists that are gone through
}

func shapesOf(c *columns, l *literals, root ast.Node) *shapes {
	s := &shapes{columns: c, literals: l, of: map[ast.Node]shape{}, names: map[string]shape{}}
	s.visit(root)
	return s
}

func (s *shapes) visit(n ast.Node) shape {
	if n == nil {
		return shape{}
	}
	out := s.find(n)
	s.put(n, out)
	return out
}

// put notes the shape of a node. Most nodes have no numbers.
func (s *shapes) put(n ast.Node, of shape) {
	if of != (shape{}) {
		s.of[n] = of
	}
}

// find is the shape of a node, after those below it.
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

// sumBits is how many bits what is made of two integers takes, where it can be had.
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

// typeShape is the shape of all that cells of a type have in them.
func typeShape(t arrow.DataType) shape {
	var out shape
	switch t := t.(type) {
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type:
		out.ints, out.negative = t.(arrow.FixedWidthDataType).BitWidth()-1, true
		if out.ints < intBits {
			out.ints++ // the least one
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

// inexact reports whether the library would compare two values as something else than they are: integers beyond an
// int, or an integer with a float that does not hold it.
func inexact(a, b shape) bool {
	return a.ints > intBits || b.ints > intBits || a.ints > floatBits && b.floats || b.ints > floatBits && a.floats
}

// overflows reports whether arithmetic on integers may leave what an int holds.
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

// mayBeInt reports whether a value may be an integer, as far as its type tells.
func mayBeInt(n ast.Node) bool {
	t := n.Type()
	return t == nil || t.Kind() == reflect.Int || t.Kind() == reflect.Interface
}
