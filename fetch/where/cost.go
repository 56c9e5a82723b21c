package where

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"

	"bowstring/schema"
)

// Limits of evaluation, in steps. A step is one operation on a value, one item of a list,
// or 16 bytes of text that are read or made. It takes 10 to 40 ns.
const (
	// MaxRowSteps bounds the steps of a row. It also bounds the memory made for a row to
	// about 16 MiB.
	MaxRowSteps = 1 << 20
	// MaxSteps bounds the steps of all rows of a snapshot together, unless FreeSteps
	// allows more.
	MaxSteps = 1 << 32
	// FreeSteps is how many steps each row may take on average, whatever the number of
	// rows. Large snapshots take long for any expression.
	FreeSteps = 4096
)

// textUnit is how many bytes of text cost one step. Comparing or copying 16 bytes takes
// about as long as one operation of the machine.
const textUnit = 16

// textSize is the size of a text in steps.
func textSize(bytes int) float64 { return 1 + float64(bytes)/textUnit }

// cost is a bound on the steps of a row, as a polynomial in the sizes of its cells. It is
// computed once; a row needs only the sizes of its cells to be checked before it is
// evaluated.
type cost struct {
	total poly
	// parts are the tests of the expression that may take long by themselves. Errors
	// point at the most expensive one.
	parts     []costPart
	termSteps int // terms that computing the bound went through, see maxTermSteps
	// columns are those whose cells differ in size. For a cell of columns[i], variable
	// 2i+1 is the size and variable 2i+2 the number of items.
	columns []string
}

// costPart is a test with its place and its share of the cost.
type costPart struct {
	place file.Location
	what  string
	steps poly
}

// costliest is the part that takes the most steps for those sizes.
func (c *cost) costliest(sizes []float64) (part costPart, steps float64) {
	for _, p := range c.parts {
		if n := p.steps.at(sizes); n > steps {
			part, steps = p, n
		}
	}
	return part, steps
}

// meter computes the cost of an expression from its checked tree. It follows the
// library's machine, operation by operation, with constants that were measured to be on
// the safe side (see FuzzEval).
type meter struct {
	cost
	algebra
	patterns *patterns
	schema   *arrow.Schema
	cells    map[string]extent // of columns
	bound    map[string]extent // of values that have a name
	scopes   []*scope          // the expression itself, then the predicates around the current node
	complex  ast.Node          // where the bound became too complex
}

// scope is the expression, or a predicate within it. Steps of a predicate are multiplied
// by the items of its list when it ends.
type scope struct {
	steps poly
	item  uint16 // variable for the size of an item; the next one is the number of its items
}

// itemVariable is above all variables of columns; the variables of items follow it.
const itemVariable = 1 << 15

// measure returns the cost of a tree. It fails with errTooDeep or errTooManyTerms if the
// bound itself is too complex; complex is then the node.
func (m *meter) measure(root ast.Node) (*cost, error) {
	m.cells, m.bound, m.scopes = map[string]extent{}, map[string]extent{}, []*scope{{steps: poly{}}}
	m.size(root)
	m.total = m.scopes[0].steps
	for _, cell := range m.cells {
		m.add(m.total, cell.size, 2) // reading the cells
	}
	m.add(m.total, constant(4), 1)
	if m.err != nil {
		m.complex = cmp.Or(m.complex, root)
		return nil, m.err
	}
	m.termSteps = m.taken
	return &m.cost, nil
}

// steps is the sum of the innermost scope.
func (m *meter) steps() poly { return m.scopes[len(m.scopes)-1].steps }

// spend counts steps in the innermost scope.
func (m *meter) spend(p poly, factor float64) { m.add(m.steps(), p, factor) }

// extent bounds how large a value is, in steps.
type extent struct {
	size  poly // the items, those of its items, and the text
	count poly // the items only, if the value is a list
}

// one is the extent of a value that is not text, list or struct.
func one() extent { return same(constant(1)) }

// same is the extent of a value if only its size is known.
func same(size poly) extent { return extent{size, size} }

// value counts the steps of a node, and bounds its value.
func (m *meter) value(node ast.Node) extent {
	if m.err != nil || node == nil {
		return one()
	}
	m.spend(constant(1), 1)
	v := m.valueOf(node)
	if m.err != nil && m.complex == nil {
		m.complex = node
	}
	// A scalar has one size, whatever it is computed from: len of a long text is a
	// number.
	if scalar(node.Type()) {
		return one()
	}
	return v
}

// size counts the steps of a node and returns the size of its value.
func (m *meter) size(node ast.Node) poly { return m.value(node).size }

