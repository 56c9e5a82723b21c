package plan

import (
	"fmt"
	"testing"
)

var benchSizes = []uint64{1e3, 1e6, 1e9, 1e12}

var sink int64

func benchEachSize(b *testing.B, run func(b *testing.B, n uint64)) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("n=%.0e", float64(n)), func(b *testing.B) {
			b.ReportAllocs()
			run(b, n)
		})
	}
}

// The numbers asked for depend on the answers, so that what is measured is
// latency and not how many the processor can do at a time.

func BenchmarkAt(b *testing.B) {
	benchEachSize(b, func(b *testing.B, n uint64) {
		p := NewPerm(n, 1, 2)
		var i uint64
		for b.Loop() {
			i = p.At(i)
		}
		sink += int64(i)
	})
}

func BenchmarkIndex(b *testing.B) {
	benchEachSize(b, func(b *testing.B, n uint64) {
		p := NewPerm(n, 1, 2)
		var v uint64
		for b.Loop() {
			v = p.Index(v)
		}
		sink += int64(v)
	})
}

func benchPlan(b *testing.B, n uint64) *Plan {
	p, err := New(Config{Selection: All(int64(n)), Shuffle: true, Seed: 1, Batch: 256, World: 8, Remainder: Uneven})
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func BenchmarkPosition(b *testing.B) {
	benchEachSize(b, func(b *testing.B, n uint64) {
		p := benchPlan(b, n)
		var i int64
		for b.Loop() {
			i = p.Position(i)
		}
		sink += i
	})
}

func BenchmarkPlanIndex(b *testing.B) {
	benchEachSize(b, func(b *testing.B, n uint64) {
		p := benchPlan(b, n)
		var pos int64
		for b.Loop() {
			pos, _ = p.Index(pos)
		}
		sink += pos
	})
}

func BenchmarkBitmap(b *testing.B) {
	for _, share := range []uint64{2, 100} {
		m := NewBitmap(1 << 24)
		rng := splitmix64(share)
		for pos := range m.n {
			if below(rng.next(), share) == 0 {
				m.Set(pos)
			}
		}
		m.Freeze()
		b.Run(fmt.Sprintf("select/1in%d", share), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink += m.At(int64(below(rng.next(), uint64(m.Len()))))
			}
		})
		b.Run(fmt.Sprintf("rank/1in%d", share), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				i, _ := m.Index(int64(below(rng.next(), uint64(m.n))))
				sink += i
			}
		})
	}
}

func BenchmarkNewPerm(b *testing.B) {
	for _, n := range []uint64{tableSize, 1e6} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			var epoch uint64
			for b.Loop() {
				p := NewPerm(n, 1, epoch)
				epoch += p.At(1)
			}
		})
	}
}

// BenchmarkLocality shares steps of a plan over ImageNet out, 128 samples a node. An operation is one index, its
// position in the plan and its slot among it. It reports what part of the samples moves from node to node, without
// and with second owners, and how far the first is from the formula.
func BenchmarkLocality(b *testing.B) {
	for nodes := 2; nodes <= 256; nodes *= 2 {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			batch := int64(128 * nodes)
			p := stepsPlan(b, batch, 4*nodes)
			one, two := testLayout(b, nodes, 1, 1), testLayout(b, nodes, 1, 2)
			steps := 1 + 400_000/batch
			single, _ := moves(b, one, p, steps)
			second, _ := moves(b, two, p, steps)
			x := NewLocality(two, dealt(two, 4*nodes))
			slots := make([]uint16, 0, batch)
			b.ResetTimer()
			for i := int64(0); i < int64(b.N); i += batch {
				slots = slotsOf(p, i/batch%p.Steps(), slots)
				x.Assign(slots)
			}
			b.ReportMetric(single, "moved")
			b.ReportMetric(second, "moved2")
			b.ReportMetric(single/formula(nodes, batch)-1, "error")
		})
	}
}
