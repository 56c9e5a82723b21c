package where

import (
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"

	"bowstring/schema"
)

const (
	maxPredicates   = 2  // any(…, any(…))
	maxConditionals = 4  // a ? b : (c ? d : …)
	maxPath         = 32 // a.b.c
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
// replaces ranges and $env, and notes the columns. Afterwards each node is in the tree once, but for
// names and literals: what a test needs twice has a name, and is evaluated once.
type prepare struct {
	text    string
	columns *columns
	used    map[string]bool
	bound   int // values that have a name

	patterns *patterns // of matches
	literals *literals
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
		if literal := p.literals.node(n); literal != nil {
			*node = literal
			return nil
		}
		return p.column(n)
	case *ast.UnaryNode:
		if err := each(&n.Node); err != nil {
			return err
		}
		if literal := p.literals.negated(n); literal != nil {
			*node = literal
		}
		return nil
	case *ast.BinaryNode:
		return p.binary(node, n, each)
	case *ast.ChainNode:
		return each(&n.Node)
	case *ast.MemberNode:
		if pathLen(n) > maxPath {
			return fail(p.text, n, "a path of more than %d steps", maxPath)
		}
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
		if id, ok := n.Node.(*ast.IdentifierNode); ok && p.columns.isBlob(id.Value) {
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
		if n.Exp1 == n.Cond { // a ?: b, where a is true if it is the value
			yes := &ast.BoolNode{Value: true}
			yes.SetLocation(n.Cond.Location())
			n.Exp1 = yes
		}
		return each(&n.Cond, &n.Exp1, &n.Exp2)
	case *ast.ArrayNode:
		return list(n.Nodes)
	case *ast.VariableDeclaratorNode:
		return fail(p.text, n, "let has no place in an expression: write the value out")
	case *ast.SequenceNode:
		return fail(p.text, n, "an expression is one expression, without semicolons")
	case *ast.MapNode, *ast.PairNode:
		return fail(p.text, n, "a map has no place in an expression")
	}
	return fail(p.text, *node, "this has no place in an expression")
}

func (p *prepare) column(n *ast.IdentifierNode) error {
	switch {
	case p.columns.has(n.Value):
		p.used[n.Value] = true
		return nil
	case p.columns.isBlob(n.Value):
		return fail(p.text, n, "%q is a blob column, which has no value here but %[1]s.size and %[1]s.key; "+
			"there are %s", n.Value, listed(p.columns.names()))
	case n.Value == "$env":
		return fail(p.text, n, `$env takes the name of a column, as in $env["file name"]`)
	}
	names := p.columns.names()
	if near := schema.Nearest(n.Value, names); near != "" {
		return fail(p.text, n, "no column %s (did you mean %q?); there are %s", schema.Quote(n.Value), near, listed(names))
	}
	return fail(p.text, n, "no column %s; there are %s", schema.Quote(n.Value), listed(names))
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
		if err := each(&n.Left, &r.Left, &r.Right); err != nil {
			return err
		}
		*node = p.once(n, n.Left, func(of ast.Node) ast.Node {
			return and(binary(n, ">=", of, r.Left), binary(n, "<=", of, r.Right))
		})
		return nil
	case "&&":
		tests := chain(n)
		if tests == nil {
			break
		}
		if err := each(&tests[0].Left); err != nil {
			return err
		}
		for _, t := range tests {
			if err := each(&t.Right); err != nil {
				return err
			}
		}
		*node = p.chained(tests[0].Left, tests)
		return nil
	}
	return each(&n.Left, &n.Right)
}

func (p *prepare) call(node *ast.Node, n *ast.CallNode, list func([]ast.Node) error) error {
	id, ok := n.Callee.(*ast.IdentifierNode)
	if !ok || p.literals.node(id) != nil {
		return fail(p.text, n, "only functions can be called; there are %s", strings.Join(functions, ", "))
	}
	if !slices.Contains(functions, id.Value) {
		return p.unknownFunction(n, id.Value)
	}
	return list(n.Arguments)
}
