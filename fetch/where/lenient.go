package where

import "github.com/expr-lang/expr/ast"

// nilTest reports whether a node compares a value with nil, and lets the value
// be null.
func (g *guard) nilTest(n *ast.BinaryNode) (ok bool) {
	if n.Operator != "==" && n.Operator != "!=" {
		return false
	}
	if _, isNil := n.Right.(*ast.NilNode); isNil {
		n.Left, ok = g.lenient(n.Left)
	} else if _, isNil := n.Left.(*ast.NilNode); isNil {
		n.Right, ok = g.lenient(n.Right)
	}
	return ok
}

// lenient returns a form of n that can be computed whatever is null, and is nil
// if its own value is: a?.b for a.b. ok is false if there is none.
func (g *guard) lenient(n ast.Node) (form ast.Node, ok bool) {
	switch n := n.(type) {
	case *ast.IdentifierNode, *ast.PointerNode, *ast.NilNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode,
		*ast.StringNode:
		return n, true
	case *ast.ChainNode:
		m, ok := n.Node.(*ast.MemberNode)
		if !ok {
			return n, false
		}
		return g.lenient(m) // a?.b.c is a?.b?.c here
	case *ast.ConditionalNode:
		return n, g.orNils[n]
	case *ast.BuiltinNode, *ast.CallNode:
		if !mayBeNull(n) {
			return n, false
		}
		return g.orNil(n), true
	case *ast.MemberNode:
		if !g.isPath(n) {
			return g.orNil(n), true
		}
		chain := &ast.ChainNode{Node: optional(n)}
		chain.SetLocation(n.Location())
		return chain, true
	case *ast.BinaryNode:
		if n.Operator != "??" {
			return n, false
		}
		left, okLeft := g.lenient(n.Left)
		right, okRight := g.lenient(n.Right)
		if !okLeft || !okRight {
			return n, false
		}
		return binary(n, "??", left, right), true
	}
	return n, false
}

// optional makes a?.b?.c of the path a.b.c.
func optional(n ast.Node) ast.Node {
	m, ok := n.(*ast.MemberNode)
	if !ok {
		return n
	}
	out := &ast.MemberNode{Node: optional(m.Node), Property: m.Property, Optional: true}
	out.SetLocation(m.Location())
	return out
}

// orNil is a value that may be null, nil where what it is computed from is null.
func (g *guard) orNil(n ast.Node) ast.Node {
	if g.orNils[n] {
		return n
	}
	g.inner(n)
	need := &needed{guard: g}
	need.below(n)
	form := g.chosen(n, need.tests)
	if g.orNils == nil {
		g.orNils = map[ast.Node]bool{}
	}
	g.orNils[form] = true
	return form
}
