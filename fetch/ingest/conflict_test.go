package ingest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// other is a store in which another writer commits just before the first n commits.
type other struct {
	store.Store
	before func()
	n      atomic.Int32
}

type otherIngest struct {
	store.Ingest
	o *other
}

func (o *other) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	in, err := o.Store.Begin(ctx, dataset)
	return otherIngest{in, o}, err
}

func (i otherIngest) Commit(ctx context.Context, s schema.Snapshot) (*schema.Snapshot, error) {
	if i.o.n.Add(-1) >= 0 {
		i.o.before()
	}
	return i.Ingest.Commit(ctx, s)
}

func TestConflict(t *testing.T) {
	t.Run("append", func(t *testing.T) {
		store := openStore(t)
		mustWrite(t, store, Create, part{"train", 0, 10})
		next := 1000
		o := &other{Store: store, before: func() {
			mustWrite(t, store, Append, part{"val", next, next + 5})
			next += 5
		}}
		o.n.Store(2)
		snap := mustWrite(t, o, Append, part{"train", 10, 20})
		if snap.Number != 4 || snap.Parent != 3 {
			t.Errorf("snapshot %d on %d, want 4 on 3", snap.Number, snap.Parent)
		}
		same(t, contents(t, store, snap), want(part{"train", 0, 10}, part{"val", 1000, 1010}, part{"train", 10, 20}))
	})
	t.Run("append of what the other appends", func(t *testing.T) {
		store := openStore(t)
		mustWrite(t, store, Create, part{"train", 0, 10})
		o := &other{Store: store, before: func() { mustWrite(t, store, Append, part{"train", 15, 30}) }}
		o.n.Store(1)
		if _, _, err := write(t, o, Append, part{"train", 10, 20}); !errors.Is(err, schema.ErrInvalid) {
			t.Errorf("%v, want ErrInvalid", err)
		}
	})
	t.Run("create", func(t *testing.T) {
		store := openStore(t)
		o := &other{Store: store, before: func() { mustWrite(t, store, Create, part{"train", 0, 1}) }}
		o.n.Store(1)
		if _, _, err := write(t, o, Create, part{"train", 0, 10}); !errors.Is(err, schema.ErrExists) {
			t.Errorf("%v, want ErrExists", err)
		}
	})
	t.Run("without end", func(t *testing.T) {
		store := openStore(t)
		next := 0
		o := &other{Store: store, before: func() { mustWrite(t, store, Replace, part{"val", next, next + 1}); next++ }}
		o.n.Store(1000)
		if _, _, err := write(t, o, Replace, part{"train", 0, 10}); !errors.Is(err, schema.ErrConflict) {
			t.Errorf("%v, want ErrConflict", err)
		}
	})
}

// failing is a store whose nth put fails.
type failing struct {
	store.Store
	left atomic.Int64
}

var errDisk = errors.New("the disk is gone")

func (f *failing) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	in, err := f.Store.Begin(ctx, dataset)
	return failingIngest{in, f}, err
}

type failingIngest struct {
	store.Ingest
	f *failing
}

func (i failingIngest) Put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	if i.f.left.Add(-1) < 0 {
		return schema.BlobRef{}, errDisk
	}
	return i.Ingest.Put(ctx, data)
}

func TestFailingStore(t *testing.T) {
	for _, puts := range []int64{0, 1, 100, 166} { // of 100 images, 66 masks and a chunk
		store := openStore(t)
		f := &failing{Store: store}
		f.left.Store(puts)
		if _, _, err := write(t, f, Create, part{"train", 0, 100}); !errors.Is(err, errDisk) {
			t.Errorf("after %d puts: %v, want %v", puts, err, errDisk)
		}
		if list, err := store.Datasets(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("after %d puts: datasets %v, error %v, want none", puts, list, err)
		}
	}
}

func TestCancelled(t *testing.T) {
	store := openStore(t)
	w, err := New(t.Context(), store, Options{Dataset: "d", Schema: testSchema(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errDisk)
	r := makeRows(memory.DefaultAllocator, 0, 10)
	defer r.meta.Release()
	if err := w.Write(ctx, "train", r.ids, r.meta, r.blobs); !errors.Is(err, errDisk) {
		t.Errorf("%v, want the cause of the cancellation", err)
	}
}
