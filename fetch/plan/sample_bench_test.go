package plan

import (
	"bytes"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// madeUpWeight is the weight of a made-up row: a tenth have none, and the others are spread over six powers of ten.
func madeUpWeight(i int64) float64 {
	s := splitmix64(i)
	r := s.next()
	if r%10 == 0 {
		return 0
	}
	return math.Ldexp(1+float64(r>>12)/(1<<52), int(r>>4)%20)
}

// peak is the most memory that the process had, in MB.
func peak(b *testing.B) float64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip(err)
	}
	_, rest, _ := bytes.Cut(text, []byte("VmHWM:"))
	fields := bytes.Fields(rest)
	kb, err := strconv.ParseFloat(string(fields[0]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return kb / 1000
}

// groupOf puts a sample in one of the groups whose draws are counted, by some bits of its weight.
func groupOf(w *SampleWeights, i int64) int { return 64 - int(math.Float32bits(w.values[i])>>20)&63 }

// BenchmarkSampling makes the table of 10^8 made-up weights, and draws with 200 seeds from it, with replacement and
// without: how long the table takes, how long an index, the memory of the process, and the probability of a chi-square
// as large as that of the draws, of all seeds together and least of the single ones.
func BenchmarkSampling(b *testing.B) {
	rows, seeds := int64(100_000_000), uint64(200)
	if testing.Short() {
		rows, seeds = 1_000_000, 4
	}
	const draws = 20_000
	for b.Loop() {
		began := time.Now()
		w := NewSampleWeights(rows)
		var g errgroup.Group
		for half := range int64(2) {
			g.Go(func() error {
				for i := half * rows / 2; i < (half+1)*rows/2; i++ {
					w.Set(i, madeUpWeight(i))
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
		if err := w.Freeze(atOnce); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "open_s")
		share := make([]float64, 65)
		for i := range rows {
			share[groupOf(w, i)] += float64(w.of(i)) / float64(w.total())
		}
		var groups []int // those that have a share
		for k, s := range share {
			if s*draws >= 5 {
				groups = append(groups, k)
			}
		}
		least, together := 1.0, 1.0
		for _, replacement := range []bool{true, false} {
			all := make([]int, len(groups)+1)
			expected := make([]float64, len(groups)+1)
			for seed := range seeds {
				var o order = newByShare(w, rows, seed, 1)
				if replacement {
					o = newDrawn(w, rows, seed, 1)
				}
				counts := make([]int, 65)
				for i := range int64(draws) {
					counts[groupOf(w, o.at(i*(rows/draws)))]++
				}
				shown, want := make([]int, len(groups)+1), make([]float64, len(groups)+1)
				shown[len(groups)], want[len(groups)] = draws, draws
				for k, group := range groups {
					shown[k], want[k] = counts[group], share[group]*draws
					shown[len(groups)] -= shown[k]
					want[len(groups)] -= want[k]
				}
				for k := range all {
					all[k] += shown[k]
					expected[k] += want[k]
				}
				if want[len(groups)] < 5 {
					shown, want = shown[:len(groups)], want[:len(groups)]
				}
				var f findings
				f.add(shown, want, "seed")
				least = min(least, f.ps[0])
			}
			if expected[len(groups)] < 5 {
				all, expected = all[:len(groups)], expected[:len(groups)]
			}
			var f findings
			f.add(all, expected, "all")
			together = min(together, f.ps[0])
		}
		b.ReportMetric(together, "chi2_p")
		b.ReportMetric(least, "chi2_least_p")
		b.ReportMetric(peak(b), "rss_mb")
		for name, o := range map[string]order{"drawn_ns": newDrawn(w, rows, 3, 1), "dealt_ns": newByShare(w, rows, 3, 1)} {
			began := time.Now()
			var sum int64
			for i := range int64(300_000) {
				sum += o.at(i)
			}
			b.ReportMetric(float64(time.Since(began).Nanoseconds())/300_000, name)
			if sum == 0 {
				b.Fatal("nothing was drawn")
			}
		}
	}
}

func BenchmarkBalance(b *testing.B) {
	classes := make(Classes, 10_000_000)
	for i := range classes {
		s := splitmix64(i)
		classes[i] = uint16(below(s.next(), 1000) * below(s.next(), 1000) / 1000)
	}
	shares := make([]float64, 999)
	for i := range shares {
		shares[i] = 1
	}
	parts, err := Parts(shares)
	if err != nil {
		b.Fatal(err)
	}
	t, err := NewBalance(classes, parts, atOnce)
	if err != nil {
		b.Fatal(err)
	}
	o := newBalanced(t, 10_000_000, 3, 1)
	i := int64(0)
	for b.Loop() {
		i = (i + 1) % 10_000_000
		o.at(i)
	}
}
