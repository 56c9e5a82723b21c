// Package spans is the tier of blobs that lie in buckets, over a store that says where they lie. One request brings
// neighbouring blobs of an object: those that streams want now, and those that they will want while the spill can hold
// them. docs/spans.md derives by what rule.
//
// The order that a stream serves does not depend on this package: it answers cells, however they came. Blobs that lie
// in no bucket, and those in compressed units, are read by the store one by one.
package spans
