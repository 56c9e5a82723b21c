package protocol

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// lossy is a database whose swaps are made, and of which some answers are lost.
type lossy struct {
	*memory

	swaps int
	lose  int // the swap whose answer is
}

func (l *lossy) Swap(ctx context.Context, name string, version int64, change Change) error {
	l.swaps++
	err := l.memory.Swap(ctx, name, version, change)
	if err == nil && l.swaps == l.lose {
		err = ErrUncertain
	}
	return err
}

// TestAdopt: datasets of an older store are there as they were, once, however
// often it is begun, and numbers go on.
func TestAdopt(t *testing.T) {
	const first Epoch = 1000
	for lose := range 4 {
		t.Run(fmt.Sprintf("answer %d lost", lose), func(t *testing.T) {
			db := &lossy{memory: newMemory(), lose: lose}
			empty, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("image", schema.MediaImage, false)})
			if err != nil {
				t.Fatal(err)
			}
			var snaps []*schema.Snapshot
			for i, number := range []int64{2, 5} {
				snap := &schema.Snapshot{Dataset: "d", Number: number, Created: time.Unix(number, 0).UTC(),
					Schema: empty}
				if i == 1 { // whose record is a blob
					for n := range 200 {
						snap.Chunks = append(snap.Chunks, schema.Chunk{BlobRef: schema.RefOf(fmt.Append(nil, n)),
							Rows: 1})
					}
				}
				snaps = append(snaps, snap)
			}
			sel := &schema.Selection{Dataset: "d", Snapshot: 2, Rows: 1, Bitmap: schema.RefOf([]byte("bitmap"))}
			broken := errors.New("broken")
			adopt := func(fail bool) error {
				err := Found(t.Context(), db, Foundation{Epoch: first, Blobs: 7, Bytes: 70})
				if err != nil {
					return err
				}
				return Adopt(t.Context(), db, Adopted{
					Name: "d", Last: 9, Selections: []*schema.Selection{sel},
					Snapshots: func(yield func(*schema.Snapshot, error) bool) {
						if !yield(snaps[0], nil) {
							return
						}
						if fail {
							yield(nil, broken)
							return
						}
						yield(snaps[1], nil)
					},
				})
			}
			if err := adopt(true); !errors.Is(err, broken) {
				t.Fatal(err)
			}
			for range 2 {
				if err := adopt(false); err != nil {
					t.Fatal(err)
				}
			}
			s := New(db, System(), Options{})
			defer s.Close()
			if blobs, bytes, at, err := s.Counted(t.Context()); blobs != 7 || bytes != 70 || at.IsZero() || err != nil {
				t.Errorf("counted are %d blobs of %d bytes at %v: %v", blobs, bytes, at, err)
			}
			for _, want := range snaps {
				got, err := s.Snapshot(t.Context(), "d", want.Number)
				if err != nil {
					t.Fatal(err)
				}
				if !got.Created.Equal(want.Created) || fmt.Sprint(got.Chunks) != fmt.Sprint(want.Chunks) ||
					!got.Schema.Equal(want.Schema) {
					t.Errorf("snapshot %d is %+v, was %+v", want.Number, got, want)
				}
			}
			if got, err := s.Selection(t.Context(), "d", sel.Name()); err != nil || got.Bitmap != sel.Bitmap {
				t.Errorf("the selection is %+v: %v", got, err)
			}
			in, err := s.Begin(t.Context(), "d")
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			ref, err := in.Put(t.Context(), []byte("new"))
			if err != nil {
				t.Fatal(err)
			}
			if row, err := db.Row(t.Context(), ref.Key); err != nil || row.Stored < first {
				t.Errorf("what is put is of epoch %d: %v", row.Stored, err)
			}
			snap, err := in.Commit(t.Context(), schema.Snapshot{Parent: 5, Schema: empty})
			if err != nil || snap.Number != 10 {
				t.Errorf("committed %+v: %v", snap, err)
			}
		})
	}
}
