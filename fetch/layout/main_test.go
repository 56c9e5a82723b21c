package layout

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests, to repeat a run; 0 draws one")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testRand returns the random numbers of a test, whose seed it logs.
func testRand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -args -seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// equals returns n nodes of weight 1 with the same capacity in bytes.
func equals(n int, capacity int64) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{ID: fmt.Sprintf("node-%04d", i), Weight: 1, Capacity: capacity}
	}
	return nodes
}

// build makes a layout of nodes that is valid.
func build(t testing.TB, size int64, nodes []Node, ranks ...string) *Layout {
	t.Helper()
	if len(ranks) == 0 {
		ranks = nil
	}
	r, err := NewRecord(size, nodes, ranks)
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(r)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// moved is the part of the slots that another node owns first in b than in a.
func moved(a, b *Layout) float64 {
	n := 0
	for s := range Slots {
		if ownerID(a, s) != ownerID(b, s) {
			n++
		}
	}
	return float64(n) / Slots
}

func ownerID(l *Layout, slot int) string {
	if o := l.Owners(uint16(slot)).First; o != None {
		return l.Node(int(o)).ID
	}
	return ""
}
