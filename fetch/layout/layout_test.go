package layout

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"testing"

	"bowstring/schema"
)

// counts are the slots that each node owns, first and second.
func counts(l *Layout) (first, second []int64, unowned int64) {
	first, second = make([]int64, l.Nodes()), make([]int64, l.Nodes())
	for s := range Slots {
		o := l.Owners(uint16(s))
		if o.First == None {
			unowned++
			continue
		}
		first[o.First]++
		if o.Second != None {
			second[o.Second]++
		}
	}
	return first, second, unowned
}

func TestShares(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 16, 100, 256, 655} {
		l := build(t, 100, equals(n, 100))
		first, _, unowned := counts(l)
		mean := float64(Slots) / float64(n)
		if most := float64(slices.Max(first)) / mean; most > 1.01 || unowned != 0 {
			t.Errorf("%d nodes: the largest share is %.4f of the mean, %d slots have no owner", n, most, unowned)
		}
		for i, got := range first {
			if got != l.Owned(i) {
				t.Fatalf("%d nodes: node %d owns %d slots, and says %d", n, i, got, l.Owned(i))
			}
		}
	}
}

func TestWeights(t *testing.T) {
	nodes := equals(5, 1000)
	for i := range nodes {
		nodes[i].Weight = int64(i) // the first has no rank
	}
	first, _, unowned := counts(build(t, 1000, nodes))
	if want := []int64{0, 6554, 13107, 19661, 26214}; !slices.Equal(first, want) || unowned != 0 {
		t.Errorf("shares %v, want %v", first, want)
	}
}

func TestCapacities(t *testing.T) {
	nodes := equals(4, 25)
	nodes[0].Capacity, nodes[3].Capacity, nodes[3].Weight = 5, 40, 0
	tests := []struct {
		size    int64
		first   []int64
		unowned int64
	}{
		{30, []int64{10922, 27307, 27307, 0}, 0},       // the others have what does not fit into the first
		{80, []int64{4096, 20480, 20480, 20480}, 0},    // and so has the one without ranks
		{190, []int64{1724, 8623, 8623, 13797}, 32769}, // there is more than fits
		{math.MaxInt64, []int64{0, 0, 0, 0}, Slots},    // very much more
		{0, []int64{21846, 21845, 21845, 0}, 0},        // it is not known how much
	}
	for _, test := range tests {
		first, second, unowned := counts(build(t, test.size, nodes))
		if !slices.Equal(first, test.first) || unowned != test.unowned {
			t.Errorf("%d bytes: shares %v, %d without owner; want %v, %d", test.size, first, unowned, test.first,
				test.unowned)
		}
		for i := range first {
			if most := slotsIn(build(t, test.size, nodes).Node(i).Capacity, test.size); first[i]+second[i] > most {
				t.Errorf("%d bytes: node %d owns %d + %d slots, and has room for %d", test.size, i, first[i], second[i],
					most)
			}
		}
	}
	if first, _, unowned := counts(build(t, 100, equals(3, 0))); unowned != Slots {
		t.Errorf("nodes that keep nothing own %v", first)
	}
}

func TestSecondOwners(t *testing.T) {
	// The capacity is 1.5 × the data: half of the slots have a second owner.
	l := build(t, 1000, equals(10, 150))
	_, second, _ := counts(l)
	var sum int64
	for i, n := range second {
		sum += n
		if n > 3277 {
			t.Errorf("node %d is second owner of %d slots, and has room for 3277", i, n)
		}
	}
	if sum < 32700 {
		t.Errorf("%d slots have a second owner; there is room for 32768", sum)
	}
	for s := range Slots {
		if o := l.Owners(uint16(s)); o.First == o.Second {
			t.Fatalf("slot %d has node %d twice", s, o.First)
		}
	}
}

func TestZones(t *testing.T) {
	nodes := equals(8, 100)
	for i := range nodes {
		nodes[i].Zone = fmt.Sprintf("z%d", i%2)
	}
	l := build(t, 100, nodes)
	same, without := 0, 0
	for s := range Slots {
		switch o := l.Owners(uint16(s)); {
		case o.Second == None:
			without++
		case l.Zones()[o.First] == l.Zones()[o.Second]:
			same++
		}
	}
	if same+without > Slots/100 {
		t.Errorf("of %d slots %d have both owners in one zone, and %d no second one", Slots, same, without)
	}
}

