package where

import (
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"

	"bowstring/schema"
)

const (
	maxPredicates   = 2 // any(…, any(…))
	maxConditionals = 4 // a ? b : (c ? d : …)
)

// functions are those of the library that an expression may call: pure, and
// bounded by the size of their arguments.
var functions = []string{
	"abs", "all", "any", "ceil", "count", "date", "duration", "filter", "find", "findIndex", "findLast",
	"findLastIndex", "first", "float", "floor", "hasPrefix", "hasSuffix", "indexOf", "int", "last",
	"lastIndexOf", "len", "lower", "map", "max", "mean", "median", "min", "none", "one", "round",
	"string", "sum", "trim", "trimPrefix", "trimSuffix", "upper",
}

// predicates are the functions whose predicate is a condition.
var predicates = []string{"all", "any", "count", "filter", "find", "findIndex", "findLast", "findLastIndex", "none",
	"one"}

// prepare checks what the library would allow but a selection must not have,
// replaces ranges and $env, folds constant dates, and notes the columns.
type prepare struct {
	text  string
	names []string // columns that may be used, and parts of blob columns, such as image.size
	blobs []string
	used  map[string]bool

	patterns *patterns // of matches
}

func (p *prepare) walk(node *ast.Node, inPredicates, conditionals int) error {
	each := func(nodes ...*ast.Node) error {
		for _, n := range nodes {
			if *n == nil {
				continue
			}
			if err := p.walk(n, inPredicates, conditionals); err != nil {
				return err
			}
		}
		return nil
	}
	list := func(nodes []ast.Node) error {
		for i := range nodes {
			if err := each(&nodes[i]); err != nil {
				return err
			}
		}
		return nil
	}
	switch n := (*node).(type) {
	case *ast.NilNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.StringNode, *ast.BytesNode,
		*ast.PointerNode, *ast.ConstantNode:
		return nil
	case *ast.IdentifierNode:
		return p.column(n)
	case *ast.UnaryNode:
		return each(&n.Node)
	case *ast.BinaryNode:
		return p.binary(node, n, each)
	case *ast.ChainNode:
		return each(&n.Node)
	case *ast.MemberNode:
		if id, ok := n.Node.(*ast.IdentifierNode); ok && id.Value == "$env" {
			name, ok := n.Property.(*ast.StringNode)
			if !ok {
				return fail(p.text, n, `$env takes the name of a column, as in $env["file name"]`)
			}
			column := &ast.IdentifierNode{Value: name.Value}
			column.SetLocation(n.Location())
			*node = column
			return p.column(column)
		}
		if id, ok := n.Node.(*ast.IdentifierNode); ok && slices.Contains(p.blobs, id.Value) {
			if part, ok := n.Property.(*ast.StringNode); ok {
				column := &ast.IdentifierNode{Value: id.Value + "." + part.Value}
				column.SetLocation(n.Location())
				*node = column
				return p.column(column)
			}
		}
		return each(&n.Node, &n.Property)
	case *ast.SliceNode:
		return each(&n.Node, &n.From, &n.To)
	case *ast.CallNode:
		return p.call(node, n, list)
	case *ast.BuiltinNode:
		if !slices.Contains(functions, n.Name) {
			return p.unknownFunction(n, n.Name)
		}
		return list(n.Arguments)
	case *ast.PredicateNode:
		if inPredicates++; inPredicates > maxPredicates {
			return fail(p.text, n, "predicates are nested more than %d deep", maxPredicates)
		}
		return each(&n.Node)
	case *ast.ConditionalNode:
		if conditionals++; conditionals > maxConditionals {
			return fail(p.text, n, "conditionals are nested more than %d deep", maxConditionals)
		}
		return each(&n.Cond, &n.Exp1, &n.Exp2)
	case *ast.ArrayNode:
		return list(n.Nodes)
	case *ast.VariableDeclaratorNode:
		return fail(p.text, n, "let has no place in a where expression: write the value out")
	case *ast.SequenceNode:
		return fail(p.text, n, "a where expression is one expression, without semicolons")
	case *ast.MapNode, *ast.PairNode:
		return fail(p.text, n, "a map has no place in a where expression")
	}
	return fail(p.text, *node, "this has no place in a where expression")
}

