// Package plan computes the order of an epoch: which sample is served at which
// step to which rank, and, the other way round, when a sample is served next.
//
// A [Plan] is a pure function of its [Config]. The order is a keyed permutation
// ([Perm]) of a [Selection] of positions, computed per index together with its
// inverse, so nothing is shuffled or kept: epoch 900 costs what epoch 0 costs,
// and a plan over 10^9 samples is a few hundred bytes. The global batch of a
// step does not depend on the number of ranks, which share it out among them;
// a job stopped at step k on 8 ranks goes on at step k on 6.
//
// The order for given numbers never changes from one release to the next: the
// tickets that clients keep name places in it.
//
// The package does no I/O, reads no clock, draws no randomness of its own and
// starts no goroutine. Everything in it, once built, is immutable and safe for
// concurrent use, and no query allocates, but for windows of [Buckets].
package plan
