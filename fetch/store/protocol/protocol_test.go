package protocol

import (
	"testing"

	"bowstring/fetch/store"
	"bowstring/internal/leaktest"
	"bowstring/internal/storetest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestConformance: over a database that is right, the protocol makes a store
// that is right.
func TestConformance(t *testing.T) {
	storetest.Run(t, func(testing.TB) storetest.Opener {
		db := newMemory()
		return func() (store.Store, error) {
			return memoryStore{New(db, System(), Options{Holder: t.Name()}), db}, nil
		}
	})
}
