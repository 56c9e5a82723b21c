// Package lookahead knows which jobs run, tells the spill what they use next, and
// brings it before they do: while streams have no use for the way to the store,
// and, by [Ahead.Warm], before a job begins.
//
// It knows nothing of windows, batches or turns.
package lookahead
