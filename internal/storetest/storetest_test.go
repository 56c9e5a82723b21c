package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/internal/leaktest"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// broken is a good store with one fault added.
type broken struct {
	store.Store
	snapshot  func(*schema.Snapshot, error) (*schema.Snapshot, error)
	get       func(schema.BlobRef, schema.Blob, error) (schema.Blob, error)
	put       func(store.Ingest, context.Context, []byte) (schema.BlobRef, error)
	commit    func(store.Ingest, context.Context, schema.Snapshot) (*schema.Snapshot, error)
	gc        func(context.Context, store.GCOptions, func() []*schema.Snapshot) (store.GCReport, error)
	drop      func(context.Context, string, int64) error
	selection func(store.Ingest, schema.Selection) error
	stats     func(store.Stats) store.Stats
}

type brokenIngest struct {
	store.Ingest
	s *broken
}

func (s *broken) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	snap, err := s.Store.Snapshot(ctx, dataset, number)
	if s.snapshot != nil {
		return s.snapshot(snap, err)
	}
	return snap, err
}

func (s *broken) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	b, err := s.Store.Get(ctx, ref)
	if s.get != nil {
		return s.get(ref, b, err)
	}
	return b, err
}

func (s *broken) GC(ctx context.Context, opts store.GCOptions,
	inUse func() []*schema.Snapshot) (store.GCReport, error) {
	if s.gc != nil {
		return s.gc(ctx, opts, inUse)
	}
	return s.Store.GC(ctx, opts, inUse)
}

func (s *broken) Drop(ctx context.Context, dataset string, number int64) error {
	if s.drop != nil {
		return s.drop(ctx, dataset, number)
	}
	return s.Store.Drop(ctx, dataset, number)
}

func (s *broken) Stats() store.Stats {
	st := s.Store.Stats()
	if s.stats != nil {
		return s.stats(st)
	}
	return st
}

func (s *broken) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	in, err := s.Store.Begin(ctx, dataset)
	if err != nil {
		return nil, err
	}
	return &brokenIngest{in, s}, nil
}

func (in *brokenIngest) SaveSelection(ctx context.Context, sel schema.Selection) error {
	if in.s.selection != nil {
		return in.s.selection(in.Ingest, sel)
	}
	return in.Ingest.SaveSelection(ctx, sel)
}

func (in *brokenIngest) Put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	if in.s.put != nil {
		return in.s.put(in.Ingest, ctx, data)
	}
	return in.Ingest.Put(ctx, data)
}

func (in *brokenIngest) Commit(ctx context.Context, snap schema.Snapshot) (*schema.Snapshot, error) {
	if in.s.commit != nil {
		return in.s.commit(in.Ingest, ctx, snap)
	}
	return in.Ingest.Commit(ctx, snap)
}

// TestFindsFaults adds faults to a good store: the suite must find each, in its own case.
func TestFindsFaults(t *testing.T) {
	faults := map[string]struct {
		found string // a case that must fail
		make  func(*broken)
	}{
		"loses commits": {"commit and read back", func(s *broken) {
			s.commit = func(_ store.Ingest, _ context.Context, snap schema.Snapshot) (*schema.Snapshot, error) {
				snap.Dataset, snap.Number, snap.Created = "flowers", 1, time.Now()
				return &snap, nil
			}
		}},
		"commits whatever the parent": {"conflict", func(s *broken) {
			s.commit = func(in store.Ingest, ctx context.Context, snap schema.Snapshot) (*schema.Snapshot, error) {
				for snap.Parent = 0; ; snap.Parent++ {
					if got, err := in.Commit(ctx, snap); !errors.Is(err, schema.ErrConflict) {
						return got, err
					}
				}
			}
		}},
		"flips a bit": {"blob sizes", func(s *broken) {
			s.get = func(_ schema.BlobRef, b schema.Blob, err error) (schema.Blob, error) {
				if err != nil || len(b.Bytes()) < 100 {
					return b, err
				}
				changed := bytes.Clone(b.Bytes())
				changed[50] ^= 1
				b.Release()
				return schema.NewBlob(changed, nil), nil
			}
		}},
		"keeps the argument of put": {"put keeps nothing of its argument", func(s *broken) {
			var kept []byte
			s.put = func(in store.Ingest, ctx context.Context, data []byte) (schema.BlobRef, error) {
				kept = data
				return in.Put(ctx, data)
			}
			s.get = func(_ schema.BlobRef, b schema.Blob, _ error) (schema.Blob, error) {
				b.Release()
				return schema.NewBlob(kept, nil), nil
			}
		}},
		"says not found for nothing": {"empty store", func(s *broken) {
			s.get = func(_ schema.BlobRef, b schema.Blob, _ error) (schema.Blob, error) { return b, nil }
		}},
		"forgets whose snapshot": {"commit and read back", func(s *broken) {
			s.snapshot = func(snap *schema.Snapshot, err error) (*schema.Snapshot, error) {
				if err != nil {
					return nil, schema.ErrNotFound
				}
				return snap, nil
			}
		}},
		"counts wrong": {"dedup", func(s *broken) {
			s.stats = func(st store.Stats) store.Stats { st.BlobDedups /= 2; return st }
		}},
		"does not drop": {"drop", func(s *broken) {
			s.drop = func(context.Context, string, int64) error { return nil }
		}},
		"collects nothing": {"gc frees what is dead", func(s *broken) {
			s.gc = func(_ context.Context, _ store.GCOptions, inUse func() []*schema.Snapshot) (store.GCReport, error) {
				inUse()
				return store.GCReport{}, nil
			}
		}},
		"collects in a dry run": {"gc dry run", func(s *broken) {
			s.gc = func(ctx context.Context, _ store.GCOptions, inUse func() []*schema.Snapshot) (store.GCReport,
				error) {
				return s.Store.GC(ctx, store.GCOptions{}, inUse)
			}
		}},
		"collects what is in use": {"gc spares snapshots in use", func(s *broken) {
			s.gc = func(ctx context.Context, opts store.GCOptions, inUse func() []*schema.Snapshot) (store.GCReport,
				error) {
				inUse()
				return s.Store.GC(ctx, opts, nil)
			}
		}},
		"does not save selections": {"selections", func(s *broken) {
			s.selection = func(store.Ingest, schema.Selection) error { return nil }
		}},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			cases := storetest.Cases()
			i := slices.IndexFunc(cases, func(c storetest.Case) bool { return c.Name == fault.found })
			if i < 0 {
				t.Fatalf("there is no case %q", fault.found)
			}
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := cases[i].Check(ctx, func() (store.Store, error) {
				s, err := local.Open(dir, local.Options{})
				if err != nil {
					return nil, err
				}
				b := &broken{Store: s}
				fault.make(b)
				return b, nil
			})
			if err == nil {
				t.Fatalf("the case %q passes", fault.found)
			}
			t.Log(err)
		})
	}
	t.Run("no fault", func(t *testing.T) {
		storetest.Run(t, func(t testing.TB) storetest.Opener {
			dir := t.TempDir()
			return func() (store.Store, error) {
				s, err := local.Open(dir, local.Options{})
				if err != nil {
					return nil, fmt.Errorf("wrapped: %w", err)
				}
				return &broken{Store: s}, nil
			}
		})
	})
}
