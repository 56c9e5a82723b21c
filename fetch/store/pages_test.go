package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// listed is a made-up snapshot whose chunks list their pages.
type listed struct {
	snap  *schema.Snapshot
	blobs map[schema.Key][]byte
	ids   []schema.ID

	mu   sync.Mutex
	pins int // guarded by mu
	busy int // reads on their way; guarded by mu
	most int // of them; guarded by mu
}

func (l *listed) put(b []byte) schema.BlobRef {
	ref := schema.RefOf(b)
	l.blobs[ref.Key] = b
	return ref
}

func newListed(t *testing.T, rows, pageRows, chunkPages int) *listed {
	t.Helper()
	s, err := schema.NewSchema(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := &listed{snap: &schema.Snapshot{Dataset: "d", Number: 1, Schema: s}, blobs: map[schema.Key][]byte{}}
	b := schema.NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	var pages schema.PageList
	for i := range rows {
		id := schema.SampleID("d", fmt.Sprint(i))
		l.ids = append(l.ids, id)
		if err := b.Append(id, nil, 0, nil); err != nil {
			t.Fatal(err)
		}
		if b.Rows() == pageRows || i == rows-1 {
			data, c, err := b.Finish()
			if err != nil {
				t.Fatal(err)
			}
			c.BlobRef = l.put(data)
			pages.Add(c)
		}
		if pages.Len() == chunkPages || i == rows-1 && pages.Len() > 0 {
			data, c := pages.Finish()
			if data != nil {
				c.BlobRef = l.put(data)
			}
			l.snap.Chunks = append(l.snap.Chunks, c)
		}
	}
	return l
}

// Unpin implements schema.Owner.
func (l *listed) Unpin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pins--
}

func (l *listed) get(_ context.Context, ref schema.BlobRef) (schema.Blob, error) {
	b, ok := l.blobs[ref.Key]
	if !ok {
		return schema.Blob{}, fmt.Errorf("%w: no blob %s", schema.ErrNotFound, ref.Key)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pins++
	return schema.NewBlob(b, l), nil
}

// Pages come in order, all of them, whatever of them is read first.
func TestEachPage(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		l := newListed(t, rng.IntN(500), 1+rng.IntN(5), 1+rng.IntN(20))
		var got []schema.ID
		err := store.EachPage(t.Context(), l.snap, l.snap.Chunks, l.get,
			func(page schema.Chunk, rows *schema.Manifest) error {
				if rows.Rows() != page.Rows {
					t.Errorf("%d rows of a page of %d", rows.Rows(), page.Rows)
				}
				for pos := range rows.Rows() {
					got = append(got, rows.ID(pos))
				}
				return nil
			})
		if err != nil || !slices.Equal(got, l.ids) {
			t.Fatalf("%d rows, want %d: %v", len(got), len(l.ids), err)
		}
		if l.pins != 0 {
			t.Fatalf("%d blobs were not released", l.pins)
		}
	}
}

// Pages are on their way while one is waited for, and no more than there may be.
func TestEachPagePrefetches(t *testing.T) {
	l := newListed(t, 500, 1, 50)
	const together = 40
	came := make(chan struct{}, 1000)
	all := make(chan struct{})
	go func() {
		for range together {
			<-came
		}
		close(all)
	}()
	get := func(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
		l.mu.Lock()
		l.busy++
		l.most = max(l.most, l.busy)
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			l.busy--
			l.mu.Unlock()
		}()
		if slices.ContainsFunc(l.snap.Chunks, func(c schema.Chunk) bool { return c.Key == ref.Key }) {
			return l.get(ctx, ref)
		}
		came <- struct{}{}
		select {
		case <-all: // that many wait at the same time
		case <-ctx.Done():
			return schema.Blob{}, context.Cause(ctx)
		}
		return l.get(ctx, ref)
	}
	n := 0
	err := store.EachPage(t.Context(), l.snap, l.snap.Chunks, get, func(schema.Chunk, *schema.Manifest) error {
		n++
		return nil
	})
	if err != nil || n != 500 {
		t.Errorf("%d pages: %v", n, err)
	}
	if l.most > 100 {
		t.Errorf("%d reads at the same time", l.most)
	}
}

// The error is that of the first page that fails, and nothing is kept.
func TestEachPageFails(t *testing.T) {
	l := newListed(t, 400, 1, 16)
	index, err := l.get(t.Context(), l.snap.Chunks[3].BlobRef)
	if err != nil {
		t.Fatal(err)
	}
	lost, err := l.snap.Chunks[3].OpenIndex(index.Bytes())
	index.Release()
	if err != nil {
		t.Fatal(err)
	}
	count := func(fail func(n int) error) (n int, err error) {
		err = store.EachPage(t.Context(), l.snap, l.snap.Chunks, l.get, func(schema.Chunk, *schema.Manifest) error {
			n++
			return fail(n)
		})
		return n, err
	}
	enough := errors.New("enough")
	if n, err := count(func(n int) error {
		if n == 7 {
			return enough
		}
		return nil
	}); n != 7 || !errors.Is(err, enough) {
		t.Errorf("%d pages, %v", n, err)
	}
	delete(l.blobs, lost[2].Key)
	delete(l.blobs, lost[9].Key)
	if n, err := count(func(int) error { return nil }); n != 50 || !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("a page that is lost: %d pages, %v", n, err)
	}
	delete(l.blobs, l.snap.Chunks[1].Key)
	if n, err := count(func(int) error { return nil }); n != 16 || !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("a list that is lost: %d pages, %v", n, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	err = store.EachPage(ctx, l.snap, l.snap.Chunks, l.get, func(schema.Chunk, *schema.Manifest) error {
		cancel(enough)
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("ended by its visit: %v", err)
	}
	if l.pins != 0 {
		t.Errorf("%d blobs were not released", l.pins)
	}
}
