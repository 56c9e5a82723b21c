// Package extent makes a store also have blobs that stay in buckets: a key that is an address in an object set
// (schema.ObjectAddress) is read from its object, conditional on the version that the set says, and everything else from
// the store below. So every command and server works on attached data as on imported data.
//
// Which sets there are is learned from the snapshots that are opened. A node of a cluster may be asked for a blob of a
// snapshot that it has never opened: then it looks through the catalog once, for all that ask. A set stays in its
// encoded form, in which objects are found by their numbers, within a bound of bytes. Blobs in compressed stretches
// (schema.Unit) are taken out of the decoded unit, which is read and decoded once for all that want it together.
//
// A bucket is opened when it is first read, once for each URL, and closed with the store.
package extent
