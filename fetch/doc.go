// Package fetch turns a plan into batches: it opens snapshots, reads each
// stream's samples ahead of its consumer within a window of bytes, with many
// reads in flight, and checks every blob before it leaves. It owns all
// concurrency between a store and the streams, and defines what a Store is.
//
// It knows nothing of gRPC or Arrow Flight. The order of an epoch is computed
// by the subpackage plan; stores live in local (and cql); every store passes
// the suite in storetest.
package fetch
