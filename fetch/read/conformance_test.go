package read_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/internal/readtest"
	"bowstring/schema"
	"bowstring/spill"
)

// gate blocks calls while it is closed.
type gate struct {
	mu     sync.Mutex
	closed chan struct{} // nil if open; guarded by mu
}

// hold closes the gate; the returned function opens it.
func (g *gate) hold() func() {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := make(chan struct{})
	g.closed = c
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.closed = nil
		close(c)
	})
}

func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	c := g.closed
	g.mu.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// gated is a store whose answers can be blocked.
type gated struct {
	store.Store
	gate gate
}

func (s *gated) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := s.gate.pass(ctx); err != nil {
		return schema.Blob{}, err
	}
	return s.Store.Get(ctx, ref)
}

func TestStoreConformance(t *testing.T) {
	readtest.Run(t, func(t testing.TB) readtest.Opener {
		return func() (readtest.Subject, error) {
			s, err := local.Open(t.TempDir(), local.Options{})
			if err != nil {
				return readtest.Subject{}, err
			}
			ctx := context.WithoutCancel(t.Context())
			in, err := s.Begin(ctx, "d")
			if err != nil {
				return readtest.Subject{}, errors.Join(err, s.Close())
			}
			g := &gated{Store: s}
			return readtest.Subject{
				Tier: read.Store(g), At: spill.Place{Dataset: 1}, Hang: g.gate.hold,
				Put:   func(ctx context.Context, data []byte) (schema.BlobRef, error) { return in.Put(ctx, data) },
				Close: func() error { return errors.Join(in.Close(), s.Close()) },
				Churn: func() error { // nothing refers to the ingest's blobs
					if err := in.Close(); err != nil {
						return err
					}
					report, err := s.GC(ctx, store.GCOptions{}, nil)
					if err == nil && report.DeadBlobs == 0 {
						err = errors.New("nothing was collected")
					}
					return err
				},
			}, nil
		}
	})
}

func TestSpillConformance(t *testing.T) {
	readtest.Run(t, func(t testing.TB) readtest.Opener {
		return func() (readtest.Subject, error) {
			dir := filepath.Join(t.TempDir(), "spill")
			const bytes = spill.MinBytes + (8 << 20)
			c, err := spill.Open(spill.Options{Dir: dir, Bytes: bytes, KeepFree: 1, Logger: quiet})
			if err != nil {
				return readtest.Subject{}, err
			}
			at := spill.Place{Dataset: c.Dataset("d@1"), Position: 3}
			return readtest.Subject{
				Tier: read.Spill(c), At: at, Close: c.Close,
				Put: func(_ context.Context, data []byte) (schema.BlobRef, error) {
					ref := schema.RefOf(data)
					if !c.Put(ref, at, 1e6, data) && !c.Has(ref) {
						return ref, fmt.Errorf("%d bytes were not stored", len(data))
					}
					return ref, nil
				},
				Churn: func() error {
					for i := range 300 {
						data := make([]byte, 100<<10)
						copy(data, fmt.Sprint("churn ", i))
						c.Put(schema.RefOf(data), at, 1e6, data)
					}
					c.Resize(spill.MinBytes)
					c.Resize(bytes)
					if c.Stats().Evicted == 0 {
						return errors.New("nothing was evicted")
					}
					return nil
				},
				Spoil: func() error { return overwrite(filepath.Join(dir, "*", "*.seg")) },
			}, nil
		}
	})
}

// overwrite writes zeros over files, except their first blocks.
func overwrite(pattern string) error {
	names, err := filepath.Glob(pattern)
	if err == nil && len(names) == 0 {
		err = errors.New("no file is " + pattern)
	}
	for _, name := range names {
		err = errors.Join(err, func() error {
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(make([]byte, 256<<10), 4<<10)
			return errors.Join(err, f.Close())
		}())
	}
	return err
}
