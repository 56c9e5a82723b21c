// Package local is the embedded store.Store: one directory, no server.
//
// The directory holds
//
//	LOCK       held by the process that has the store open, and naming it
//	FORMAT     what this directory is, and which version of it
//	pebble/    the catalog (partitions of the protocol of commits and
//	           collections, which all stores share) and the index from a
//	           blob's key to its place, in a Pebble database
//	journal/   the catalog once more, change by change
//	segments/  the blobs, in the files of package spill/segment
//
// # Durability
//
// Put writes a blob to a segment and then an index entry, neither of them
// synced. Commit syncs the segments and then writes the rows of the dataset's
// partition and the synced length of each segment in one synced Pebble batch. The
// write-ahead log is sequential, so that whoever finds the snapshot finds the
// index entries of its blobs.
//
// A killed process loses nothing that the kernel has taken over. What lies in a
// segment beyond its synced length is trusted, after a crash, up to the first
// record that does not check; index entries beyond that are void.
//
// # One process
//
// No other process has the store open. So partitions have versions in memory
// alone, and so are the rows that register ingests: those of a process that has
// died mean nothing.
//
// # Two copies of the catalog
//
// A damaged log or manifest looks to the database like one that was not written
// to its end. It would open without what follows, and delete it. So each change of
// the catalog has a number, is in the journal as well, and a store whose database
// has gone back behind its journal is refused. Rebuild makes the database anew from
// the journal and the segments.
//
// # Reading changes nothing
//
// Open opens everything for reading. The first call that changes the store opens
// it for writing, mends what a crash has left, and says so in the catalog.
//
// # Locks
//
// An index entry is looked up and changed under the stripe lock of its key, and
// the places in memory are told of it before the lock is given back;
// the catalog, and what is recorded of segments, under Store.catalog. A stripe
// is taken before the lock of the segment set, and that before Store.catalog,
// which is never held while a segment is written to or synced, but before the
// first change, when nobody else is there.
package local
