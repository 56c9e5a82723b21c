// Package peers reads blobs from the caches of other nodes: the tier between the
// spill and the store.
//
// Of each blob a [Directory] says which nodes own it. A node asks the first of them
// that answers, and never asks anybody for what it owns itself. The owner reads the
// blob from the store once, for all, and keeps it if that pays; who has asked keeps
// nothing. Ownership is advice: an owner that is slow, full, of another opinion or
// gone costs a bounded delay, and then the store is read.
//
// A [Link] is the way to one node; how it is built is the business of whoever gives
// one. The package knows nothing of gRPC, leases or layouts.
package peers
