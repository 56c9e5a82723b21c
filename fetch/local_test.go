package fetch_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"bowstring/fetch"
	"bowstring/fetch/layout"
	"bowstring/schema"
)

// fixedLayouts is a cluster in which nothing changes: the first layout is what all epochs have.
type fixedLayouts []*layout.Layout

func (f fixedLayouts) Layout(_ context.Context, name string) (*layout.Layout, error) {
	for _, l := range f {
		if l.Name() == name {
			return l, nil
		}
	}
	return nil, fmt.Errorf("%w: layout %s", schema.ErrNotFound, name)
}

func (f fixedLayouts) Reserve(context.Context, string, uint64, int64, []string) (*layout.Layout, error) {
	return f[0], nil
}

// nodesOf makes a layout of n nodes.
func nodesOf(n int) *layout.Layout {
	var nodes []layout.Node
	for i := range n {
		nodes = append(nodes, layout.Node{ID: fmt.Sprintf("n%d", i), Address: fmt.Sprintf("grpc://n%d:1", i), Weight: 1,
			Capacity: 1 << 20})
	}
	return must(layout.New(must(layout.NewRecord(1<<20, nodes, nil))))
}

// owned is what part of the samples at some positions a node owns.
func owned(tb testing.TB, j *fetch.Job, positions []int64, node int) float64 {
	tb.Helper()
	n := 0
	for _, pos := range positions {
		ref, ok := refAt(tb, j, pos)
		if o := j.Layout().Owners(layout.SlotOf(ref)); !ok || int(o.First) == node || int(o.Second) == node {
			n++
		}
	}
	return float64(n) / float64(len(positions))
}

// Whatever order, remainder, columns and manifests there are: every sample is served once, each rank has the plan's
// counts in every step, and most of what it gets its node owns; and a stream goes on from any batch as it would have.
func TestLocalStreams(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := newStore(t)
	putPages(t, s, "d", 900, 8)
	lays := fixedLayouts{nodesOf(3), nodesOf(2)}
	whole := newEngine(t, s, fetch.Options{Layouts: lays})
	lazy := newEngine(t, s, fetch.Options{Layouts: lays, Resident: -1})
	for i := range 24 {
		e := []*fetch.Engine{whole, lazy}[i%2]
		world := 1 + rng.Int64N(7)
		req := schema.Request{
			Dataset: "d", Assign: schema.AssignLocal, World: &schema.World{Size: world}, Batch: 1 + rng.Int64N(300),
			Columns:   [][]string{{"image", "position"}, {"label"}}[rng.IntN(2)],
			Order:     []string{"", "window:3", "free"}[rng.IntN(3)],
			Remainder: []string{schema.RemainderDrop, schema.RemainderUneven}[rng.IntN(2)],
			Shuffle:   &schema.Shuffle{Seed: rng.Uint64(), Epoch: rng.Uint64N(5)},
		}
		if i%5 == 0 {
			req.Shuffle = nil
		}
		if req.Order == "" {
			if by := someBuckets(rng); by != nil {
				by.Column, by.Balance = cmp.Or(by.Column, "label"), nil
				req.BucketByLength = by
			}
		}
		if i%3 == 0 {
			req.Owners = lays[1].Name()
		}
		j := open(t, e, req)
		var all []int64
		for rank := range int(world) {
			st := start(t, e, j, ticket(j.Request(), rank))
			got, resume, counts := []int64{}, []schema.Ticket{}, map[int64]int64{}
			for b := range batches(t, st) {
				got, resume = append(got, b.Positions...), append(resume, b.Resume)
				counts[b.Step] += int64(b.Rows)
			}
			st.Close()
			for step := range j.Plan().Steps() {
				if lo, hi := j.Plan().Share(step, rank); counts[step] != hi-lo {
					t.Fatalf("%+v: rank %d has %d rows of step %d, the plan gives it %d", req, rank, counts[step], step,
						hi-lo)
				}
			}
			all = append(all, got...)
			if len(resume) == 0 {
				continue
			}
			if req.Batch >= 50*world && world%int64(j.Layout().Nodes()) == 0 && len(got) > 100 {
				if part := owned(t, j, got, j.NodeOf(rank)); part < .8 {
					t.Errorf("%+v: rank %d owns %.2f of what it gets", req, rank, part)
				}
			}
			at := resume[rng.IntN(len(resume))]
			if at.Owners != j.Layout().Name() {
				t.Fatalf("a resume ticket names layout %q", at.Owners)
			}
			rest := drain(t, e, open(t, e, at.Request), at).positions
			left := slices.Clone(got)
			if req.Order == "" {
				if tail := got[len(got)-len(rest):]; !slices.Equal(rest, tail) {
					t.Fatalf("%+v: %+v goes on with %v, want %v", req, at, rest, tail)
				}
			}
			for _, pos := range rest {
				k := slices.Index(left, pos)
				if k < 0 {
					t.Fatalf("%+v: %+v serves position %d, which is not of rank %d", req, at, pos, rank)
				}
				left = slices.Delete(left, k, k+1)
			}
		}
		slices.Sort(all)
		if n := len(slices.Compact(slices.Clone(all))); n != len(all) || int64(n) != j.Plan().Rows() {
			t.Fatalf("%+v: %d rows served, %d different ones, the plan has %d", req, len(all), n, j.Plan().Rows())
		}
	}
}

