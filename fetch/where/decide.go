package where

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/expr-lang/expr/ast"

	"bowstring/schema"
)

// outcome is the set of results that a condition may have in the rows of a page, as far
// as the page's statistics show. If only mayTrue or only mayFalse is set, the page need
// not be read.
type outcome uint8

const (
	mayTrue outcome = 1 << iota
	mayFalse
	mayFail // a row may be an error: a remainder by zero, an index beyond an array's end

	either  = mayTrue | mayFalse
	unknown = either | mayFail
)

// condition computes the possible results in a page. It never excludes a result that a
// row has.
type condition func(*facts) outcome

// facts are what is known of a page that was not read.
type facts struct {
	form    *schema.Form
	start   int64 // position of the page's first row
	rows    int64
	known   bool // whether stats is set
	stats   schema.Statistics
	columns []place // in the order of deciding.names
}

// place is where the statistics of a column are.
type place struct {
	column int
	part   string // schema.SizePart or schema.KeyPart of a blob column
	ok     bool
}

// deciding makes conditions of the checked tree of an expression before it is rewritten.
// They have the meaning of the tree, with nulls and errors. They keep nothing of the
// tree.
type deciding struct {
	g      *guard
	shapes *shapes
	names  []string       // columns that the conditions read, each once
	at     map[string]int // of names
	size   int            // of the result, in nodes and literals: the work of deciding one page
	bound  map[string]valuation
}

// condition mirrors guard.condition: logical operators are evaluated here, and everything
// else is a test. A part without bounds may be true or false, and may fail unless total
// excludes that.
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
	// No statistics help. The condition still decides whether the page may fail, which
	// matters for "and" and "or".
	if d.total(n) {
		return always(either)
	}
	return always(unknown)
}

// bind gives a value a name, for the tests that once shares it between.
func (d *deciding) bind(name string, v valuation) {
	if d.bound == nil {
		d.bound = map[string]valuation{}
	}
	d.bound[name] = v
}

func always(o outcome) condition { return func(*facts) outcome { return o } }

// not is the outcome of a negation. An error stays an error.
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

// both joins two conditions with "and" or "or". The second condition is evaluated only
// where the first one has the outcome that. This mirrors short-circuit evaluation: an
// error on the right counts only where the right side runs.
func both(left, right condition, that outcome) condition {
	return func(f *facts) outcome {
		l := left(f)
		if l&that == 0 {
			return l
		}
		return l&^that | right(f)
	}
}

// test is a condition over values with known bounds, nil if n is none.
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

// comparison compares two values whose bounds are known, nil if either has none.
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

// compare returns the possible results of comparing any value of a with any value of b. A
// comparison with null is false, as in the compiled form, and NaN differs from
// everything.
func compare(operator string, a, b span) outcome {
	if a.kind != b.kind || a.kind == kindOther {
		return either
	}
	s := span{nulls: a.nulls || b.nulls, some: a.some && b.some}
	if !s.some {
		return mayFalse
	}
	// An open bound may be anywhere, so every order remains possible. NaN only adds that
	// a test other than != may be false.
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

// membership is x in [1, 2] of literals, nil if n is something else. It is certainly true
// only if one item equals every value of the page.
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
		// Equality with one item that all values share is certain. Nulls are removed
		// first, because s.test adds their outcome again.
		possible, certain := false, false
		for _, item := range items {
			o := compare("==", s, item)
			possible = possible || o&mayTrue != 0
			certain = certain || o == mayTrue || s.nulls && compare("==", s.valid(), item) == mayTrue
		}
		return s.test(possible, !certain)
	}
}

// prefix is startsWith or hasPrefix with a literal, nil if it is neither. Texts with a
// common prefix are contiguous in the order of texts, so the bounds decide.
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
		// It may be true if the bounds surround or touch the texts with the prefix, and
		// may be false unless both bounds have it.
		low, high := s.low.s, s.high.s
		return s.test(high >= text.Value && (low <= text.Value || strings.HasPrefix(low, text.Value)),
			!strings.HasPrefix(low, text.Value) || !strings.HasPrefix(high, text.Value))
	}
}

