package where

import (
	"fmt"
	"reflect"

	"github.com/expr-lang/expr/vm"
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
	// plain is for chunks whose columns have no nulls, guarded for the others. What makes values has no plain one.
	plain, guarded *vm.Program
	nodes          int // of the guarded one, as maxNodes counts them
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
	if part.what != "" {
		format += fmt.Sprintf("; %.3g of them are for %s here", steps, part.what)
		if part.what != "matches" {
			format += ": a list is gone through for each row, and one within it for each of its items"
		}
	}
	return beyond(e.text, part.place, format, args...)
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
