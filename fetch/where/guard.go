package where

import (
	"slices"

	"github.com/expr-lang/expr/ast"
)

// guard rewrites an expression so that no operation ever sees a null. In the
// place of a condition, each test that needs columns that may be null comes to
// be (column != nil and test).
type guard struct {
	nullable map[string]bool // columns
	structs  map[string]bool // columns of structs
}

// condition rewrites a node that is a condition.
func (g *guard) condition(n ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			n.Node = g.condition(n.Node)
			return n
		}
	case *ast.BinaryNode:
		switch n.Operator {
		case "and", "&&", "or", "||":
			n.Left, n.Right = g.condition(n.Left), g.condition(n.Right)
			return n
		case "==", "!=":
			if g.nilTest(n) {
				return n
			}
		}
	case *ast.ConditionalNode:
		n.Cond, n.Exp1, n.Exp2 = g.condition(n.Cond), g.condition(n.Exp1), g.condition(n.Exp2)
		return n
	}
	g.inner(n)
	if need := g.needs(n); len(need) > 0 {
		return and(append(need, n)...)
	}
	return n
}

// inner rewrites the conditions within a test: those of predicates and
// conditionals.
func (g *guard) inner(n ast.Node) {
	switch n := n.(type) {
	case *ast.UnaryNode:
		g.inner(n.Node)
	case *ast.BinaryNode:
		if g.nilTest(n) {
			return
		}
		if left, ok := g.lenient(n.Left); n.Operator == "??" && ok {
			n.Left = left
		} else {
			g.inner(n.Left)
		}
		g.inner(n.Right)
	case *ast.ChainNode:
		g.inner(n.Node)
	case *ast.MemberNode:
		g.inner(n.Node)
		g.inner(n.Property)
	case *ast.SliceNode:
		g.inner(n.Node)
		g.inner(n.From)
		g.inner(n.To)
	case *ast.CallNode:
		for _, a := range n.Arguments {
			g.inner(a)
		}
	case *ast.BuiltinNode:
		for _, a := range n.Arguments {
			if p, ok := a.(*ast.PredicateNode); ok && slices.Contains(predicates, n.Name) {
				p.Node = g.condition(p.Node)
			} else {
				g.inner(a)
			}
		}
	case *ast.PredicateNode:
		g.inner(n.Node)
	case *ast.ConditionalNode:
		n.Cond = g.condition(n.Cond)
		g.inner(n.Exp1)
		g.inner(n.Exp2)
	case *ast.ArrayNode:
		for _, a := range n.Nodes {
			g.inner(a)
		}
	}
}

// needs returns the conditions under which a value can be computed: that the
// columns it needs are not null.
func (g *guard) needs(n ast.Node) []ast.Node {
	if path := g.prefixes(n); path != nil {
		return tests(path)
	}
	var out []ast.Node
	all := func(nodes ...ast.Node) []ast.Node {
		for _, n := range nodes {
			if n == nil {
				continue
			}
			for _, need := range g.needs(n) {
				// The same column is mostly needed more than once.
				if !slices.ContainsFunc(out, func(have ast.Node) bool { return have.String() == need.String() }) {
					out = append(out, need)
				}
			}
		}
		return out
	}
	switch n := n.(type) {
	case *ast.UnaryNode:
		return all(n.Node)
	case *ast.BinaryNode:
		switch n.Operator {
		case "??":
			left, ok := g.lenient(n.Left)
			if !ok {
				return all(n.Left, n.Right)
			}
			right := g.needs(n.Right)
			if len(right) == 0 {
				return nil
			}
			return []ast.Node{binary(n, "or", binary(n, "!=", left, &ast.NilNode{}), and(right...))}
		case "==", "!=":
			if g.nilTest(n) {
				return nil
			}
		}
		return all(n.Left, n.Right)
	case *ast.ChainNode:
		return all(n.Node)
	case *ast.MemberNode:
		return all(n.Node, n.Property)
	case *ast.SliceNode:
		return all(n.Node, n.From, n.To)
	case *ast.CallNode:
		return all(n.Arguments...)
	case *ast.BuiltinNode:
		for _, a := range n.Arguments {
			if p, ok := a.(*ast.PredicateNode); ok {
				if slices.Contains(predicates, n.Name) {
					continue // guarded in itself
				}
				for _, need := range g.needs(p.Node) {
					if !contains(need, func(n ast.Node) bool { _, ok := n.(*ast.PointerNode); return ok }) {
						out = append(out, need)
					}
				}
				continue
			}
			all(a)
		}
		return out
	case *ast.ConditionalNode:
		first, second := g.needs(n.Exp1), g.needs(n.Exp2)
		if len(first)+len(second) == 0 {
			return nil
		}
		c := &ast.ConditionalNode{Ternary: true, Cond: n.Cond, Exp1: and(first...), Exp2: and(second...)}
		c.SetLocation(n.Location())
		return []ast.Node{c}
	case *ast.ArrayNode:
		return all(n.Nodes...)
	}
	return nil
}

// prefixes returns the parts of a path such as a.b.c that may be null, the
// shortest first; nil if n is no path or no part of it can be null.
func (g *guard) prefixes(n ast.Node) []ast.Node {
	switch n := n.(type) {
	case *ast.IdentifierNode:
		if g.nullable[n.Value] {
			return []ast.Node{n}
		}
	case *ast.ChainNode:
		return g.prefixes(n.Node)
	case *ast.MemberNode:
		if !g.isPath(n) {
			return nil
		}
		return append(g.prefixes(n.Node), n)
	}
	return nil
}

// isStruct reports whether n is a path to a struct: one that starts at a struct
// column, or at the item of a predicate.
func (g *guard) isStruct(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IdentifierNode:
		return g.structs[n.Value]
	case *ast.PointerNode:
		return true
	case *ast.ChainNode:
		return g.isStruct(n.Node)
	case *ast.MemberNode:
		return g.isPath(n)
	}
	return false
}

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
		if !ok || !g.isPath(m) {
			return n, false
		}
		return g.lenient(m) // a?.b.c is a?.b?.c here
	case *ast.MemberNode:
		if !g.isPath(n) {
			return n, false
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

// isPath reports whether n is a field of a struct, by a path such as a.b.c.
func (g *guard) isPath(n ast.Node) bool {
	m, ok := n.(*ast.MemberNode)
	if !ok {
		return false
	}
	_, ok = m.Property.(*ast.StringNode)
	return ok && g.isStruct(m.Node)
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

// tests returns "n != nil" for each node.
func tests(nodes []ast.Node) []ast.Node {
	out := make([]ast.Node, len(nodes))
	for i, n := range nodes {
		out[i] = binary(n, "!=", n, &ast.NilNode{})
	}
	return out
}

// and joins conditions; none of them make true.
func and(nodes ...ast.Node) ast.Node {
	if len(nodes) == 0 {
		return &ast.BoolNode{Value: true}
	}
	out := nodes[0]
	for _, n := range nodes[1:] {
		out = binary(n, "and", out, n)
	}
	return out
}

func binary(place ast.Node, op string, left, right ast.Node) ast.Node {
	n := &ast.BinaryNode{Operator: op, Left: left, Right: right}
	n.SetLocation(place.Location())
	return n
}

// contains reports whether a node or one below it is of a kind.
func contains(n ast.Node, is func(ast.Node) bool) bool {
	f := &finder{is: is}
	ast.Walk(&n, f)
	return f.found
}

type finder struct {
	is    func(ast.Node) bool
	found bool
}

// Visit implements ast.Visitor.
func (f *finder) Visit(n *ast.Node) { f.found = f.found || f.is(*n) }