// total reports whether n has a value, or null, in every row and cannot be an error. It
// may report false for a node that cannot fail.
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
		// Only tests of patterns are calls here; exact functions are added later.
		return ok && strings.HasPrefix(id.Value, patternPrefix) && all(n.Arguments...)
	case *ast.BinaryNode:
		switch n.Operator {
		case "==", "!=", "<", "<=", ">", ">=", "and", "&&", "or", "||", "in", "contains", "startsWith", "endsWith",
			"??":
			return all(n.Left, n.Right)
		// Remainders are missing: they fail for zero.
		case "+", "-", "*", "/":
			return isNumber(n.Left) && isNumber(n.Right) && !d.shapes.overflows(n) && all(n.Left, n.Right)
		}
	}
	return false
}

// decideAtOnce is the size below which an expression is decided without a turn: it takes
// some microseconds, and asking for a turn would take as long.
const decideAtOnce = 64

// decided reports whether the expression is true in all rows of a page that was not read
// (matches) or in none. ok is false if the page has to be read.
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
		return false, false // the reader of the page gets the same error
	}
	switch of {
	case mayTrue:
		return true, true
	case mayFalse:
		return false, true
	}
	return false, false
}

// placesOf finds the columns that conditions name in a snapshot.
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

// kind is how values of an expression are compared. Values of two kinds are never
// compared here: that is an error of the expression, or decided by a row.
type kind uint8

const (
	kindOther kind = iota // only null or not null is known
	kindBool              // 0 and 1
	kindNumber
	kindText
	kindTime
	kindDuration
)

// scalarValue is a value of one of the kinds; only the field of its kind is set.
type scalarValue struct {
	i int64 // of a bool and a duration
	n number
	s string
	t time.Time
}

func (v scalarValue) less(w scalarValue, k kind) bool {
	switch k {
	case kindNumber:
		return v.n.compare(w.n) < 0
	case kindText:
		return v.s < w.s
	case kindTime:
		return v.t.Before(w.t)
	}
	return v.i < w.i
}

// span encloses the values that something has in the rows of a page. low and high have
// the form that values have in an expression, and NaN is outside of them.
type span struct {
	kind      kind
	low, high scalarValue // inclusive
	open      bool        // low and high are unknown
	nulls     bool        // may include null
	some      bool        // may include values that are not null
	nan       bool        // may include NaN
}

// valid is the span without null.
func (s span) valid() span {
	s.nulls = false
	return s
}

// test is the outcome of a test that is possibly true (yes) and possibly false (no) for
// values of the span. It is false for null.
func (s span) test(yes, no bool) (out outcome) {
	if s.some && yes {
		out |= mayTrue
	}
	if s.some && no || s.nulls {
		out |= mayFalse
	}
	return out
}

// valuation returns the span of a value in a page; ok is false if nothing is known.
type valuation func(*facts) (s span, ok bool)

// value is the valuation of a column, a field of its structs, a literal, or of a ?? b of
// such values; nil for everything else. None of these can fail.
func (d *deciding) value(n ast.Node) valuation {
	if c, ok := d.constantOf(n); ok {
		return func(*facts) (span, bool) { return c, true }
	}
	if b, ok := n.(*ast.BinaryNode); ok && b.Operator == "??" {
		left, right := d.value(b.Left), d.value(b.Right)
		if left == nil || right == nil {
			return nil
		}
		return func(f *facts) (span, bool) {
			a, ok := left(f)
			if !ok || !a.nulls {
				return a, ok
			}
			b, ok := right(f)
			if !ok {
				return b, false
			}
			return a.instead(b)
		}
	}
	if id, ok := n.(*ast.IdentifierNode); ok && d.bound[id.Value] != nil {
		return d.bound[id.Value]
	}
	if name, path, ok := d.path(n); ok {
		return d.column(name, path)
	}
	return nil
}

// instead is the span of a ?? b: a where a is not null, and b elsewhere. ok is false if
// their kinds differ.
func (s span) instead(b span) (span, bool) {
	switch {
	case !s.some:
		return b, true
	case !b.some:
		s.nulls = b.nulls
		return s, true
	case s.kind != b.kind:
		return s, false
	}
	s.nulls, s.nan, s.open = b.nulls, s.nan || b.nan, s.open || b.open
	if b.low.less(s.low, s.kind) {
		s.low = b.low
	}
	if s.high.less(b.high, s.kind) {
		s.high = b.high
	}
	return s, true
}

