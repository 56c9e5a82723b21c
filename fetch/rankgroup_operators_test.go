package fetch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch"
	"bowstring/fetch/operators"
	"bowstring/schema"
)

// madeBy reads a rank's stream to its end and compares each cell with what the operators make of it.
func madeBy(t *testing.T, s *fetch.Stream, seed uint64, list []schema.Step) error {
	for {
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		column(t, b, "image", func(a arrow.Array) {
			for i, got := range cellsOf(t, a) {
				pos := b.Positions[i]
				want, _ := wantedOf(t, list, "image", seed, 0, pos, content(int(pos)))
				if !bytes.Equal(got, want) {
					err = fmt.Errorf("rank %d, position %d: other bytes", b.Rank, pos)
				}
			}
		})
		b.Release()
		if err != nil {
			return err
		}
	}
}

// Each cell is read and made once for all ranks that get it, also where operators draw at random; and all get what they
// make.
func TestRankGroupMakesOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	st := newStore(t)
	const n = 400
	made(t, st, n, content)
	for _, list := range [][]schema.Step{steps("Decode", "Reverse", "Crop=64"), steps("Decode", "RandomRepeat")} {
		e := newEngine(t, st, withOperators(fetch.Options{WindowBytes: 256 << 20, NoHedge: true}))
		reads := countReads(st)
		req := schema.Request{Dataset: "d", Columns: []string{"image"}, Operators: schema.Operators{"image": {Steps: list}},
			Batch: 40, World: &schema.World{Mesh: "dp=2,tp=4"}, Shuffle: &schema.Shuffle{Seed: seed}}
		j := open(t, e, req)
		var running sync.WaitGroup
		var streams []*fetch.Stream
		for rank := range int(req.WorldSize()) {
			streams = append(streams, start(t, e, j, ticket(j.Request(), rank)))
		}
		for _, s := range streams {
			running.Go(func() {
				if err := madeBy(t, s, seed, list); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
		for _, s := range streams {
			s.Close()
		}
		if cells := e.Stats().Operators.Cells; cells != n {
			t.Errorf("%d cells were made of %d", cells, n)
		}
		if _, _, most := reads.of(t, j); most != 1 {
			t.Errorf("a blob was read %d times", most)
		}
	}
}

// In memory that does not hold what ranks that are apart want, each makes its own; streams that are left, and cells that
// cannot be made, keep no other waiting. All is given back in the end.
func TestRankGroupMakesInLittleMemory(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	st := newStore(t)
	const n = 120
	bad := map[int]bool{7: true, 50: true}
	made(t, st, n, func(i int) []byte {
		if bad[i] {
			return []byte(fmt.Sprintf("bad %d", i))
		}
		return content(i)
	})
	list := steps("Decode", "RandomRepeat")
	for round := range 8 {
		e := newEngine(t, st, withOperators(fetch.Options{WindowBytes: 48_000 << rng.IntN(4),
			Operators: operators.Options{Workers: 3}}))
		req := schema.Request{Dataset: "d", Columns: []string{"image"}, Operators: schema.Operators{"image": {Steps: list}},
			Batch: 24, World: &schema.World{Size: 4, Replicate: 4}, OnError: schema.OnErrorNull,
			Shuffle: &schema.Shuffle{Seed: rng.Uint64()}}
		j := open(t, e, req)
		var running sync.WaitGroup
		for rank := range 4 {
			leave := -1
			if rank == 1 {
				leave = rng.IntN(5)
			}
			running.Go(func() {
				s, err := e.Stream(t.Context(), j, ticket(j.Request(), rank))
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				rows, faults := 0, 0
				for k := 0; k != leave; k++ {
					b, err := s.Next()
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						t.Errorf("round %d, rank %d: %v", round, rank, err)
						return
					}
					rows, faults = rows+b.Rows, faults+len(b.Faults)
					b.Release()
				}
				if leave < 0 && (rows != n || faults != len(bad)) {
					t.Errorf("round %d, rank %d: %d rows with %d faults", round, rank, rows, faults)
				}
			})
		}
		running.Wait()
		if held := e.Stats(); held.RankGroupBytes != 0 || held.WindowUsed != 0 || held.Operators.Waiting != 0 {
			t.Errorf("%d bytes are held for ranks, %d in windows, and %d cells wait", held.RankGroupBytes, held.WindowUsed,
				held.Operators.Waiting)
		}
	}
}

// Where the store gives one rank a blob that it does not give another, only that rank's sample is null, and its digest
// says so.
func TestRankGroupFaults(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 90)
	e := newEngine(t, st, fetch.Options{})
	req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 30, Digest: true, OnError: schema.OnErrorNull,
		World: &schema.World{Size: 2, Replicate: 2}}
	j := open(t, e, req)
	gone, _ := refAt(t, j, 40)
	digests := func(rank int) (list []string) {
		s := start(t, e, j, ticket(j.Request(), rank))
		defer s.Close()
		for b := range batches(t, s) {
			list = append(list, b.Digest)
		}
		return list
	}
	st.inject(func(_ context.Context, ref schema.BlobRef) (func([]byte) []byte, error) {
		if ref == gone {
			return nil, schema.ErrNotFound
		}
		return nil, nil
	})
	one := digests(0)
	st.inject(nil)
	for step, two := range digests(1) {
		if (one[step] == two) != (step != 1) || two == "" {
			t.Errorf("step %d has the digests %q and %q", step, one[step], two)
		}
	}
}