// Ranks that run beside nodes as the request says get what those own; the layout need not say it.
func TestLocalRanksWhereTheyAre(t *testing.T) {
	s := newStore(t)
	put(t, s, "d", 900)
	e := newEngine(t, s, fetch.Options{Layouts: fixedLayouts{nodesOf(2)}})
	req := schema.Request{Dataset: "d", Assign: schema.AssignLocal, World: &schema.World{Size: 2}, Batch: 300,
		Ranks: []string{"n1", "n0"}}
	j := open(t, e, req)
	for rank := range 2 {
		if part := owned(t, j, drain(t, e, j, ticket(j.Request(), rank)).positions, 1-rank); part < .9 {
			t.Errorf("rank %d gets %.2f of what node %d owns", rank, part, 1-rank)
		}
	}
	req.Ranks = []string{"n0", "n1"} // as it is dealt out anyhow
	if j := open(t, e, req); j.Request().Ranks != nil {
		t.Error("tickets say what the layout says")
	}
	req.Ranks = []string{"n0", "x"}
	if _, err := e.Open(t.Context(), req); !errors.Is(err, schema.ErrInvalid) ||
		!strings.Contains(err.Error(), `ranks[1]: got "x"`) {
		t.Errorf("a rank beside no node: %v", err)
	}
	req.Ranks, req.Owners = nil, strings.Repeat("0", 64)
	if _, err := e.Open(t.Context(), req); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("an unknown layout: %v", err)
	}
}

// A server that is in no cluster serves local requests as it serves others.
func TestLocalWithoutCluster(t *testing.T) {
	s := newStore(t)
	put(t, s, "d", 300)
	e := newEngine(t, s, fetch.Options{})
	req := schema.Request{Dataset: "d", World: &schema.World{Size: 3}, Batch: 64, Shuffle: &schema.Shuffle{Seed: 3}}
	want := drain(t, e, open(t, e, req), ticket(req, 1)).positions
	req.Assign = schema.AssignLocal
	j := open(t, e, req)
	if got := drain(t, e, j, ticket(j.Request(), 1)).positions; !slices.Equal(got, want) {
		t.Errorf("rank 1 gets %v, want %v", got, want)
	}
}

// The memory of slots is reserved and released. A request without room for it is refused by name.
func TestLocalMemory(t *testing.T) {
	s := newStore(t)
	put(t, s, "d", 900)
	var opts fetch.Options
	opts.Memory.Evaluation = 1000
	e := newEngine(t, s, opts)
	req := schema.Request{Dataset: "d", Assign: schema.AssignLocal}
	if _, err := e.Open(t.Context(), req); !errors.Is(err, schema.ErrLimit) ||
		!strings.Contains(err.Error(), "900 rows") {
		t.Errorf("slots that do not fit: %v", err)
	}
	req.Batch = schema.MaxLocalBatch + 1
	if _, err := e.Open(t.Context(), req); !errors.Is(err, schema.ErrInvalid) ||
		!strings.Contains(err.Error(), "batch: got 262145") {
		t.Errorf("a batch too large: %v", err)
	}
}

// Slots are looked up in blocks that pages do not keep to: who gets what is the same as of a manifest that is in
// memory.
func TestLocalPagesAcrossBlocks(t *testing.T) {
	s := newStore(t)
	putPages(t, s, "d", 2600, 300)
	lays := fixedLayouts{nodesOf(2)}
	req := schema.Request{
		Dataset: "d", Columns: []string{"position"}, Assign: schema.AssignLocal, World: &schema.World{Size: 2},
		Batch: 16, Shuffle: &schema.Shuffle{Seed: 1},
	}
	var want []int64
	for _, resident := range []int64{0, -1} {
		e := newEngine(t, s, fetch.Options{Layouts: lays, Resident: resident})
		j := open(t, e, req)
		got := drain(t, e, j, ticket(j.Request(), 1)).positions
		if want == nil {
			want = got
		}
		if len(got) == 0 || !slices.Equal(got, want) {
			t.Errorf("rank 1 gets %d rows by pages, other ones than the %d in memory", len(got), len(want))
		}
	}
}

// A server with a spill looks ahead only for what its nodes own, and forgets a job that has come to its end.
func TestLocalPrefetch(t *testing.T) {
	s := newStore(t)
	put(t, s, "d", 600)
	lays := fixedLayouts{nodesOf(2)}
	cache, future, _ := newSpill(t, 64<<20)
	e := newEngine(t, s, fetch.Options{Layouts: lays, Spill: cache, Future: future})
	req := schema.Request{Dataset: "d", Columns: []string{"image"}, Assign: schema.AssignLocal,
		World: &schema.World{Size: 2}, Batch: 100}
	j := open(t, e, req)
	if n := len(drain(t, e, j, ticket(j.Request(), 0)).positions); n != 300 {
		t.Errorf("rank 0 got %d rows, want 300", n)
	}
	if jobs := e.Stats().Jobs; len(jobs) != 0 {
		t.Errorf("a job that has ended is still expected to go on: %+v", jobs)
	}
}
