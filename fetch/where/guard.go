package where

import (
	"reflect"
	"slices"
	"strconv"

	"github.com/expr-lang/expr/ast"
)

// guard rewrites an expression so that no operation ever sees a null. The library's
// operators would panic or compare null as a value. In place of each test of a condition
// that needs nullable columns, guard puts (column != nil and test). Values that are not
// conditions become a ?: with nil.
type guard struct {
	columns *columns
	orNils  map[ast.Node]bool // forms that orNil made, which are already lenient
}

// condition rewrites a node that is a condition: logical operators are kept, and each
// test below them is guarded by itself. So not (x > 3) is true where x is null.
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
	case *ast.VariableDeclaratorNode:
		g.inner(n.Value)
		n.Expr = g.condition(n.Expr)
		return guarded(g.needs(n.Value), n)
	}
	g.inner(n)
	return guarded(g.needs(n), n)
}

// value rewrites an expression that gives a value of type t: it is nil if a column that
// it needs is null. A bool is rewritten as a condition.
func (g *guard) value(n ast.Node, t reflect.Type) ast.Node {
	if t != nil && t.Kind() == reflect.Bool {
		return g.condition(n)
	}
	g.inner(n)
	return g.chosen(n, g.needs(n))
}

// chosen is a value where the needed columns are not null, and nil elsewhere.
func (g *guard) chosen(n ast.Node, need []ast.Node) ast.Node {
	if len(need) == 0 {
		return n
	}
	c := &ast.ConditionalNode{Ternary: true, Cond: and(need...), Exp1: n, Exp2: &ast.NilNode{}}
	c.SetLocation(n.Location())
	return c
}

func isPointer(n ast.Node) bool { _, ok := n.(*ast.PointerNode); return ok }

// mayBeNull reports whether a value may be null although nothing that it is computed from
// is null: an item of a list, or the result of a search. Columns and their fields are
// found by prefixes instead.
func mayBeNull(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.MemberNode:
		return true
	case *ast.BuiltinNode:
		return slices.Contains(finding, n.Name)
	case *ast.CallNode:
		name, _ := callOf(n)
		return name == exactPrefix+"max" || name == exactPrefix+"min" // of nothing but nulls
	}
	return false
}

// finding are the functions that return an item of a list or its index, or null if there
// is none.
var finding = []string{"find", "findLast", "findIndex", "findLastIndex", "first", "last"}

// guarded is a test where the needed columns are not null, and false elsewhere.
func guarded(need []ast.Node, test ast.Node) ast.Node {
	if len(need) == 0 {
		return test
	}
	return and(append(need, test)...)
}

// inner rewrites the conditions that a test contains: the predicates of functions and the
// conditions of conditionals. They are guarded in themselves, so a null item makes only
// its own test false.
func (g *guard) inner(n ast.Node) {
	switch n := n.(type) {
	case *ast.UnaryNode:
		g.inner(n.Node)
	case *ast.BinaryNode:
		if g.nilTest(n) {
			return
		}
		// The left operand of ?? may be null without making the whole test false.
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
			} else if ok { // the function of map: null where an item that it needs is null
				g.inner(p.Node)
				p.Node = g.chosen(p.Node, slices.DeleteFunc(g.needs(p.Node), func(n ast.Node) bool {
					return !contains(n, isPointer)
				}))
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
	case *ast.VariableDeclaratorNode:
		g.inner(n.Value)
		g.inner(n.Expr)
	}
}

// needs returns the conditions under which a value can be computed: that the nullable
// columns that it needs are not null.
func (g *guard) needs(n ast.Node) []ast.Node {
	need := &needed{guard: g}
	need.add(n)
	return need.tests
}

// needed collects conditions. Most columns are needed more than once, and tested once.
// Other conditions are not compared with each other, because comparing trees would take
// long.
type needed struct {
	*guard
	tests []ast.Node
	paths map[string]bool
}

// add adds the conditions of several nodes. Nodes may be nil.
func (d *needed) add(nodes ...ast.Node) {
	for _, n := range nodes {
		if n != nil {
			d.of(n)
		}
	}
}

