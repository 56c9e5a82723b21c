// Package prefetch turns plans into batches. A [Stream] serves a ticket: it plans
// its rows in slices, asks for their blobs as far as its window has room, and puts
// batches together in the order that the request wants. A [Set] is all streams of
// an engine, which share the memory of the ledger, the turns of the queue, and the
// reader.
//
// What is asked of whom goes one way: a stream asks the reader for many blobs at a time, and the reader answers many at a
// time.
//
// A stream has a goroutine, its owner, which plans, asks, and holds what is back. It has no lock: what others want of it
// is a message. Posting one never waits, and the owner waits for no other stream, so streams may ask each other. The
// consumer's goroutine puts batches together.
//
// It knows nothing of catalogs, of how tiers find blobs, or of transports.
package prefetch
