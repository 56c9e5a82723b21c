package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// packPlan is a plan of documents that are packed.
func packPlan(t testing.TB, cfg Config, pack PackConfig) *Plan {
	t.Helper()
	k, err := NewPack(pack)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Pack = k
	p, err := New(cfg)
	if err != nil {
		t.Fatalf("%+v, %v, %v: %v", cfg, pack.By, pack.Long, err)
	}
	return p
}

// quadratic are costs of the squares of lengths.
func quadratic(length int64) []float64 {
	cost := make([]float64, length+1)
	for n := range cost {
		cost[n] = float64(n) * float64(n)
	}
	return cost
}

// randomPack is a plan of documents, and how they are packed.
func randomPack(t testing.TB, rng *rand.Rand) (Config, PackConfig) {
	rows := rng.Int64N(1500)
	pack := PackConfig{Length: 1 + rng.Int64N(300), By: PackBy(rng.IntN(3)), Window: 1 + rng.Int64N(700)}
	if rng.IntN(5) == 0 {
		pack.Length = 1 + rng.Int64N(5000)
	}
	lengths := make(Lengths, rows)
	mean := rng.Float64() * float64(pack.Length)
	for i := range lengths {
		lengths[i] = uint32(rng.ExpFloat64() * mean)
	}
	if pack.By != Concat {
		pack.Long = LongCut + Long(rng.IntN(3))
	}
	pack.Lengths = lengths
	if rng.IntN(2) == 0 {
		pack.Cost = quadratic(pack.Length)
	}
	cfg := Config{Selection: All(rows), Shuffle: rng.IntN(4) > 0, Seed: rng.Uint64(), Epoch: rng.Uint64N(5),
		Batch: 1 + rng.Int64N(40), World: 1 + rng.IntN(9), Remainder: Remainder(rng.IntN(3))}
	if rng.IntN(2) == 0 {
		cfg.Selection = everyThird(t, max(rows/3-1, 0))
	}
	if rng.IntN(3) == 0 {
		cfg.BlockRows, cfg.ClusterBlocks = 1+rng.Int64N(20), 1+rng.Int64N(5)
	}
	return cfg, pack
}

// pieces are all of a plan, by rank and step, with the ranks' shares checked to be the step together.
func pieces(t testing.TB, p *Plan) (all []Piece) {
	t.Helper()
	at, sequences := int64(0), int64(0)
	for step := range p.Steps() {
		start, size := p.Batch(step)
		if start != at {
			t.Fatalf("step %d begins at piece %d, want %d", step, start, at)
		}
		for rank := range p.Config().World {
			lo, hi := p.Share(step, rank)
			first, last := p.ShareSequences(step, rank)
			if lo != at || first != sequences || p.First(first) != lo || p.First(last) != hi {
				t.Fatalf("step %d, rank %d has pieces [%d, %d) and sequences [%d, %d), want from %d and %d", step, rank, lo,
					hi, first, last, at, sequences)
			}
			list := p.AppendPieces(nil, lo, hi)
			if int64(len(list)) != hi-lo {
				t.Fatalf("%d pieces, want those of [%d, %d)", len(list), lo, hi)
			}
			for i, d := range list {
				if index := lo + int64(i); p.Rank(index) != rank || p.Sequence(index) != d.Sequence ||
					p.Position(index) != d.Position || d.Sequence < first || d.Sequence >= last {
					t.Fatalf("piece %d is %+v, of rank %d", index, d, p.Rank(index))
				}
			}
			all = append(all, list...)
			at, sequences = hi, last
		}
		if start+size != at {
			t.Fatalf("step %d has %d pieces, its ranks %d", step, size, at-start)
		}
	}
	if at != p.Rows() || sequences != p.Sequences() {
		t.Fatalf("%d pieces in %d sequences, want %d in %d", at, sequences, p.Rows(), p.Sequences())
	}
	return all
}

// spans are which tokens of a document are served: from, length.
type spans [][2]int64

