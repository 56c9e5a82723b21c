package store

import (
	"cmp"
	"context"
	"strings"

	"bowstring/schema"
)

// What follows are abilities that a Store or an Ingest may have besides. They
// are for those who look after stores: who verify, repair, copy and back up.

// SelectionLister is a Store that can list what selections there are.
type SelectionLister interface {
	// Selections lists a dataset's selections, those that have expired too, in
	// no order; of all datasets if dataset is empty.
	Selections(ctx context.Context, dataset string) ([]*schema.Selection, error)
}

// Repairer is a Store in which the bytes of a blob can be replaced.
type Repairer interface {
	// Repair stores data as the blob that ref names, durably, whatever is there.
	// A Put would leave what is there as it is. data must be what ref says, which is
	// checked; else it is a schema.ErrInvalid. data is not kept.
	Repair(ctx context.Context, ref schema.BlobRef, data []byte) error
}

// Replicated is a Store that keeps each blob several times. A read with
// [WithAttempt](ctx, n) asks the n-th replica first.
type Replicated interface {
	// Replicas is in how many places a blob is, at most.
	Replicas() int
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

// Addresser is a Store of which some keys are not hashes of contents but
// addresses, as of cells in tables of other programs.
type Addresser interface {
	// Addressed reports whether a key is an address, and in which table.
	Addressed(key schema.Key) (AttachedTable, bool)
}

// Referrer is a Store that can have addresses of cells copied into it.
type Referrer interface {
	// Refer has the keys of the tables' cells be addresses for everyone who opens the store from now on, and for this
	// process. It is a schema.ErrNotFound or a schema.ErrInvalid if the store cannot reach tables with such columns.
	Refer(ctx context.Context, tables []AttachedTable) error
}

// Adopter is an Ingest that can make a blob its own without being given the bytes.
type Adopter interface {
	// Adopt does what Put does for a blob that is stored already, and reports true.
	// It reports false, and does nothing that matters, if the blob has to be put:
	// it is not there, or not safely.
	Adopt(ctx context.Context, ref schema.BlobRef) (bool, error)
}

// Restorer is a Store that can take in snapshots as they were in another store.
type Restorer interface {
	// Restorable is the schema.ErrConflict of Restore before anything was put.
	Restorable(ctx context.Context, snap *schema.Snapshot) error
	// Restore commits snap through in as Commit does, but as what it is: with its
	// number, its parent and its time of creation. The dataset must never have
	// given out that number or a greater one; else it is a schema.ErrConflict.
	Restore(ctx context.Context, in Ingest, snap *schema.Snapshot) error
	// Advance has a dataset give out greater numbers than last from now on. It does
	// nothing where that is so already.
	Advance(ctx context.Context, dataset string, last int64) error
}

// Numberer is a Store, or a backup of one, that says which numbers are given out.
type Numberer interface {
	// LastNumber is the greatest number that a dataset has given out, 0 for none.
	// Snapshots with greater numbers than there are were dropped.
	LastNumber(ctx context.Context, dataset string) (int64, error)
}
