package where

import (
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"

	"bowstring/schema"
)

// outcome is what a condition may come to in the rows of a page, as far as it can be told without
// reading them: a set of possibilities.
type outcome uint8

const (
	mayTrue outcome = 1 << iota
	mayFalse
	mayFail // a row may be an error: a remainder by zero, an item beyond an array's end

	either  = mayTrue | mayFalse
	unknown = either | mayFail
)

// condition tells what it may come to in a page.
type condition func(*facts) outcome

// facts are what is known of a page that was not read.
type facts struct {
	form    *schema.Form
	start   int64
	rows    int64
	known   bool // there are statistics
	stats   schema.Statistics
	columns []place // by deciding.names
}

// place is where the statistics of a column are.
type place struct {
	column int
	part   string // of a blob column
	ok     bool
}

// deciding makes conditions of the checked tree of an expression, before it is rewritten: they mean what
// the tree means, with nulls and errors. Nothing is kept of the tree.
type deciding struct {
	g      *guard
	shapes *shapes
	names  []string       // columns, each once
	at     map[string]int // of names
	size   int            // of what is made, in nodes and literals
	bound  map[string]valuation
}

// condition mirrors guard.condition: what it does not know by itself is a test.
func (d *deciding) condition(n ast.Node) condition {
	d.size++
	switch n := n.(type) {
	case *ast.BoolNode:
		return always(map[bool]outcome{true: mayTrue, false: mayFalse}[n.Value])
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			of := d.condition(n.Node)
			return func(f *facts) outcome { return of(f).not() }
		}
	case *ast.BinaryNode:
		switch n.Operator {
		case "and", "&&":
			return both(d.condition(n.Left), d.condition(n.Right), mayTrue)
		case "or", "||":
			return both(d.condition(n.Left), d.condition(n.Right), mayFalse)
		}
	case *ast.ConditionalNode:
		c, yes, no := d.condition(n.Cond), d.condition(n.Exp1), d.condition(n.Exp2)
		return func(f *facts) outcome {
			of := c(f)
			out := of & mayFail
			if of&mayTrue != 0 {
				out |= yes(f)
			}
			if of&mayFalse != 0 {
				out |= no(f)
			}
			return out
		}
	case *ast.VariableDeclaratorNode:
		if v := d.value(n.Value); v != nil {
			d.bind(n.Name, v)
			return d.condition(n.Expr)
		}
	}
	if t := d.test(n); t != nil {
		return t
	}
	if d.total(n) {
		return always(either)
	}
	return always(unknown)
}

// bind gives a value a name.
func (d *deciding) bind(name string, v valuation) {
	if d.bound == nil {
		d.bound = map[string]valuation{}
	}
	d.bound[name] = v
}

func always(o outcome) condition { return func(*facts) outcome { return o } }

func (o outcome) not() outcome {
	out := o & mayFail
	if o&mayTrue != 0 {
		out |= mayFalse
	}
	if o&mayFalse != 0 {
		out |= mayTrue
	}
	return out
}

// both joins two conditions of which the second is looked at where the first one comes to that.
func both(left, right condition, that outcome) condition {
	return func(f *facts) outcome {
		l := left(f)
		if l&that == 0 {
			return l
		}
		return l&^that | right(f)
	}
}

// test is a condition over values whose bounds are known, nil if n is none.
func (d *deciding) test(n ast.Node) condition {
	switch n := n.(type) {
	case *ast.BinaryNode:
		switch n.Operator {
		case "==", "!=":
			if t := d.nilTest(n); t != nil {
				return t
			}
			return d.comparison(n)
		case "<", "<=", ">", ">=":
			return d.comparison(n)
		case "in":
			return d.membership(n)
		case "startsWith":
			return d.prefix(n.Left, n.Right)
		}
		return nil
	case *ast.BuiltinNode:
		if n.Name == "hasPrefix" && len(n.Arguments) == 2 {
			return d.prefix(n.Arguments[0], n.Arguments[1])
		}
		return nil
	}
	v := d.value(n)
	if v == nil {
		return nil
	}
	return func(f *facts) outcome { // a bool
		s, ok := v(f)
		if !ok || s.kind != kindBool || s.open {
			return either
		}
		return s.test(s.low.i <= 1 && s.high.i >= 1, s.low.i <= 0)
	}
}

// nilTest is x == nil or x != nil, nil if n is neither.
func (d *deciding) nilTest(n *ast.BinaryNode) condition {
	of := n.Left
	if _, ok := n.Left.(*ast.NilNode); ok {
		of = n.Right
	} else if _, ok := n.Right.(*ast.NilNode); !ok {
		return nil
	}
	v := d.value(of)
	if v == nil {
		return always(unknown)
	}
	is := n.Operator == "=="
	return func(f *facts) outcome {
		s, ok := v(f)
		if !ok {
			return either
		}
		var out outcome
		if s.nulls {
			out |= mayTrue
		}
		if s.some {
			out |= mayFalse
		}
		if !is {
			out = out.not()
		}
		return out
	}
}

func (d *deciding) comparison(n *ast.BinaryNode) condition {
	left, right, operator := d.value(n.Left), d.value(n.Right), n.Operator
	if left == nil || right == nil {
		return nil
	}
	return func(f *facts) outcome {
		a, ok := left(f)
		if !ok {
			return either
		}
		b, ok := right(f)
		if !ok {
			return either
		}
		return compare(operator, a, b)
	}
}

