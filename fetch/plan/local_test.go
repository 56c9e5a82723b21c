package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"testing"

	"bowstring/fetch/layout"
)

// testLayout makes a layout of n equal nodes in that many zones. Their capacity together
// is times the size of the data.
func testLayout(t testing.TB, n, zones int, times float64) *layout.Layout {
	t.Helper()
	const size = 1 << 40
	nodes := make([]layout.Node, n)
	for i := range nodes {
		nodes[i] = layout.Node{ID: fmt.Sprintf("node-%03d", i), Zone: fmt.Sprintf("z%d", i%zones), Weight: 1,
			Capacity: int64(times * size / float64(n))}
	}
	return madeOf(t, size, nodes)
}

func madeOf(t testing.TB, size int64, nodes []layout.Node) *layout.Layout {
	t.Helper()
	r, err := layout.NewRecord(size, nodes, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := layout.New(r)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dealt are the nodes of the ranks of a world, as the layout deals them out.
func dealt(l *layout.Layout, world int) []int32 {
	nodes := make([]int32, world)
	for r := range nodes {
		nodes[r] = int32(l.NodeOf(r, world))
	}
	return nodes
}

// slotAt is the slot that the sample at a position has in these tests: as of a hash.
func slotAt(pos int64) uint16 {
	s := splitmix64(pos)
	return uint16(s.next() >> 48)
}

// slotsOf are the slots of a step's rows.
func slotsOf(p *Plan, step int64, to []uint16) []uint16 {
	start, size := p.Batch(step)
	to = to[:0]
	for i := range size {
		to = append(to, slotAt(p.Position(start+i)))
	}
	return to
}

// positionsOf are the positions that a rank gets of a step.
func positionsOf(p *Plan, x *Locality, step int64, rank int) []int64 {
	order := x.Assign(slotsOf(p, step, nil))
	start, _ := p.Batch(step)
	lo, hi := p.Share(step, rank)
	var out []int64
	for _, i := range order[lo-start : hi-start] {
		out = append(out, p.Position(start+int64(i)))
	}
	return out
}

func TestLocalityProperties(t *testing.T) {
	r := testRand(t)
	for range 60 {
		n := 1 + r.IntN(12)
		nodes := make([]layout.Node, n)
		for i := range nodes {
			nodes[i] = layout.Node{ID: fmt.Sprintf("n%d", i), Zone: fmt.Sprintf("z%d", r.IntN(3)),
				Weight: int64(r.IntN(4)), Capacity: r.Int64N(300)}
		}
		l := madeOf(t, r.Int64N(1500), nodes)
		rows := 1 + r.Int64N(3000)
		cfg := Config{Selection: All(rows), Shuffle: true, Seed: r.Uint64(), Epoch: r.Uint64(),
			Batch: 1 + r.Int64N(400), World: 1 + r.IntN(40), Remainder: Remainder(r.IntN(3))}
		p, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		placed := dealt(l, cfg.World)
		if r.IntN(2) == 0 { // anywhere
			for i := range placed {
				placed[i] = int32(r.IntN(n))
			}
		}
		x := NewLocality(l, placed)
		for step := range p.Steps() {
			slots := slotsOf(p, step, nil)
			order := x.Assign(slots)
			if err := checkShare(p, step, l, placed, slots, order); err != nil {
				t.Fatalf("%+v, nodes %+v, ranks at %v: step %d: %v", cfg, nodes, placed, step, err)
			}
		}
	}
}

// checkShare checks all that is promised of one step.
func checkShare(p *Plan, step int64, l *layout.Layout, placed []int32, slots []uint16, order []int32) error {
	sorted := slices.Sorted(slices.Values(order))
	for i, got := range sorted {
		if int(got) != i {
			return fmt.Errorf("rows %v, not each once", order)
		}
	}
	if len(order) != len(slots) {
		return fmt.Errorf("%d rows of %d", len(order), len(slots))
	}
	start, _ := p.Batch(step)
	quota, kept, could := make([]int, l.Nodes()), make([]int, l.Nodes()), make([]int, l.Nodes())
	twice := false
	for rank, node := range placed {
		lo, hi := p.Share(step, rank)
		part := order[lo-start : hi-start]
		if !slices.IsSorted(part) {
			return fmt.Errorf("rank %d has %v, not in plan order", rank, part)
		}
		quota[node] += len(part)
		for _, i := range part {
			if o := l.Owners(slots[i]); int32(o.First) == node || int32(o.Second) == node {
				kept[node]++
			}
		}
	}
	for _, slot := range slots {
		if o := l.Owners(slot); o.First != layout.None {
			could[o.First]++
			twice = twice || o.Second != layout.None
		}
	}
	for n := range quota {
		if !twice && kept[n] != min(quota[n], could[n]) {
			return fmt.Errorf("node %d gets %d rows of which it owns %d; it owns %d of the step", n, quota[n], kept[n],
				could[n])
		}
	}
	return nil
}

// A world that changes between two steps, or a layout, changes nothing about what a step has.
func TestLocalityElastic(t *testing.T) {
	r := testRand(t)
	cfg := Config{Selection: All(5000), Shuffle: true, Seed: r.Uint64(), Batch: 257, World: 8, Remainder: Uneven}
	eight, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.World = 6
	six, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	before, after := testLayout(t, 4, 1, 1.5), testLayout(t, 3, 1, 1.5)
	change := r.Int64N(eight.Steps())
	var served, want []int64
	for step := range eight.Steps() {
		p, l := eight, before
		if step >= change {
			p, l = six, after
		}
		x := NewLocality(l, dealt(l, p.Config().World))
		var got []int64
		for rank := range p.Config().World {
			got = append(got, positionsOf(p, x, step, rank)...)
		}
		var plain []int64
		start, size := eight.Batch(step)
		for i := range size {
			plain = append(plain, eight.Position(start+i))
		}
		slices.Sort(got)
		slices.Sort(plain)
		if !slices.Equal(got, plain) {
			t.Fatalf("change at %d: step %d has %v, the plan %v", change, step, got, plain)
		}
		served = append(served, got...)
	}
	for pos := range int64(5000) {
		want = append(want, pos)
	}
	slices.Sort(served)
	if !slices.Equal(served, want) {
		t.Error("not every sample was served once")
	}
}

// With one node, ranks get what the plan gives them.
func TestLocalityOfOneNode(t *testing.T) {
	for at, i := range NewLocality(testLayout(t, 1, 1, 1), make([]int32, 7)).Assign(make([]uint16, 1000)) {
		if at != int(i) {
			t.Fatalf("row %d is in place %d", i, at)
		}
	}
}

// The rows of a rank never change between releases: a kept ticket means the same rows.
func TestLocalityGolden(t *testing.T) {
	p, err := New(Config{Selection: All(100_000), Shuffle: true, Seed: 7, Epoch: 3, Batch: 1024, World: 12})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		nodes, zones int
		times        float64
		want         string
	}{{4, 1, 1, "e1513d2d98cc4bc0"}, {6, 3, 1.5, "af85f70402912b66"}, {5, 2, .7, "d822b659fac0f62c"}} {
		l := testLayout(t, test.nodes, test.zones, test.times)
		x := NewLocality(l, dealt(l, 12))
		var b []byte
		for step := range p.Steps() {
			for _, i := range x.Assign(slotsOf(p, step, nil)) {
				b = binary.BigEndian.AppendUint32(b, uint32(i))
			}
		}
		sum := sha256.Sum256(b)
		if got := hex.EncodeToString(sum[:8]); got != test.want {
			t.Errorf("%d nodes, %d zones, %g times: %s, want %s", test.nodes, test.zones, test.times, got, test.want)
		}
	}
}

// moves is what part of the samples move from node to node: those that are owned, and not by the
// node that they are used at; and what part crosses zones.
func moves(t testing.TB, l *layout.Layout, p *Plan, steps int64) (moved, crossed float64) {
	t.Helper()
	world := p.Config().World
	placed := dealt(l, world)
	x := NewLocality(l, placed)
	var slots []uint16
	var n, m, rows int64
	for step := range min(steps, p.Steps()) {
		slots = slotsOf(p, step, slots)
		order := x.Assign(slots)
		start, size := p.Batch(step)
		rows += size
		for rank, node := range placed {
			lo, hi := p.Share(step, rank)
			for _, i := range order[lo-start : hi-start] {
				o := l.Owners(slots[i])
				if o.First == layout.None || int32(o.First) == node || int32(o.Second) == node {
					continue
				}
				n++
				zones := l.Zones()
				if zones[o.First] != zones[node] && (o.Second == layout.None || zones[o.Second] != zones[node]) {
					m++
				}
			}
		}
	}
	return float64(n) / float64(rows), float64(m) / float64(rows)
}

// formula is the part of the samples that moves with one owner each, where the parts of a batch that
// nodes own are distributed normally.
func formula(nodes int, batch int64) float64 {
	return 0.40 * math.Sqrt((1-1/float64(nodes))/(float64(batch)/float64(nodes)))
}

func stepsPlan(t testing.TB, batch int64, world int) *Plan {
	t.Helper()
	p, err := New(Config{Selection: All(1_281_167), Shuffle: true, Seed: 7, Batch: batch, World: world})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestMovesAreAsPredicted(t *testing.T) {
	for _, nodes := range []int{2, 4, 16, 64} {
		batch := int64(128 * nodes)
		p := stepsPlan(t, batch, 4*nodes)
		steps := 1 + 200_000/batch
		one, _ := moves(t, testLayout(t, nodes, 1, 1), p, steps)
		two, _ := moves(t, testLayout(t, nodes, 1, 2), p, steps)
		want := formula(nodes, batch)
		t.Logf("%d nodes: %.2f %% move, formula %.2f %%; with second owners %.3f %%", nodes, 100*one, 100*want, 100*two)
		if math.Abs(one/want-1) > 0.1 {
			t.Errorf("%d nodes: %.4f move, the formula says %.4f", nodes, one, want)
		}
		if two > 0.2*one {
			t.Errorf("%d nodes: with second owners %.4f move, without %.4f", nodes, two, one)
		}
	}
	few, _ := moves(t, testLayout(t, 4, 1, .9), stepsPlan(t, 512, 4), 400)
	if want := .2 * formula(4, 512); few > want {
		t.Errorf("where a tenth is in no cache, %.4f move; want at most %.4f", few, want)
	}
	_, crossed := moves(t, testLayout(t, 8, 2, 1), stepsPlan(t, 1024, 8), 200)
	_, anyhow := moves(t, testLayout(t, 8, 8, 1), stepsPlan(t, 1024, 8), 200)
	if crossed > .5*anyhow {
		t.Errorf("with two zones %.4f cross them, with zones of one node %.4f", crossed, anyhow)
	}
}
