package schema

import (
	"math/rand/v2"
	"runtime"
	"testing"
)

func TestManifestDoesNotAllocate(t *testing.T) {
	r, mem := random(t), checked(t)
	d := makeDataset(t, r, mem, everySchema(t), 20, 30)
	defer d.release()
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	if n := testing.AllocsPerRun(100, func() {
		for pos := range m.Rows() {
			_ = m.ID(pos)
			_, _ = m.Blob(1, pos)
			_ = m.SplitOf(pos)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	m.Lookup(ID{})
	if n := testing.AllocsPerRun(100, func() { m.Lookup(d.ids[7]) }); n != 0 {
		t.Errorf("%v allocations a lookup", n)
	}
}

func BenchmarkOpenManifest(b *testing.B) {
	d := bigDataset(b, 1_000_000)
	held := 0
	runtime.GC()
	b.ReportAllocs()
	for b.Loop() {
		d.open(b, &held).Close()
	}
}

func BenchmarkLookupIndex(b *testing.B) {
	d := bigDataset(b, 1_000_000)
	held := 0
	m := d.open(b, &held)
	defer m.Close()
	b.ReportAllocs()
	for b.Loop() {
		m.buildIndex()
	}
}

func BenchmarkBlobRef(b *testing.B) {
	d := bigDataset(b, 1_000_000)
	held := 0
	m := d.open(b, &held)
	defer m.Close()
	r := rand.New(rand.NewPCG(1, 1))
	b.ReportAllocs()
	for b.Loop() {
		m.Blob(0, r.Int64N(1_000_000))
	}
}

func BenchmarkAssembleMetadata(b *testing.B) {
	d := bigDataset(b, 1_000_000)
	held := 0
	m := d.open(b, &held)
	defer m.Close()
	p, err := NewProjection(&d.snap, []string{"id", "label", "width", "file_name", "position", "split"}, "")
	if err != nil {
		b.Fatal(err)
	}
	positions := make([]int64, ChunkRows)
	for _, order := range []string{"sequential", "shuffled"} {
		b.Run(order, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			for i := range positions {
				if positions[i] = int64(i) + 1000; order == "shuffled" {
					positions[i] = r.Int64N(1_000_000)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				batch, err := p.Assemble(m, positions, nil)
				if err != nil {
					b.Fatal(err)
				}
				batch.Release()
			}
			b.ReportMetric(float64(len(positions))*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
