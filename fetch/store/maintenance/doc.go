// Package maintenance looks after stores: it reads all that is in one and checks it,
// repairs what is damaged, and copies datasets from one store to another.
//
// It walks snapshots, manifests and blobs of any [store.Store]. It knows neither which store it
// has before it nor what reads it: no plans, streams or caches. Its caller says where else
// whole copies of damaged blobs may be. A backup is a copy in another store.
//
// # Memory
//
// Nothing here grows with the size of a dataset. The blobs that a set of snapshots
// refers to are gathered in as many passes over their manifests as the memory
// given asks for (see [Scope]), and blobs on their way are counted in bytes.
//
// # Goroutines
//
// Each function waits for all that it has started before it returns.
package maintenance
