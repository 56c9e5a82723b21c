package protocol

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"bowstring/fetch/store"
	"bowstring/schema"
)

func open(t *testing.T) *Store {
	t.Helper()
	s := New(newMemory(), System(), Options{References: simReferences})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// commit commits a snapshot of nothing after parent.
func commit(t *testing.T, s *Store, dataset string, parent int64) {
	t.Helper()
	in, err := s.Begin(t.Context(), dataset)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Commit(t.Context(), schema.Snapshot{Schema: simSchema, Parent: parent}); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTags(t *testing.T) {
	s, ctx := open(t), t.Context()
	commit(t, s, "d", 0)
	commit(t, s, "d", 1)
	for _, step := range []struct {
		what string
		call func() error
		want error
		says string
	}{
		{"tag what is not there", func() error { return s.Tag(ctx, "d", "prod", 3) }, schema.ErrNotFound, "3"},
		{"tag in no dataset", func() error { return s.Tag(ctx, "e", "prod", 1) }, schema.ErrNotFound, "e"},
		{"tag by a number", func() error { return s.Tag(ctx, "d", "12", 1) }, schema.ErrInvalid, "12"},
		{"tag by no name", func() error { return s.Tag(ctx, "d", "a/b", 1) }, schema.ErrInvalid, "a/b"},
		{"tag", func() error { return s.Tag(ctx, "d", "prod", 1) }, nil, ""},
		{"tag again", func() error { return s.Tag(ctx, "d", "prod", 1) }, nil, ""},
		{"drop what is tagged", func() error { return s.Drop(ctx, "d", 1) }, schema.ErrInvalid, "d@1 has the tag prod"},
		{"drop all with what is tagged", func() error { return s.Drop(ctx, "d", 0) }, schema.ErrInvalid, "prod"},
		{"look for another tag", func() error {
			_, err := s.Tagged(ctx, "d", "test")
			return err
		}, schema.ErrNotFound, "prod"},
		{"move it", func() error { return s.Tag(ctx, "d", "prod", 2) }, nil, ""},
		{"drop what was tagged", func() error { return s.Drop(ctx, "d", 1) }, nil, ""},
		{"remove another", func() error { return s.Untag(ctx, "d", "test") }, schema.ErrNotFound, "prod"},
	} {
		err := step.call()
		if !errors.Is(err, step.want) || err != nil && !strings.Contains(err.Error(), step.says) {
			t.Errorf("%s: %v, want %v with %q", step.what, err, step.want, step.says)
		}
	}
	if number, err := s.Tagged(ctx, "d", "prod"); number != 2 || err != nil {
		t.Errorf("prod is %d (%v), want 2", number, err)
	}
	list, err := s.Datasets(ctx)
	if want := (store.Dataset{Name: "d", Snapshots: []int64{2},
		Tags: []store.Tag{{Name: "prod", Snapshot: 2}}}); err != nil ||
		len(list) != 1 || fmt.Sprint(list[0]) != fmt.Sprint(want) {
		t.Errorf("the datasets are %v (%v), want %v", list, err, want)
	}
	if names, err := s.Names(ctx); err != nil || fmt.Sprint(names) != "[d]" {
		t.Errorf("the datasets' names are %v (%v)", names, err)
	}
	if err := s.Untag(ctx, "d", "prod"); err != nil {
		t.Error(err)
	}
	if err := s.Drop(ctx, "d", 0); err != nil {
		t.Errorf("drop once the tag is gone: %v", err)
	}
}

// peeks counts reads of the catalog.
type peeks struct {
	Database
	n int
}

func (p *peeks) Peek(ctx context.Context, name string, rows ...string) (Partition, error) {
	p.n++
	return p.Database.Peek(ctx, name, rows...)
}

// TestOpeningIsOneRead: the newest snapshot, or the one with a tag, is found with one
// read of the catalog.
func TestOpeningIsOneRead(t *testing.T) {
	s := open(t)
	for n := range int64(3) {
		commit(t, s, "d", n)
	}
	db := &peeks{Database: s.db}
	s.db = db
	opens := func(what string, number int64, most int) {
		t.Helper()
		before := db.n
		snap, err := s.Snapshot(t.Context(), "d", 0)
		if err != nil || snap.Number != number || db.n-before != most {
			t.Errorf("%s: %+v (%v) with %d reads, want snapshot %d with %d", what, snap, err, db.n-before, number, most)
		}
	}
	opens("after commits", 3, 1)
	if err := s.Drop(t.Context(), "d", 3); err != nil {
		t.Fatal(err)
	}
	opens("after a drop", 2, 1)
	if err := s.Advance(t.Context(), "d", 7); err != nil {
		t.Fatal(err)
	}
	opens("after the numbers went on", 2, 1)
	// As a program leaves it that does not know of the row.
	err := s.update(t.Context(), "d", func(d *datasetState, e *edit) error {
		e.put(rowHead, head{Last: d.head.Last, Newest: d.head.Newest})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	opens("without the row", 2, 2)
	if err := s.Tag(t.Context(), "d", "prod", 2); err != nil {
		t.Fatal(err)
	}
	before := db.n
	if number, err := s.Tagged(t.Context(), "d", "prod"); number != 2 || err != nil || db.n != before+1 {
		t.Errorf("the tag is of %d (%v), with %d reads", number, err, db.n-before)
	}
}
