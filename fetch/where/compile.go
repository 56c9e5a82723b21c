// Package where evaluates expressions over the metadata of samples. An expression either
// selects samples ([Compile]) or makes a column ([CompileColumn]). Examples are
//
//	label < 10 and width >= 400
//	split == "train" and file_name contains "cat"
//	any(tags, # startsWith "bird") and taken > date("2024-01-01")
//
// The language is that of github.com/expr-lang/expr, without what does not fit a
// selection: variables, sequences, the clock, and functions that build large values.
//
// # Columns
//
// Names are metadata columns, id (a UUID in its canonical text form), position (an
// integer) and split (a string, "" outside of every split). A column whose name is no
// identifier is written $env["its name"]. Blob columns have no value here.
//
//	Arrow type                                     value
//	bool                                           bool
//	int8 to int64, uint8 to uint64                 int
//	float16 to float64, decimal128                 float (of a decimal the nearest one)
//	utf8, large_utf8, binary, fixed_size_binary    string
//	timestamp, date32, date64                      time, as date("2024-01-31") makes one; UTC
//	time32, time64, duration                       duration, as duration("1h30m") makes one; 292 years at most
//	list, fixed_size_list                          array; an item of it may be null
//	struct                                         its fields, by name: box.width
//
// # Numbers
//
// Numbers are compared by value, whatever their types: no integer is rounded to a float
// for a comparison, and integers reach from -2^63 to 2^64-1. A literal beyond that range
// can be compared, and nothing else. Sums, differences, products and remainders of
// integers are exact. A result beyond an int64 is an error of the row; if a uint64 is
// among the operands, the limit is 2^64-1. int(x) of a value beyond an int64 is an error
// as well. x / y, x ** y and means are floats.
//
// # Null
//
// A comparison, or any other test, that needs the value of a null cell is false. So not
// (x > 3) is true where x is null, and so is x not in [1, 2], which means not (x in [1,
// 2]). x == nil and x != nil test for null, and x ?? 0 replaces null.
//
// A list keeps its null items: len counts them, an index finds them, x in list passes
// over them, and nil in list looks for one. Within any(list, …) and similar functions #
// is null for such an item, and so is the result of map for it. A null item that an index
// finds is null as a column is. first, last, find, findIndex and similar functions give
// null if they find nothing, and max and min give null of an empty list. sum, mean,
// median, max and min skip nulls.
//
// # Ranges
//
// x in 1..9 means x >= 1 and x <= 9, and 1 < x < 9 means 1 < x and x < 9; x is evaluated
// once. A range has no other use.
//
// # Columns that are made
//
// [CompileColumn] accepts an expression whose value is a bool, an int, a float, a string,
// a time or a duration, and makes a column of it for rows that are served. Integers
// become int64, or uint64 if the values may be beyond int64 and none is negative. A value
// is null if a column that it needs is null; a test is false there, as in a selection.
//
// # Limits
//
// The text has at most schema.MaxWhereBytes bytes. Brackets nest 256 deep, predicates
// such as any two deep, conditionals four deep. Paths such as a.b.c have at most 32
// steps. Patterns of matches are literals with at most 2,048 instructions in all and 16
// classes such as \pL or [a-ÿ].
//
// The compiled form has at most 32,768 nodes. A node is a name, a literal, an operator or
// a call. 64 bytes of text that literals are joined to count as one more node, and a date
// in a time zone counts as 64. The form includes the tests for nulls: one for each
// nullable column that a test needs, and the condition of a ?: again if its result may be
// null. The nodes are counted before the form is compiled. So compiling takes time in
// proportion to the nodes, some microseconds for each. It allocates at most 256 KiB and 2
// KiB for each byte of the text or, if they are more, for each node. [Compile] takes two
// turns for it and [CompileColumn] one; both end with their context. Computing the cost
// bound of a row takes at most 262,144 steps; an expression that needs more is refused.
//
// The cost of evaluation is bounded in steps: [MaxRowSteps] for a row, and for all rows
// together the larger of [MaxSteps] and [FreeSteps] for each row. The cost of a row is
// computed from the expression and from the sizes of the row's cells before the row is
// evaluated. Evaluation allocates at most 128 bytes for each step, and 64 KiB.
//
// # Reading the code
//
// Compile and its passes are in compile.go. parse.go reads the text, guard.go adds the
// tests for nulls, exact.go replaces arithmetic that would round, cost.go bounds the
// cost, and decide.go answers whole pages from their statistics. Eval in eval.go runs
// conditions over a snapshot, and Maker in make.go runs values over rows that are served.
// Parsing of requests is in package schema, and the index of a selection in package plan.
package where

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/checker"
	"github.com/expr-lang/expr/compiler"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/optimizer"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/parser/operator"
	"github.com/expr-lang/expr/vm"

	"bowstring/schema"
)

