// Package read reads blobs. A [Reader] has an ordered list of tiers, the nearest
// first and the store last: it goes down the list, reads once what several want,
// checks the bytes, and offers to the tiers above what came from below.
//
// Before the list comes what the windows of streams still hold: a blob that has
// come and was not released yet is shared, and not read again.
//
// A [Tier] is a place where blobs may be found. It says how much may be in
// flight to it, or has that measured; reads of the last tier are tried again,
// and hedged. A new tier is one file that passes the suite in readtest.
//
// A stream opens a [Place] and asks for many blobs at once. What is read next is decided here, by turns of tenants, jobs
// and streams. The package knows nothing of plans or streams.
package read
