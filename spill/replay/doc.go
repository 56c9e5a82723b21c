// Package replay runs cache policies over mixes of jobs in virtual time, beside the best that any could do.
//
// A [Trace] is what a mix of jobs asks for, in order. It is replayed with a policy of package spill, whose very code
// for choosing what to evict runs here, or with the rule that knows the whole trace ([Trace.Optimum]). All samples are
// of one size: with unequal ones the optimum cannot be computed (it is NP-hard).
package replay