// rowBudget bounds the items of arrays that one row may make the expression allocate. The
// cost model refuses such rows before; this is the library's own check, in case the model
// misses a case.
const rowBudget = 100_000

// turnSteps is how many steps one turn takes: some milliseconds, so that a cancelled or
// more urgent request does not wait long.
const turnSteps = 1 << 17

// Scratch is about how much memory an evaluation takes in addition to its result, in
// bytes: bitmaps of chunks, and values made for rows. Callers reserve it in the ledger.
const Scratch = 1 << 20

// Expr is a compiled expression. It is immutable and safe for concurrent use. It keeps
// nothing of the syntax tree and nothing of a snapshot but names.
type Expr struct {
	text    string
	columns []string // named by the expression, virtual ones included, in alphabetical order
	// value is set if the expression is no condition, but gives a value of type made.
	value bool
	made  reflect.Type
	// plain runs on pages without nulls, guarded on all others. An expression that makes
	// values has no plain program: its rows come from many pages.
	plain, guarded *vm.Program
	nodes          int // of the guarded one, as maxNodes counts them
	// decide says what the expression comes to in a page that was not read, from the
	// statistics of the columns in named.
	decide   condition
	deciding int // its size in nodes and literals
	named    []string
	patterns patterns
	cost     *cost   // bound of a row's steps, as a polynomial in the sizes of its cells
	terms    []term  // of cost.total that depend on the row
	constant float64 // the rest of it
}

// term is a product of cell sizes with a factor. Terms are the form of cost.total that is
// fast to evaluate for each row.
type term struct {
	vars   []int // indexes into the sizes of runner
	factor float64
}

// Columns returns the names that the expression uses, virtual ones included, in
// alphabetical order. The caller must not change the slice.
func (e *Expr) Columns() []string { return e.columns }

// rowSteps bounds the steps of a row whose cells have those sizes: two numbers for each
// column of cost.columns, as runner.measure fills them.
func (e *Expr) rowSteps(sizes []float64) float64 {
	n := e.constant
	for _, t := range e.terms {
		product := t.factor
		for _, v := range t.vars {
			product *= sizes[v]
		}
		n += product
	}
	return n
}

// checkRow fails with schema.ErrLimit if a row takes more than MaxRowSteps. If sizes is
// nil, cells of variable size count as empty: an expression that fails even then would
// fail for every row.
func (e *Expr) checkRow(sizes []float64, row string) error {
	if sizes == nil {
		sizes = make([]float64, 2*len(e.cost.columns))
	}
	if n := e.rowSteps(sizes); n > MaxRowSteps {
		return e.beyond(sizes, "it takes up to %.3g steps for %s, at most %d are allowed", n, row, int64(MaxRowSteps))
	}
	return nil
}

// beyond makes an error that names the part of the expression that takes the most steps.
func (e *Expr) beyond(sizes []float64, format string, args ...any) error {
	part, steps := e.cost.costliest(sizes)
	if part.what != "" {
		format += fmt.Sprintf("; %.3g of them are for %s here", steps, part.what)
		if part.what != "matches" {
			format += ": a list is gone through for each row, and one within it for each of its items"
		}
	}
	return beyond(e.text, part.place, format, args...)
}

// allowed is how many steps all rows may take together. It grows with the snapshot,
// because a large one takes long for any expression.
func allowed(rows int64) float64 { return max(MaxSteps, FreeSteps*float64(rows)) }

// checkRows fails if that number of rows would take too long even if all their cells of
// variable size were empty.
func (e *Expr) checkRows(rows int64) error {
	sizes := make([]float64, 2*len(e.cost.columns))
	if n := e.rowSteps(sizes); n*float64(rows) > allowed(rows) {
		return e.beyond(sizes, "it takes %.3g steps for each of %d rows, at most %.3g are allowed", n, rows,
			allowed(rows)/float64(rows))
	}
	return nil
}