// of adds the conditions under which one node can be computed. A conditional needs what
// its chosen branch needs.
func (d *needed) of(n ast.Node) {
	if path := d.prefixes(n); path != nil {
		d.path(path)
		return
	}
	switch n := n.(type) {
	case *ast.BinaryNode:
		d.binary(n)
	case *ast.BuiltinNode:
		d.builtin(n)
	case *ast.ConditionalNode:
		// The condition itself is guarded by inner, and so is never null here.
		first, second := d.needs(n.Exp1), d.needs(n.Exp2)
		if len(first)+len(second) == 0 {
			return
		}
		c := &ast.ConditionalNode{Ternary: true, Cond: n.Cond, Exp1: and(first...), Exp2: and(second...)}
		c.SetLocation(n.Location())
		d.tests = append(d.tests, c)
	case *ast.PredicateNode:
	default:
		d.below(n)
	}
	if mayBeNull(n) {
		d.tests = append(d.tests, tests([]ast.Node{n})...)
	}
}

// below adds the conditions of the values below a node.
func (d *needed) below(n ast.Node) {
	if b, ok := n.(*ast.BuiltinNode); ok {
		d.builtin(b)
		return
	}
	d.add(children(n)...)
}

// path adds that each nullable part of a path is not null, the shortest part first.
func (d *needed) path(parts []ast.Node) {
	if d.paths == nil {
		d.paths = map[string]bool{}
	}
	for i, n := range parts {
		if key := pathKey(n); !d.paths[key] {
			d.paths[key] = true
			d.tests = append(d.tests, tests(parts[i:i+1])...)
		}
	}
}

// pathKey is equal for two nodes if they are the same path.
func pathKey(n ast.Node) string {
	switch n := n.(type) {
	case *ast.IdentifierNode:
		return strconv.Quote(n.Value)
	case *ast.ChainNode:
		return pathKey(n.Node)
	case *ast.MemberNode:
		return pathKey(n.Node) + "." + n.Property.String()
	}
	return n.String()
}

// binary adds the conditions of an operator. a ?? b needs b only where a is null, and a
// test for nil needs nothing.
func (d *needed) binary(n *ast.BinaryNode) {
	switch n.Operator {
	case "??":
		left, ok := d.lenient(n.Left)
		if !ok {
			break
		}
		if right := d.needs(n.Right); len(right) > 0 {
			d.tests = append(d.tests, binary(n, "or", binary(n, "!=", left, &ast.NilNode{}), and(right...)))
		}
		return
	case "==", "!=":
		if d.nilTest(n) {
			return
		}
	}
	d.add(n.Left, n.Right)
}

// builtin adds the conditions of a call. Conditions on the current item stay within the
// predicate; only those on columns reach outside.
func (d *needed) builtin(n *ast.BuiltinNode) {
	for _, a := range n.Arguments {
		p, ok := a.(*ast.PredicateNode)
		switch {
		case !ok:
			d.add(a)
		case slices.Contains(predicates, n.Name): // guarded in itself
		default:
			for _, need := range d.needs(p.Node) {
				if !contains(need, isPointer) {
					d.tests = append(d.tests, need)
				}
			}
		}
	}
}

// prefixes returns the parts of a path such as a.b.c that may be null, the shortest
// first; nil if n is no path or no part can be null. A path may begin at the item of a
// predicate.
func (g *guard) prefixes(n ast.Node) []ast.Node {
	switch n := n.(type) {
	case *ast.IdentifierNode:
		if g.columns.isNullable(n.Value) {
			return []ast.Node{n}
		}
	case *ast.PointerNode:
		return []ast.Node{n}
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
		return g.columns.isStruct(n.Value)
	case *ast.PointerNode:
		return true
	case *ast.ChainNode:
		return g.isStruct(n.Node)
	case *ast.MemberNode:
		return g.isPath(n)
	}
	return false
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

// tests returns "n != nil" for each node.
func tests(nodes []ast.Node) []ast.Node {
	out := make([]ast.Node, len(nodes))
	for i, n := range nodes {
		out[i] = binary(n, "!=", n, &ast.NilNode{})
	}
	return out
}

// and joins conditions; and() is true.
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

// binary makes an operator whose errors point at place.
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

// nilTest reports whether a node compares a value with nil. If so, it replaces the value
// by a form that may be null.
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

// lenient returns a form of n that can be computed whatever is null, and is nil if its
// own value is: a?.b for a.b. ok is false if there is none.
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

// orNil is a form of a value that may be null, which is nil if anything that the value is
// computed from is null. Forms are remembered: a node is reached several times, and must
// not be wrapped twice.
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
