// Package spill is the node's cache of blobs, on its disk, between the store and the streams.
//
// What it keeps is decided by a [Policy]. The one it is made for, [NextUse], evicts what will be
// used last: the jobs that run are known to a [Future], and each says, by the inverse of its order,
// when it uses any sample next. Others are there to be compared with it, which package replay does.
//
// The package knows blobs and jobs in the abstract. What an order is, and where blobs come from, is
// its caller's.
package spill
