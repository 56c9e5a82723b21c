// Package fetch is the engine: it turns requests into batches. This package is
// its public face, engine.go, which says all that a server may call; the parts lie
// below it, one package each, and none imports one that is further down this list:
//
//   - prefetch: one goroutine a stream, which plans its rows and asks for their blobs; batches put together
//   - lineage: what streams have handed out, in a ring of files
//   - upcoming: which jobs run, and what the spill is to hold for them
//   - resolve: requests resolved against snapshots
//   - manifest: rows of snapshots, read when they are wanted
//   - peers: the caches of other nodes, as one tier more
//   - spans: blobs that lie in buckets, neighbours by one request, as the last tier
//   - read: whose turn it is to read, and the reads: what windows hold, the spill, other nodes, the store
//   - operators: what samples become before they are served
//   - admission: whose turn it is, and one ledger of memory and work
//   - store: what a store is, and every store there is
//   - object: objects of buckets: ranges, conditional writes, lists
//   - plan, where: the order of an epoch and who gets what of it; expressions over metadata. Both are pure
//   - members: which nodes a cluster has, and which layout an epoch
//   - layout: which node owns which blob. Pure, too
//   - calibrate: how fast a store is, by reading it
//   - predict: how fast a job will be served, from measured rates. Pure, too
//
// It knows nothing of gRPC or Arrow Flight.
package fetch
