// Package protocol is how stores commit and collect. All stores share it: it
// speaks to a [Database] of small linearizable partitions and of blobs, and
// knows nothing else of them.
//
// # What holds
//
//   - What is committed is whole, and stays whole until it is dropped.
//   - Nothing can be seen before it is whole.
//   - A process that was suspended, cut off or superseded can do no harm
//     afterwards. Whether it may still write is decided by the database, in the
//     condition of the write itself, and never by a clock.
//   - A transaction counts as absent only once it can no longer be made.
//
// # Epochs
//
// The partition [Control] has the epoch. A collection begins by swapping in the
// next one, E, and ends by swapping in that it is done. A process takes note of
// E in its row of members, after all of its puts that did not know of E have
// ended; from then on it writes in E. Deletions of the collection take away only
// what was written before E. So a put that knows of E cannot lose anything, in
// whatever order its writes and the deletions arrive.
//
// # Ingests
//
// An ingest is registered by a swap in its dataset's partition before its first
// put, with the epoch known then. It then reads the control partition: either
// the collection finds the ingest when it loads the partition, or the ingest
// finds the collection. A collection goes on when the process of every
// registered ingest has taken note of it. Where one does not, and its row
// has lapsed, the collection takes the registration away, by a swap.
// Commits, and all other changes by which an ingest makes something visible, are swaps of
// the same partition that find the registration there. So an ingest either is waited for,
// or can never make anything visible. A commit refers only to blobs that were put through
// its ingest, and to those of the snapshot's parent, which is live then.
//
// A swap that is still on its way, for the very version that a collection has
// loaded, may be made later. It finds what the collection has found: if an ingest
// is registered, it is waited for and what it puts is kept; if not, it cannot commit.
//
// # Roots, marks, sweep
//
// The roots are what the partitions refer to, each loaded, so that all swaps are settled,
// after the above: the snapshots, the dropped ones that some process still reads, the
// selections. Blobs that they refer to are marked. A blob that is not marked and was not
// touched since the oldest registered ingest began is removed.
//
// Once it has the roots, a collection looks whether it is the one that runs still, and ends if not. Else what a later
// one finds live could have been dropped before this one's roots were loaded: dead here, and relied upon by puts as
// soon as the later one has ended. If it is, whatever a later one finds live and this one does not was made so by an
// ingest that knew of this one, and is stored in its epoch or later.
//
// A dropped snapshot that no process reads is removed from its partition before its
// blobs, in the swap by which the collection settles the partition. So a collection that
// follows a failed one does not look for blobs that are gone. A process that was taken
// for dead may say later that it reads such a snapshot. Blobs that are left of it are
// kept, and missing ones delay no collection.
//
// A collection may miss a row that is nothing but a touch which has failed: too few
// replicas may have it for each quorum to find it. It has no bytes, as these are
// written only after the touch was made. A later collection removes it, at the latest
// the first one after the replicas were repaired. All other garbage, by the rule
// above, is gone when one collection has ended.
//
// # Puts
//
// A put of a blob that is stored touches it, which is enough while no collection
// runs. While one runs, or if the last one did not come to its end, the put
// stores the blob again unless it was stored since that one began: the
// collection, or one that was taken for dead and is not, may have found it dead.
// It is not enough that somebody has touched the blob meanwhile: a process
// that was suspended touches it late, in the epoch that it knows, and nothing
// says that the collection has seen that.
//
// A collection that goes over the whole store and ends sets this right: what a
// dead one could still remove has by then been removed or stored again. Where it
// has met blobs of which neither is true, because they were touched late or hang
// on dropped snapshots alone, it says so, and puts go on storing again what is
// older.
//
// # Segments
//
// A database may keep blobs in segments ([Segments]) in place of storing each once under
// its hash. A segment belongs to one ingest and is written once; its name holds the epoch
// that the ingest was registered with. Snapshots name the ingests whose segments they
// need, so that a collection reads records and no manifests. It marks the segments that a
// snapshot names, and those that hold a selection's bitmap. A registered ingest is waited
// for, or fenced, as above, and its segments have an epoch that the collection keeps.
//
// A commit names its own ingest, and of others those that a live snapshot names in the version that its swap is made for.
// So what a collection has found dead is dead for good: its ingest cannot commit any more, and nothing else can name it.
// Puts rely upon nothing that is stored, deletions need no condition, and it is no matter when they arrive.
//
// # How it is tested
//
// The tests simulate, from a seed, processes that are suspended and die, clocks that are
// wrong, and a database that loses, delays and repeats messages. They plant mistakes in
// the protocol and check that each is found. The folder spec has the protocol in TLA+,
// for a model checker.
package protocol
