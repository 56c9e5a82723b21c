// Package catalog is the catalog as a caller sees it: the one way from a call to datasets, snapshots and jobs. What names a
// dataset goes through the rules here. A server keeps no engine and no store beside its Source, so that no handler can pass
// the rules.
//
//   - catalog.go: rights; what does not exist for a caller; datasets and snapshots
//   - jobs.go: requests become jobs, and jobs streams
//   - view.go: how much of a snapshot a caller sees
//   - change.go: writing, altering, tagging, dropping, collecting
//   - lineage.go: what streams have handed out
//   - measure.go: rates, predictions, counters
//   - nodes.go: what other nodes of the cluster get
package catalog
