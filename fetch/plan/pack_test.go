package plan

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"bowstring/schema"
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
	// Padding repeats the order.
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
	// Another Pack, for other ranks, of which windows are asked for in any order.
	cfg = p.Config()
	cfg.World = 1 + rng.IntN(70)
	other := packPlan(t, cfg, pack)
	for range 30 {
		if p.Rows() == 0 {
			break
		}
		lo := rng.Int64N(p.Rows())
		hi := min(lo+rng.Int64N(100), p.Rows())
		if got := other.AppendPieces(nil, lo, hi); !slices.Equal(got, all[lo:hi]) {
			t.Fatalf("%s: pieces [%d, %d) are %v for %d ranks, want %v", name, lo, hi, got, cfg.World, all[lo:hi])
		}
	}
	if other.Steps() != p.Steps() || other.Rows() != p.Rows() || other.Sequences() != p.Sequences() {
		t.Fatalf("%s: %d steps with %d ranks, %d with %d", name, p.Steps(), p.Config().World, other.Steps(), cfg.World)
	}
	for range 5 { // a job that goes on at any step with other ranks
		if p.Steps() == 0 {
			break
		}
		step := rng.Int64N(p.Steps())
		var list []Piece
		for rank := range cfg.World {
			lo, hi := other.Share(step, rank)
			list = other.AppendPieces(list, lo, hi)
		}
		if start, size := p.Batch(step); !slices.Equal(list, all[start:start+size]) {
			t.Fatalf("%s: step %d has %v for %d ranks, want %v", name, step, list, cfg.World, all[start:start+size])
		}
	}
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
			if w := p.packed.table.pieces; windowOf(w, about) != windowOf(w, int64(first)) {
				t.Fatalf("%s: document %d is about at %d, and stands at %d", name, pos, about, first)
			}
		}
	}
}

// TestPackAsBySearch compares how sequences are made with the definitions of best fit and first fit, decreasing.
func TestPackAsBySearch(t *testing.T) {
	rng := testRand(t)
	for range 300 {
		cfg := PackConfig{Length: 1 + rng.Int64N(1<<rng.IntN(20)), By: PackBy(rng.IntN(2)), Long: LongSplit}
		k := packer{cfg: &cfg}
		for range 3 { // nothing is left of the window before
			k.begin()
			for doc := range int32(rng.IntN(300)) {
				k.add(doc, uint32(rng.ExpFloat64()*float64(cfg.Length)*0.4))
			}
			k.pack()
			order := make([]int, len(k.items))
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(a, b int) int { return int(k.items[b].length) - int(k.items[a].length) })
			var rooms []int64
			bins := make([]int, len(k.items))
			put := map[int]int{} // by sequence, when it last got an item
			for turn, i := range order {
				length, best := int64(k.items[i].length), -1
				for bin, room := range rooms {
					if room < length {
						continue
					}
					// Among equal bins, the one that got an item last.
					if best < 0 || cfg.By == BestFit && (room < rooms[best] || room == rooms[best] && put[bin] > put[best]) {
						best = bin
					}
				}
				if best < 0 {
					rooms, best = append(rooms, cfg.Length), len(rooms)
				}
				rooms[best] -= length
				bins[i], put[best] = best, turn
			}
			if int(k.count) != len(rooms) {
				t.Fatalf("%d sequences of %d tokens by %v, want %d", k.count, cfg.Length, cfg.By, len(rooms))
			}
			same := map[int]int32{}
			for i, bin := range bins {
				if got, ok := same[bin]; ok && got != k.bins[i] {
					t.Fatalf("items %v are in sequences %v, want %v", k.items, k.bins, bins)
				}
				same[bin] = k.bins[i]
			}
		}
	}
}

// TestPackBalances holds that ranks of any world have about the same cost in a step, where packing alone has them far
// apart, and that it costs no room.
func TestPackBalances(t *testing.T) {
	const documents = 200_000
	rng := rand.New(rand.NewPCG(3, 4))
	lengths := make(Lengths, documents)
	for i := range lengths {
		lengths[i] = 1 + uint32(rng.ExpFloat64()*rng.ExpFloat64()*500)
	}
	pack := PackConfig{Length: 2048, Long: LongSplit, Lengths: lengths, Window: 20_000}
	for _, batch := range []int64{64, 240} {
		cfg := Config{Selection: All(documents), Shuffle: true, Seed: 5, Batch: batch, World: 1}
		without := packPlan(t, cfg, pack)
		balanced := pack
		balanced.Cost = quadratic(pack.Length)
		with := packPlan(t, cfg, balanced)
		if a, _ := with.Packing(); a.Padding(pack.Length) > 0.01 {
			t.Errorf("%.4f of the room is padding", a.Padding(pack.Length))
		}
		for _, world := range []int{1, 2, 3, 5, 8, 16, 60, 64} {
			if batch%int64(world) != 0 {
				continue // shares differ by a sequence
			}
			cfg.World = world
			cfg.Pack = with.cfg.Pack
			ratio, ok := mustPlan(t, cfg).Imbalance(math.MaxInt64)
			cfg.Pack = without.cfg.Pack
			before := imbalanceOf(mustPlan(t, cfg), with.packed.cost)
			t.Logf("batch %d, %d ranks: imbalance %.4f, else %.4f", batch, world, ratio, before)
			if !ok || ratio > 1.02 || world >= 8 && before < 1.1 {
				t.Errorf("batch %d, %d ranks: imbalance %.4f, else %.4f", batch, world, ratio, before)
			}
		}
	}
}