func TestChanges(t *testing.T) {
	for _, test := range []struct {
		n     int
		bound float64
	}{{4, .28}, {16, .08}, {64, .025}, {256, .01}} {
		nodes := equals(test.n, 1000)
		whole := build(t, 1000, nodes)
		less := build(t, 1000, slices.Delete(slices.Clone(nodes), test.n/2, test.n/2+1))
		more := build(t, 1000, append(slices.Clone(nodes), Node{ID: "another", Weight: 1, Capacity: 1000}))
		left, joined := moved(whole, less), moved(whole, more)
		t.Logf("%d nodes: %.2f %% move when one leaves, %.2f %% when one joins; a node has %.2f %%", test.n, 100*left,
			100*joined, 100/float64(test.n))
		if left > test.bound || joined > test.bound {
			t.Errorf("%d nodes: %.2f %% and %.2f %% move, want at most %.2f %%", test.n, 100*left, 100*joined,
				100*test.bound)
		}
	}
}

// The owners of a layout never change between releases: tickets name layouts.
func TestGolden(t *testing.T) {
	zoned := equals(6, 400)
	for i := range zoned {
		zoned[i].Zone, zoned[i].Weight, zoned[i].Address = fmt.Sprintf("z%d", i%3), int64(i+1),
			fmt.Sprintf("grpc://10.0.0.%d:8815", i)
	}
	for _, test := range []struct {
		what         string
		layout       *Layout
		name, owners string
	}{
		{"one", build(t, 0, equals(1, 1)), goldenOne, goldenOneOwners},
		{"sixteen", build(t, 1000, equals(16, 100)), goldenSixteen, goldenSixteenOwners},
		{"zones, weights, capacities", build(t, 1000, zoned), goldenZoned, goldenZonedOwners},
		{"ranks", build(t, 1000, equals(3, 1000), "node-0002", "node-0000", "node-0002", "node-0001"), goldenRanks,
			goldenRanksOwners},
	} {
		var b []byte
		for s := range Slots {
			o := test.layout.Owners(uint16(s))
			b = binary.BigEndian.AppendUint16(b, uint16(o.First))
			b = binary.BigEndian.AppendUint16(b, uint16(o.Second))
		}
		sum := sha256.Sum256(b)
		if owners := hex.EncodeToString(sum[:8]); test.layout.Name() != test.name || owners != test.owners {
			t.Errorf("%s: name %s, owners %s; want %s, %s", test.what, test.layout.Name(), owners, test.name,
				test.owners)
		}
	}
}

const (
	goldenOne           = "77c4082344e2b9cb945206ae8a12a7fe882ea95abcb80409ad74e6d453e7592e"
	goldenOneOwners     = "592222441a1005a0"
	goldenSixteen       = "33ef421b1dadd84602c4062865bf9cafff22212ddce7651cab5251af1a2f023b"
	goldenSixteenOwners = "65abaf6d08973fb2"
	goldenZoned         = "99824eda34bb77c886e20dd01d70ba8450bfc5efae9f07d17311a98c283ac8e4"
	goldenZonedOwners   = "0e79845fbf354931"
	goldenRanks         = "6265aa529105ab4a092b436e3cdbd2ede264e56801e17a06226a83fe76a7292a"
	goldenRanksOwners   = "230bea2d67ad1d61"
)

func TestNodeOf(t *testing.T) {
	r := testRand(t)
	for range 40 {
		nodes := equals(1+r.IntN(20), 100)
		var sum int64
		for i := range nodes {
			nodes[i].Weight = int64(r.IntN(4))
			sum += nodes[i].Weight
		}
		l := build(t, 10, nodes)
		world := 1 + r.IntN(100)
		var before int64 // weights
		ranks := 0
		for i, n := range nodes {
			if sum == 0 {
				n.Weight = 1
			}
			before += n.Weight
			to := int(before * int64(world) / max(sum, 1))
			if sum == 0 {
				to = (i + 1) * world / len(nodes)
			}
			for ; ranks < to; ranks++ {
				if got := l.NodeOf(ranks, world); got != i {
					t.Fatalf("weights %v: rank %d of %d is at node %d, want %d", nodes, ranks, world, got, i)
				}
			}
		}
	}
	l := build(t, 100, equals(3, 100), "node-0002", "node-0000", "node-0002", "node-0001")
	for rank, want := range []int{2, 0, 2, 1} {
		if got := l.NodeOf(rank, 4); got != want {
			t.Errorf("rank %d is at node %d, the record says %d", rank, got, want)
		}
	}
	if a, b := l.NodeOf(0, 2), l.NodeOf(1, 2); a != 1 || b != 2 {
		t.Errorf("two ranks of weights 1, 1, 2 are at nodes %d and %d, want 1 and 2", a, b)
	}
}

// NodesOf says of each rank what NodeOf says, whatever nodes weigh and however many ranks there are.
func TestNodesOf(t *testing.T) {
	rng := testRand(t)
	for range 200 {
		nodes := equals(1+rng.IntN(20), 100)
		for i := range nodes {
			nodes[i].Weight = int64(rng.IntN(4))
		}
		l, world := build(t, 100, nodes), 1+rng.IntN(60)
		got := l.NodesOf(world)
		for r, n := range got {
			if want := l.NodeOf(r, world); int(n) != want || len(got) != world {
				t.Fatalf("%d ranks beside nodes that weigh %v: rank %d of %d is beside node %d, and NodeOf says %d",
					world, nodes, r, len(got), n, want)
			}
		}
	}
}

