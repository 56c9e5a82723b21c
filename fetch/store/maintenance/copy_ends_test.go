package maintenance_test

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"sync"
	"testing"

	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/fetch/store/maintenance"
	"bowstring/schema"
)

var errDead = errors.New("the process is dead")

// mortal is a target whose process dies after a number of steps: later steps have no
// effect. If late is set, the last step has one, but its caller gets no answer.
type mortal struct {
	*local.Store
	left int
	late bool
}

// step says whether the next step is made, and whether anybody hears of it.
func (s *mortal) step(f func() error) error {
	s.left--
	switch {
	case s.left > 0:
		return f()
	case s.left == 0 && s.late:
		_ = f() // as said
	}
	return errDead
}

type mortalIngest struct {
	store.Ingest
	s *mortal
}

func (s *mortal) Begin(ctx context.Context, dataset string) (in store.Ingest, err error) {
	err = s.step(func() error {
		in, err = s.Store.Begin(ctx, dataset)
		return err
	})
	if err != nil {
		if in != nil {
			_ = in.Close() // its registration lapses
		}
		return nil, err
	}
	return &mortalIngest{in, s}, nil
}

func (in *mortalIngest) Put(ctx context.Context, data []byte) (ref schema.BlobRef, err error) {
	err = in.s.step(func() error {
		ref, err = in.Ingest.Put(ctx, data)
		return err
	})
	return ref, err
}

func (in *mortalIngest) Restore(ctx context.Context, snap schema.Snapshot) error {
	return in.s.step(func() error { return in.Ingest.Restore(ctx, snap) })
}

func (in *mortalIngest) SaveSelection(ctx context.Context, sel schema.Selection) error {
	return in.s.step(func() error { return in.Ingest.SaveSelection(ctx, sel) })
}

func (s *mortal) Tag(ctx context.Context, dataset, name string, number int64) error {
	return s.step(func() error { return s.Store.Tag(ctx, dataset, name, number) })
}

func (s *mortal) Advance(ctx context.Context, dataset string, last int64) error {
	return s.step(func() error { return s.Store.Advance(ctx, dataset, last) })
}

// TestCopyEndsAnywhere: whichever step of a copy or restore is the last of its process, the same command makes all
// of it: rows, numbers, tags, selections, and the number that comes next.
func TestCopyEndsAnywhere(t *testing.T) {
	from := open(t, filepath.Join(t.TempDir(), "from"))
	rows := blobs(6, 5)
	for i := range 3 {
		selectRows(t, from, commit(t, from, "d", rows[:2+i]), []byte{byte(i)})
	}
	must(t, from.Drop(t.Context(), "d", 3))
	must(t, from.Tag(t.Context(), "d", "prod", 1))
	must(t, from.Tag(t.Context(), "d", "best", 2))
	snaps, err := maintenance.Snapshots(t.Context(), from, nil)
	must(t, err)
	opts := maintenance.CopyOptions{Selections: true, Numbers: true, Workers: 1}
	steps := 0
	for done := false; !done; {
		steps++
		for _, late := range []bool{false, true} {
			to := open(t, filepath.Join(t.TempDir(), "to"))
			_, err := maintenance.Copy(t.Context(), from, &mortal{to, steps, late}, snaps, opts)
			if err != nil && !errors.Is(err, errDead) {
				t.Fatalf("ended at step %d: %v", steps, err)
			}
			done = err == nil
			_, err = maintenance.Copy(t.Context(), from, to, snaps, opts)
			must(t, err)
			requireSame(t, from, to, "d")
			was, err := from.Datasets(t.Context())
			must(t, err)
			is, err := to.Datasets(t.Context())
			must(t, err)
			selections, err := to.Selections(t.Context(), "d")
			must(t, err)
			last, err := to.LastNumber(t.Context(), "d")
			must(t, err)
			if !reflect.DeepEqual(is, was) || len(selections) != 2 || last != 3 {
				t.Errorf("ended at step %d, %t: %+v with %d selections, and numbers to %d; want %+v", steps, late, is,
					len(selections), last, was)
			}
		}
	}
	if steps < 15 {
		t.Errorf("there are %d steps", steps)
	}
}

// hooked is a source of which a read has something else happen first, once.
type hooked struct {
	*local.Store
	once sync.Once
	hook func()
}

func (s *hooked) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	s.once.Do(s.hook)
	return s.Store.Get(ctx, ref)
}

// TestCopyTwiceAtOnce: of two copies of the same to the same target, the one that comes later finds it there.
func TestCopyTwiceAtOnce(t *testing.T) {
	from, to := open(t, filepath.Join(t.TempDir(), "from")), open(t, filepath.Join(t.TempDir(), "to"))
	rows := blobs(7, 6)
	commit(t, from, "d", rows[:3])
	selectRows(t, from, commit(t, from, "d", rows), []byte("some"))
	must(t, from.Tag(t.Context(), "d", "prod", 1))
	snaps, err := maintenance.Snapshots(t.Context(), from, nil)
	must(t, err)
	opts := maintenance.CopyOptions{Selections: true, Numbers: true}
	src := &hooked{Store: from, hook: func() {
		_, err := maintenance.Copy(t.Context(), from, to, snaps, opts)
		must(t, err)
	}}
	done, err := maintenance.Copy(t.Context(), src, to, snaps, opts)
	must(t, err)
	if !done.Snapshots[0].There || !done.Snapshots[1].There {
		t.Errorf("copied %s", asJSON(t, done))
	}
	requireSame(t, from, to, "d")
	// Another one with that number is a conflict still.
	other := open(t, filepath.Join(t.TempDir(), "other"))
	src = &hooked{Store: from, hook: func() { commit(t, other, "d", rows[:1]) }}
	if _, err := maintenance.Copy(t.Context(), src, other, snaps, opts); !errors.Is(err, schema.ErrConflict) {
		t.Errorf("another import at the same time: %v", err)
	}
}