// scalar reports whether all values of a type have the same size. Types that are not
// known before a row is read are not scalar.
func scalar(t reflect.Type) bool {
	if t == nil {
		return false
	}
	if t == reflect.TypeFor[time.Time]() {
		return true
	}
	switch t.Kind() {
	case reflect.Interface, reflect.String, reflect.Slice, reflect.Array, reflect.Map, reflect.Struct, reflect.Pointer:
		return false
	}
	return true
}

// valueOf counts the steps of the nodes below a node, and bounds its value. Both branches
// of a conditional are counted, since either may be taken.
func (m *meter) valueOf(node ast.Node) extent {
	switch n := node.(type) {
	case *ast.StringNode:
		return same(constant(textSize(len(n.Value))))
	case *ast.IdentifierNode:
		return m.column(n.Value)
	case *ast.PointerNode:
		if s := m.scopes[len(m.scopes)-1]; s.item != 0 {
			return extent{variable(s.item), variable(s.item + 1)}
		}
	case *ast.UnaryNode:
		return m.value(n.Node)
	case *ast.BinaryNode:
		return same(m.binary(n))
	case *ast.ChainNode:
		return m.value(n.Node)
	case *ast.MemberNode:
		m.spend(constant(3), 1)
		m.size(n.Property)
		return same(m.size(n.Node))
	case *ast.SliceNode:
		m.size(n.From)
		m.size(n.To)
		return m.value(n.Node)
	case *ast.CallNode:
		id, _ := n.Callee.(*ast.IdentifierNode)
		return m.call(n, id.Value, n.Arguments)
	case *ast.BuiltinNode:
		return m.call(n, n.Name, n.Arguments)
	case *ast.PredicateNode:
		return m.value(n.Node)
	case *ast.ConditionalNode:
		m.size(n.Cond)
		// The sum is above the larger one, and a sum of polynomials is a polynomial.
		a, b := m.value(n.Exp1), m.value(n.Exp2)
		return extent{m.plus(a.size, b.size), m.plus(a.count, b.count)}
	case *ast.ArrayNode:
		out := constant(1)
		for _, item := range n.Nodes {
			m.add(out, m.size(item), 1)
		}
		return extent{out, constant(float64(len(n.Nodes)))}
	case *ast.VariableDeclaratorNode:
		m.bound[n.Name] = m.value(n.Value)
		return m.value(n.Expr)
	}
	return one()
}

// binary counts the steps of an operator. == and != end at the first difference, so they
// cost no more than the shorter operand if that is a literal.
func (m *meter) binary(n *ast.BinaryNode) poly {
	left := m.size(n.Left)
	if array, ok := n.Right.(*ast.ArrayNode); ok && n.Operator == "in" && isTable(array) {
		m.spend(left, 2) // looked up in a table
		return constant(1)
	}
	right := m.size(n.Right)
	both := m.plus(left, right)
	switch {
	case scalar(n.Left.Type()) && scalar(n.Right.Type()):
	case n.Operator != "==" && n.Operator != "!=":
		m.spend(both, 2)
	case isShort(n.Left):
		m.spend(left, 2)
	case isShort(n.Right):
		m.spend(right, 2)
	default:
		m.spend(both, 2)
	}
	return both
}

// isShort reports whether a comparison with a node takes no longer than the node's own
// size, whatever the other operand is.
func isShort(n ast.Node) bool {
	switch n.(type) {
	case *ast.NilNode, *ast.StringNode:
		return true
	}
	return false
}

// isTable reports whether the library makes a hash table of a list: of literals of one
// kind. It looks a value up in constant time then.
func isTable(array *ast.ArrayNode) bool {
	if len(array.Nodes) == 0 {
		return false
	}
	kind := reflect.TypeOf(array.Nodes[0])
	if kind != reflect.TypeFor[*ast.IntegerNode]() && kind != reflect.TypeFor[*ast.StringNode]() {
		return false
	}
	return !slices.ContainsFunc(array.Nodes, func(n ast.Node) bool { return reflect.TypeOf(n) != kind })
}