// imbalanceOf is a plan's imbalance by other costs, over all steps.
func imbalanceOf(p *Plan, cost []uint64) float64 {
	var costliest, all float64
	for step := range p.Steps() {
		most := 0.0
		for rank := range p.cfg.World {
			sum := 0.0
			lo, hi := p.Share(step, rank)
			for _, d := range p.AppendPieces(nil, lo, hi) {
				sum += float64(cost[d.Length])
			}
			most, all = max(most, sum), all+sum
		}
		costliest += most
	}
	return costliest * float64(p.cfg.World) / all
}

// TestPackOfRepeatedDocuments holds that Next finds what a search does where the order has documents several times, and
// that the pieces are those of the order.
func TestPackOfRepeatedDocuments(t *testing.T) {
	rng := testRand(t)
	for range 60 {
		mix := randomMix(t, rng)
		m := mustMix(t, mix)
		var positions int64
		for _, s := range mix.Sources {
			positions = max(positions, s.Base+s.Positions)
		}
		pack := PackConfig{Length: 1 + rng.Int64N(60), Long: LongSplit, By: PackBy(rng.IntN(3)),
			Window: 1 + rng.Int64N(300), Lengths: make(Lengths, positions)}
		for i := range pack.Lengths {
			pack.Lengths[i] = uint32(rng.IntN(40))
		}
		epoch := m.cfg.Begin + rng.Uint64N(3)
		cfg := Config{Mix: m, Shuffle: true, Epoch: epoch, Batch: m.cfg.Batch, World: 1, Remainder: m.cfg.Remainder}
		documents := mustPlan(t, cfg)
		cfg.Remainder, cfg.Batch, cfg.World = Uneven, 1+rng.Int64N(9), 1+rng.IntN(5)
		p := packPlan(t, cfg, pack)
		all := pieces(t, p)
		want, got := map[int64]int64{}, map[int64]int64{} // tokens, by position
		for i := range documents.n {                      // what the mixture's own remainder does counts for nothing
			pos := documents.plain(i)
			want[pos] += int64(pack.Lengths[pos])
		}
		for i, d := range all {
			got[d.Position] += d.Length
			source, _ := p.Source(int64(i))
			if of, _, ok := m.SourceOf(d.Position); !ok || of != source {
				t.Fatalf("piece %d is of source %d, its document of %d", i, source, of)
			}
		}
		for pos, n := range want {
			if got[pos] != n {
				t.Fatalf("%d tokens of document %d, want %d", got[pos], pos, n)
			}
		}
		for range 40 {
			if p.Rows() == 0 {
				break
			}
			pos, from := rng.Int64N(positions), rng.Int64N(p.Rows())
			at := slices.IndexFunc(all[from:], func(d Piece) bool { return d.Position == pos })
			if next, ok := p.Next(pos, from); ok != (at >= 0) || ok && next != from+int64(at) {
				t.Fatalf("document %d comes next after %d at %d, %t, want %d", pos, from, next, ok, from+int64(at))
			}
		}
	}
}

