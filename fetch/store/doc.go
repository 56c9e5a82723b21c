// Package store says what a Store is: where blobs and snapshots live for good.
// It holds the contract, and the rules of a catalog that all stores share.
//
// Each store has a package of its own below: local, the embedded one, and cql,
// over ScyllaDB and Cassandra. Every one passes the suite in storetest. Package
// delay puts a link of chosen latency before any of them.
//
// It knows nothing of plans, streams or caches.
package store
