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
// The catalog is a partition of snapshots for each dataset. A snapshot is
// committed, or dropped, by one lightweight transaction on that partition,
// whose condition is that the partition's version has not changed. Where the
// outcome of a transaction stays unknown, because the answer was lost, the
// partition is read again at serial consistency, which settles it.
//
// # Garbage and leases
//
// Several processes share a store. Each keeps a row in leases, which lapses
// unless it is renewed; it says since when the process has had an ingest open,
// and which snapshots it reads. A collection is announced by a row in the same
// table, of which there can be one. It begins when every process with a lease
// has said, in its row, that it knows of it, and then frees blobs that nothing
// refers to and no ingest has touched since the oldest open one began.
//
// A put that finds its blob stored touches it. While a collection runs that is
// not enough, for the collection may have made up its mind: then the put stores
// the blob again. Deletions carry the write time of what they delete, so that
// they cannot take away what was stored later, in whatever order they arrive.
// This needs clocks that differ by less than the collection's grace
// (Options.Grace, the parameter grace), as Cassandra itself does.
//
// # Consistency
//
// Blobs are read at LOCAL_ONE, since they never change; one that is not found
// is asked for again at a quorum before it is said to be missing. Writes are
// at LOCAL_QUORUM. The catalog and the leases are written and read at QUORUM
// and SERIAL, so that imports in different datacenters exclude each other;
// serial=local_serial keeps that within one datacenter, where all imports and
// collections must then run.
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
// that have fallen silent. The driver asks one more host at once where one fails;
// to wait and to try again is the caller's business.
//
// # Goroutines
//
// A store has one goroutine of its own, which renews its lease, once it has
// read a snapshot or begun an ingest, and one for each host that is silent. The driver has two for each connection and a
// few for each session; they end soon after Close, which does not wait for the
// last of them, because the driver does not.
package cql
