package jobs

import (
	"context"
	"fmt"

	"bowstring/fetch/admission"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// Options tunes Jobs. The zero value of each field stands for its default.
type Options struct {
	// IdleSnapshots is how many snapshots nobody reads stay open, so that the
	// next job need not open them again. Default 8.
	IdleSnapshots int
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.IdleSnapshots == 0 {
		o.IdleSnapshots = 8
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	if o.IdleSnapshots < 0 {
		return fmt.Errorf("%w: IdleSnapshots is %d; want how many may stay open, or 0 for the default", schema.ErrInvalid, o.IdleSnapshots)
	}
	return nil
}

// ReadFunc reads a blob of a snapshot's manifest or of a selection, with what
// retries there are. Its user releases the blob.
type ReadFunc func(context.Context, schema.BlobRef) (schema.Blob, error)

// Jobs opens jobs over the snapshots of a store. It is safe for concurrent use.
type Jobs struct {
	store     store.Store
	read      ReadFunc
	ledger    *admission.Ledger
	work      *admission.Work
	snapshots snapshotCache
}

// New returns Jobs over a store, which stays the caller's. read reads blobs;
// memory is counted in the ledger, and long work done by turns. The error is of
// opts.Validate.
func New(s store.Store, read func(context.Context, schema.BlobRef) (schema.Blob, error), ledger *admission.Ledger, work *admission.Work, opts Options) (*Jobs, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	j := &Jobs{store: s, read: read, ledger: ledger, work: work}
	j.snapshots.init(s, read, opts.IdleSnapshots)
	return j, nil
}

// InUse lists the snapshots that somebody uses.
func (js *Jobs) InUse() []*schema.Snapshot { return js.snapshots.inUse() }

// OpenSnapshots is how many snapshots are open, used or not.
func (js *Jobs) OpenSnapshots() int { return js.snapshots.open() }

// CloseIdle closes every snapshot that nobody uses.
func (js *Jobs) CloseIdle() { js.snapshots.closeIdle() }

// Doubt has the catalog asked about the snapshots of a dataset, before one is
// used again.
func (js *Jobs) Doubt(dataset string) { js.snapshots.doubt(dataset) }

// Close closes the snapshots that nobody uses, now and whenever one is used no
// more. No job can be opened afterwards.
func (js *Jobs) Close() { js.snapshots.close() }