// Compile checks an expression against a logical schema and compiles it to a condition.
// It does the work within turns and ends with ctx. An error in the expression is an
// *Error.
func Compile(ctx context.Context, text string, s *arrow.Schema, turn Turn) (*Expr, error) {
	return compile(ctx, &Expr{text: text}, s, turn)
}

// compile fills e, whose text and value are set: programs, decision by statistics, and
// cost.
func compile(ctx context.Context, e *Expr, s *arrow.Schema, turn Turn) (*Expr, error) {
	if err := checkText(e.text); err != nil {
		return nil, err
	}
	var err error
	if !e.value {
		if e.plain, err = e.program(ctx, s, turn, false); err != nil {
			return nil, err
		}
	}
	// The guarded program does more than the plain one, so its cost bounds both.
	if e.guarded, err = e.program(ctx, s, turn, true); err != nil {
		return nil, err
	}
	for vars, factor := range e.cost.total {
		t := term{factor: factor}
		for _, v := range vars {
			if v != 0 {
				t.vars = append(t.vars, int(v)-1)
			}
		}
		if t.vars == nil {
			e.constant += factor
		} else {
			e.terms = append(e.terms, t)
		}
	}
	e.constant += float64(len(e.terms)) // adding up the terms is a step each
	return e, e.checkRow(nil, "a row")
}

// program compiles an expression within a turn. The syntax tree takes more memory than
// the program. It is dropped before the turn ends, so only the requests that hold a turn
// have a tree at the same time.
func (e *Expr) program(ctx context.Context, s *arrow.Schema, turn Turn, guarded bool) (p *vm.Program, err error) {
	err = turn(ctx, func() error {
		c := &compilation{Expr: e, columns: columns{schema: s}, guarded: guarded}
		for _, pass := range []func() error{c.read, c.rewrite, c.measure, c.emit} {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := c.recovered(pass); err != nil {
				return err
			}
		}
		p = c.program
		return nil
	})
	return p, err
}

// compilation makes one program of an expression, in four passes. The time of each pass
// is in proportion to the length of the text or, from rewrite on, limited by maxNodes and
// maxTermSteps.
type compilation struct {
	*Expr
	columns columns
	guarded bool // with tests for nulls

	config   *conf.Config
	literals literals
	tree     *parser.Tree
	program  *vm.Program
}

// recovered runs a pass. The library panics on some trees that it does not expect; the
// panic becomes an error of the request and does not end the server.
func (c *compilation) recovered(pass func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = schema.Recovered(p)
		}
	}()
	return pass()
}

// read parses the text, checks what the tree may contain, and declares the types of the
// columns that it names. Types of other columns are not computed: a schema may have
// thousands.
func (c *compilation) read() (err error) {
	c.config = conf.CreateNew()
	c.config.MaxNodes = 0 // they are counted when the tree is rewritten
	env, err := c.columns.hiding()
	if err != nil {
		return err
	}
	for _, option := range []expr.Option{expr.Env(env), expr.DisableAllBuiltins()} {
		option(c.config)
	}
	if !c.value {
		expr.AsBool()(c.config)
	}
	for _, name := range functions {
		if _, taken := env[name]; !taken { // a column hides the function
			expr.EnableBuiltin(name)(c.config)
		}
	}
	for name := range c.config.Disabled {
		delete(c.config.Builtins, name)
	}
	c.config.Check()
	if c.tree, err = parse(c.text, c.config, &c.literals); err != nil {
		return err
	}
	p := &prepare{text: c.text, columns: &c.columns, used: map[string]bool{}, patterns: &c.patterns,
		literals: &c.literals}
	if err := p.walk(&c.tree.Node, 0, 0); err != nil {
		return err
	}
	c.Expr.columns = slices.Sorted(maps.Keys(p.used))
	for name := range p.used {
		if env[name], err = c.columns.typeOf(name); err != nil {
			return err
		}
	}
	c.config.WithEnv(env)
	maps.Copy(c.config.Functions, c.patterns.functions())
	maps.Copy(c.config.Functions, exactFunctions)
	return nil
}

