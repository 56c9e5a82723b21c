package protocol

import (
	"context"
	"errors"

	"bowstring/schema"
)

// Epoch numbers the collections of a store. Each begins a new, greater one,
// which the database gives out. Where a database orders writes by a timestamp,
// the epoch is that timestamp: no clock of any process takes part.
type Epoch int64

// ErrMoved says that a partition has another version than a swap was made for.
// Nothing was changed; the caller loads the partition again.
var ErrMoved = errors.New("the partition has changed")

// ErrUncertain says that it is not known whether a swap was made, for instance because
// its answer was lost. The next Load of the partition settles it.
var ErrUncertain = errors.New("the outcome of a swap is not known")

// ErrReadOnly says that this process may read and not write.
var ErrReadOnly = errors.New("the database may only be read")

// Control is the name of the partition of the protocol itself, which no dataset
// can have.
const Control = ".control"

// Database is what the protocol asks of a database. It is a [Contents] or a [Segments] besides, by how it keeps blobs.
type Database interface {
	Catalog
	Members
	Blobs
}

// Partition is the state of one partition of the catalog.
type Partition struct {
	// Version is 0 if the partition has never been written.
	Version int64
	// Rows are small records by name.
	Rows map[string][]byte
}

// Change is what a swap does to a partition's rows.
type Change struct {
	Put    map[string][]byte
	Delete []string
}

// Catalog is the small part of a store, of which every operation takes effect
// at one moment. There is a partition for each dataset, by its name, and one
// for the protocol itself ([Control]).
type Catalog interface {
	// Partitions lists at least all partitions for which a Swap had been answered, or
	// that had been loaded with rows in them, before the call. A swap whose outcome is
	// unknown may not show: Load settles it.
	Partitions(ctx context.Context) ([]string, error)
	// Load reads a partition. The result is settled: a swap that the database has
	// accepted shows, even if its answer was lost. A swap that does not show, and was
	// begun for an older version, will never be made; one that was begun for this very
	// version, and is still on its way, may be.
	Load(ctx context.Context, name string) (Partition, error)
	// Peek is a cheaper Load. It may miss a swap whose outcome was not reported, and
	// settles nothing. It shows every swap that was answered, and all that a Load or Peek
	// has shown before. If rows are named, it returns only those of them that exist.
	Peek(ctx context.Context, name string, rows ...string) (Partition, error)
	// Swap changes rows if the partition has the version, and gives it the next. It is
	// ErrMoved if the partition has another version, and ErrUncertain if the outcome is
	// unknown.
	Swap(ctx context.Context, name string, version int64, change Change) error
}

// Member is what a process says of itself to the collections of others.
type Member struct {
	ID     string
	Holder string // for people: host, process
	// Acked is the newest epoch that the process knows of. All of its puts that
	// did not know of it have ended.
	Acked Epoch
	// Beat grows with each renewal.
	Beat int64
	// Holds are the names of the snapshots that it reads.
	Holds []string
}

// Members are the processes at work. The rows lapse some time after they were
// last written; when is no matter of safety.
type Members interface {
	// Announce writes the process's row. A later Members call sees it. If a process has
	// written two rows, the one with the greater Beat stays, in whatever order the
	// database learns of them. It is ErrReadOnly if the process may not write.
	Announce(ctx context.Context, m Member) error
	// Members lists the rows.
	Members(ctx context.Context) ([]Member, error)
	// Leave removes the row.
	Leave(ctx context.Context, id string) error
}

// BlobRow is what a database keeps of a blob, or of a segment under the address of its first byte.
type BlobRow struct {
	Key schema.Key
	// Size is -1 if not all of the blob is there.
	Size int64
	// Stored is the epoch that its bytes were written in,
	Stored Epoch
	// and Touched the latest in which somebody wanted it, at least Stored.
	Touched Epoch
}

// Blobs are the bytes. A database of replicas repairs what it reads of a quorum and finds on some: what was shown of a
// blob shows from then on, until it is deleted.
type Blobs interface {
	// Read returns the bytes. The caller releases the blob.
	Read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error)
	// Scan visits every row, perhaps from several goroutines. Rows written meanwhile may
	// be visited or not. So may a row that is nothing but a failed touch, until Row or
	// Scan has shown it: a database of replicas has it on too few of them for every
	// quorum to find it.
	Scan(ctx context.Context, visit func(context.Context, BlobRow) error) error
	// Delete removes what was written of a blob in epochs before the given one. Writes in
	// that epoch or later stay, in whatever order the database learns of them. Once
	// Delete has returned without an error, it removes nothing more.
	Delete(ctx context.Context, row BlobRow, before Epoch) error
	// Sync makes durable what was written before.
	Sync(ctx context.Context) error
}

// Contents are a database's blobs where each is stored once, under the hash of its content. Writes in one epoch of one
// blob all write the same. A write that has failed may be there in part; but what Row or Whole has shown of a blob is
// durable.
type Contents interface {
	// Row returns a blob's row, with Size -1 and no epochs if there is none.
	Row(ctx context.Context, key schema.Key) (BlobRow, error)
	// Touch raises Touched. It may create a row without size, by which a
	// collection finds the bytes of a write that does not come to its end.
	Touch(ctx context.Context, ref schema.BlobRef, at Epoch) error
	// Write stores the bytes, and last the size. The caller has touched the blob
	// in the same epoch.
	Write(ctx context.Context, ref schema.BlobRef, data []byte, at Epoch) error
	// Whole says whether the bytes of a blob, whose row is complete, are there.
	Whole(ctx context.Context, ref schema.BlobRef) (bool, error)
}

// Segments are a database's blobs where they are stored in segments, at addresses
// ([schema.ObjectAddress]). A segment is written once, whole, and belongs to one ingest.
// The rows that Scan visits are those of segments: the key is the address of the first
// byte, Stored and Touched are [EpochOf] its prefix. Delete removes a segment.
type Segments interface {
	// Pack begins the segments of an ingest. No other has the prefix.
	Pack(prefix schema.ObjectPrefix) Pack
}

// Pack are the segments of one ingest. It is safe for concurrent use.
type Pack interface {
	// Put adds a blob, and returns its address. data is not kept.
	Put(ctx context.Context, data []byte) (schema.BlobRef, error)
	// Record adds the record of a snapshot that is about to be committed, in a way that says so.
	Record(ctx context.Context, record []byte) (schema.BlobRef, error)
	// Has reports whether a blob was put with that reference.
	Has(ref schema.BlobRef) bool
	// Sync makes what was put before durable. After an error it may be called again.
	Sync(ctx context.Context) error
	// Close drops what was not made durable. It may be called again.
	Close()
}
