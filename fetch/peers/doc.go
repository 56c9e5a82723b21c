// Package peers reads blobs from the caches of other nodes: the tier between the
// spill and the store.
//
// Of each blob a [Directory] says how a node comes by it: whom it asks, and whether it
// keeps the blob if that pays. The first owner reads it from the store once, for all. A second
// owner, and in each other zone the node that acts for that zone, ask the first one and keep
// the blob too; all others ask those that are near, and keep nothing. A node that leaves
// is asked by the new owners for what it holds. Ownership is advice: an owner that is slow, full, of another opinion or
// gone costs a bounded delay, and then the store is read.
//
// A [Link] is the way to one node; how it is built is the business of whoever gives
// one. The package knows nothing of gRPC, leases or layouts.
package peers
