// Package segment keeps blobs in append-only files that are read through
// memory mappings.
//
// A [Set] is one directory of segments. Blobs are appended by any number of
// goroutines: each append reserves its place under a lock and writes outside
// it, through the page cache or, for a cache's large blobs, past it ([Options.Direct]).
// A blob is read as a pinned slice of the mapping: no copy, no allocation,
// no lock. The pin is a reference on the [Segment], which is unmapped when the
// set has retired it and the last pin is gone. A file is never shortened below
// what it holds, because a mapped page that vanishes kills the process; nor punched
// but where its caller knows that nobody reads ([Segment.Punch]).
//
// The package knows where blobs lie, not which there are: the index is its
// caller's. Every record carries a header from which [Scan] rebuilds it.
//
// It needs Linux 5.14 or later for reads without a copy; earlier kernels work
// through pread.
package segment
