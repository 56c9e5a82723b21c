package protocol

import (
	"testing"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// TestRepairedIsCollected: if epochs are write times, the next collection can remove a
// blob that was repaired over bytes of a late epoch.
func TestRepairedIsCollected(t *testing.T) {
	const late = Epoch(1 << 50)
	db := newMemory()
	s := New(db, System(), Options{LeastEpoch: func() Epoch { return late + 100 }})
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	data := []byte("a blob that nothing refers to")
	ref := schema.RefOf(data)
	if err := s.RepairAfter(t.Context(), ref, data, late); err != nil {
		t.Fatal(err)
	}
	if row, err := db.Row(t.Context(), ref.Key); err != nil || row.Stored != late+1 {
		t.Fatalf("stored in epoch %d, want %d: %v", row.Stored, late+1, err)
	}
	report, err := s.GC(t.Context(), store.GCOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if row, err := db.Row(t.Context(), ref.Key); err != nil || row.Size >= 0 || report.DeadBlobs != 1 {
		t.Errorf("after a collection (%+v) its size is %d: %v", report, row.Size, err)
	}
}