// path resolves a column or a field of its structs to the column's name and the names of
// the fields.
func (d *deciding) path(n ast.Node) (name string, path []string, ok bool) {
	switch n := n.(type) {
	case *ast.IdentifierNode:
		return n.Value, nil, true
	case *ast.ChainNode:
		return d.path(n.Node)
	case *ast.MemberNode:
		if !d.g.isPath(n) {
			return "", nil, false
		}
		if name, path, ok = d.path(n.Node); !ok {
			return "", nil, false
		}
		return name, append(path, n.Property.(*ast.StringNode).Value), true
	}
	return "", nil, false
}

// column is the valuation of a column or of a field below it. Positions and splits are
// known from the snapshot; ids are random and have no useful bounds.
func (d *deciding) column(name string, path []string) valuation {
	switch name {
	case schema.PositionColumn:
		return func(f *facts) (span, bool) {
			low, high := scalarValue{n: intNumber(f.start)}, scalarValue{n: intNumber(f.start + f.rows - 1)}
			return span{kind: kindNumber, low: low, high: high, some: true}, true
		}
	case schema.SplitColumn:
		return func(f *facts) (span, bool) {
			low, high := f.form.SplitsIn(f.start, f.start+f.rows)
			return span{kind: kindText, low: scalarValue{s: low}, high: scalarValue{s: high}, some: true}, true
		}
	case schema.IDColumn:
		return func(*facts) (span, bool) { return span{kind: kindText, open: true, some: true}, true }
	}
	at, ok := d.at[name]
	if !ok {
		at = len(d.names)
		d.names = append(d.names, name)
		if d.at == nil {
			d.at = map[string]int{}
		}
		d.at[name] = at
	}
	return func(f *facts) (span, bool) {
		p := f.columns[at]
		if !f.known || !p.ok {
			return span{}, false
		}
		c, ok := f.stats.Column(p.column, path...)
		if !ok {
			return span{}, false
		}
		s := span{kind: kindNumber, nulls: c.Nulls > 0, some: c.Nulls < c.Rows, nan: c.NaN}
		switch p.part {
		case schema.SizePart:
			s.bounds(c, arrow.PrimitiveTypes.Uint64)
		case schema.KeyPart:
			s.kind, s.open = kindText, true
		default:
			s.bounds(c, leaf(f.form.Snapshot().Schema.Field(p.column).Type, path))
		}
		return s, true
	}
}

// leaf is the type of a field of a struct.
func leaf(t arrow.DataType, path []string) arrow.DataType {
	for _, name := range path {
		field, ok := t.(*arrow.StructType).FieldByName(name)
		if !ok {
			return nil
		}
		t = field.Type
	}
	return t
}

// bounds sets the kind of a column's values and their bounds, converted to values of
// expressions. The conversion never changes the order of values.
func (s *span) bounds(c schema.ColumnStatistics, t arrow.DataType) {
	low, known := valueOf(c.Min, t)
	high, alsoKnown := valueOf(c.Max, t)
	s.kind, s.low, s.high = kindOf(t), low, high
	if s.some && (!known || !alsoKnown) {
		s.open = true
		if s.nan && c.Min == nil && c.Max == nil { // every value is NaN
			s.open = false
			s.low.n, s.high.n = floatNumber(math.Inf(1)), floatNumber(math.Inf(-1))
		}
	}
	if t, ok := t.(*arrow.Decimal128Type); ok && t != nil {
		s.low.n, s.high.n = widened(s.low.n, -1), widened(s.high.n, 1)
	}
}

// widened moves a bound of decimals outwards. Statistics hold decimals as floats of about
// 48 bits, so the true value may be slightly beyond.
func widened(n number, sign float64) number {
	if n.isFloat {
		n.float += sign * math.Abs(n.float) * (1.0 / (1 << 48))
	}
	return n
}

// kindOf is the kind of a column's values. It follows typeOf.
func kindOf(t arrow.DataType) kind {
	switch t.(type) {
	case *arrow.BooleanType:
		return kindBool
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type,
		*arrow.Uint8Type, *arrow.Uint16Type, *arrow.Uint32Type, *arrow.Uint64Type:
		return kindNumber
	case *arrow.Float16Type, *arrow.Float32Type, *arrow.Float64Type, *arrow.Decimal128Type:
		return kindNumber
	case *arrow.StringType, *arrow.LargeStringType, *arrow.BinaryType, *arrow.FixedSizeBinaryType:
		return kindText
	case *arrow.TimestampType, *arrow.Date32Type, *arrow.Date64Type:
		return kindTime
	case *arrow.Time32Type, *arrow.Time64Type, *arrow.DurationType:
		return kindDuration
	}
	return kindOther
}