// rewrite checks types, and brings the tree to the form that is compiled. The order
// matters. Decisions by statistics are made of the tree as written. Exact functions come
// before guards, which only need to know that functions may be null. Types are checked
// again at the end, since the compiler relies on them.
func (c *compilation) rewrite() error {
	kind, err := checker.Check(c.tree, c.config)
	if err != nil {
		return located(c.text, err)
	}
	c.made = kind
	if _, err := checkSize(c.text, c.tree.Node); err != nil { // before dates are read, and texts are joined
		return err
	}
	if err := foldTimes(c.text, &c.tree.Node); err != nil {
		return err
	}
	g := &guard{columns: &c.columns}
	shapes := shapesOf(&c.columns, &c.literals, c.tree.Node)
	if root := shapes.of[c.tree.Node]; c.value && kind != nil && kind.Kind() == reflect.Int &&
		root.ints > intBits && !root.negative {
		c.made = reflect.TypeFor[uint64]()
	}
	if !c.guarded && !c.value {
		d := &deciding{g: g, shapes: shapes}
		c.decide = d.condition(c.tree.Node)
		c.named, c.deciding = d.names, d.size
	}
	if err := makeExact(c.text, shapes, &c.tree.Node); err != nil {
		return err
	}
	switch {
	case c.guarded && c.value:
		c.tree.Node = g.value(c.tree.Node, kind)
	case c.guarded || contains(c.tree.Node, mayBeNull):
		c.tree.Node = g.condition(c.tree.Node)
	}
	if c.nodes, err = checkSize(c.text, c.tree.Node); err != nil {
		return err
	}
	if _, err := checker.Check(c.tree, c.config); err != nil {
		return located(c.text, err)
	}
	return nil
}

// measure bounds the cost of the guarded program. The plain program is cheaper.
func (c *compilation) measure() (err error) {
	if !c.guarded {
		return nil
	}
	m := &meter{patterns: &c.patterns, schema: c.columns.schema}
	if c.cost, err = m.measure(c.tree.Node); err != nil {
		return at(c.text, m.complex.Location(), err.Error())
	}
	return nil
}

// emit optimizes the tree and compiles it to the program.
func (c *compilation) emit() (err error) {
	if err := optimizer.Optimize(&c.tree.Node, c.config); err != nil {
		return located(c.text, err)
	}
	// A row's error is bound to the text by located. The library would copy the whole
	// line for each row.
	c.tree.Source = file.NewSource("")
	// The program keeps a pointer to the root of the tree. An empty root lets the rest be
	// collected.
	root := &ast.PredicateNode{Node: c.tree.Node}
	root.SetLocation(root.Node.Location())
	c.tree.Node = root
	if c.program, err = compiler.Compile(c.tree, c.config); err != nil {
		return located(c.text, err)
	}
	root.Node = nil
	return nil
}

// checkText fails if there is no text, or too much of it.
func checkText(text string) error {
	switch {
	case len(text) > schema.MaxWhereBytes:
		return at("", file.Location{}, fmt.Sprintf("expression of %d bytes, want at most %d", len(text),
			schema.MaxWhereBytes))
	case strings.TrimSpace(text) == "":
		return at(text, file.Location{}, "the expression is empty; leave it out for all rows")
	}
	return nil
}

// Nesting limits. Each nested predicate multiplies the cost by the length of a list, and
// each nested conditional doubles the tests for nulls. Deeper expressions would exceed
// the limits on steps and nodes anyway, with an error that explains less.
const (
	maxPredicates   = 2  // any(…, any(…))
	maxConditionals = 4  // a ? b : (c ? d : …)
	maxPath         = 32 // a.b.c
)

// functions are those of the library that an expression may call. They are pure, and
// their results are bounded by the sizes of their arguments. Others, such as repeat, now
// or toJSON, are not available.
var functions = []string{
	"abs", "all", "any", "ceil", "count", "date", "duration", "filter", "find", "findIndex", "findLast",
	"findLastIndex", "first", "float", "floor", "hasPrefix", "hasSuffix", "indexOf", "int", "last",
	"lastIndexOf", "len", "lower", "map", "max", "mean", "median", "min", "none", "one", "round",
	"string", "sum", "trim", "trimPrefix", "trimSuffix", "upper",
}

// predicates are the functions whose predicate is a condition. sum and map take values
// instead.
var predicates = []string{"all", "any", "count", "filter", "find", "findIndex", "findLast", "findLastIndex", "none",
	"one"}

// prepare checks for syntax that the library allows and a selection must not have. It
// replaces ranges, chained comparisons and $env, and collects the columns. Afterwards
// each node is in the tree once, except names and literals. A value that a test needs
// twice gets a name and is evaluated once.
type prepare struct {
	text    string
	columns *columns
	used    map[string]bool
	bound   int // number of values that got a name

	patterns *patterns // of matches
	literals *literals
}

