// Package resolve turns a request into a [Job]: it opens snapshots, computes
// selections, and adds up sizes.
//
// It knows nothing of streams, tiers or transports: how a blob is read, it is
// told by its user. It keeps manifests open while jobs, streams and batches use
// them, and what was computed from their rows as long as they are.
package resolve
