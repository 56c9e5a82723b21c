// Package read reads blobs. A [Reader] has an ordered list of tiers, nearest first and the store last. It looks for a
// blob in that order, reads once what several callers want, verifies the bytes, and offers blobs from lower tiers to
// the tiers above.
//
// Before the tiers come the windows of streams: a blob that was read and not yet released is shared, and not read
// again.
//
// A [Tier] is a place where blobs may be. It says how many reads may be in flight, or leaves that to measurement.
// Reads of the last tier are retried and hedged. A new tier is one file that passes the test suite in readtest.
//
// A stream opens a [Place] and requests many blobs at once. The reader decides which is read next: tenants, jobs and
// streams take turns. The package knows nothing of plans or streams.
package read