// call counts the steps of a call. If a function makes a new value of its arguments, the
// size of that value is counted too.
func (m *meter) call(n ast.Node, name string, args []ast.Node) extent {
	if p := m.patterns.byName[name]; p != nil {
		text := m.size(args[0])
		steps := constant(4)
		m.add(steps, text, 2*float64(p.size))
		m.spend(steps, 1)
		m.part(n, "matches", steps)
		return one()
	}
	if len(args) == 2 {
		if predicate, ok := args[1].(*ast.PredicateNode); ok {
			return m.predicate(n, name, args[0], predicate)
		}
	}
	values := make([]extent, len(args))
	all := poly{}
	for i, a := range args {
		values[i] = m.value(a)
		m.add(all, values[i].size, 1)
	}
	m.spend(constant(4), 1)
	if strings.HasPrefix(name, exactPrefix) &&
		!slices.ContainsFunc(args, func(a ast.Node) bool { return !scalar(a.Type()) }) {
		return one()
	}
	switch name {
	case "date":
		// The library tries one layout after the other; a time zone is looked up in
		// files.
		m.spend(constant(map[bool]float64{true: 4000, false: 150}[len(args) > 2]), 1)
	case "len", "hasPrefix", "hasSuffix", "indexOf", "lastIndexOf":
		m.spend(all, 1)
	case "trim", "trimPrefix", "trimSuffix":
		m.spend(m.times(all, all), 16)
	case "lower", "upper":
		m.spend(all, 6)
		return same(m.plus(all, all, all))
	case "string":
		made := poly{}
		switch t := args[0].Type(); {
		case scalar(t):
			return same(constant(4))
		case t != nil && t.Kind() == reflect.String:
			return same(all)
		}
		m.add(made, all, 20) // the names of fields are written for each item
		m.spend(made, 1)
		return same(made)
	default:
		m.spend(all, 8)
	}
	return same(all)
}

// predicate counts the steps of a function that goes through a list: those of its
// predicate for each item, and of the list that it makes.
func (m *meter) predicate(n ast.Node, name string, list ast.Node, predicate *ast.PredicateNode) extent {
	// The predicate is measured once, with variables for the size of its item. Its steps
	// are then summed over the list.
	items := m.value(list)
	inner := &scope{steps: constant(4), item: itemVariable + 2*uint16(len(m.scopes))}
	m.scopes = append(m.scopes, inner)
	made := m.size(predicate.Node)
	m.scopes = m.scopes[:len(m.scopes)-1]
	steps := m.over(inner.steps, inner.item, items)
	m.spend(steps, 1)
	m.part(n, name+"(…)", steps)
	switch name {
	case "map":
		size := m.over(m.plus(constant(1), made), inner.item, items)
		m.spend(size, 1)
		return extent{size, items.count}
	case "filter":
		return items
	case "find", "findLast":
		return same(items.size)
	case "sum":
		return same(m.over(m.plus(constant(1), made), inner.item, items))
	}
	return one()
}

// part notes a test that may take long, unless it is within another one.
func (m *meter) part(n ast.Node, what string, steps poly) {
	if len(m.scopes) == 1 {
		m.parts = append(m.parts, costPart{n.Location(), what, steps})
	}
}

// column bounds a column's cells. If all cells of its type have one size, the bound is a
// constant, else two new variables.
func (m *meter) column(name string) extent {
	if v, ok := m.bound[name]; ok {
		return v
	}
	if v, ok := m.cells[name]; ok {
		return v
	}
	var v extent
	f, ok := (&columns{m.schema}).field(name)
	switch {
	case name == schema.IDColumn:
		v = same(constant(textSize(36)))
	case name == schema.SplitColumn:
		v = same(constant(textSize(schema.MaxNameLen)))
	case !ok: // part of a blob column: the key's hexadecimal digits are the longest
		v = same(constant(textSize(2 * len(schema.Key{}))))
	default:
		if n, fixed := cellSize(f.Type); fixed {
			v = same(constant(n))
			if list, ok := f.Type.(*arrow.FixedSizeListType); ok {
				v.count = constant(float64(list.Len()))
			}
			break
		}
		m.columns = append(m.columns, name)
		n := uint16(2 * len(m.columns))
		v = extent{variable(n - 1), variable(n)}
	}
	m.cells[name] = v
	return v
}

// maxDegree is how many variables a product may have. A higher degree means lists within
// lists within lists; the row limit would refuse all but tiny ones.
const maxDegree = 4

// product is the variables of a term, in ascending order. Zeros are unused places. An
// array can be the key of a map, which a slice cannot.
type product [maxDegree]uint16

// poly is a bound on a number as a function of the sizes of a row's cells: a sum of
// products of variables, each with a factor. Factors are positive, so the bound grows
// with the sizes.
type poly map[product]float64

// maxTermSteps is how many terms the computation of a cost may go through: some
// milliseconds.
const maxTermSteps = 1 << 18

var (
	errTooDeep = errors.New("lists are gone through within lists too often to bound what this costs: it would " +
		"be too much")
	errTooManyTerms = fmt.Errorf("what the expression costs depends on too many columns at once: to bound it takes more "+
		"than %d steps, at most that many are allowed", maxTermSteps)
)

