// Package cql stores blobs and snapshots in Scylla or Cassandra. It is the [store.Store] of addresses that begin with
// cql://.
//
// # Tables
//
// A store is one keyspace. A blob is cut into parts of [PartBytes]. Each part is its own partition in blob_parts, so
// that a large blob is spread over the cluster, its parts are read in parallel, and no cell is large. The parts of a
// blob follow from its size, which every reference has, so reading a blob of one part is one read of one row. The
// table blobs has a small row per blob, which says that all parts are there; only imports and collections use it.
//
// Package protocol, which all stores share, defines how snapshots are committed and blobs collected. This package is
// its database: a partition of the table catalog is changed by a conditional batch, whose condition is that the
// partition's version has not changed. If the outcome of a batch is unknown because the answer was lost, a read at
// serial consistency settles it.
//
// # Time
//
// No clock decides anything. The write times of blobs are the epochs by which the protocol counts collections. A
// collection deletes with a write time just before its own epoch, so that it cannot delete what was stored since, in
// whatever order writes and deletions arrive. The write time of a process's row in the table members is its beat.
//
// # Consistency
//
// Blobs are read at LOCAL_ONE, because they never change. A blob that is not found is read again at a quorum before
// it counts as missing. Writes are at LOCAL_QUORUM. The catalog and the members are written and read at QUORUM and
// SERIAL, so that imports in different datacenters exclude each other. With serial=local_serial that is within one
// datacenter, where all imports and collections must then run.
//
// # Making a store
//
// Only [Init] creates keyspaces and tables.
//
// # Memory
//
// [Store.Get] reads into memory outside the Go heap. That memory is reused after its blobs are released, and returns
// to the system when it has not been needed for some seconds. A blob that is never released is never freed. Below
// that, the driver reads a response into a buffer of its own, which ScyllaDB's fork reuses for the next response and
// gocql leaves to the garbage collector.
//
// # Replicas
//
// A read begins at the replica that [store.AttemptFrom] selects, and asks silent hosts last. A host whose reads take
// much longer than those of the quickest host loses reads to the next replica: some of them, or all except one probe
// per second, whose result no caller waits for. The method is that of Cassandra's dynamic snitch, with shares that
// change step by step; see host.go. If a host fails, the driver asks one more host at once; the caller pauses and
// retries.
//
// If many blobs are wanted at once, some are requested together in one statement, and read one by one if that fails;
// see gather.go.
//
// # Goroutines
//
// A store has these goroutines, which Close waits for:
//
//   - those of the protocol, which renew the process's row once it has read a snapshot or begun an ingest;
//   - one for each host that is silent or slow;
//   - one for each statement that gathers reads.
//
// The opening of a session ends with its context, and its caller waits for the driver (session.go). The driver has
// two goroutines per connection and a few per session. They end soon after Close, which does not wait for the last of
// them, because the driver does not.
package cql
