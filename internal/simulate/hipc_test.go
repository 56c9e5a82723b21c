package simulate

import (
	"fmt"
	"math"
	"testing"

	"bowstring/fetch/predict"
)

// published is a speedup of loading by locality of Yang and Cong (HiPC 2019), with the parameters that reproduce it.
//
// The paper gives formulas and speedups. It determines only ratios of the rates in its formulas, and for ImageNet not
// all of these. Further assumptions:
//
//   - MuMMI: R/U and β·R/Rb by [predict.MuMMI], which are fitted to the four speedups; R is 1,000 samples a second.
//   - ImageNet: 5 GB/s from the store and 12.5 GB/s of each link are ours. U is such that their formula gives their
//     speedup: 1,467 samples a second of each learner.
//   - 128 samples of a step for each node, of 110,000 bytes; a store 5 ms away, nodes 0.02 ms from each other.
type published struct {
	name           string
	nodes, ranks   int64 // a node's ranks are the paper's learners
	sample         int64 // the run is smaller by this factor
	samples        int64
	store          float64 // samples a second: R
	learner        float64 // samples a second: U
	link           float64 // samples a second of a node: Rb over nodes
	speedup, moved float64 // β
}

const hipcBytes, hipcBatch = 110_000, 128

func publishedFigures() (list []published) {
	moved := func(nodes int64) float64 { return 0.40 * math.Sqrt((1-1/float64(nodes))/hipcBatch) }
	for _, f := range predict.HiPCMuMMI {
		n, b := int64(f.Nodes), moved(int64(f.Nodes))
		const store = 1000
		list = append(list, published{
			name: fmt.Sprintf("MuMMI-%d", n), nodes: n, ranks: 1, sample: 1, samples: 1000 * n, speedup: f.Speedup,
			moved: b,
			store: store, learner: store * predict.MuMMI.U, link: b * store / predict.MuMMI.B / f.Nodes,
		})
	}
	const store, link, nodes, learners, speedup = 5e9 / hipcBytes, 12.5e9 / hipcBytes, 256, 1024, 34
	balance := moved(nodes) * store / (nodes * link)
	return append(list, published{
		name: "ImageNet-256", nodes: nodes, ranks: learners / nodes, sample: 8, samples: 1_281_167 / 8 * 8,
		speedup: speedup, moved: moved(nodes),
		store: store, link: link, learner: store / learners * (speedup - 1) / (1 - speedup*balance),
	})
}

// theirs are the parameters of their formulas, and how many learners there are.
func (p published) theirs() (h predict.HiPC, learners float64) {
	return predict.HiPC{D: float64(p.samples), R: p.store, U: p.learner, V: 1, Rc: 1, Rb: p.link * float64(p.nodes),
			A: 1, B: p.moved},
		float64(p.nodes * p.ranks)
}

// ours is what explain would say.
func (p published) ours() float64 {
	r := predict.Rates{
		Store:   predict.Store{LatencyMS: 5, ReadsPerS: p.store},
		Node:    predict.Node{MicrosPerSample: 1e6 / p.learner, Cores: float64(p.ranks)},
		Network: predict.Network{LatencyMS: 0.02, BytesPerSec: p.link * hipcBytes},
	}
	j := predict.Job{
		Rows: p.samples, RowBytes: hipcBytes, RowReads: 1, Batch: hipcBatch * p.nodes, Ranks: p.nodes * p.ranks,
		Epochs: 2, Nodes: p.nodes, Local: true, Strict: true,
		CacheBytes: 1 << 40, WindowBytes: 512 << 20, BatchBytes: 16 << 20,
	}
	return predict.At(r, j, 0).Seconds / predict.At(r, j, 1).Seconds
}

// file is the simulation: three epochs, the first of which comes from the store.
func (p published) file() string {
	room := 3 * hipcBytes * p.samples / p.nodes
	return fmt.Sprintf(`{"seed": 1, "sample": %d, "nodes": {"count": %d, "ranks": %d}, "store": {"latency_ms": 5, "reads_per_s": %g}, "spill": {"bytes": %d},
	"node": {"us_per_sample": %g, "cores": %d}, "network": {"latency_ms": 0.02, "bytes_per_s": %g},
	"datasets": [{"name": "d", "samples": %d, "bytes": %d}], "jobs": [{"dataset": "d", "batch": %d, "epochs": 3, "assign": "local", "apart": true}]}`,
		p.sample, p.nodes, p.ranks, p.store, room+minSpill, 1e6/p.learner, p.ranks, p.link*hipcBytes, p.samples,
		hipcBytes, hipcBatch*p.nodes)
}

// BenchmarkHiPC is what the bench reports: the published speedups beside those by their formulas, by explain's model,
// and by simulation.
func BenchmarkHiPC(b *testing.B) {
	for _, p := range publishedFigures() {
		if testing.Short() {
			p.nodes, p.samples, p.sample = min(p.nodes, 8), min(p.samples, 4_000), min(p.sample, 4)
		}
		b.Run(p.name, func(b *testing.B) {
			for range b.N {
				f, err := Parse([]byte(p.file()), nil)
				if err != nil {
					b.Fatal(err)
				}
				r, err := Run(f, Options{})
				if err != nil {
					b.Fatal(err)
				}
				e := r.Jobs[0].Epochs
				h, learners := p.theirs()
				b.ReportMetric(p.speedup, "published")
				b.ReportMetric(h.Speedup(learners), "theirs")
				b.ReportMetric(p.ours(), "ours")
				// By a loader that reads each sample from the store once: the first epoch here would flatter where it
				// reads more.
				b.ReportMetric(h.Load(learners)/e[2].Seconds, "simulated")
				b.ReportMetric(h.Load(learners), "store_s")
				b.ReportMetric(e[0].Seconds, "cold_s")
				b.ReportMetric(e[2].Seconds, "warm_s")
				b.ReportMetric(float64(e[0].Traffic.StoreReads)/float64(e[0].Samples), "reads")
				b.ReportMetric(float64(e[2].Traffic.PeerBytes)/float64(e[2].Bytes), "moved")
			}
		})
	}
}

// Their formulas give their figures within a tenth by the parameters that stand for theirs.
func TestPublished(t *testing.T) {
	for _, p := range publishedFigures() {
		h, learners := p.theirs()
		if got := h.Speedup(learners); math.Abs(got/p.speedup-1) > 0.1 {
			t.Errorf("%s: %.1f times as fast by their formulas, published %.0f", p.name, got, p.speedup)
		}
	}
}