func (p *prepare) column(n *ast.IdentifierNode) error {
	switch {
	case slices.Contains(p.names, n.Value):
		p.used[n.Value] = true
		return nil
	case slices.Contains(p.blobs, n.Value):
		return fail(p.text, n, "%q is a blob column, which has no value here but %[1]s.size and %[1]s.key; "+
			"there are %s", n.Value, strings.Join(p.names, ", "))
	case n.Value == "$env":
		return fail(p.text, n, `$env takes the name of a column, as in $env["file name"]`)
	}
	if near := schema.Nearest(n.Value, p.names); near != "" {
		return fail(p.text, n, "no column %q (did you mean %q?); there are %s", n.Value, near,
			strings.Join(p.names, ", "))
	}
	return fail(p.text, n, "no column %q; there are %s", n.Value, strings.Join(p.names, ", "))
}

func (p *prepare) unknownFunction(n ast.Node, name string) error {
	if near := schema.Nearest(name, functions); near != "" {
		return fail(p.text, n, "no function %q (did you mean %q?); there are %s", name, near,
			strings.Join(functions, ", "))
	}
	return fail(p.text, n, "no function %q; there are %s", name, strings.Join(functions, ", "))
}

func (p *prepare) binary(node *ast.Node, n *ast.BinaryNode, each func(...*ast.Node) error) error {
	switch n.Operator {
	case "..":
		return fail(p.text, n, "a range stands to the right of in, as in x in 1..9")
	case "matches":
		text, ok := n.Right.(*ast.StringNode)
		if !ok {
			return fail(p.text, n.Right, "the pattern of matches is a literal string")
		}
		name, err := p.patterns.add(text.Value)
		if err != nil {
			return fail(p.text, n.Right, "%v", err)
		}
		if err := each(&n.Left); err != nil {
			return err
		}
		*node = p.patterns.call(name, n)
		return nil
	case "in":
		r, ok := n.Right.(*ast.BinaryNode)
		if !ok || r.Operator != ".." {
			break
		}
		// The left side is evaluated twice; a conditional in it could double
		// again and again.
		if contains(n.Left, func(n ast.Node) bool { _, ok := n.(*ast.ConditionalNode); return ok }) {
			return fail(p.text, n.Left, "a conditional has no place to the left of in with a range")
		}
		if err := each(&n.Left, &r.Left, &r.Right); err != nil {
			return err
		}
		*node = and(binary(n, ">=", n.Left, r.Left), binary(n, "<=", n.Left, r.Right))
		return nil
	}
	return each(&n.Left, &n.Right)
}

func (p *prepare) call(node *ast.Node, n *ast.CallNode, list func([]ast.Node) error) error {
	id, ok := n.Callee.(*ast.IdentifierNode)
	if !ok {
		return fail(p.text, n, "only functions can be called; there are %s", strings.Join(functions, ", "))
	}
	if !slices.Contains(functions, id.Value) {
		return p.unknownFunction(n, id.Value)
	}
	return list(n.Arguments)
}

// fold replaces date("…") and duration("…") by their values.
type fold struct {
	text string
	err  error
}

// Visit implements ast.Visitor.
func (f *fold) Visit(node *ast.Node) {
	var name string
	var args []ast.Node
	switch n := (*node).(type) {
	case *ast.BuiltinNode:
		name, args = n.Name, n.Arguments
	case *ast.CallNode:
		if id, ok := n.Callee.(*ast.IdentifierNode); ok {
			name, args = id.Value, n.Arguments
		}
	}
	if f.err != nil || name != "date" && name != "duration" {
		return
	}
	values := make([]any, len(args))
	for i, a := range args {
		s, ok := a.(*ast.StringNode)
		if !ok {
			return
		}
		values[i] = s.Value
	}
	v, err := builtin.Builtins[builtin.Index[name]].Func(values...)
	if err != nil {
		f.err = fail(f.text, *node, "%s: %v", name, err)
		return
	}
	ast.Patch(node, &ast.ConstantNode{Value: v})
}

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