// farthest is the largest number of units from zero up to which the bound of a time is
// used. Conversion of times beyond it may overflow and reverse their order.
const farthest = 1 << 55

// valueOf converts a bound to a value of an expression; ok is false if there is none.
func valueOf(bound any, t arrow.DataType) (v scalarValue, ok bool) {
	switch bound := bound.(type) {
	case uint64:
		v.i, v.n = int64(min(bound, math.MaxInt64)), uintNumber(bound)
		return v, true
	case float64:
		v.n = floatNumber(bound)
		return v, true
	case string:
		v.s = bound
		return v, true
	case int64:
		return integerOf(bound, t)
	}
	return v, false
}

// integerOf converts a bound of integers, times or durations. ok is false if the value
// overflows in the conversion.
func integerOf(n int64, t arrow.DataType) (v scalarValue, ok bool) {
	v.i, v.n = n, intNumber(n)
	in := func(unit arrow.TimeUnit) bool {
		v.i = n * int64(unit.Multiplier())
		return n == 0 || v.i/n == int64(unit.Multiplier())
	}
	switch t := t.(type) {
	case *arrow.TimestampType:
		// Every count of nanoseconds fits into a time. For other units bounds beyond
		// farthest are dropped.
		v.t, ok = arrow.Timestamp(n).ToTime(t.Unit), t.Unit == arrow.Nanosecond || n > -farthest && n < farthest
	case *arrow.Date32Type:
		v.t, ok = arrow.Date32(n).ToTime(), true
	case *arrow.Date64Type:
		v.t, ok = arrow.Date64(n).ToTime(), n > -farthest && n < farthest
	case *arrow.Time32Type:
		ok = in(t.Unit)
	case *arrow.Time64Type:
		ok = in(t.Unit)
	case *arrow.DurationType:
		ok = in(t.Unit)
	default:
		ok = true
	}
	return v, ok
}

// constantOf is the span of a literal, or of sums, differences and products of literal
// numbers. NaN is no constant.
func (d *deciding) constantOf(n ast.Node) (s span, ok bool) {
	s = span{some: true}
	switch n := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.UnaryNode:
		s.kind = kindNumber
		if s.low.n, ok = d.shapes.literals.number(n); !ok {
			return s, false
		}
	case *ast.BoolNode:
		s.kind = kindBool
		if n.Value {
			s.low.i = 1
		}
	case *ast.StringNode:
		s.kind, s.low.s = kindText, n.Value
	case *ast.ConstantNode:
		switch v := n.Value.(type) {
		case time.Time:
			s.kind, s.low.t = kindTime, v
		case time.Duration:
			s.kind, s.low.i = kindDuration, int64(v)
		default:
			return s, false
		}
	case *ast.BinaryNode:
		s.kind = kindNumber
		if s.low.n, ok = d.arithmetic(n); !ok {
			return s, false
		}
	default:
		return s, false
	}
	s.high = s.low
	return s, !s.low.n.isNaN()
}

// arithmetic computes sums, differences and products of literals exactly as the compiled
// expression does; ok is false if it would leave an int.
func (d *deciding) arithmetic(n *ast.BinaryNode) (out number, ok bool) {
	if n.Operator != "+" && n.Operator != "-" && n.Operator != "*" {
		return out, false
	}
	a, okA := d.constantOf(n.Left)
	b, okB := d.constantOf(n.Right)
	if !okA || !okB || a.kind != kindNumber || b.kind != kindNumber {
		return out, false
	}
	x, y := a.low.n, b.low.n
	if x.isFloat || y.isFloat {
		return floatNumber(computeFloats(n.Operator, x.nearest(), y.nearest())), true
	}
	i, okA := x.value().(int)
	j, okB := y.value().(int)
	if !okA || !okB {
		return out, false
	}
	v, ok := computeInts(n.Operator, i, j)
	return intNumber(int64(v)), ok
}

func computeFloats(operator string, a, b float64) float64 {
	switch operator {
	case "+":
		return a + b
	case "-":
		return a - b
	}
	return a * b
}

// isNumber reports whether arithmetic with n is on numbers.
func isNumber(n ast.Node) bool {
	t := n.Type()
	return t != nil && (t.Kind() == reflect.Int || t.Kind() == reflect.Float64)
}
