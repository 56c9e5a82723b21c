// Package schema says what everything in Bowstring is called and looks like:
// sample columns, snapshots and their manifests, requests and tickets with
// their checks, and the physical layout of a batch.
//
// It imports nothing else of Bowstring, does no I/O and starts no goroutine.
// How bytes are found is package fetch's business, how they are sent is
// package flight's.
package schema
