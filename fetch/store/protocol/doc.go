// Package protocol defines how stores commit snapshots and collect garbage. All stores
// share it. It uses a [Database] of small linearizable partitions and of blobs, and knows
// nothing else of them.
//
// Begin reading with [Store.Begin] and [Ingest.Commit] for commits, and with [Store.GC]
// for collections. The guarantees of a database are at [Catalog], [Members], [Contents] and
// [Segments].
//
// # Guarantees
//
//   - A committed snapshot is complete, and stays complete until it is dropped.
//   - No snapshot is visible before it is complete.
//   - A process that was suspended, cut off or superseded can do no harm afterwards. The
//     database decides whether it may still write, in the condition of the write itself.
//     No clock decides it.
//   - A transaction counts as absent only once it can no longer be made.
//
// # Epochs
//
// The partition [Control] has the epoch. A collection begins with a swap that sets the
// next epoch, E, and ends with a swap that records its end. A process acknowledges E in
// its row of members once all of its puts that did not know of E have ended. From then on
// it writes in E. The collection deletes only what was written before E. So a put that
// knows of E cannot lose anything, in whatever order its writes and the deletions arrive.
//
// # Ingests
//
// An ingest is registered by a swap in its dataset's partition before its first put, with
// the epoch that is known then. It reads the control partition afterwards. So either the
// collection finds the ingest when it loads the partition, or the ingest finds the
// collection. A collection waits until the process of every registered ingest has
// acknowledged its epoch. If the row of such a process has lapsed, the collection removes
// the registration with a swap.
//
// Commits, and all other changes by which an ingest makes something visible, are swaps of
// the same partition, and require the registration. So a collection either waits for an
// ingest, or the ingest can never make anything visible. A commit refers only to blobs
// that were put through its ingest, and to those of the snapshot's parent, which is live
// at that time.
//
// A swap that was begun for the very version that a collection has loaded may be made
// later. It finds the state that the collection has found. If an ingest is registered in
// it, the collection waits for it and keeps what it puts. If not, the ingest cannot
// commit.
//
// # Roots, marks, sweep
//
// The roots are everything that the partitions refer to: the snapshots, the dropped
// snapshots that some process still reads, and the selections. The collection loads each
// partition after the steps above, so that all swaps are settled. It marks the blobs that
// the roots refer to. It removes a blob that is not marked and was not touched since the
// oldest registered ingest began.
//
// Once it has the roots, a collection checks whether it is still the one that runs, and
// ends if it is not. Without the check, a blob could be live in the roots of a later
// collection, then lose its last snapshot, and be dead in the roots of this one. Puts
// rely on that blob as soon as the later collection has ended, while this one still
// deletes it. If the check succeeds, a blob that only a later collection finds live was
// made live by an ingest that knew of this collection. It is stored in this collection's
// epoch or a later one.
//
// If no process reads a dropped snapshot, its row is removed from the partition before
// its blobs, in the swap by which the collection settles the partition. So a collection
// that follows a failed one does not look for blobs that are gone. A process that was
// taken for dead may announce later that it reads such a snapshot. The blobs that are
// left of it are then kept. Missing ones do not stop a collection.
//
// A collection may miss a row that only a failed touch has written: too few replicas may
// have it for each quorum to find it. The row has no bytes, because bytes are written
// only after the touch was made. A later collection removes it, at the latest the first
// one after the replicas were repaired. All other garbage, as defined above, is gone when
// one collection has ended.
//
// # Puts
//
// A put of a blob that is stored touches it. That is enough while no collection runs.
// While one runs, or if the last one failed, the put stores the blob again unless it was
// stored since that collection began. The reason is that the collection may have found
// the blob dead, even a collection that is only taken for dead. A touch by another put is
// not enough: a process that was suspended touches late, in the epoch that it knows, and
// the collection may not have seen it.
//
// A collection that covers the whole store and succeeds ends this state: everything that
// a failed collection could still remove has been removed or stored again by then. If it
// has met blobs for which neither is true, it records that, and puts go on storing older
// blobs again. Such blobs were touched late, or only dropped snapshots refer to them.
//
// # Segments
//
// A database may keep blobs in segments ([Segments]) instead of storing each once under
// its hash. A segment belongs to one ingest and is written once. Its name contains the
// epoch that the ingest was registered with. Snapshots name the ingests whose segments
// they need, so a collection reads records and no manifests. It marks the segments that a
// snapshot names, and those that contain a selection's bitmap. A registered ingest is
// waited for or fenced as above, and its segments have an epoch that the collection
// keeps.
//
// A commit names its own ingest. It names another ingest only if a live snapshot names it
// in the version that the swap is made for. So segments that a collection has found dead
// stay dead: their ingest cannot commit any more, and no other commit can name it. Puts
// rely on nothing that is stored. Deletions need no condition, and may arrive at any
// time.
//
// # Tests
//
// The tests simulate, from a seed, processes that are suspended and die, clocks that are
// wrong, and a database that loses, delays and repeats messages. They plant mistakes in
// the protocol and check that each is found. The folder spec has the protocol in TLA+,
// for a model checker.
package protocol
