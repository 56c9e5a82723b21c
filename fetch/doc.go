// Package fetch turns a plan into batches: it reads each
// stream's samples ahead of its consumer within a window of bytes, with many
// reads in flight, and checks every blob before it leaves. It owns all
// concurrency between a store and the streams.
//
// It knows nothing of gRPC or Arrow Flight. The order of an epoch is computed
// by the subpackage plan, snapshots are opened by jobs. What a Store is, and every store there is, lives below
// the subpackage store.
package fetch
