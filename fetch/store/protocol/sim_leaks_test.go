package protocol

import (
	"slices"
	"testing"

	"bowstring/schema"
)

// TestLeaks: everything stored without a reference is a leak, except a touch that some
// quorum does not know of, until the replicas are repaired.
func TestLeaks(t *testing.T) {
	touched, sized, written := cell{touched: 2}, cell{touched: 2, size: 2}, cell{bytes: [2]Epoch{0, 2}}
	gone := cell{touched: 2, touchedGone: 3, size: 2, sizeGone: 3, bytes: [2]Epoch{2, 2}, bytesGone: 3}
	again := cell{touched: 4, touchedGone: 3, size: 2, sizeGone: 3, bytes: [2]Epoch{2, 2}, bytesGone: 3}
	for _, test := range []struct {
		name     string
		nodes    [nodes]cell
		leak     bool
		repaired bool // it is a leak once the replicas are
	}{
		{"nothing", [nodes]cell{}, false, false},
		{"a touch of one node", [nodes]cell{{}, touched, {}}, false, true},
		{"a touch of a quorum", [nodes]cell{touched, {}, touched}, true, true},
		{"a size of one node", [nodes]cell{{}, {}, sized}, true, true},
		{"bytes of one node, touched on one", [nodes]cell{touched, written, {}}, true, true},
		{"deleted on a quorum", [nodes]cell{gone, sized, gone}, false, false},
		{"deleted, and touched on one node after", [nodes]cell{gone, again, gone}, false, true},
		{"deleted, and touched on a quorum after", [nodes]cell{again, again, gone}, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(1, &coroutines{})
			w.db, w.oracle = newReplicas(w), newOracle(w)
			key := schema.RefOf([]byte("payload")).Key
			for node, c := range test.nodes {
				*w.db.cell(node, key) = c
			}
			want := func(leak bool) {
				t.Helper()
				if got := slices.Contains(w.oracle.leaks(), key.String()[:8]); got != leak {
					t.Errorf("a leak: %v, want %v", got, leak)
				}
			}
			want(test.leak)
			w.db.repair()
			want(test.repaired)
			w.oracle.refs[key]++
			want(false) // something refers to it
		})
	}
}
