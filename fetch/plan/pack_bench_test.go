package plan

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

// madeUpLengths are lengths as documents have them: many are short, and some are long.
func madeUpLengths(n int64) Lengths {
	rng := rand.New(rand.NewPCG(1, 2))
	lengths := make(Lengths, n)
	for i := range lengths {
		lengths[i] = 1 + uint32(min(rng.ExpFloat64()*rng.ExpFloat64()*800, 1e6))
	}
	return lengths
}

// processor is the CPU time of the process, in nanoseconds. On a busy machine it says more than wall time.
func processor(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkPack makes the table of an epoch, the time of which is said for a document, and looks at its pieces.
func BenchmarkPack(b *testing.B) {
	const documents = 1_000_000
	lengths := madeUpLengths(documents)
	for _, length := range []int64{2048, 8192, 131072} {
		for _, by := range []PackBy{BestFit, FirstFit, Concat} {
			for _, cost := range [][]float64{nil, quadratic(length)} {
				b.Run(fmt.Sprintf("%v/%d/balanced=%t", by, length, cost != nil), func(b *testing.B) {
					b.ReportAllocs()
					pack := PackConfig{Length: length, By: by, Lengths: lengths, Cost: cost}
					if by != Concat {
						pack.Long = LongSplit
					}
					var p *Plan
					began := processor(b)
					for b.Loop() {
						p = packPlan(b, Config{Selection: All(documents), Shuffle: true, Seed: 1, Batch: 256, World: 8}, pack)
					}
					b.ReportMetric(float64(processor(b)-began)/float64(b.N)/documents, "ns/document")
					sum, _ := p.Packing()
					b.ReportMetric(sum.Padding(length), "padding")
					began = processor(b)
					list := make([]Piece, 0, 10000)
					for lo := int64(0); lo < p.Rows(); lo += 10000 {
						list = p.AppendPieces(list[:0], lo, min(lo+10000, p.Rows()))
					}
					b.ReportMetric(float64(processor(b)-began)/float64(p.Rows()), "ns/piece")
					if ratio, ok := p.Imbalance(1000); ok {
						b.ReportMetric(ratio, "imbalance")
					}
				})
			}
		}
	}
}

// BenchmarkPackCorpus packs documents of the lengths that a file has, one a line, in several epochs: see the case packing
// of bench. Its time says nothing.
func BenchmarkPackCorpus(b *testing.B) {
	name := os.Getenv("PACK_LENGTHS")
	if name == "" {
		b.Skip("PACK_LENGTHS names no file")
	}
	f, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var lengths Lengths
	for lines := bufio.NewScanner(f); lines.Scan(); {
		n, err := strconv.ParseUint(lines.Text(), 10, 32)
		if err != nil {
			b.Fatal(err)
		}
		lengths = append(lengths, uint32(n))
	}
	const length, epochs, world, batch = 4096, 5, 8, 64
	for _, by := range []PackBy{BestFit, FirstFit, Concat} {
		b.Run(by.String(), func(b *testing.B) {
			for range b.N {
				pack := PackConfig{Length: length, By: by, Lengths: lengths, Cost: quadratic(length)}
				if by != Concat {
					pack.Long = LongSplit
				}
				k, err := NewPack(pack)
				if err != nil {
					b.Fatal(err)
				}
				var all Packing
				var lost, doubled int64
				var imbalance, worst float64
				for epoch := range uint64(epochs) {
					p, err := New(Config{Selection: All(int64(len(lengths))), Shuffle: true, Seed: 7, Epoch: epoch, Batch: batch,
						World: world, Remainder: Uneven, Pack: k})
					if err != nil {
						b.Fatal(err)
					}
					sum, _ := p.Packing()
					all.Tokens += sum.Tokens
					all.Sequences += sum.Sequences
					parts := make([]spans, len(lengths))
					for step := range p.Steps() {
						for rank := range world {
							lo, hi := p.Share(step, rank)
							for _, d := range p.AppendPieces(nil, lo, hi) {
								parts[d.Position] = append(parts[d.Position], [2]int64{d.From, d.Length})
							}
						}
					}
					for pos, list := range parts {
						slices.SortFunc(list, func(a, b [2]int64) int { return int(a[0] - b[0]) })
						end := int64(0)
						for _, s := range append(list, [2]int64{int64(lengths[pos]), 0}) {
							lost += max(s[0]-end, 0)
							doubled += max(end-s[0], 0)
							end = max(end, s[0]+s[1])
						}
					}
					ratio, _ := p.Imbalance(p.Steps())
					imbalance += ratio / epochs
					for step := range p.Steps() {
						worst = max(worst, stepImbalance(p, step))
					}
				}
				b.ReportMetric(float64(lost), "lost")
				b.ReportMetric(float64(doubled), "doubled")
				b.ReportMetric(all.Padding(length), "padding")
				b.ReportMetric(imbalance, "imbalance")
				b.ReportMetric(worst, "imbalance_worst")
			}
		})
	}
}

// stepImbalance is the cost of the costliest rank of a step, divided by the mean of all ranks; 0 if a rank has no sequence.
func stepImbalance(p *Plan, step int64) float64 {
	if _, size := p.batch(step); size < int64(p.cfg.World) {
		return 0
	}
	var most, all float64
	for rank := range p.cfg.World {
		lo, hi := p.Share(step, rank)
		sum := 0.0
		for _, d := range p.AppendPieces(nil, lo, hi) {
			sum += p.packed.costOf(d.Length)
		}
		most, all = max(most, sum), all+sum
	}
	return most * float64(p.cfg.World) / all
}
