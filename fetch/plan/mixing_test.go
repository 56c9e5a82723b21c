package plan_test

import (
	"fmt"
	"math"
	"testing"

	"bowstring/fetch/plan"
)

// TestMixing compares block shuffles of ImageNet, whose rows are sorted by 1,000 classes, with figures that another
// program computed from the known shares of classes (5,120 samples a run).
func TestMixing(t *testing.T) {
	const n, classes = 1_281_167, 1000
	for _, c := range []struct {
		rows, blocks int64
		want         float64
	}{
		{0, 0, 0.99}, {76, 16, 68.7}, {76, 64, 51.5}, {76, 256, 18.4}, {76, 1024, 5.3}, {9, 512, 6.6}, {9, 2048, 3.0},
	} {
		t.Run(fmt.Sprintf("%d rows, %d blocks", c.rows, c.blocks), func(t *testing.T) {
			var mean float64
			const seeds = 4
			for seed := range uint64(seeds) {
				p, err := plan.New(plan.Config{Selection: plan.All(n), Shuffle: true, Seed: seed, BlockRows: c.rows,
					ClusterBlocks: c.blocks, Batch: 256, World: 1})
				if err != nil {
					t.Fatal(err)
				}
				windows, run := plan.Windows(p, 8, plan.MixWindow)
				if run != plan.MixWindow || len(windows) != 8 {
					t.Fatalf("%d runs of %d samples", len(windows), run)
				}
				got, ok := plan.ChiSquare(classesOf(windows, func(at int64) int { return int(at * classes / n) }))
				if !ok {
					t.Fatal("nothing to compare")
				}
				mean += got / seeds
			}
			if math.Abs(mean-c.want) > 0.25*c.want {
				t.Errorf("chi-square is %.2f per degree of freedom, want %.2f", mean, c.want)
			}
		})
	}
}

// TestMixingOfShuffledRows: unsorted rows mix well in blocks.
func TestMixingOfShuffledRows(t *testing.T) {
	const n = 200_000
	p, err := plan.New(plan.Config{Selection: plan.All(n), Shuffle: true, Seed: 1, BlockRows: 76, ClusterBlocks: 16,
		Batch: 256, World: 1})
	if err != nil {
		t.Fatal(err)
	}
	order := plan.NewPerm(n, 5, 0)
	windows, _ := plan.Windows(p, 8, plan.MixWindow)
	got, ok := plan.ChiSquare(classesOf(windows, func(at int64) int { return int(order.At(uint64(at))) % 100 }))
	if !ok || math.Abs(got-1) > 0.15 {
		t.Errorf("chi-square is %.2f per degree of freedom, want 1", got)
	}
}

// TestChiSquare compares with tables worked out by hand.
func TestChiSquare(t *testing.T) {
	for _, c := range []struct {
		runs [][]int
		want float64
	}{
		{[][]int{{0, 0}, {1, 1}}, 4},             // each of four cells is 1 off 1
		{[][]int{{0, 1}, {0, 1}}, 0},             // just as expected
		{[][]int{{0, 0, 1}, {0, 1, 1}}, 2.0 / 3}, // four cells 0.5 off 1.5
	} {
		if got, ok := plan.ChiSquare(c.runs); !ok || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%v: %v, want %v", c.runs, got, c.want)
		}
	}
	for _, runs := range [][][]int{nil, {{1, 2}}, {{1}, {1}}} {
		if _, ok := plan.ChiSquare(runs); ok {
			t.Errorf("%v can be compared", runs)
		}
	}
}

func classesOf(windows [][]int64, class func(int64) int) [][]int {
	runs := make([][]int, len(windows))
	for i, w := range windows {
		for _, at := range w {
			runs[i] = append(runs[i], class(at))
		}
	}
	return runs
}
