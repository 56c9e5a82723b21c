// Package fetch is the engine: it turns requests into batches. This package has the
// functions that a server calls; begin reading at [Engine]. Its parts are packages below
// it. None of them imports one that is earlier in this list:
//
//   - prefetch: one goroutine for each stream, which plans rows and requests their blobs; assembly of batches
//   - lineage: the record of delivered rows, in a ring of files
//   - upcoming: the running jobs, and prefetching into the spill for them
//   - resolve: requests resolved against snapshots
//   - manifest: rows of snapshots, read on demand
//   - peers: the caches of other nodes, as one tier
//   - spans: blobs in buckets, neighbours read by one request, as the last tier
//   - read: the order of reads, and the reads from each tier: windows, spill, other nodes, store
//   - operators: transformations of samples before they are delivered
//   - admission: queues, and the ledger of memory and work
//   - store: the interface of a store, and its implementations
//   - object: objects of buckets: ranges, conditional writes, lists
//   - plan, where: the order of an epoch and its division among ranks; expressions over metadata. Both are pure
//   - members: the nodes of a cluster, and the layout of each epoch
//   - layout: the owner of each blob. Pure, too
//   - calibrate: measures the throughput of a store
//   - predict: predicts the throughput of a job from measured rates. Pure, too
//
// The package knows nothing of gRPC or Arrow Flight.
package fetch
