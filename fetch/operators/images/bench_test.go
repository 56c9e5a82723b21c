package images

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// processorSeconds returns the CPU time of the process in seconds.
func processorSeconds(b *testing.B) float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}

// BenchmarkRecipe decodes, crops, resizes and mirrors the JPEGs of the folder that
// BOWSTRING_PHOTOS names, or of testdata.
func BenchmarkRecipe(b *testing.B) {
	pattern := "testdata/420-67x51.jpg"
	if folder := os.Getenv("BOWSTRING_PHOTOS"); folder != "" {
		pattern = filepath.Join(folder, "*.jpg")
	}
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		b.Fatalf("%s: no files, %v", pattern, err)
	}
	cells := make([][]byte, len(names))
	for i, n := range names {
		if cells[i], err = os.ReadFile(n); err != nil {
			b.Fatal(err)
		}
	}
	p := compiledOf(b,
		`[{"name":"Decode"},{"name":"RandomResizedCrop","params":{"size":224}},{"name":"RandomHorizontalFlip"}]`)
	memory := make([]byte, 224*224*3)
	alloc := func(n int) []byte { return memory[:n] }
	began, n := processorSeconds(b), 0
	for b.Loop() {
		by := program.Draws{Key: draw.Key{Seed: 1, Position: uint64(n)}, Column: "image"}
		if _, err := p.Run(b.Context(), cells[n%len(cells)], by, alloc); err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(n)/(processorSeconds(b)-began), "images/cpu-s")
}

// BenchmarkSteps reports how many nanoseconds of CPU time a counted step takes, for each
// kind of work. From 0.3 to 1.5 is expected: the count is an upper bound.
func BenchmarkSteps(b *testing.B) {
	for name, c := range allPasses(b, 1024) {
		b.Run(name, func(b *testing.B) {
			cost, err := c.p.Cost(c.cell, program.Ceiling)
			if err != nil {
				b.Fatal(err)
			}
			memory := make([]byte, cost.Result.Int64())
			alloc := func(n int) []byte { return memory[:n] }
			began, n := processorSeconds(b), 0
			for b.Loop() {
				if _, err := c.p.Run(b.Context(), c.cell, program.Draws{Key: draw.Key{Position: uint64(n)}}, alloc); err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric((processorSeconds(b)-began)*1e9/float64(n)/float64(cost.Steps.Int64()), "ns/step")
			b.ReportMetric(float64(cost.Steps.Int64()), "steps")
		})
	}
}
