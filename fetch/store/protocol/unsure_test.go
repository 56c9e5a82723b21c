package protocol

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"bowstring/schema"
)

// blind is a database in which records are gone, and that is out of reach from the first time that one is read.
type blind struct {
	*memory
	gone bool
}

func (d *blind) Read(_ context.Context, ref schema.BlobRef) (schema.Blob, error) {
	d.gone = true
	return schema.Blob{}, fmt.Errorf("%w: blob %s", schema.ErrNotFound, ref.Key)
}

func (d *blind) Peek(ctx context.Context, name string, rows ...string) (Partition, error) {
	if d.gone {
		return Partition{}, errSilent
	}
	return d.memory.Peek(ctx, name, rows...)
}

// TestRecordGoneUnsure: if a record is gone and it is unknown whether the snapshot was
// dropped, the error says to try again, and is no loss of data.
func TestRecordGoneUnsure(t *testing.T) {
	ctx := t.Context()
	db := &blind{memory: newMemory()}
	s := New(db, System(), Options{})
	in, err := s.Begin(ctx, "d")
	if err != nil {
		t.Fatal(err)
	}
	snap := schema.Snapshot{Schema: simSchema}
	for range 200 { // too long for its row
		snap.Source += fmt.Sprintf(" %016x", rand.Uint64())
	}
	if _, err := in.Commit(ctx, snap); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Snapshot(ctx, "d", 1); !errors.Is(err, schema.ErrUnavailable) || errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("got %v", err)
	}
	db.gone = false
	if err := errors.Join(in.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}