// walk prepares a node and those below it. inPredicates and conditionals are the depths
// at the node. It replaces *node where the form changes.
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

// column checks that a name is one that an expression may use, and notes it as used.
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

// binary replaces a range, a chained comparison or a test of a pattern; each prepares
// operands.
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

// boundPrefix begins the names of values that a test needs twice. It has a space, so no
// column or function in an expression can have such a name.
const boundPrefix = "bound "

// once evaluates a value once for a test that needs it twice: it binds the value to a
// name. Names and literals are cheap and are simply repeated. Errors of the test are
// located at place.
func (p *prepare) once(place, value ast.Node, test func(of ast.Node) ast.Node) ast.Node {
	switch value.(type) {
	case *ast.IdentifierNode, *ast.PointerNode, *ast.NilNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode,
		*ast.StringNode:
		return test(value)
	}
	name := fmt.Sprint(boundPrefix, p.bound)
	p.bound++
	of := &ast.IdentifierNode{Value: name}
	of.SetLocation(value.Location())
	n := &ast.VariableDeclaratorNode{Name: name, Value: value, Expr: test(of)}
	n.SetLocation(place.Location())
	return n
}

// chain returns the comparisons of a < b < c in order, nil if n is something else. The
// parser expands the chain to a < b && b < c with one shared node b, which is how it is
// recognized.
func chain(n *ast.BinaryNode) []*ast.BinaryNode {
	var tests []*ast.BinaryNode // the last one first
	for {
		test, ok := n.Right.(*ast.BinaryNode)
		if !ok || !operator.IsComparison(test.Operator) {
			return nil
		}
		tests = append(tests, test)
		before, ok := n.Left.(*ast.BinaryNode)
		if !ok {
			return nil
		}
		last := before
		if before.Operator == "&&" {
			if last, ok = before.Right.(*ast.BinaryNode); !ok {
				return nil
			}
		}
		if !operator.IsComparison(last.Operator) || last.Right != test.Left {
			return nil
		}
		if last == before {
			tests = append(tests, last)
			break
		}
		n = before
	}
	for i, j := 0, len(tests)-1; i < j; i, j = i+1, j-1 {
		tests[i], tests[j] = tests[j], tests[i]
	}
	return tests
}

// chained joins the comparisons of a chain whose first operand is left, and evaluates
// each inner operand once.
func (p *prepare) chained(left ast.Node, tests []*ast.BinaryNode) ast.Node {
	t := tests[0]
	if len(tests) == 1 {
		return binary(t, t.Operator, left, t.Right)
	}
	return p.once(t, t.Right, func(of ast.Node) ast.Node {
		return and(binary(t, t.Operator, left, of), p.chained(of, tests[1:]))
	})
}

// pathLen is how many steps the path that ends in a node has, at most maxPath + 1.
func pathLen(n ast.Node) (count int) {
	for count <= maxPath {
		switch m := n.(type) {
		case *ast.ChainNode:
			n = m.Node
		case *ast.MemberNode:
			n = m.Node
			count++
		default:
			return count
		}
	}
	return count
}

// foldTimes replaces date("…") and duration("…") of literals by their values. So an
// invalid literal is an error of the expression, and not of each row.
func foldTimes(text string, root *ast.Node) error {
	f := &fold{text: text}
	ast.Walk(root, f)
	return f.err
}

type fold struct {
	text string
	err  error
}