// TestPackErrors holds what is refused, and by which field.
func TestPackErrors(t *testing.T) {
	for field, cfg := range map[string]PackConfig{
		"pack.length": {}, "pack.window": {Length: 5, Window: MaxWindowRows + 1},
		"pack.long":         {Length: 5, By: Concat, Long: LongDrop},
		"pack.balance.cost": {Length: 1, Cost: []float64{0, math.NaN()}},
	} {
		_, err := NewPack(cfg)
		checkField(t, err, field)
	}
	for _, cost := range [][]float64{{0, -1}, {0, 0}, {0, math.Inf(1)}} {
		_, err := NewPack(PackConfig{Length: 1, Cost: cost})
		checkField(t, err, "pack.balance.cost")
	}
	if _, err := NewPack(PackConfig{Length: 2, Cost: []float64{1}}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("costs of too few lengths: %v", err)
	}
	for _, word := range []string{"", "best_fit", "first_fit", "split", "?"} {
		if by, err := ParsePackBy(word); word == "?" {
			checkField(t, err, "pack.by")
		} else if err != nil || word != "" && by.String() != word {
			t.Errorf("%q is %v, %v", word, by, err)
		}
	}
	for _, word := range []string{"", "error", "cut", "split", "drop", "?"} {
		if long, err := ParseLong(word); word == "?" {
			checkField(t, err, "pack.long")
		} else if err != nil || word != "" && long.String() != word {
			t.Errorf("%q is %v, %v", word, long, err)
		}
	}
	pack := func(length int64, long Long, lengths ...uint32) Config {
		k, err := NewPack(PackConfig{Length: length, Long: long, Lengths: lengths})
		if err != nil {
			t.Fatal(err)
		}
		return Config{Selection: All(int64(len(lengths))), Batch: 1, World: 1, Pack: k}
	}
	for _, cfg := range []Config{pack(5, LongError, 5, 6), pack(1, LongSplit, MaxWindowPieces+1)} {
		_, err := New(cfg)
		checkField(t, err, "pack.length")
		checkField(t, cfg.Pack.Prepare(cfg, atOnce), "pack.length")
	}
	cfg := pack(5, LongError, 5, 3, 1)
	stop := errors.New("stop")
	if err := cfg.Pack.Prepare(cfg, func(func() error) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a turn that fails: %v", err)
	}
	mustPlan(t, cfg)
	cfg.World, cfg.Epoch, cfg.Remainder = 3, 7, Pad
	mustPlan(t, cfg)
	cfg.Batch = 2
	if _, err := New(cfg); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("another batch: %v", err)
	}
	cfg = pack(5, LongError, 5, 3, 1)
	cfg.Batch, cfg.Remainder = math.MaxInt64, Pad
	_, err := New(cfg)
	checkField(t, err, "batch")
	b, err := NewBuckets(Lengths{1, 2}, nil, 2)
	if err != nil {
		t.Fatal(err)
	}
	cfg = pack(5, LongError, 1, 2)
	cfg.Buckets = b
	if _, err := New(cfg); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("with buckets: %v", err)
	}
}

// TestPackIsBounded holds that a window ends where it would have too many pieces, and how much is kept.
func TestPackIsBounded(t *testing.T) {
	lengths := make(Lengths, 3000)
	for i := range lengths {
		lengths[i] = 1000
	}
	p := packPlan(t, Config{Selection: All(3000), Batch: 10, World: 1}, PackConfig{Length: 1, Long: LongSplit, Lengths: lengths})
	if sum, _ := p.Packing(); sum.Pieces != 3e6 || sum.Windows != 23 {
		t.Fatalf("%+v", sum)
	}
	k := p.cfg.Pack
	for i := int64(0); i < p.Rows(); i += 1000 {
		if d := p.AppendPieces(nil, i, i+1)[0]; d.Position != i/1000 {
			t.Fatalf("piece %d is %+v", i, d)
		}
		if k.pieces > keptPieces || len(k.kept) > maxKept {
			t.Fatalf("%d pieces of %d windows are kept", k.pieces, len(k.kept))
		}
	}
	if len(k.kept) != minKept {
		t.Errorf("%d windows are kept", len(k.kept))
	}
	for epoch := range uint64(10) {
		cfg := p.cfg
		cfg.Shuffle, cfg.Epoch, cfg.Pack = true, epoch, nil
		if cfg.Pack = k; epoch == 0 {
			cfg.Pack, _ = NewPack(PackConfig{Length: 1000, Lengths: lengths})
			k = cfg.Pack
		}
		mustPlan(t, cfg)
	}
	if len(k.tables) != keptTables {
		t.Errorf("the tables of %d epochs are kept", len(k.tables))
	}
}

// TestPackAtOnce has several goroutines make plans and ask for pieces.
func TestPackAtOnce(t *testing.T) {
	rng := testRand(t)
	cfg, pack := randomPack(t, rng)
	cfg.Shuffle = true
	want := make([][]Piece, 6)
	for epoch := range want {
		cfg.Epoch = uint64(epoch)
		p := packPlan(t, cfg, pack)
		want[epoch] = p.AppendPieces(nil, 0, p.Rows())
	}
	k, err := NewPack(pack)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Pack = k
	var g sync.WaitGroup
	for first := range 8 {
		g.Go(func() {
			cfg := cfg
			cfg.World = first + 1
			for i := range want {
				epoch := (first + i) % len(want)
				cfg.Epoch = uint64(epoch)
				p, err := New(cfg)
				if err != nil {
					t.Error(err)
					return
				}
				if !slices.Equal(p.AppendPieces(nil, 0, p.Rows()), want[epoch]) {
					t.Errorf("epoch %d is another one", epoch)
				}
			}
		})
	}
	g.Wait()
}

