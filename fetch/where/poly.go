package where

import (
	"errors"
	"fmt"
	"slices"
)

// maxDegree is how many variables a product may have.
const maxDegree = 4

// product is the variables of a term, in ascending order; those that are 0 stand
// for none.
type product [maxDegree]uint16

// poly is a bound on a number, as a function of the sizes of a row's cells: a sum
// of products of variables, each with a factor.
type poly map[product]float64

// maxTermSteps is how many terms may be gone through to bound what an expression costs.
const maxTermSteps = 1 << 18

var (
	errTooDeep = errors.New("lists are gone through within lists too often to tell what this costs: it would " +
		"be too much")
	errTooManyTerms = fmt.Errorf("what the expression costs depends on too many columns at once: to tell it takes more "+
		"than %d steps, at most that many are allowed", maxTermSteps)
)

// algebra computes with bounds, and counts the terms that it goes through.
type algebra struct {
	taken int
	err   error // what is too complicated; what is computed from then on has no meaning
}

// take counts so many terms.
func (a *algebra) take(n int) {
	if a.taken += n; a.taken > maxTermSteps && a.err == nil {
		a.err = errTooManyTerms
	}
}

// constant is a bound that no cell changes.
func constant(n float64) poly { return poly{product{}: n} }

// variable is the bound that is a variable, numbered from 1.
func variable(v uint16) poly { return poly{product{maxDegree - 1: v}: 1} }

// add adds q to p, so many times.
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

// over bounds the sum of p over the items of a list, where v stands for the size
// of an item and v+1 for the number of its items. The sizes of all items add up to
// that of the list at most, so what is linear in them need not be multiplied by
// the number of items.
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

// at is the bound where variable v is sizes[v-1].
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
