package where

import (
	"context"
	"fmt"
	"maps"
	"math/bits"
	"runtime"
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
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/plan"
	"bowstring/schema"
)

// rowBudget bounds the items of arrays that one row may make the expression
// allocate.
const rowBudget = 100_000

// checkEvery is how many rows are evaluated between two looks at the context.
const checkEvery = 1024

// Expr is a compiled expression. It is immutable and safe for concurrent use.
type Expr struct {
	text    string
	columns []string // that it names, virtual ones included, in alphabetical order
	// plain is for chunks whose columns have no nulls, guarded for the others.
	plain, guarded *vm.Program
}

// Compile checks an expression against a logical schema and compiles it. An
// error is an *Error.
func Compile(text string, s *arrow.Schema) (*Expr, error) {
	if len(text) > schema.MaxWhereBytes {
		return nil, at("", file.Location{}, fmt.Sprintf("expression of %d bytes, want at most %d", len(text), schema.MaxWhereBytes))
	}
	if strings.TrimSpace(text) == "" {
		return nil, at(text, file.Location{}, "the expression is empty; leave it out for all rows")
	}
	e := &Expr{text: text}
	var err error
	if e.plain, err = e.compile(s, false); err != nil {
		return nil, err
	}
	if e.guarded, err = e.compile(s, true); err != nil {
		return nil, err
	}
	return e, nil
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
				return nil, fmt.Errorf("%w: column %q has type %s, which where cannot read", schema.ErrInvalid, f.Name, f.Type)
			}
			env[f.Name] = t
			g.nullable[f.Name] = f.Nullable
			g.structs[f.Name] = f.Type.ID() == arrow.STRUCT
		}
	}
	config := conf.CreateNew()
	for _, option := range []expr.Option{expr.Env(env), expr.AsBool(), expr.DisableAllBuiltins()} {
		option(config)
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
	p := &prepare{text: e.text, names: names, blobs: blobs, used: map[string]bool{}}
	if err := p.walk(&tree.Node, 0, 0); err != nil {
		return nil, err
	}
	e.columns = slices.Sorted(maps.Keys(p.used))
	if _, err := checker.Check(tree, config); err != nil {
		return nil, located(e.text, err)
	}
	f := &fold{text: e.text}
	if ast.Walk(&tree.Node, f); f.err != nil {
		return nil, f.err
	}
	if guarded {
		tree.Node = g.condition(tree.Node)
	}
	if _, err := checker.Check(tree, config); err != nil {
		return nil, located(e.text, err)
	}
	if err := optimizer.Optimize(&tree.Node, config); err != nil {
		return nil, located(e.text, err)
	}
	if program, err = compiler.Compile(tree, config); err != nil {
		return nil, located(e.text, err)
	}
	return program, nil
}

// Eval returns the positions of the samples for which the expression is true,
// frozen. Chunks are evaluated in parallel. A row that cannot be evaluated (a
// remainder by zero, an item beyond an array's end) is an *Error that says
// which.
func (e *Expr) Eval(ctx context.Context, m *schema.Manifest) (*plan.Bitmap, error) {
	gets, nulls := make([][]getter, len(e.columns)), make([][]bool, len(e.columns))
	for i, name := range e.columns {
		var err error
		if gets[i], nulls[i], err = e.getters(m, name); err != nil {
			return nil, err
		}
	}
	found := make([][]uint64, m.Chunks())
	work := make(chan int)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(work)
		for c := range found {
			select {
			case work <- c:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range min(runtime.GOMAXPROCS(0), len(found)) {
		g.Go(func() error {
			w := worker{expr: e, env: make(map[string]any, len(e.columns)), gets: make([]getter, len(e.columns)), vm: vm.VM{MemoryBudget: rowBudget}}
			for c := range work {
				program := e.plain
				for i := range e.columns {
					w.gets[i] = gets[i][c]
					if nulls[i][c] {
						program = e.guarded
					}
				}
				start := m.ChunkStart(c)
				words, err := w.eval(ctx, program, start, int(m.ChunkStart(c+1)-start))
				if err != nil {
					return err
				}
				found[c] = words
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	out := plan.NewBitmap(m.Rows())
	for c, words := range found {
		start := m.ChunkStart(c)
		if start%64 == 0 {
			copy(out.Words()[start/64:], words)
			continue
		}
		for i, w := range words {
			for ; w != 0; w &= w - 1 {
				out.Set(start + int64(i*64+bits.TrailingZeros64(w)))
			}
		}
	}
	return out.Freeze(), nil
}

// worker evaluates chunks, one after the other.
type worker struct {
	expr *Expr
	vm   vm.VM
	env  map[string]any
	gets []getter // by column
}

func (w *worker) eval(ctx context.Context, program *vm.Program, start int64, n int) ([]uint64, error) {
	words := make([]uint64, (n+63)/64)
	for i := range n {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for c, get := range w.gets {
			w.env[w.expr.columns[c]] = get(i)
		}
		v, err := w.vm.Run(program, w.env)
		if err != nil {
			e := located(w.expr.text, err)
			e.Message = fmt.Sprintf("position %d: %s", start+int64(i), e.Message)
			return nil, e
		}
		if v == true {
			words[i>>6] |= 1 << (i & 63)
		}
	}
	return words, nil
}
