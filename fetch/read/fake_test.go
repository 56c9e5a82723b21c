package read_test

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// blobs is how many blobs fakes have.
const blobs = 300

// fake is a tier, and a store for read.Store, that has all blobs, runs the test's functions, and counts.
type fake struct {
	store.Store // nil: only the methods below are called

	traits read.Traits
	has    func(schema.BlobRef) bool // nil: all
	// do is called before the n-th Get, counted from 0, returns its bytes; an error that it returns is returned. nil:
	// nothing is called.
	do func(ctx context.Context, n int64, data []byte) ([]byte, error)

	known map[schema.Key][]byte
	gets  atomic.Int64
	out   atomic.Int64 // blobs that are not released
}

// newFake returns a fake. The test has to release all of its blobs.
func newFake(t testing.TB) *fake {
	f := &fake{known: map[schema.Key][]byte{}}
	for i := range blobs {
		data, ref := content(i)
		f.known[ref.Key] = data
	}
	t.Cleanup(func() {
		if n := f.out.Load(); n != 0 {
			t.Errorf("%d blobs are out", n)
		}
	})
	return f
}

func (f *fake) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	n := f.gets.Add(1) - 1
	data, ok := f.known[ref.Key]
	if !ok {
		return schema.Blob{}, fmt.Errorf("%w: no blob %s", schema.ErrNotFound, ref.Key)
	}
	data = bytes.Clone(data)
	if f.do != nil {
		var err error
		if data, err = f.do(ctx, n, data); err != nil {
			return schema.Blob{}, err
		}
	}
	f.out.Add(1)
	return schema.NewBlob(data, &pinned{f, data}), nil
}

// Traits is for read.Store.
func (f *fake) Traits() store.Traits { return store.Traits{Replicas: 1} }

// Where names no place.
func (f *fake) Where() string { return "" }

// pinned is the owner of a blob of a fake.
type pinned struct {
	fake *fake
	data []byte
}

func (l *pinned) Unpin() {
	clear(l.data) // so that a use after the release is found
	l.fake.out.Add(-1)
}

// peer is the remote tier of a fake.
type peer struct{ *fake }

func (p peer) Name() string        { return "peer" }
func (p peer) Traits() read.Traits { return p.traits }

func (p peer) Has(ref schema.BlobRef) bool { return p.has == nil || p.has(ref) }

func (p peer) Fetch(cells []read.Cell, to read.Answers) {
	read.Each(cells, to, func(c *read.Cell) (a read.Answer) {
		a.Blob, a.Err = p.Get(c.Context, c.Ref)
		return a
	})
}

// hang waits until the read is over.
func hang(ctx context.Context, _ int64, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// requireBlob requires that a blob is right and from a given tier, and releases it.
func requireBlob(t testing.TB, o read.Outcome, i, tier int) {
	t.Helper()
	data, _ := content(i)
	if o.Err != nil || o.Tier != tier || !bytes.Equal(o.Blob.Bytes(), data) {
		t.Errorf("blob %d: %d bytes of tier %d, error %v; want %d of tier %d", i, len(o.Blob.Bytes()), o.Tier, o.Err,
			len(data), tier)
	}
	o.Blob.Release()
}
