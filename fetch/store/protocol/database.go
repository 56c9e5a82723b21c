package protocol

import (
	"context"
	"errors"

	"bowstring/schema"
)

// Epoch numbers the collections of a store. Each collection begins a new, greater epoch,
// which the database assigns. If a database orders writes by a timestamp, the epoch is
// that timestamp, so no process's clock takes part.
type Epoch int64

// ErrMoved says that a partition has another version than the one that a swap was made
// for. Nothing was changed. The caller loads the partition again.
var ErrMoved = errors.New("the partition has changed")

// ErrUncertain says that the outcome of a swap is unknown, for instance because its
// answer was lost. The next Load of the partition settles it.
var ErrUncertain = errors.New("the outcome of a swap is not known")

// ErrReadOnly says that this process may read the database and not write to it.
var ErrReadOnly = errors.New("the database may only be read")

// Control is the name of the partition of the protocol itself. No dataset can have the
// name.
const Control = ".control"

// Database is a database as the protocol uses it. It also implements [Contents] or
// [Segments], depending on how it keeps blobs. It is safe for concurrent use.
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

// Change is what a swap does to a partition's rows. A row is in one of the two at most.
type Change struct {
	Put    map[string][]byte
	Delete []string
}

// Catalog is the small, linearizable part of a store: every operation takes effect at one
// moment. It has a partition for each dataset, by its name, and one for the protocol
// itself ([Control]).
type Catalog interface {
	// Partitions lists at least all partitions for which a Swap had been answered, or
	// that had been loaded with rows in them, before the call. A swap whose outcome is
	// unknown may not show: Load settles it.
	Partitions(ctx context.Context) ([]string, error)
	// Load reads a partition. The result is settled: it shows every swap that the
	// database has accepted, even if the answer was lost. A swap that it does not show,
	// and that was begun for an older version, will never be made. One that was begun for
	// this very version, and is still on its way, may be made later.
	Load(ctx context.Context, name string) (Partition, error)
	// Peek is a cheaper Load. It may miss a swap whose outcome was not reported, and
	// settles nothing. It shows every swap that was answered, and everything that a Load
	// or Peek has shown before. If rows are named, it returns only those of them that
	// exist.
	Peek(ctx context.Context, name string, rows ...string) (Partition, error)
	// Swap changes rows if the partition has the version, and gives the partition the
	// next version. It is ErrMoved if the partition has another version, and ErrUncertain
	// if the outcome is unknown.
	Swap(ctx context.Context, name string, version int64, change Change) error
}

// Member is the row by which a process announces itself to the collections of other
// processes.
type Member struct {
	ID     string
	Holder string // for people: host, process
	// Acked is the newest epoch that the process has acknowledged. All of its puts that
	// did not know of it have ended.
	Acked Epoch
	// Beat grows with each renewal.
	Beat int64
	// Holds are the names of the snapshots that the process reads.
	Holds []string
}

// Members are the rows of the running processes. A row lapses some time after it was last
// written. How long does not matter for safety.
type Members interface {
	// Announce writes the process's row. A later Members call sees it. If a process has
	// written two rows, the one with the greater Beat remains, in whatever order the
	// database receives them. It is ErrReadOnly if the process may not write.
	Announce(ctx context.Context, m Member) error
	// Members lists the rows.
	Members(ctx context.Context) ([]Member, error)
	// Leave removes the row.
	Leave(ctx context.Context, id string) error
}

// BlobRow is a database's row of a blob, or of a segment under the address of its first
// byte.
type BlobRow struct {
	Key schema.Key
	// Size is -1 if the blob is incomplete.
	Size int64
	// Stored is the epoch in which its bytes were written.
	Stored Epoch
	// Touched is the latest epoch in which a put touched it, at least Stored.
	Touched Epoch
}

// Blobs are the bytes. A database of replicas repairs rows that it finds on some replicas
// of a quorum only: once a row was shown, later calls show it until the blob is deleted.
type Blobs interface {
	// Read returns the bytes. The caller releases the blob.
	Read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error)
	// Scan visits every row, perhaps from several goroutines. Rows that are written
	// meanwhile may be visited or not. So may a row that only a failed touch has written,
	// until Row or Scan has shown it: a database of replicas has it on too few replicas
	// for every quorum to find it.
	Scan(ctx context.Context, visit func(context.Context, BlobRow) error) error
	// Delete removes what was written of a blob in epochs before the given one. Writes in
	// that epoch or later stay, in whatever order the database receives them. Once Delete
	// has returned without an error, it removes nothing more.
	Delete(ctx context.Context, row BlobRow, before Epoch) error
	// Sync makes earlier writes durable.
	Sync(ctx context.Context) error
}

// Contents are the blobs of a database that stores each once, under the hash of its
// content. All writes of one blob in one epoch write the same. A failed write may be
// there in part. A blob that Row or Whole has shown is durable.
type Contents interface {
	// Row returns a blob's row, with Size -1 and no epochs if there is none.
	Row(ctx context.Context, key schema.Key) (BlobRow, error)
	// Touch raises Touched. It may create a row without a size. A collection finds the
	// bytes of an unfinished write by that row.
	Touch(ctx context.Context, ref schema.BlobRef, at Epoch) error
	// Write stores the bytes, and the size last. The caller has touched the blob in the
	// same epoch.
	Write(ctx context.Context, ref schema.BlobRef, data []byte, at Epoch) error
	// Whole reports whether the bytes of a blob with a complete row are there.
	Whole(ctx context.Context, ref schema.BlobRef) (bool, error)
}

// Segments are the blobs of a database that stores them in segments, at addresses
// ([schema.ObjectAddress]). A segment is written once, as a whole, and belongs to one
// ingest. Scan visits the rows of segments: the key is the address of the first byte,
// Stored and Touched are [EpochOf] its prefix. Delete removes a segment.
type Segments interface {
	// Pack begins the segments of an ingest. No other ingest has the prefix.
	Pack(prefix schema.ObjectPrefix) Pack
}

// Pack is the segments of one ingest that are being written. It is safe for concurrent
// use.
type Pack interface {
	// Put adds a blob, and returns its address. It does not keep data.
	Put(ctx context.Context, data []byte) (schema.BlobRef, error)
	// Record adds the record of a snapshot that is about to be committed, marked as a
	// record, so that a rebuild finds it.
	Record(ctx context.Context, record []byte) (schema.BlobRef, error)
	// Has reports whether a blob was put with that reference.
	Has(ref schema.BlobRef) bool
	// Sync makes the blobs that were put before durable. After an error it may be called
	// again.
	Sync(ctx context.Context) error
	// Close drops what is not durable. It may be called again.
	Close()
}
