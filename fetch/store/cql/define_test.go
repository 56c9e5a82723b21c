package cql

import (
	"fmt"
	"testing"
)

// TestDefineWaitsForAllNodes: a statement that changes the schema is over when all nodes know of it.
func TestDefineWaitsForAllNodes(t *testing.T) {
	a, b, port := mockPair(t, well, well)
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?conns=1", port))
	a.behind.Store(2)
	b.behind.Store(2) // either may be asked
	if err := s.define(t.Context(), s.db, "CREATE TABLE mock.t (k int PRIMARY KEY)", "t"); err != nil {
		t.Fatal(err)
	}
	if a.behind.Load() > 0 && b.behind.Load() > 0 {
		t.Error("the other nodes do not know of the table yet")
	}
}
