package fetch_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"bowstring/fetch"
	"bowstring/schema"
)

// A manifest that is read page by page, with memory for a few pages, gives the same rows, sizes and matches
// as one that is read whole.
func TestManifestReadWhenWanted(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := newStore(t)
	putPages(t, s, "d", 900, 8)
	whole := newEngine(t, s, fetch.Options{})
	lazy := fetch.Options{Resident: -1}
	lazy.Memory.Manifests = 40_000
	some := newEngine(t, s, lazy)
	for range 30 {
		req := schema.Request{
			Dataset: "d", Split: []string{"", "train", "val"}[rng.IntN(3)],
			Where:     []string{"", "label < 3", "name endsWith '7' and image.size > 100"}[rng.IntN(3)],
			Columns:   [][]string{nil, {"id", "label"}, {"image"}, {"label", "position"}}[rng.IntN(4)],
			Batch:     1 + rng.Int64N(300),
			Remainder: []string{schema.RemainderDrop, schema.RemainderPad, schema.RemainderUneven}[rng.IntN(3)],
		}
		if rng.IntN(2) == 0 {
			req.Shuffle = &schema.Shuffle{Seed: rng.Uint64()}
		}
		a, b := open(t, whole, req), open(t, some, req)
		if !a.Manifest().Resident() || b.Manifest().Resident() {
			t.Fatal("the wrong one was read whole")
		}
		if a, b := a.Plan().Rows(), b.Plan().Rows(); a != b {
			t.Fatalf("%+v: %d rows, want %d", req, b, a)
		}
		want, got := must(whole.TotalBytes(t.Context(), a)), must(some.TotalBytes(t.Context(), b))
		if got != want {
			t.Errorf("%+v: %d bytes, want %d", req, got, want)
		}
		if a, b := drain(t, whole, a, ticket(req, 0)), drain(t, some, b, ticket(req, 0)); !slices.Equal(a.positions,
			b.positions) {
			t.Errorf("%+v: positions %v, want %v", req, b.positions, a.positions)
		}
	}
}

// A page that is lost ends a stream that needs it with an error that names it, whether it reads blobs or not.
func TestLostPageEndsAStream(t *testing.T) {
	s := newStore(t)
	snap := putPages(t, s, "d", 200, 8)
	e := newEngine(t, s, fetch.Options{Resident: -1})
	index := must(s.Get(t.Context(), snap.Chunks[0].BlobRef))
	pages := must(snap.Chunks[0].OpenIndex(index.Bytes()))
	index.Release()
	lost := pages[5].BlobRef // positions 40 to 47
	s.inject(func(_ context.Context, ref schema.BlobRef) (func([]byte) []byte, error) {
		if ref == lost {
			return func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, nil
		}
		return nil, nil
	})
	for _, columns := range [][]string{nil, {"label"}} {
		j := open(t, e, schema.Request{Dataset: "d", Columns: columns, Batch: 16})
		st := start(t, e, j, ticket(j.Request(), 0))
		var err error
		for err == nil {
			var b *fetch.Batch
			if b, err = st.Next(); err == nil {
				compare(t, j, b)
				b.Release()
			}
		}
		if errors.Is(err, io.EOF) || !errors.Is(err, schema.ErrDataLoss) {
			t.Errorf("columns %v: %v; want a data loss", columns, err)
		}
		st.Close()
	}
}

// A stream that frees blobs for another one keeps the rows of the manifest that it has looked up.
func TestGivingBackKeepsLookups(t *testing.T) {
	st := newStore(t)
	const n = 600
	snap := putPages(t, st, "d", n, 1) // a page for each row
	pages := map[schema.Key]bool{}
	for _, c := range snap.Chunks {
		index := must(st.Get(t.Context(), c.BlobRef))
		for _, p := range must(c.OpenIndex(index.Bytes())) {
			pages[p.Key] = true
		}
		index.Release()
	}
	synctest.Test(t, func(t *testing.T) {
		opts := fetch.Options{WindowBytes: 30_000, Resident: -1, Logger: quiet}
		opts.Memory.Manifests = 40_000
		e := must(fetch.NewEngine(st, opts))
		var reads atomic.Int64
		st.inject(func(_ context.Context, ref schema.BlobRef) (func([]byte) []byte, error) {
			if pages[ref.Key] {
				reads.Add(1)
			}
			return nil, nil
		})
		begin := func(seed uint64) (*fetch.Job, *fetch.Stream) {
			req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 10,
				Shuffle: &schema.Shuffle{Seed: seed}}
			j := resolve(t, e, req)
			return j, start(t, e, j, ticket(req, 0))
		}
		rows := func(s *fetch.Stream) (rows int) {
			for b := range batches(t, s) {
				rows += len(b.Positions)
			}
			return rows
		}
		j1, first := begin(1)
		batch := must(first.Next())
		served := len(batch.Positions)
		batch.Release()
		synctest.Wait() // it has read ahead what there is room for
		j2, second := begin(2)
		if got := rows(second); got != n {
			t.Errorf("%d rows with an idle stream, want %d", got, n)
		}
		if got := rows(first); got != n-served {
			t.Errorf("%d rows are left of the idle stream, want %d", got, n-served)
		}
		if got := reads.Load(); got > 2*n {
			t.Errorf("%d pages were read for two streams of %d rows", got, n)
		}
		st.inject(nil)
		first.Close()
		second.Close()
		j1.Close()
		j2.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}
