package store

import (
	"cmp"
	"context"
	"strings"
	"time"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// Store is where blobs and snapshots live for good.
//
// Implementations are safe for concurrent use. A blob is stored once under the
// hash of its content; manifest chunks and selection bitmaps are blobs too, so
// a store needs to know only blobs and a small transactional catalog. Errors
// wrap the sentinels of package schema. The suite in storetest defines the
// contract in full.
type Store interface {
	// Datasets lists the datasets by name in ascending order, each with the
	// numbers of its committed snapshots in ascending order.
	Datasets(ctx context.Context) ([]Dataset, error)
	// Names lists the datasets by name in ascending order, which costs less than Datasets
	// does. Some may have no snapshots.
	Names(ctx context.Context) ([]string, error)
	// Snapshot returns a committed snapshot, the newest if number is 0.
	// schema.ErrNotFound names what is missing and what there is.
	Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error)
	// Tagged returns the number of the snapshot that has a tag. A schema.ErrNotFound
	// says what tags or datasets there are.
	Tagged(ctx context.Context, dataset, name string) (int64, error)
	// Selection returns a saved selection by name. One that has expired is not
	// found.
	Selection(ctx context.Context, dataset, name string) (*schema.Selection, error)
	// Selections lists a dataset's selections, those that have expired too, in
	// no order; of all datasets if dataset is empty.
	Selections(ctx context.Context, dataset string) ([]*schema.Selection, error)
	// Proofs lists what was learned of the checksums of blobs in an object set that snapshots of a dataset name: see
	// Ingest.SaveProofs.
	Proofs(ctx context.Context, dataset string, prefix schema.ObjectPrefix) ([]ProofRun, error)
	// LastNumber is the greatest number that a dataset has given out, 0 for none.
	// Snapshots with greater numbers than there are were dropped.
	LastNumber(ctx context.Context, dataset string) (int64, error)
	// Get reads a blob. It does not check the checksum: the engine does, for
	// every tier alike. schema.ErrNotFound if the store has no such blob.
	// The caller releases the blob.
	Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error)

	// Begin opens an ingest. Blobs put through it survive garbage collection until the
	// ingest is closed, and are reachable for good once committed.
	Begin(ctx context.Context, dataset string) (Ingest, error)
	// Drop removes a snapshot, or with number 0 the whole dataset with its selections and runs. One that has a tag
	// is a schema.ErrInvalid. Blobs stay until GC. Streams that have the snapshot open read on.
	Drop(ctx context.Context, dataset string, number int64) error
	// Tag names a snapshot, which is then not dropped. The tag of another snapshot of the dataset moves.
	Tag(ctx context.Context, dataset, name string, number int64) error
	// Untag removes a name.
	Untag(ctx context.Context, dataset, name string) error
	// RenewSelection has a selection that has not expired expire then, or later if
	// it was to anyway.
	RenewSelection(ctx context.Context, dataset, name string, until time.Time) error
	// Run returns a run by name, and Runs those of a dataset, sorted by name. Expired runs are
	// not found. A result may be outdated by then, but has each change that was answered before
	// the call.
	Run(ctx context.Context, dataset, name string) (*Run, error)
	Runs(ctx context.Context, dataset string) ([]*Run, error)
	// ChangeRun changes a run, or makes it, by one swap, and returns what it is then. change gets the run, nil for
	// none, and returns what is to be in its place, nil for no change. It changes nothing in place. It is called
	// again where the run was changed meanwhile, and where it may be that the change was made: it has to find that
	// out.
	ChangeRun(ctx context.Context, dataset, name string, change func(*Run) (*Run, error)) (*Run, error)
	// Restorable is the schema.ErrConflict of Ingest.Restore before anything was put.
	Restorable(ctx context.Context, snap *schema.Snapshot) error
	// Advance has a dataset give out greater numbers than last from now on. It does
	// nothing where that is so already.
	Advance(ctx context.Context, dataset string, last int64) error
	// Repair stores data as the blob that ref names, durably, whatever is there.
	// A Put would leave what is there as it is. data must be what ref says, which is
	// checked; else it is a schema.ErrInvalid. data is not kept.
	Repair(ctx context.Context, ref schema.BlobRef, data []byte) error
	// GC removes selections that expired ExpiredGrace ago, and frees blobs that no
	// committed snapshot, no saved selection, no open
	// ingest and none of the snapshots returned by inUse refers to. inUse is
	// called once, after GC has listed the catalog; it may be nil. While an ingest
	// is open, what was put since the collection before may be kept.
	GC(ctx context.Context, opts GCOptions, inUse func() []*schema.Snapshot) (GCReport, error)
	// SetInUse gives the store the function that lists the snapshots which this process reads, so that
	// collections of other processes keep them. The store calls it from then on until it is closed.
	SetInUse(inUse func() []*schema.Snapshot)

	// Addressed reports whether a key is no hash of a content but the address of a cell in a
	// table of another program, and in which one.
	Addressed(key schema.Key) (AttachedTable, bool)
	// Refer has the keys of the tables' cells be addresses for everyone who opens the store from now on, and for this
	// process. It is a schema.ErrNotFound or a schema.ErrInvalid if the store cannot reach tables with such columns.
	Refer(ctx context.Context, tables []AttachedTable) error

	// Locate returns where in a bucket the bytes of a blob are stored; false if they are
	// in none. It may read the blob's object set first.
	Locate(ctx context.Context, ref schema.BlobRef) (Location, bool, error)

	// Traits says how the store keeps blobs.
	Traits() Traits
	// Where says for people where the store is.
	Where() string
	// Stats returns counters since the store was opened.
	Stats() Stats
	// Close waits for calls in flight. Blobs handed out stay valid until released.
	Close() error
}

