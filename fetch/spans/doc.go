// Package spans is the tier of blobs in buckets, over a store that knows their places. One request reads neighbouring
// blobs of an object: those that streams want now, and those that they will want while the spill can hold them.
// docs/spans.md derives the rule.
//
// The order in which a stream serves does not depend on this package: it answers each cell, however its bytes were
// read. Blobs outside buckets, and those in compressed units, are read by the store one by one.
package spans
