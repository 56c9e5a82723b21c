// Package prefetch turns plans into batches. A [Stream] serves a ticket: it plans
// its rows in runs, requests their blobs as far as its window has room, and assembles
// batches in the order of the request. A [Set] is all streams of an engine. They share
// the memory of the ledger, the turns of the queue, and the reader.
//
// Calls go one way: a stream requests many blobs of the reader at a time, and the
// reader answers with many at a time.
//
// A stream has a goroutine, its owner, which plans rows, requests blobs, and holds the
// blobs that have arrived. It has no lock: other goroutines send it messages. Posting a
// message never waits, and the owner waits for no other stream, so streams may send
// messages to each other. The consumer's goroutine assembles batches.
//
// The package knows nothing of catalogs, of how tiers find blobs, or of transports.
//
// Begin reading at [Stream] and owner.run; rows.go has the pipeline from plan to batch,
// window.go the size of the window, set.go the memory that streams share.
package prefetch