// TestPackServesAll holds that each document comes exactly once, and each of its tokens where documents are cut, whatever
// the world; that no sequence is longer than it may be, and none empty; that Next finds what a search does; and that what
// is said of the epoch is so.
func TestPackServesAll(t *testing.T) {
	rng := testRand(t)
	for range 400 {
		cfg, pack := randomPack(t, rng)
		name := fmt.Sprintf("%d of %d documents by %v, long %v, length %d, windows of %d, shuffle %t, batch %d, world %d, %v",
			cfg.Selection.Len(), len(pack.Lengths), pack.By, pack.Long, pack.Length, pack.Window, cfg.Shuffle, cfg.Batch,
			cfg.World, cfg.Remainder)
		checkPacked(t, name, rng, packPlan(t, cfg, pack), pack)
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func checkPacked(t *testing.T, name string, rng *rand.Rand, p *Plan, pack PackConfig) {
	cfg := p.Config()
	all := pieces(t, p)
	sum, ok := p.Packing()
	if !ok || !p.Packed() || sum.Documents != cfg.Selection.Len() || sum.Pieces+p.Padded()-p.Dropped() != p.Rows() {
		t.Fatalf("%s: %+v", name, sum)
	}
	// Whole sequences, in order, none with more than it may have.
	at := int64(0)
	for i, d := range all {
		if i == 0 || all[i-1].Sequence != d.Sequence {
			if want := int64(0); i > 0 && all[i-1].Sequence+1 != d.Sequence || i == 0 && d.Sequence != want {
				t.Fatalf("%s: sequence %d comes out of order", name, d.Sequence)
			}
			at = 0
		}
		if d.At != at || d.Length < 1 || at+d.Length > pack.Length {
			t.Fatalf("%s: piece %+v, where %d tokens come before", name, d, at)
		}
		at += d.Length
	}
	// What padding repeats is the order again.
	for i := sum.Pieces; i < p.Rows(); i++ {
		a, b := all[i], all[i-sum.Pieces]
		a.Sequence -= sum.Sequences
		if a != b {
			t.Fatalf("%s: piece %d is %+v, and not %+v again", name, i, a, b)
		}
	}
	once := all[:min(sum.Pieces, p.Rows())]
	if cfg.Remainder == Drop { // the rest is there too
		cfg.Remainder = Uneven
		once = pieces(t, packPlan(t, cfg, pack))
		if !slices.Equal(once[:p.Rows()], all) {
			t.Fatalf("%s: what is served depends on the remainder", name)
		}
	}
	served := map[int64]spans{}
	var tokens int64
	for _, d := range once {
		served[d.Position] = append(served[d.Position], [2]int64{d.From, d.Length})
		tokens += d.Length
	}
	var want Packing
	for i := range cfg.Selection.Len() {
		pos := cfg.Selection.At(i)
		n := int64(pack.Lengths[pos])
		list := served[pos]
		slices.SortFunc(list, func(a, b [2]int64) int { return int(a[0] - b[0]) })
		from := int64(0)
		for _, s := range list {
			if s[0] != from {
				t.Fatalf("%s: of document %d with %d tokens come %v", name, pos, n, list)
			}
			from += s[1]
		}
		due := n
		if n > pack.Length {
			want.Long++
			switch pack.Long {
			case LongCut:
				due = pack.Length
			case LongDrop:
				due = 0
			}
		}
		if n == 0 {
			want.Empty++
		}
		want.Cut += n - due
		if from != due || pack.By != Concat && pack.Long != LongSplit && len(list) > 1 {
			t.Fatalf("%s: of document %d with %d tokens come %v", name, pos, n, list)
		}
	}
	want.Documents, want.Tokens, want.Pieces, want.Sequences, want.Windows = cfg.Selection.Len(), tokens,
		int64(len(once)), sum.Sequences, (cfg.Selection.Len()+pack.Window-1)/pack.Window
	if sum != want {
		t.Fatalf("%s: %+v, want %+v", name, sum, want)
	}
	checkPackedNext(t, name, rng, p, pack, all)
}

// checkPackedNext compares Next with a search, also of documents that are not served.
func checkPackedNext(t *testing.T, name string, rng *rand.Rand, p *Plan, pack PackConfig, all []Piece) {
	for range 60 {
		pos := rng.Int64N(int64(len(pack.Lengths) + 1))
		from := rng.Int64N(p.Rows()+2) - 1
		want := slices.IndexFunc(all[min(max(from, 0), p.Rows()):], func(d Piece) bool { return d.Position == pos })
		if want >= 0 {
			want += int(max(from, 0))
		}
		if got, ok := p.Next(pos, from); ok != (want >= 0) || ok && int(got) != want {
			t.Fatalf("%s: document %d comes next after %d at %d, %t, want %d", name, pos, from, got, ok, want)
		}
		first := slices.IndexFunc(all, func(d Piece) bool { return d.Position == pos })
		if got, ok := p.Index(pos); ok != (first >= 0) || ok && int(got) != first {
			t.Fatalf("%s: document %d comes first at %d, %t, want %d", name, pos, got, ok, first)
		}
		if about, ok := p.About(pos); ok && first >= 0 {
			t := p.packed.table
			if windowOf(t.pieces, about) != windowOf(t.pieces, int64(first)) {
				panic("another window")
			}
		}
	}
}
