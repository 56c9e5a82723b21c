// Package cql keeps blobs and snapshots in Scylla or Cassandra. It is the
// [store.Store] behind store addresses that begin with cql://.
//
// # Tables
//
// All of a store lies in one keyspace. A blob is cut into parts of [PartBytes];
// each part is a partition of its own in blob_parts, so that a large blob is
// spread over the cluster, its parts are read at the same time, and no cell is
// large. Which parts a blob has follows from its size, which every reference
// carries: a read of a blob of up to one part is one read of one row, and
// nothing else. The table blobs has a small row for each blob, which says that
// all parts are there; only imports and collections use it.
//
// How snapshots are committed, and blobs collected, is no matter of this
// package: it is the protocol's, in package protocol, which all stores share.
// What this package has is its database: a partition of the table catalog is
// changed by a conditional batch, whose condition is that the partition's version
// has not changed. Where the outcome of a batch stays unknown, because the
// answer was lost, a read at serial consistency settles it.
//
// # Time
//
// No clock decides anything. The write times of blobs are the epochs that the
// protocol counts collections by; a collection deletes as of the moment before its
// own epoch, so that it cannot take away what was stored since, in whatever order
// writes and deletions arrive. The write time of the row that a process has in the
// table members is its beat.
//
// # Consistency
//
// Blobs are read at LOCAL_ONE, since they never change; one that is not found
// is asked for again at a quorum before it is said to be missing. Writes are
// at LOCAL_QUORUM. The catalog and the members are written and read at QUORUM
// and SERIAL, so that imports in different datacenters exclude each other;
// serial=local_serial keeps that within one datacenter, where all imports and
// collections must then run.
//
// # Making a store
//
// [Init] alone makes keyspaces and tables.
//
// # Memory
//
// [Store.Get] reads into memory outside of the Go heap, which is used again after
// its blobs are released, and goes back to the system when as much has not been
// needed for some seconds. A blob that is never released is never freed. Below
// it the driver reads a response into a buffer of its own, which ScyllaDB's fork
// keeps for the next response and gocql leaves to the garbage collector.
//
// # Replicas
//
// A read asks the replica first that [store.AttemptFrom] says, and hosts last
// that have fallen silent. A host whose reads take much longer than those of the
// quickest loses them to the next replica: some, or all but one a second, which nobody
// waits for. The method is that of Cassandra's dynamic snitch, with shares that
// move step by step; host.go says more. The driver asks one more host at once where one fails;
// to wait and to try again is the caller's business.
//
// Where many blobs are wanted at once, some are asked for together by one statement, and read one by one if that
// fails: gather.go says when.
//
// # Goroutines
//
// A store has those of the protocol, which renew its row once it has read a snapshot
// or begun an ingest, one for each host that is silent or slow, and one for each statement that reads
// have gathered in; Close waits for them. A session that is opened ends with its context, and whoever opens it waits for
// the driver (session.go). The driver has two for each
// connection and a few for each session; they end soon after Close, which does not wait
// for the last of them, because the driver does not.
package cql
