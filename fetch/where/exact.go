package where

import (
	"math/big"

	"github.com/expr-lang/expr/ast"
)

// exactPrefix is how the names of functions begin that stand for operators and functions of the library which are not
// exact. No column or function that people can write has such a name.
const exactPrefix = "exact "

// wide is a literal beyond a uint64.
type wide struct{ *big.Int }

// makeExact puts functions in the place of what the library computes as something else than it is: comparisons of
// integers beyond an int, and of those with floats; arithmetic that leaves an int; what is made of lists with nulls.
func makeExact(text string, s *shapes, root *ast.Node) error {
	e := &exact{shapes: s}
	ast.Walk(root, e)
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

type exact struct {
	*shapes
	beyond *ast.IntegerNode
}

// Visit implements ast.Visitor: it comes to a node after those below it.
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

// put puts a node in the place of another one of the same value.
func (e *exact) put(node *ast.Node, made ast.Node) {
	e.shapes.put(made, e.of[*node])
	made.SetLocation((*node).Location())
	*node = made
}

func (e *exact) call(node *ast.Node, name string, args ...ast.Node) {
	callee := &ast.IdentifierNode{Value: exactPrefix + name}
	callee.SetLocation((*node).Location())
	e.put(node, &ast.CallNode{Callee: callee, Arguments: args})
}

// ranged is the name of an operator: of one whose result an int holds, or a uint64 at least.
func (e *exact) ranged(operator string, of shape) string {
	if of.ints > intBits {
		return operator + uintSuffix
	}
	return operator
}

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

// literal is a node as a comparison has it: of a literal beyond a uint64 its value.
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

// table is a list of numbers to look values up in; nil if it has something else.
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

// index has an index checked which an int may not hold.
func (e *exact) index(node *ast.Node) {
	if *node != nil && e.of[*node].ints > intBits {
		e.call(node, "int", *node)
	}
}

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