// Traits are properties in which stores differ, for their readers.
type Traits struct {
	// Mapped says that Get may return bytes of files that are mapped on this node. Reading them once more
	// costs little, so that they may be compared with their reference when they are copied.
	Mapped bool
	// Addresses says that some keys are addresses.
	Addresses bool
	// Replicas is in how many places a blob is, at most. A read with [WithAttempt](ctx, n) asks the n-th first.
	Replicas int
	// Segments says that all keys are addresses in segments. Each segment belongs to one ingest: a blob that is put twice
	// is stored twice, and collections count and remove segments.
	Segments bool
}

// Location is where in a bucket the bytes of a blob are.
type Location struct {
	Bucket object.Bucket
	Object schema.Object // without its units
	// Offset and Length are of what is to be read from the object: of the blob, or of its unit.
	Offset, Length int64
	// Unit is the stretch that has to be read and decoded as a whole; nil if the blob is
	// stored as it is.
	Unit *schema.Unit
	// At is where the blob begins in the decoded unit.
	At int64
}

// Ingest is one import under way. Put and Adopt may be called from many goroutines.
type Ingest interface {
	// Put stores a blob, once, and returns its reference. data is not kept.
	Put(ctx context.Context, data []byte) (schema.BlobRef, error)
	// Adopt does what Put does for a blob that is stored already, and reports true.
	// It reports false, and does nothing that matters, if the blob has to be put:
	// it is not there, or not safely.
	Adopt(ctx context.Context, ref schema.BlobRef) (bool, error)
	// Commit makes snap the dataset's newest snapshot, atomically and durably:
	// all that it refers to is on stable storage before any reader can see it.
	// snap.Parent must still be the newest number (0: no snapshot has ever been
	// committed or all were dropped), else schema.ErrConflict. The committed
	// snapshot, with Number and Created set, is returned; snap is not changed.
	Commit(ctx context.Context, snap schema.Snapshot) (*schema.Snapshot, error)
	// Restore commits snap as Commit does, but as what it was in another store: with its
	// number, its parent and its time of creation. The dataset must never have
	// given out that number or a greater one; else it is a schema.ErrConflict.
	Restore(ctx context.Context, snap schema.Snapshot) error
	// SaveSelection records a selection whose bitmap was put through this ingest, and
	// commits it. It is idempotent: one that is there keeps its
	// owner, and expires when the later of the two does.
	SaveSelection(ctx context.Context, sel schema.Selection) error
	// SaveProofs records checksums of blobs in an object set: now are all runs that there are of it then, those that are
	// new put through this ingest. It is a schema.ErrConflict if other runs than was are there. Runs live as
	// long as a snapshot of the dataset names the set.
	SaveProofs(ctx context.Context, prefix schema.ObjectPrefix, was, now []ProofRun) error
	// Close ends the ingest; without a Commit nothing of it can be seen. It may
	// be called again, and after Commit.
	Close() error
}

// Dataset is a catalog entry.
type Dataset struct {
	Name      string
	Snapshots []int64
	// Tags are its snapshots' names, sorted.
	Tags []Tag
}

// Tag is a name of a snapshot, such as prod in imagenet@prod.
type Tag struct {
	Name     string `json:"tag"`
	Snapshot int64  `json:"snapshot"`
}

// GCOptions tunes a collection.
type GCOptions struct {
	// DryRun only counts.
	DryRun bool
	// BytesPerSecond bounds how fast it reads manifests and removes blobs, and
	// BlobsPerSecond of how many; 0 for no bound.
	BytesPerSecond, BlobsPerSecond float64
}

// ExpiredGrace is for how long collections leave a selection that has expired, as
// the clocks of those who renew and who collect may differ.
const ExpiredGrace = time.Hour

// GCReport says what a collection found and freed.
type GCReport struct {
	LiveBlobs int64 `json:"live_blobs"`
	LiveBytes int64 `json:"live_bytes"`
	DeadBlobs int64 `json:"dead_blobs"`
	DeadBytes int64 `json:"dead_bytes"`
	// given back to the file system; at most DeadBytes, less what moving live blobs would not be worth
	FreedBytes int64 `json:"freed_bytes"`
	MovedBytes int64 `json:"moved_bytes"` // live bytes rewritten to free others
}

// Stats are counters since the store was opened.
type Stats struct {
	BlobReads    int64 `json:"blob_reads"`
	BlobBytes    int64 `json:"blob_bytes"`
	BlobWrites   int64 `json:"blob_writes"` // blobs stored anew
	BlobDedups   int64 `json:"blob_dedups"` // puts of a blob that was there
	WrittenBytes int64 `json:"written_bytes"`
	// Blobs and StoredBytes describe what is in the store now; where CountedAt is
	// set, what was in it then, and what this process has added since.
	Blobs       int64     `json:"blobs"`
	StoredBytes int64     `json:"stored_bytes"`
	CountedAt   time.Time `json:"counted_at,omitzero"`
}

// AttachedTable is a blob column of a table that another program keeps, whose cells are blobs of a store.
type AttachedTable struct {
	Keyspace, Table string
	ID, Data        string // columns: of the key, and of the bytes
}

// String names the column.
func (t AttachedTable) String() string { return t.Keyspace + "." + t.Table + "." + t.Data }

// Compare orders them by their names.
func (t AttachedTable) Compare(o AttachedTable) int {
	return cmp.Or(strings.Compare(t.Keyspace, o.Keyspace), strings.Compare(t.Table, o.Table),
		strings.Compare(t.Data, o.Data), strings.Compare(t.ID, o.ID))
}
