package where

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/checker"
	"github.com/expr-lang/expr/compiler"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/optimizer"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/types"
	"github.com/expr-lang/expr/vm"

	"bowstring/schema"
)

// rowBudget bounds the items of arrays that one row may make the expression
// allocate.
const rowBudget = 100_000

// turnSteps is how many steps are taken at a turn: some milliseconds.
const turnSteps = 1 << 17

// Scratch is about how much memory an evaluation takes beside its result, in
// bytes: bitmaps of chunks, and what is made for rows.
const Scratch = 1 << 20

// Expr is a compiled expression. It is immutable and safe for concurrent use.
type Expr struct {
	text    string
	columns []string // that it names, virtual ones included, in alphabetical order
	// value says that it is no condition, but gives a value of type made.
	value bool
	made  reflect.Type
	// plain is for chunks whose columns have no nulls, guarded for the others.
	plain, guarded *vm.Program
	// decide tells what the expression comes to in a page that was not read, by statistics of the columns that
	// named lists.
	decide   condition
	deciding int // how large it is
	named    []string
	patterns patterns
	cost     *cost
	terms    []term  // of cost.total that depend on the row
	constant float64 // the rest of it
}

// term is a product of sizes of cells, and its factor.
type term struct {
	vars   []int
	factor float64
}

// Compile checks an expression against a logical schema and compiles it. An
// error is an *Error.
func Compile(text string, s *arrow.Schema) (*Expr, error) {
	return compile(&Expr{text: text}, s)
}

func compile(e *Expr, s *arrow.Schema) (*Expr, error) {
	text := e.text
	if len(text) > schema.MaxWhereBytes {
		return nil, at("", file.Location{}, fmt.Sprintf("expression of %d bytes, want at most %d", len(text),
			schema.MaxWhereBytes))
	}
	if strings.TrimSpace(text) == "" {
		return nil, at(text, file.Location{}, "the expression is empty; leave it out for all rows")
	}
	var err error
	if e.plain, err = e.compile(s, false); err != nil {
		return nil, err
	}
	// It does more than the plain one, so its cost is the bound.
	if e.guarded, err = e.compile(s, true); err != nil {
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
	e.constant += float64(len(e.terms)) // they are added up for each row
	return e, e.checkRow(nil, "a row")
}

// Columns are those that the expression names, virtual ones included, in alphabetical
// order. The caller does not change them.
func (e *Expr) Columns() []string { return e.columns }

// rowSteps is what a row takes at most, where the cells have those sizes.
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

// checkRow fails if a row takes too long. Without sizes, cells that differ in size
// count for nothing.
func (e *Expr) checkRow(sizes []float64, row string) error {
	if sizes == nil {
		sizes = make([]float64, 2*len(e.cost.columns))
	}
	if n := e.rowSteps(sizes); n > MaxRowSteps {
		return e.beyond(sizes, "it takes up to %.3g steps for %s, at most %d are allowed", n, row, int64(MaxRowSteps))
	}
	return nil
}

// beyond makes an error that says what takes the most.
func (e *Expr) beyond(sizes []float64, format string, args ...any) error {
	part, steps := e.cost.costliest(sizes)
	if part.node == nil {
		part.node = &ast.NilNode{}
	} else {
		format += fmt.Sprintf("; %.3g of them are for %s here", steps, part.what)
		if part.what != "matches" {
			format += ": a list is gone through for each row, and one within it for each of its items"
		}
	}
	return beyond(e.text, part.node, format, args...)
}

// allowed is how many steps all rows may take together.
func allowed(rows int64) float64 { return max(MaxSteps, FreeSteps*float64(rows)) }

// checkRows fails if so many rows take too long, whatever is in them.
func (e *Expr) checkRows(rows int64) error {
	sizes := make([]float64, 2*len(e.cost.columns))
	if n := e.rowSteps(sizes); n*float64(rows) > allowed(rows) {
		return e.beyond(sizes, "it takes %.3g steps for each of %d rows, at most %.3g are allowed", n, rows,
			allowed(rows)/float64(rows))
	}
	return nil
}

func (e *Expr) compile(s *arrow.Schema, guarded bool) (program *vm.Program, err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics on some trees that it does not expect
			program, err = nil, at(e.text, file.Location{}, fmt.Sprint(p))
		}
	}()
	names, blobs := metaNames(s)
	env := types.Map{schema.PositionColumn: types.Int, schema.SplitColumn: types.String}
	g := &guard{nullable: map[string]bool{}, structs: map[string]bool{}}
	for _, f := range s.Fields() {
		switch {
		case schema.IsBlob(f):
			for part, t := range map[string]types.Type{schema.SizePart: types.Int, schema.KeyPart: types.String} {
				name := f.Name + "." + part
				if _, _, _, ok := schema.BlobPart(s, name); ok {
					env[name], g.nullable[name] = t, f.Nullable
				}
			}
		case f.Name == schema.IDColumn:
			env[f.Name] = types.String
		default:
			t := typeOf(f.Type)
			if t == nil {
				return nil, fmt.Errorf("%w: column %q has type %s, which expressions cannot read", schema.ErrInvalid, f.Name,
					f.Type)
			}
			env[f.Name] = t
			g.nullable[f.Name] = f.Nullable
			g.structs[f.Name] = f.Type.ID() == arrow.STRUCT
		}
	}
	config := conf.CreateNew()
	for _, option := range []expr.Option{expr.Env(env), expr.DisableAllBuiltins()} {
		option(config)
	}
	if !e.value {
		expr.AsBool()(config)
	}
	for _, name := range functions {
		if _, taken := env[name]; !taken { // a column hides the function
			expr.EnableBuiltin(name)(config)
		}
	}
	for name := range config.Disabled {
		delete(config.Builtins, name)
	}
	config.Check()

	tree, err := parser.ParseWithConfig(e.text, config)
	if err != nil {
		return nil, located(e.text, err)
	}
	p := &prepare{text: e.text, names: names, blobs: blobs, used: map[string]bool{}, patterns: &e.patterns}
	if err := p.walk(&tree.Node, 0, 0); err != nil {
		return nil, err
	}
	e.columns = slices.Sorted(maps.Keys(p.used))
	maps.Copy(config.Functions, e.patterns.functions())
	kind, err := checker.Check(tree, config)
	if err != nil {
		return nil, located(e.text, err)
	}
	e.made = kind
	f := &fold{text: e.text}
	if ast.Walk(&tree.Node, f); f.err != nil {
		return nil, f.err
	}
	switch {
	case guarded && e.value:
		tree.Node = g.value(tree.Node, kind)
	case guarded:
		tree.Node = g.condition(tree.Node)
	case !e.value:
		d := &deciding{g: g}
		e.decide = d.condition(tree.Node)
		e.named, e.deciding = d.names, d.size
	}
	if _, err := checker.Check(tree, config); err != nil {
		return nil, located(e.text, err)
	}
	if guarded {
		m := &meter{patterns: &e.patterns, types: map[string]arrow.DataType{}}
		for _, f := range s.Fields() {
			if !schema.IsBlob(f) {
				m.types[f.Name] = f.Type
			}
		}
		if e.cost, err = m.measure(tree.Node); err != nil {
			return nil, fail(e.text, m.complex, "%v", err)
		}
	}
	if err := optimizer.Optimize(&tree.Node, config); err != nil {
		return nil, located(e.text, err)
	}
	if program, err = compiler.Compile(tree, config); err != nil {
		return nil, located(e.text, err)
	}
	return program, nil
}
