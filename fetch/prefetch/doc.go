// Package prefetch turns plans into batches. A [Stream] serves a ticket: it plans
// its rows in slices, asks for their blobs as far as its window has room, and puts
// batches together in the order that the request wants. A [Set] is all streams of
// an engine, which share the memory of the ledger, the turns of the queue, and the
// reader.
//
// What is asked of whom goes one way: a stream puts what it wants into the queue,
// the queue says whose turn it is, the reader reads, and tells the stream.
//
// A stream plans, and waits, under a mutex of its own. The order in which locks
// are taken is Set, Stream, then those of the queue, the reader and the ledger.
//
// It knows nothing of catalogs, of how tiers find blobs, or of transports.
package prefetch