// goldenPacks must never be edited: tickets that clients keep depend on them.
var goldenPacks = []struct {
	pack    PackConfig
	shuffle bool
	batch   int64
	crc     uint32 // CRC-32C of the pieces, one a line
}{
	{PackConfig{Length: 512, Long: LongSplit}, true, 7, 0x193d7232},
	{PackConfig{Length: 512, Long: LongSplit, Window: 300}, false, 7, 0x83d6cea3},
	{PackConfig{Length: 700, By: FirstFit, Long: LongCut, Window: 500}, true, 8, 0xdbd81c38},
	{PackConfig{Length: 512, By: Concat, Window: 600}, true, 5, 0xa7ebcfea},
	{PackConfig{Length: 512, Long: LongDrop, Window: 700, Cost: quadratic(512)}, true, 9, 0xe38b1499},
	{PackConfig{Length: 512, By: Concat, Cost: quadratic(512)}, false, 16, 0xf8816a1b},
}

// goldenLengths are lengths that a program of any language makes alike.
func goldenLengths() Lengths {
	lengths := make(Lengths, 2000)
	x := uint32(12345)
	for i := range lengths {
		x = x*1664525 + 1013904223
		lengths[i] = x >> 16 % 211 * (x >> 24 % 7)
	}
	return lengths
}

func TestPackNeverChanges(t *testing.T) {
	for i, g := range goldenPacks {
		g.pack.Lengths = goldenLengths()
		p := packPlan(t, Config{Selection: All(2000), Shuffle: g.shuffle, Seed: 42, Epoch: 3, Batch: g.batch, World: 3,
			Remainder: Uneven}, g.pack)
		var order []byte
		for _, d := range p.AppendPieces(nil, 0, p.Rows()) {
			order = fmt.Appendln(order, d.Sequence, d.Position, d.From, d.Length)
		}
		if crc := crc32.Checksum(order, crc32.MakeTable(crc32.Castagnoli)); crc != g.crc {
			t.Errorf("packing %d has changed: %#08x", i, crc)
		}
	}
}

func FuzzPack(f *testing.F) {
	f.Add(uint64(1), uint16(100), uint16(9), uint16(50), uint8(3), []byte{1, 2, 3, 200, 0, 0, 7})
	f.Add(uint64(2), uint16(1), uint16(1), uint16(1), uint8(1), []byte{1})
	f.Fuzz(func(t *testing.T, seed uint64, length, window, batch uint16, kind uint8, bytes []byte) {
		bytes = bytes[:min(len(bytes), 2000)]
		lengths := make(Lengths, len(bytes))
		for i, b := range bytes {
			lengths[i] = uint32(b)
		}
		pack := PackConfig{Length: 1 + int64(length), By: PackBy(kind % 3), Window: 1 + int64(window), Lengths: lengths}
		if pack.By != Concat {
			pack.Long = LongCut + Long(kind/3%3)
		}
		if kind&64 != 0 {
			pack.Cost = quadratic(pack.Length)
		}
		cfg := Config{Selection: All(int64(len(bytes))), Shuffle: kind&128 != 0, Seed: seed, Epoch: seed >> 60,
			Batch: 1 + int64(batch%300), World: 1 + int(seed>>8%9), Remainder: Remainder(seed % 3)}
		checkPacked(t, "fuzz", rand.New(rand.NewPCG(seed, 0)), packPlan(t, cfg, pack), pack)
	})
}

func ExamplePlan_packed() {
	pack, err := NewPack(PackConfig{Length: 10, Lengths: Lengths{7, 4, 3, 6, 9, 2}})
	if err != nil {
		panic(err)
	}
	p, err := New(Config{Selection: All(6), Batch: 2, World: 2, Remainder: Uneven, Pack: pack})
	if err != nil {
		panic(err)
	}
	for step := range p.Steps() {
		for rank := range 2 {
			lo, hi := p.Share(step, rank)
			fmt.Printf("step %d rank %d:", step, rank)
			for _, d := range p.AppendPieces(nil, lo, hi) {
				fmt.Printf(" %d of document %d,", d.Length, d.Position)
			}
			fmt.Println()
		}
	}
	sum, _ := p.Packing()
	fmt.Printf("%d tokens, %.1f%% padding\n", sum.Tokens, 100*sum.Padding(10))
	// Output:
	// step 0 rank 0: 7 of document 0, 3 of document 2,
	// step 0 rank 1: 4 of document 1, 6 of document 3,
	// step 1 rank 0: 9 of document 4,
	// step 1 rank 1: 2 of document 5,
	// 31 tokens, 22.5% padding
}