// algebra computes with polynomials, and counts the terms that it goes through. The first
// error sticks: results after it have no meaning, and the caller checks once at the end.
type algebra struct {
	taken int
	err   error // what is too complex
}

// take counts n terms.
func (a *algebra) take(n int) {
	if a.taken += n; a.taken > maxTermSteps && a.err == nil {
		a.err = errTooManyTerms
	}
}

// constant is a bound that no cell changes.
func constant(n float64) poly { return poly{product{}: n} }

// variable is the bound that consists of one variable, numbered from 1.
func variable(v uint16) poly { return poly{product{maxDegree - 1: v}: 1} }

// add adds times · q to p.
func (a *algebra) add(p, q poly, times float64) {
	if a.take(len(q)); a.err != nil {
		return
	}
	for vars, factor := range q {
		p[vars] += factor * times
	}
}

// plus is the sum.
func (a *algebra) plus(list ...poly) poly {
	sum := poly{}
	for _, p := range list {
		a.add(sum, p, 1)
	}
	return sum
}

// times is the product.
func (a *algebra) times(p, q poly) poly {
	out := poly{}
	if a.take(len(p) * len(q)); a.err != nil {
		return out
	}
	for x, n := range p {
		for y, m := range q {
			all := append(x[:], y[:]...)
			slices.Sort(all)
			if all[maxDegree-1] != 0 {
				a.err = errTooDeep
				return out
			}
			out[product(all[maxDegree:])] += n * m
		}
	}
	return out
}

// over bounds the sum of p over the items of a list, where v is the size of an item and
// v+1 the number of its items. The sizes of all items add up to the size of the list at
// most. So a term that is linear in them is multiplied by the list's size only, not also
// by the number of items.
func (a *algebra) over(p poly, v uint16, list extent) poly {
	sum := poly{}
	for vars, factor := range p {
		var without product
		n, at := 0, maxDegree
		for _, x := range slices.Backward(vars[:]) {
			if x == v || x == v+1 {
				n++
			} else {
				at--
				without[at] = x
			}
		}
		term, by := poly{without: factor}, list.size
		if n == 0 {
			n, by = 1, list.count
		}
		for range n {
			term = a.times(term, by)
		}
		if a.add(sum, term, 1); a.err != nil {
			break
		}
	}
	return sum
}

// at evaluates the bound with sizes[v-1] for variable v.
func (p poly) at(sizes []float64) (n float64) {
	for vars, factor := range p {
		for _, v := range vars {
			if v != 0 {
				factor *= sizes[v-1]
			}
		}
		n += factor
	}
	return n
}

// cellSize is the size in steps of the cells of a type, if all have the same.
func cellSize(t arrow.DataType) (float64, bool) {
	switch t := t.(type) {
	case *arrow.StringType, *arrow.LargeStringType, *arrow.BinaryType, *arrow.ListType:
		return 0, false
	case *arrow.FixedSizeBinaryType:
		return textSize(t.ByteWidth), true
	case *arrow.FixedSizeListType:
		n, fixed := cellSize(t.Elem())
		return 1 + float64(t.Len())*n, fixed
	case *arrow.StructType:
		sum := 1.0
		for _, f := range t.Fields() {
			n, fixed := cellSize(f.Type)
			if !fixed {
				return 0, false
			}
			sum += 4 + n
		}
		return sum, true
	}
	return 1, true
}

// countOf is the number of items of a cell, or its size if it is no list.
func countOf(a arrow.Array, i int, size float64) float64 {
	if list, ok := a.(array.ListLike); ok {
		from, to := list.ValueOffsets(i)
		return float64(to - from)
	}
	return size
}

// sizeOf is the size of a cell of an array, in steps. It follows offsets and reads no
// values.
func sizeOf(a arrow.Array, i int) float64 {
	if n, fixed := cellSize(a.DataType()); fixed {
		return n
	}
	switch a := a.(type) {
	case *array.String:
		return textSize(len(a.Value(i)))
	case *array.LargeString:
		return textSize(len(a.Value(i)))
	case *array.Binary:
		return textSize(a.ValueLen(i))
	case array.ListLike:
		from, to := a.ValueOffsets(i)
		items := a.ListValues()
		if n, fixed := cellSize(items.DataType()); fixed {
			return 1 + n*float64(to-from)
		}
		sum := 1.0
		for ; from < to; from++ {
			sum += sizeOf(items, int(from))
		}
		return sum
	case *array.Struct:
		sum := 1.0
		for f := range a.NumField() {
			sum += 4 + sizeOf(a.Field(f), i)
		}
		return sum
	}
	return 1
}