func TestSlotOf(t *testing.T) {
	var k schema.Key
	k[0], k[1], k[12], k[13] = 0x12, 0x34, 0x01, 0x80
	for _, sum := range []schema.Sum{1, 0x01800000} { // of a hash; of a cell of a table, whose row's id is random
		k[16], k[26] = 0x5e, 0x01
		if got := SlotOf(schema.BlobRef{Key: k, Sum: sum}); got != 0x13b4 {
			t.Errorf("slot %#x", got)
		}
	}
	for slot := range Slots {
		if got := SlotOf(RefIn(uint16(slot))); int(got) != slot {
			t.Fatalf("the reference in slot %d is in slot %d", slot, got)
		}
	}
}

// TestSlotsOfChunks: all blobs of a chunk have one slot, and chunks are spread evenly over slots.
func TestSlotsOfChunks(t *testing.T) {
	r := testRand(t)
	at := func(a schema.ObjectAddress) uint16 {
		sum := schema.Sum(r.Uint64())
		return SlotOf(schema.BlobRef{Key: a.Key(sum), Sum: sum, Size: r.Int64N(1 << 20)})
	}
	const parts = 64
	for name, next := range map[string]func(i int) (object uint32, chunk int64){
		"large objects": func(i int) (uint32, int64) { return uint32(i / 1000), int64(i % 1000) },
		"small objects": func(i int) (uint32, int64) { return uint32(i), 0 },
	} {
		counts := make([]float64, parts)
		const chunks = 40_000
		prefix := schema.ObjectPrefix{byte(r.Uint32()), byte(r.Uint32()), 2, 3, 4, 5, 6, 7, 8, byte(r.Uint32())}
		for i := range chunks {
			object, chunk := next(i)
			begin := chunk * schema.ObjectChunk
			inside := func() int64 { return begin + r.Int64N(schema.ObjectChunk) }
			a := schema.ObjectAddress{Prefix: prefix, Object: object, Offset: begin}
			slot := at(a)
			a.Offset = begin + schema.ObjectChunk - 1
			packed := schema.ObjectAddress{Prefix: prefix, Object: object, Packed: true, Unit: inside(), Offset: inside()}
			if last, unit := at(a), at(packed); last != slot || unit != slot {
				t.Fatalf("%s: the first byte of chunk %d of object %d has slot %d, the last has %d, a unit has %d", name,
					chunk, object, slot, last, unit)
			}
			counts[int(slot)*parts/Slots]++
		}
		var chi float64
		for _, n := range counts {
			chi += (n - chunks/parts) * (n - chunks/parts) / (chunks / parts)
		}
		if chi > 63+6*math.Sqrt(2*63) { // 63 degrees of freedom
			t.Errorf("%s: chi-square of chunks in %d parts of the slots is %.0f", name, parts, chi)
		}
	}
}

// TestSlotsOfChunksStay pins the slots: programs of different releases share out steps of one job.
func TestSlotsOfChunksStay(t *testing.T) {
	a := schema.ObjectAddress{Prefix: schema.ObjectPrefix{1, 2, 3, 4, 5, 6, 7, 8, 9}, Object: 7, Offset: 40 << 20}
	if got := SlotOf(schema.BlobRef{Key: a.Key(99), Sum: 99}); got != 0x46d {
		t.Errorf("slot %#x", got)
	}
}

func TestSurprise(t *testing.T) {
	r := testRand(t)
	check := func(x uint64) {
		want := (64 - math.Log2(float64(x|1))) * (1 << 32)
		got := float64(surprise(x))
		// The chord of a 256th is below the curve by 2.8e-6 at most.
		if math.Abs(got-want) > 3e-6*(1<<32)+1024 {
			t.Fatalf("surprise(%#x) = %.0f, want %.0f", x, got, want)
		}
	}
	for i := range 64 {
		for d := uint64(0); d < 3; d++ {
			check(1<<i + d)
			check(1<<i - d)
		}
	}
	last := uint64(math.MaxUint64)
	xs := make([]uint64, 100_000)
	for i := range xs {
		xs[i] = r.Uint64() >> r.IntN(64)
		check(xs[i])
	}
	slices.Sort(xs)
	for _, x := range xs {
		if s := surprise(x); s > last {
			t.Fatalf("surprise grows at %#x", x)
		} else {
			last = s
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{16, 256, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, err := NewRecord(1000, equals(n, 1000), nil)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := New(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
