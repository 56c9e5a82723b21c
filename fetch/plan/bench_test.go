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