// Visit implements ast.Visitor.
func (f *fold) Visit(node *ast.Node) {
	name, args := callOf(*node)
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

// callOf is the name of the function that a node calls and its arguments; "" if it is no
// call.
func callOf(n ast.Node) (name string, args []ast.Node) {
	switch n := n.(type) {
	case *ast.BuiltinNode:
		return n.Name, n.Arguments
	case *ast.CallNode:
		if id, ok := n.Callee.(*ast.IdentifierNode); ok {
			return id.Value, n.Arguments
		}
	}
	return "", nil
}

// patternPrefix begins the names of the functions that patterns are compiled to.
const patternPrefix = "matches "

// maxPatterns is how many instructions the patterns of an expression may have in all.
// Matching takes time and memory in proportion to them.
const maxPatterns = 2048

// pattern is a regular expression, compiled once.
type pattern struct {
	re   *regexp.Regexp
	size int64 // instructions
}

// patterns are the regular expressions of an expression, by the name of the function that
// each is compiled to. The library would compile a literal pattern as well, but without a
// bound on its size. Names have a space, so none can be written in an expression.
type patterns struct {
	byText map[string]string // names
	byName map[string]*pattern
	size   int64
	wide   int // wide classes so far, as wideClasses counts
}

// maxWideClasses is how many wide classes of characters the patterns of an expression may
// have. Parsing each takes some milliseconds.
const maxWideClasses = 16

// wideClasses counts classes that take long to parse, whatever they compile to. These are
// Unicode classes such as \pL, each with hundreds of ranges, and ranges beyond ASCII such
// as [a-\x{1E942}], where case folding looks up each character. It counts in the text,
// since parsing is what takes long, and may count too many.
func wideClasses(text string) (n int) {
	n = strings.Count(text, `\p`) + strings.Count(text, `\P`)
	for _, from := range strings.SplitAfter(text, "-")[1:] {
		if from != "" && (from[0] >= utf8.RuneSelf || strings.HasPrefix(from, `\x`)) {
			n++
		}
	}
	return n
}

// add compiles a pattern once and returns the name of its function. The size is checked
// on the syntax tree, because compiling a large pattern is what must not happen.
func (p *patterns) add(text string) (name string, err error) {
	if name, ok := p.byText[text]; ok {
		return name, nil
	}
	if p.wide += wideClasses(text); p.wide > maxWideClasses {
		return "", fmt.Errorf(`the patterns of the expression have %d classes such as \pL or [a-ÿ], at most %d are `+
			"allowed: they take long to read", p.wide, maxWideClasses)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return "", err
	}
	size := instructions(tree)
	if p.size += size; p.size > maxPatterns {
		return "", fmt.Errorf("the patterns of the expression come to %d instructions and more, at most %d are "+
			"allowed: counts multiply, (x{30}){30} is 900 times x",
			min(p.size, tooMany), maxPatterns)
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return "", err
	}
	if p.byText == nil {
		p.byText, p.byName = map[string]string{}, map[string]*pattern{}
	}
	name = fmt.Sprint(patternPrefix, len(p.byName))
	p.byText[text], p.byName[name] = name, &pattern{re, size}
	return name, nil
}

// call is the test of a value by the function of that name.
func (p *patterns) call(name string, n *ast.BinaryNode) ast.Node {
	callee := &ast.IdentifierNode{Value: name}
	callee.SetLocation(n.Location())
	c := &ast.CallNode{Callee: callee, Arguments: []ast.Node{n.Left}}
	c.SetLocation(n.Location())
	return c
}

// functions are what the expression library calls.
func (p *patterns) functions() map[string]*builtin.Function {
	list := map[string]*builtin.Function{}
	for name, pt := range p.byName {
		list[name] = &builtin.Function{
			Name: name,
			Func: func(args ...any) (any, error) {
				s, ok := args[0].(string)
				return ok && pt.re.MatchString(s), nil
			},
			Validate: func(args []reflect.Type) (reflect.Type, error) {
				if k := args[0].Kind(); k != reflect.String && k != reflect.Interface {
					return nil, fmt.Errorf("invalid operation: matches (mismatched types %s and string)", args[0])
				}
				return reflect.TypeFor[bool](), nil
			},
		}
	}
	return list
}

// tooMany is more instructions than any pattern may have. Counts saturate here, as nested
// repeats would overflow.
const tooMany = 1 << 30

// instructions estimates how many instructions a regular expression compiles to, without
// compiling it; tooMany at most. Large classes count for the memory that they take.
func instructions(re *syntax.Regexp) int64 {
	var n int64
	for _, sub := range re.Sub {
		n = min(tooMany, n+instructions(sub))
	}
	switch re.Op {
	case syntax.OpLiteral:
		n = int64(len(re.Rune))
	case syntax.OpCharClass:
		n = 1 + int64(len(re.Rune)/16)
	case syntax.OpCapture:
		n += 2
	case syntax.OpRepeat:
		// x{2,5} is xx(x(x(x)?)?)?, x{2,} is xx+.
		count := int64(max(re.Max, re.Min, 1))
		n = count*(n+1) + 1
	default:
		n += max(1, int64(len(re.Sub)))
	}
	return min(tooMany, n)
}
