// Package local is the embedded store.Store: one directory, no server.
//
// The directory holds
//
//	LOCK       lock and name of the process that has the store open
//	FORMAT     what this directory is, and its version
//	pebble/    the catalog (partitions of the protocol of commits and
//	           collections, which all stores share) and the index from a
//	           blob's key to its place, in a Pebble database
//	journal/   a second copy of the catalog, change by change
//	segments/  the blobs, in the files of package spill/segment
//
// # Durability
//
// Put writes a blob to a segment, then an index entry, without syncing either. Commit syncs the segments and then
// writes the rows of the dataset's partition and the synced length of each segment in one synced Pebble batch. The
// write-ahead log is sequential, so if the snapshot is there, so are the index entries of its blobs.
//
// A killed process loses nothing that it has passed to the kernel. After a crash of the machine, data beyond a
// segment's synced length is trusted up to the first invalid record; index entries beyond that are void.
//
// # One process
//
// No other process has the store open. So the versions of partitions, and the rows that register ingests, are only in
// memory: those of a dead process have no meaning.
//
// # Two copies of the catalog
//
// The database takes a damaged log or manifest for one that was not written to its end. It would open without the
// rest, and delete it. So each change of the catalog has a number and is also written to the journal. Open refuses a
// store whose database is behind its journal. Rebuild makes a new database from the journal and the segments.
//
// # Reading changes nothing
//
// Open opens everything for reading. The first call that changes the store opens it for writing, repairs what a crash
// has left, and records that in the catalog.
//
// # Locks
//
// An index entry is read and changed under the stripe lock of its key, and the cached place is dropped before the
// lock is released. Store.catalog guards the catalog and the records of segments. A stripe is locked before the
// segment set, and that before Store.catalog. Store.catalog is never held while a segment is written or synced,
// except before the first change, when no other call runs.
package local
