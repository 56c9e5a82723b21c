package where

import "slices"

// maxDegree is how many variables a product may have.
const maxDegree = 4

// product is the variables of a term, in ascending order; those that are 0 stand
// for none.
type product [maxDegree]uint16

// poly is a bound on a number, as a function of the sizes of a row's cells: a sum
// of products of variables, each with a factor.
type poly map[product]float64

// constant is a bound that no cell changes.
func constant(n float64) poly { return poly{product{}: n} }

// variable is the bound that is a variable, numbered from 1.
func variable(v uint16) poly { return poly{product{maxDegree - 1: v}: 1} }

// add adds q, so many times.
func (p poly) add(q poly, times float64) {
	for vars, factor := range q {
		p[vars] += factor * times
	}
}

// plus is the sum.
func plus(list ...poly) poly {
	sum := poly{}
	for _, p := range list {
		sum.add(p, 1)
	}
	return sum
}

// maxTerms is how many terms a product may have.
const maxTerms = 4096

// times is the product, nil where it is too complicated.
func times(p, q poly) poly {
	if len(p)*len(q) > maxTerms {
		return nil
	}
	out := poly{}
	for a, x := range p {
		for b, y := range q {
			all := append(a[:], b[:]...)
			slices.Sort(all)
			if all[maxDegree-1] != 0 {
				return nil
			}
			out[product(all[maxDegree:])] += x * y
		}
	}
	return out
}

// over bounds the sum of p over the items of a list, where v stands for the size
// of an item and v+1 for the number of its items. The sizes of all items add up to
// that of the list at most, so what is linear in them need not be multiplied by
// the number of items. It is nil where that is too complicated.
func (p poly) over(v uint16, list extent) poly {
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
			if term = times(term, by); term == nil {
				return nil
			}
		}
		sum.add(term, 1)
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
