package store

import (
	"context"
	"fmt"
	"iter"
	"time"

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
	// Snapshot returns a committed snapshot, the newest if number is 0.
	// schema.ErrNotFound names what is missing and what there is.
	Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error)
	// Get reads a blob. It does not check the checksum: the engine does, for
	// every tier alike. schema.ErrNotFound if the store has no such blob.
	// The caller releases the blob.
	Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error)

	// Begin opens an ingest. What is put through it survives garbage collection
	// until the ingest is closed, and is reachable for good once committed.
	Begin(ctx context.Context, dataset string) (Ingest, error)
	// Drop removes a snapshot, or with number 0 the whole dataset with its
	// selections. One that has a tag is a schema.ErrInvalid. Blobs stay until GC. Streams that have the snapshot open
	// read on.
	Drop(ctx context.Context, dataset string, number int64) error
	// SaveSelection records a selection whose bitmap was Put through in, which
	// is then committed by this call. It is idempotent: one that is there keeps its
	// owner, and expires when the later of the two does.
	SaveSelection(ctx context.Context, in Ingest, sel schema.Selection) error
	// Selection returns a saved selection by name. One that has expired is not
	// found.
	Selection(ctx context.Context, dataset, name string) (*schema.Selection, error)
	// RenewSelection has a selection that has not expired expire then, or later if
	// it was to anyway.
	RenewSelection(ctx context.Context, dataset, name string, until time.Time) error
	// GC removes selections that expired ExpiredGrace ago, and frees blobs that no
	// committed snapshot, no saved selection, no open
	// ingest and none of the snapshots returned by inUse refers to. inUse is
	// called once, after GC has listed the catalog; it may be nil. While an ingest
	// is open, what was put since the collection before may be kept.
	GC(ctx context.Context, opts GCOptions, inUse func() []*schema.Snapshot) (GCReport, error)

	// Stats returns counters since the store was opened.
	Stats() Stats
	// Close waits for calls in flight. Blobs handed out stay valid until released.
	Close() error
}

// Namer is a Store that lists its datasets at less cost than Datasets does.
type Namer interface {
	// Names lists the datasets by name in ascending order. Some may have no snapshots.
	Names(ctx context.Context) ([]string, error)
}

// Ingest is one import under way. Put may be called from many goroutines.
type Ingest interface {
	// Put stores a blob, once, and returns its reference. data is not kept.
	Put(ctx context.Context, data []byte) (schema.BlobRef, error)
	// Commit makes snap the dataset's newest snapshot, atomically and durably:
	// all that it refers to is on stable storage before any reader can see it.
	// snap.Parent must still be the newest number (0: no snapshot has ever been
	// committed or all were dropped), else schema.ErrConflict. The committed
	// snapshot, with Number and Created set, is returned; snap is not changed.
	Commit(ctx context.Context, snap schema.Snapshot) (*schema.Snapshot, error)
	// Close ends the ingest; without a Commit nothing of it can be seen. It may
	// be called again, and after Commit.
	Close() error
}

// Dataset is a catalog entry.
type Dataset struct {
	Name      string
	Snapshots []int64
	// Tags are its snapshots' names, sorted. A store may have none, unless it is a Tagger.
	Tags []Tag
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

// SelectionExpired is the error for a selection whose time is over.
func SelectionExpired(sel *schema.Selection) error {
	return fmt.Errorf("%w: selection %s of dataset %q, which expired on %s; upload it again", schema.ErrNotFound,
		sel.Name(), sel.Dataset, sel.Expires.UTC().Format(time.RFC3339))
}

// SelectionLimit is the error for a selection whose owner has as many of the others as he may; nil if he has fewer.
func SelectionLimit(sel *schema.Selection, others iter.Seq[*schema.Selection], now time.Time) error {
	if sel.Most == 0 {
		return nil
	}
	n := 0
	for other := range others {
		if other.Owner == sel.Owner && !other.Expired(now) {
			n++
		}
	}
	if n < sel.Most {
		return nil
	}
	owner := "callers without a name have"
	if sel.Owner != "" {
		owner = schema.Quote(sel.Owner) + " has"
	}
	return fmt.Errorf("%w: MaxSelections: %s %d selections of dataset %q, at most %d are allowed: one goes when it "+
		"was not used for 30 days, and with its snapshot; up to 1,024 positions need none, as selection.positions",
		schema.ErrLimit, owner, n, sel.Dataset, sel.Most)
}

// Mapper is a Store that may hand out bytes of files that are mapped on this node. Reading them once more costs little,
// so that they may be compared with their reference when they are copied.
type Mapper interface {
	// Mapped reports whether it does.
	Mapped() bool
}

// UseWatcher is a Store that several processes share. It tells the others which
// snapshots this process reads, so that their collections keep them.
type UseWatcher interface {
	// SetInUse gives the store the function that lists them, which it calls from
	// then on until it is closed.
	SetInUse(inUse func() []*schema.Snapshot)
}
