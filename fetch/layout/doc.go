// Package layout says which node of a cluster owns which blob.
//
// A [Record] lists nodes with their weights and capacities. It is immutable and is
// named by the hash of its canonical encoding. A [Layout] is what follows from a
// record: of each of 65,536 slots of the key space, the node that owns it, and perhaps
// a second one. It is the same on every machine and in every release: the arithmetic
// is of integers alone.
//
// Ownership is advice. It says which node to ask for a blob first, and which rank is
// to have a sample; whether a node has the blob, only that node knows.
//
// The package does no I/O, reads no clock, draws no randomness and starts no
// goroutine. Which nodes there are is the business of fetch/members, and which rank
// gets which sample that of fetch/plan.
package layout
