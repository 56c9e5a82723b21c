// Package local is the embedded store.Store: one directory, no server.
//
// The directory holds
//
//	LOCK       held by the process that has the store open, and naming it
//	FORMAT     what this directory is, and which version of it
//	pebble/    the catalog (datasets, snapshots, selections) and the index
//	           from a blob's key to its place, in a Pebble database
//	segments/  the blobs, in the files of package spill/segment
//
// # Durability
//
// Put writes a blob to a segment and then an index entry, neither of them
// synced. Commit syncs the segments and then writes the snapshot, the dataset's
// counter and the synced length of each segment in one synced Pebble batch. The
// write-ahead log is sequential, so that whoever finds the snapshot finds the
// index entries of its blobs.
//
// A killed process loses nothing that the kernel has taken over. After a crash
// of the machine, what lies in a segment beyond its synced length is trusted up
// to the first record that does not check; index entries beyond that are void.
//
// # Locks
//
// An index entry is looked up and changed under the stripe lock of its key;
// the catalog, and what is recorded of segments, under Store.catalog. A stripe
// is taken before the lock of the segment set, and that before Store.catalog,
// which is never held while a segment is written to or synced.
package local
