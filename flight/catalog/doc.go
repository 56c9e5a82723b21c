// Package catalog is the catalog as a caller sees it: the only way from a call to datasets,
// snapshots and jobs. Each request that names a dataset passes the rules here. The server
// keeps its engine and its store in a Source of this package and nowhere else, so that no
// handler can bypass the rules. Begin with [Source.For], which makes the [Catalog] of a caller.
//
//   - catalog.go: rights; the error for what does not exist for a caller; datasets and snapshots
//   - jobs.go: requests become jobs, and jobs streams
//   - view.go: the part of a snapshot that a caller sees
//   - change.go: writing, altering, tagging, dropping, collecting
//   - lineage.go: records of delivered samples
//   - measure.go: rates, predictions, counters
//   - nodes.go: reads of other nodes of the cluster
package catalog
