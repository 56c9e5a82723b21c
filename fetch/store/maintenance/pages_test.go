package maintenance_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"bowstring/fetch/store"
	"bowstring/fetch/store/maintenance"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// once is a store that lacks a blob the first time it is asked for it.
type once struct {
	store.Store
	key  schema.Key
	seen bool
}

func (o *once) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if ref.Key == o.key && !o.seen {
		o.seen = true
		return schema.Blob{}, fmt.Errorf("%w: a replica that is behind", schema.ErrNotFound)
	}
	return o.Store.Get(ctx, ref)
}

// An index that cannot be read at one moment and can be at the next is no reason to
// leave the pages out that it lists.
func TestCopyOfAnIndexThatWasAway(t *testing.T) {
	from := open(t, filepath.Join(t.TempDir(), "from"))
	to := open(t, filepath.Join(t.TempDir(), "to"))
	snap := commit(t, from, "d", blobs(3, 120))
	src := &once{Store: from, key: snap.Chunks[1].Key}
	done, err := maintenance.Copy(t.Context(), src, to, []*schema.Snapshot{snap}, maintenance.CopyOptions{})
	made, gone := to.Snapshot(t.Context(), "d", 0)
	if !errors.Is(gone, schema.ErrNotFound) {
		t.Fatalf("committed: %v, %v", made, gone)
	}
	if !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := maintenance.Copy(t.Context(), src, to, []*schema.Snapshot{snap}, maintenance.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if made, err = to.Snapshot(t.Context(), "d", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := storetest.Read(t.Context(), to, made); err != nil {
		t.Errorf("the copy cannot be read: %v", err)
	}
}

// A damaged index hides which pages there are, until it has been repaired.
func TestIndexAndPageAreRepaired(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "from")
	s := open(t, dir)
	snap := commit(t, s, "d", blobs(3, 120))
	to := open(t, filepath.Join(t.TempDir(), "to"))
	_, err := maintenance.Copy(t.Context(), s, to, []*schema.Snapshot{snap}, maintenance.CopyOptions{})
	must(t, err)
	c := snap.Chunks[1]
	b, err := s.Get(t.Context(), c.BlobRef)
	must(t, err)
	pages, err := c.OpenIndex(b.Bytes())
	must(t, err)
	b.Release()
	must(t, s.Close())
	damage(t, dir, c.Key, pages[0].Key)
	s = open(t, dir)
	resume := filepath.Join(filepath.Dir(dir), "resume")
	got, err := maintenance.Verify(t.Context(), scopeOf(t, s, 0), maintenance.VerifyOptions{Resume: resume, Repair: s,
		Elsewhere: []maintenance.Place{{Name: "copy", Get: to.Get}}})
	if err != nil || len(got.Damaged) != 2 || got.Repaired != 2 || got.Lasting() != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = maintenance.Verify(t.Context(), scopeOf(t, s, 0), maintenance.VerifyOptions{}); err != nil ||
		len(got.Damaged) != 0 {
		t.Errorf("after the repair: %+v, %v", got, err)
	}
}

// everyPage lists the manifest chunks and their pages.
func everyPage(t *testing.T, scope maintenance.Scope) ([]schema.BlobRef, error) {
	t.Helper()
	pages, err := scope.Pages(t.Context(), nil)
	return append(scope.Chunks(), pages...), err
}