// compare tells what comparing any value of a with any of b may come to.
func compare(operator string, a, b span) outcome {
	if a.kind != b.kind || a.kind == kindOther {
		return either
	}
	s := span{nulls: a.nulls || b.nulls, some: a.some && b.some}
	if !s.some {
		return mayFalse
	}
	nan := a.nan || b.nan
	less := a.open || b.open || a.low.less(b.high, a.kind)
	greater := a.open || b.open || b.low.less(a.high, a.kind)
	equal := a.open || b.open || !a.high.less(b.low, a.kind) && !b.high.less(a.low, a.kind)
	switch operator {
	case "<":
		return s.test(less, equal || greater || nan)
	case "<=":
		return s.test(less || equal, greater || nan)
	case ">":
		return s.test(greater, equal || less || nan)
	case ">=":
		return s.test(greater || equal, less || nan)
	case "==":
		return s.test(equal, less || greater || nan)
	}
	return s.test(less || greater || nan, equal)
}

// membership is x in [1, 2] of literals, nil if n is something else.
func (d *deciding) membership(n *ast.BinaryNode) condition {
	v := d.value(n.Left)
	array, ok := n.Right.(*ast.ArrayNode)
	if v == nil || !ok {
		return nil
	}
	var items []span
	for _, item := range array.Nodes {
		c, ok := d.constantOf(item)
		if !ok {
			return nil
		}
		items = append(items, c)
		d.size++
	}
	return func(f *facts) outcome {
		s, ok := v(f)
		if !ok {
			return either
		}
		possible, certain := false, false
		for _, item := range items {
			o := compare("==", s, item)
			possible = possible || o&mayTrue != 0
			certain = certain || o == mayTrue || s.nulls && compare("==", s.valid(), item) == mayTrue
		}
		return s.test(possible, !certain)
	}
}

// prefix is startsWith with a literal, nil if it is not one.
func (d *deciding) prefix(of, with ast.Node) condition {
	v := d.value(of)
	text, ok := with.(*ast.StringNode)
	if v == nil || !ok {
		return nil
	}
	return func(f *facts) outcome {
		s, ok := v(f)
		if !ok || s.kind != kindText || s.open {
			return either
		}
		low, high := s.low.s, s.high.s
		// Texts with a prefix follow one another.
		return s.test(high >= text.Value && (low <= text.Value || strings.HasPrefix(low, text.Value)),
			!strings.HasPrefix(low, text.Value) || !strings.HasPrefix(high, text.Value))
	}
}

// total reports whether n has a value in every row, or is null: it can be no error.
func (d *deciding) total(n ast.Node) bool {
	all := func(nodes ...ast.Node) bool {
		return !slices.ContainsFunc(nodes, func(n ast.Node) bool { return !d.total(n) })
	}
	switch n := n.(type) {
	case *ast.IdentifierNode, *ast.NilNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.StringNode,
		*ast.ConstantNode:
		return true
	case *ast.ChainNode:
		return all(n.Node)
	case *ast.MemberNode:
		return d.g.isPath(n)
	case *ast.UnaryNode:
		return !d.shapes.overflows(n) && all(n.Node)
	case *ast.ArrayNode:
		return all(n.Nodes...)
	case *ast.ConditionalNode:
		return all(n.Cond, n.Exp1, n.Exp2)
	case *ast.VariableDeclaratorNode:
		return all(n.Value, n.Expr)
	case *ast.CallNode:
		id, ok := n.Callee.(*ast.IdentifierNode)
		return ok && strings.HasPrefix(id.Value, patternPrefix) && all(n.Arguments...)
	case *ast.BinaryNode:
		switch n.Operator {
		case "==", "!=", "<", "<=", ">", ">=", "and", "&&", "or", "||", "in", "contains", "startsWith", "endsWith",
			"??":
			return all(n.Left, n.Right)
		case "+", "-", "*", "/":
			return isNumber(n.Left) && isNumber(n.Right) && !d.shapes.overflows(n) && all(n.Left, n.Right)
		}
	}
	return false
}

// decideAtOnce is of which size expressions are decided by turns: smaller ones take some microseconds.
const decideAtOnce = 64

// decided tells what an expression comes to in a page that was not read: true in all rows, or in none. ok is false
// if the page has to be read.
func (ev *evaluation) decided(start int64, page *schema.Chunk) (matches, ok bool) {
	f := facts{form: ev.form, start: start, rows: page.Rows, columns: ev.places}
	f.stats, f.known = ev.form.Statistics(page)
	var of outcome
	if ev.expr.deciding < decideAtOnce {
		of = ev.expr.decide(&f)
	} else if ev.turn(ev.ctx, func() error {
		of = ev.expr.decide(&f)
		return nil
	}) != nil {
		return false, false // who reads the page is told
	}
	switch of {
	case mayTrue:
		return true, true
	case mayFalse:
		return false, true
	}
	return false, false
}

// placesOf finds the columns that conditions name.
func placesOf(form *schema.Form, names []string) []place {
	places := make([]place, len(names))
	s := form.Snapshot().Schema
	for i, name := range names {
		if _, blob, part, ok := schema.BlobPart(s, name); ok {
			column, err := form.ColumnIndex(blob.Name)
			places[i] = place{column, part, err == nil}
			continue
		}
		column, err := form.ColumnIndex(name)
		places[i] = place{column: column, ok: err == nil}
	}
	return places
}
