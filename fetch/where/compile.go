package where

import (
	"context"
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
	"github.com/expr-lang/expr/vm"

	"bowstring/schema"
)

// Compile checks an expression against a logical schema and compiles it, by turns. It ends with ctx. An error of the
// expression is an *Error.
func Compile(ctx context.Context, text string, s *arrow.Schema, turn Turn) (*Expr, error) {
	return compile(ctx, &Expr{text: text}, s, turn)
}

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
	// It does more than the plain one, so its cost is the bound.
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
	e.constant += float64(len(e.terms)) // they are added up for each row
	return e, e.checkRow(nil, "a row")
}

// program compiles an expression within a turn. Of the tree, which takes more memory than the program, nothing is left
// while others have theirs.
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

// compilation makes one program of an expression. What each pass does is in proportion to the length of the text
// or, from rewrite on, to maxNodes and maxTermSteps.
type compilation struct {
	*Expr
	columns columns
	guarded bool // with tests for nulls

	config   *conf.Config
	literals literals
	tree     *parser.Tree
	program  *vm.Program
}

// recovered runs a pass. The library panics on some trees that it does not expect.
func (c *compilation) recovered(pass func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = schema.Recovered(p)
		}
	}()
	return pass()
}

// read parses the text, and prepares the tree.
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

// rewrite checks types, and gives the tree the form that is compiled.
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

// measure bounds what the guarded program costs.
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

// emit makes the program.
func (c *compilation) emit() (err error) {
	if err := optimizer.Optimize(&c.tree.Node, c.config); err != nil {
		return located(c.text, err)
	}
	// A row's error is bound to the text here and not by the library, which copies the line for each.
	c.tree.Source = file.NewSource("")
	// The program keeps the root of the tree, which is then empty.
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
