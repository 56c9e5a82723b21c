package maintenance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/fetch/store/maintenance"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// requireSame requires that two stores have the same snapshots, byte for byte.
func requireSame(t *testing.T, a, b store.Store, dataset string) {
	t.Helper()
	x, err := maintenance.Snapshots(t.Context(), a, []maintenance.Name{{Dataset: dataset}})
	must(t, err)
	y, err := maintenance.Snapshots(t.Context(), b, []maintenance.Name{{Dataset: dataset}})
	must(t, err)
	if asJSON(t, x) != asJSON(t, y) {
		t.Fatalf("the snapshots differ:\n%s\n%s", asJSON(t, x), asJSON(t, y))
	}
	for i := range x {
		rows, err := storetest.Read(t.Context(), a, x[i])
		must(t, err)
		others, err := storetest.Read(t.Context(), b, y[i])
		must(t, err)
		if !slices.EqualFunc(rows, others, bytes.Equal) {
			t.Fatalf("the rows of %s@%d differ", dataset, x[i].Number)
		}
	}
}

func TestCopyGoesOnWhereItWas(t *testing.T) {
	from := open(t, filepath.Join(t.TempDir(), "from"))
	rows := blobs(3, 120)
	commit(t, from, "d", rows[:1])
	commit(t, from, "d", rows[:80])
	newest := commit(t, from, "d", rows)
	must(t, from.Drop(t.Context(), "d", 1))
	sel := selectRows(t, from, newest, []byte("some rows"))
	dir := filepath.Join(t.TempDir(), "to")
	snaps, err := maintenance.Snapshots(t.Context(), from, []maintenance.Name{{Dataset: "d"}})
	must(t, err)
	var sent int64
	stops := 0
	for {
		to, err := local.Open(dir, local.Options{SegmentBytes: 256 << 10, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		src := &counting{Store: from, left: 25, stop: stop, read: map[schema.Key]int{}}
		done, err := maintenance.Copy(ctx, src, to, snaps, maintenance.CopyOptions{Workers: 1, Selections: true})
		sent += done.Sent
		stop()
		must(t, to.Close())
		if err == nil {
			if done.Selections != 1 || len(done.Snapshots) != 2 {
				t.Errorf("copied %s", asJSON(t, done))
			}
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if stops++; stops > 200 {
			t.Fatal("it never comes to its end")
		}
	}
	scope := scopeOf(t, from, 0)
	chunks, err := everyPage(t, scope)
	must(t, err)
	if want := int64(120 + len(chunks) + 1); stops < 10 || sent != want {
		t.Errorf("stopped %d times; %d blobs were sent, want %d", stops, sent, want)
	}
	to := open(t, dir)
	requireSame(t, from, to, "d")
	got, err := to.Selection(t.Context(), "d", sel.Name())
	must(t, err)
	if asJSON(t, got) != asJSON(t, sel) {
		t.Errorf("selection %s, want %s", asJSON(t, got), asJSON(t, sel))
	}
	// Once more there is nothing to do.
	done, err := maintenance.Copy(t.Context(), from, to, snaps, maintenance.CopyOptions{Selections: true})
	if err != nil || done.Sent != 0 || !done.Snapshots[0].There {
		t.Errorf("again: %s, %v", asJSON(t, done), err)
	}
	// The next import goes on from there in both.
	a, b := commit(t, from, "d", rows[:3]), commit(t, to, "d", rows[:3])
	if a.Number != 4 || b.Number != 4 || b.Parent != 3 {
		t.Errorf("the next snapshots are %d and %d, of parent %d", a.Number, b.Number, b.Parent)
	}
}

func TestCopyConflicts(t *testing.T) {
	from, to := open(t, filepath.Join(t.TempDir(), "from")), open(t, filepath.Join(t.TempDir(), "to"))
	rows := blobs(4, 20)
	commit(t, from, "d", rows)
	two := commit(t, from, "d", rows[:10])
	commit(t, to, "d", rows[:5])
	for _, tt := range []struct {
		name maintenance.Name
		want string
	}{
		{maintenance.Name{Dataset: "d", Number: 1},
			`conflict: the target has another snapshot d@1, of 5 rows from "storetest": drop what is there, ` +
				`take another store, or copy it as the next snapshot with --renumber`},
		{maintenance.Name{Dataset: "d", Number: 2}, ""},
	} {
		snaps, err := maintenance.Snapshots(t.Context(), from, []maintenance.Name{tt.name})
		must(t, err)
		_, err = maintenance.Copy(t.Context(), from, to, snaps, maintenance.CopyOptions{})
		if tt.want == "" {
			must(t, err)
		} else if !errors.Is(err, schema.ErrConflict) || err.Error() != tt.want {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	// A number that was dropped is not given out again.
	must(t, to.Drop(t.Context(), "d", 1))
	must(t, to.Drop(t.Context(), "d", 2))
	_, err := maintenance.Copy(t.Context(), from, to, []*schema.Snapshot{two}, maintenance.CopyOptions{})
	if !errors.Is(err, schema.ErrConflict) {
		t.Errorf("a number that was dropped: %v", err)
	}
	done, err := maintenance.Copy(t.Context(), from, to, []*schema.Snapshot{two}, maintenance.CopyOptions{Renumber: true})
	must(t, err)
	if as := done.Snapshots[0].As; as != 3 {
		t.Errorf("renumbered %d", as)
	}
	got, err := to.Snapshot(t.Context(), "d", 3)
	must(t, err)
	if asJSON(t, got.Chunks) != asJSON(t, two.Chunks) || got.Parent != 0 {
		t.Errorf("renumbered: %s", asJSON(t, got))
	}
}

func TestCopyRefusesDamage(t *testing.T) {
	dir, _, _ := spoiled(t)
	from, to := open(t, dir), open(t, filepath.Join(t.TempDir(), "to"))
	snaps, err := maintenance.Snapshots(t.Context(), from, []maintenance.Name{{Dataset: "d", Number: 1}})
	must(t, err)
	if _, err := maintenance.Copy(t.Context(), from, to, snaps, maintenance.CopyOptions{}); !errors.Is(err,
		schema.ErrDataLoss) {
		t.Errorf("a copy of what is damaged: %v", err)
	}
	if list, err := to.Datasets(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("the target has %v, %v", list, err)
	}
}

func TestSnapshotsByName(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"))
	commit(t, s, "a", blobs(5, 1))
	commit(t, s, "a", blobs(6, 1))
	commit(t, s, "b", blobs(7, 1))
	for _, tt := range []struct {
		names []maintenance.Name
		want  string
	}{
		{nil, "a@1 a@2 b@1"},
		{[]maintenance.Name{{Dataset: "a"}, {Dataset: "a", Number: 1}}, "a@1 a@2"},
		{[]maintenance.Name{{Dataset: "b", Number: 1}, {Dataset: "a", Number: 2}}, "a@2 b@1"},
		{[]maintenance.Name{{Dataset: "c"}}, `not found: there is no dataset "c" (did you mean "a"?); there are a, b`},
		{[]maintenance.Name{{Dataset: "a", Number: 7}}, `not found: dataset "a" has no snapshot 7; it has 1 2`},
	} {
		snaps, err := maintenance.Snapshots(t.Context(), s, tt.names)
		got := ""
		for i, snap := range snaps {
			if i > 0 {
				got += " "
			}
			got += fmt.Sprintf("%s@%d", snap.Dataset, snap.Number)
		}
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%v: %s, want %s", tt.names, got, tt.want)
		}
	}
}

// TestCopyRenumberedGoesOn: a copy under numbers of the target's own that is stopped after any snapshot, or when
// all is done, and made again, makes none twice.
func TestCopyRenumberedGoesOn(t *testing.T) {
	from := open(t, filepath.Join(t.TempDir(), "from"))
	rows := blobs(5, 12)
	for i := range 3 {
		commit(t, from, "d", rows[4*i:4*i+4])
	}
	snaps, err := maintenance.Snapshots(t.Context(), from, nil)
	must(t, err)
	opts := maintenance.CopyOptions{Renumber: true}
	for stopped := range 4 {
		to := open(t, filepath.Join(t.TempDir(), "to"))
		commit(t, to, "d", rows[:2])
		if stopped > 0 {
			_, err = maintenance.Copy(t.Context(), from, to, snaps[:stopped], opts)
			must(t, err)
		}
		for again := range 2 {
			done, err := maintenance.Copy(t.Context(), from, to, snaps, opts)
			must(t, err)
			for i, snap := range done.Snapshots {
				if !slices.Contains([]int64{2, 3, 4}, snap.As) || i > 3 {
					t.Errorf("stopped after %d: %s", stopped, asJSON(t, done))
				}
			}
			list, err := to.Datasets(t.Context())
			must(t, err)
			if len(list[0].Snapshots) != 4 {
				t.Errorf("stopped after %d, again %d: there are %d", stopped, again, list[0].Snapshots)
			}
		}
		// An older one is made the newest again.
		done, err := maintenance.Copy(t.Context(), from, to, snaps[:1], opts)
		must(t, err)
		if done.Snapshots[0].As != 5 || done.Snapshots[0].There {
			t.Errorf("to have the first again: %s", asJSON(t, done))
		}
	}
}

// whole copies all that there is in a store to another one, as a backup or back from one.
func whole(t *testing.T, from, to store.Store, opts maintenance.CopyOptions) maintenance.Copied {
	t.Helper()
	snaps, err := maintenance.Snapshots(t.Context(), from, nil)
	must(t, err)
	opts.Selections, opts.Numbers = true, true
	done, err := maintenance.Copy(t.Context(), from, to, snaps, opts)
	must(t, err)
	return done
}

// TestBackup: a copy of all there is, made again and again, gets what is new and keeps what the source has dropped
// since. It is verified as any store is, and a copy of it is what the source was.
func TestBackup(t *testing.T) {
	s, saved := open(t, filepath.Join(t.TempDir(), "store")), open(t, filepath.Join(t.TempDir(), "saved"))
	rows := blobs(1, 100)
	commit(t, s, "d", rows[:60])
	commit(t, s, "e", blobs(11, 20))
	must(t, s.Tag(t.Context(), "d", "prod", 1))
	first := whole(t, s, saved, maintenance.CopyOptions{})
	if first.Sent != first.Blobs || first.Tags != 1 || len(first.Snapshots) != 2 {
		t.Errorf("the first: %s", asJSON(t, first))
	}
	sel := selectRows(t, s, commit(t, s, "d", rows), []byte("some rows"))
	must(t, s.Tag(t.Context(), "d", "prod", 2))
	must(t, s.Drop(t.Context(), "d", 1))
	must(t, s.Drop(t.Context(), "e", 0))
	commit(t, s, "f", rows[:3])
	must(t, s.Drop(t.Context(), "f", 1))
	commit(t, s, "f", rows[:4])
	commit(t, s, "f", rows[:5])
	must(t, s.Drop(t.Context(), "f", 3))
	src := &counting{Store: s, read: map[schema.Key]int{}}
	second := whole(t, src, saved, maintenance.CopyOptions{MoveTags: true})
	for _, row := range rows[:60] {
		if src.read[schema.RefOf(row).Key] > 0 {
			t.Error("a blob was read that was there already")
		}
	}
	if second.Sent < 40 || second.Sent >= 60 || second.Tags != 1 || len(second.KeptTags) > 0 {
		t.Errorf("the second: %s", asJSON(t, second))
	}
	found, err := maintenance.Verify(t.Context(), scopeOf(t, saved, 0), maintenance.VerifyOptions{})
	if err != nil || len(found.Damaged) > 0 {
		t.Errorf("verify: %s, %v", asJSON(t, found), err)
	}

	back := open(t, filepath.Join(t.TempDir(), "back"))
	whole(t, saved, back, maintenance.CopyOptions{})
	for _, dataset := range []string{"d", "e", "f"} {
		requireSame(t, saved, back, dataset)
	}
	if is, err := back.Selection(t.Context(), "d", sel.Name()); err != nil || asJSON(t, is) != asJSON(t, sel) {
		t.Errorf("the selection %s, %v, want %s", asJSON(t, is), err, asJSON(t, sel))
	}
	list, err := back.Datasets(t.Context())
	must(t, err)
	if got := fmt.Sprint(list); got != "[{d [1 2] [{prod 2}]} {e [1] []} {f [2] []}]" {
		t.Errorf("what came back is %s", got)
	}
	if next := commit(t, back, "f", rows[:1]); next.Number != 4 {
		t.Errorf("the next snapshot of f is %d", next.Number)
	}
	// The store goes on after its backup, and what was lost of it comes back out of there.
	commit(t, s, "d", rows[:7])
	one, err := maintenance.Snapshots(t.Context(), saved, []maintenance.Name{{Dataset: "d", Number: 1}})
	must(t, err)
	done, err := maintenance.Copy(t.Context(), saved, s, one, maintenance.CopyOptions{Renumber: true})
	if err != nil || done.Snapshots[0].As != 4 {
		t.Errorf("out of an older copy: %s, %v", asJSON(t, done), err)
	}
}

// TestBackupThinned: snapshots that were dropped in the copy are a conflict, or left out.
func TestBackupThinned(t *testing.T) {
	s, saved := open(t, filepath.Join(t.TempDir(), "store")), open(t, filepath.Join(t.TempDir(), "saved"))
	rows := blobs(2, 30)
	commit(t, s, "d", rows[:10])
	commit(t, s, "d", rows[:20])
	whole(t, s, saved, maintenance.CopyOptions{})
	must(t, saved.Drop(t.Context(), "d", 1))
	must(t, s.Tag(t.Context(), "d", "first", 1))
	commit(t, s, "d", rows)
	snaps, err := maintenance.Snapshots(t.Context(), s, nil)
	must(t, err)
	if _, err := maintenance.Copy(t.Context(), s, saved, snaps, maintenance.CopyOptions{}); !errors.Is(err,
		schema.ErrConflict) {
		t.Errorf("a number that was dropped: %v", err)
	}
	done := whole(t, s, saved, maintenance.CopyOptions{LeaveDropped: true})
	if !done.Snapshots[0].Dropped || !done.Snapshots[1].There || done.Snapshots[2].As != 3 || done.Tags != 0 {
		t.Errorf("copied %s", asJSON(t, done))
	}
	list, err := saved.Datasets(t.Context())
	if err != nil || fmt.Sprint(list) != "[{d [2 3] []}]" {
		t.Errorf("there are %v, %v", list, err)
	}
}
