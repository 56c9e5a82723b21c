package layout

import (
	"cmp"
	"slices"
)

// quotas shares total out by weight, where no node gets more than its cap. What is left
// because of caps goes to the others by weight, and then, to nodes of weight 0, evenly. The sum is
// total, or that of the caps if it is less. Shares of nodes that are not capped differ from the exact
// ones by less than one: largest remainders are rounded up (Hamilton's method), of
// equal ones the first.
func quotas(total int64, weights, caps []int64) []int64 {
	quota := make([]int64, len(weights))
	open := make([]int, 0, len(weights))
	for round := range 2 {
		open = open[:0]
		for i := range weights {
			if (weights[i] > 0) == (round == 0) && caps[i] > 0 {
				open = append(open, i)
			}
		}
		total -= fill(total, open, quota, caps, func(i int) int64 { return max(weights[i], 1) })
	}
	return quota
}

// fill shares total out over the open nodes, and returns how much they took.
func fill(total int64, open []int, quota, caps []int64, weight func(int) int64) (took int64) {
	for total > took && len(open) > 0 {
		var sum int64
		for _, i := range open {
			sum += weight(i)
		}
		left := total - took
		// Whoever cannot take its share takes what it can, and the others share the rest.
		var full []int
		for _, i := range open {
			if left*weight(i) >= sum*caps[i] { // below 2^16 · 2^16 · MaxNodes
				full = append(full, i)
			}
		}
		if len(full) > 0 {
			for _, i := range full {
				quota[i] = caps[i]
				took += caps[i]
			}
			open = slices.DeleteFunc(open, func(i int) bool { return quota[i] == caps[i] })
			continue
		}
		rest := left
		remainder := map[int]int64{}
		for _, i := range open {
			quota[i] = left * weight(i) / sum
			remainder[i] = left * weight(i) % sum
			rest -= quota[i]
		}
		slices.SortStableFunc(open, func(a, b int) int { return cmp.Compare(remainder[b], remainder[a]) })
		for _, i := range open[:rest] {
			quota[i]++
		}
		return total
	}
	return took
}
