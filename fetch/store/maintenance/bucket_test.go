package maintenance_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"bowstring/fetch/store"
	"bowstring/fetch/store/bucket"
	"bowstring/fetch/store/maintenance"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// inBucket makes a store in a directory that is taken for a bucket.
func inBucket(t *testing.T) *bucket.Store {
	t.Helper()
	url := "file://" + t.TempDir()
	opts := bucket.Options{Logger: slog.New(slog.DiscardHandler), SegmentBytes: 256 << 10,
		Renew: 100 * time.Millisecond, Lapse: time.Hour}
	_, err := bucket.Init(t.Context(), url, bucket.InitOptions{Options: opts})
	must(t, err)
	s, err := bucket.Open(t.Context(), url, opts)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// TestCopyThroughBucket copies into a store in a bucket and back: rows, numbers, tags and selections are the same, what
// snapshots share goes over once, a copy that is made again does nothing, and all is verified on the way.
func TestCopyThroughBucket(t *testing.T) {
	from, to, back := open(t, filepath.Join(t.TempDir(), "from")), inBucket(t), open(t, filepath.Join(t.TempDir(), "back"))
	rows := blobs(11, 120)
	commit(t, from, "d", rows[:64])
	second := appendRows(t, from, rows[64:])
	must(t, from.Drop(t.Context(), "d", 1))
	third := appendRows(t, from, blobs(12, 20))
	must(t, from.Tag(t.Context(), "d", "prod", second.Number))
	sel := selectRows(t, from, third, []byte("some rows"))
	far := inBucket(t)
	for _, hop := range []struct{ from, to store.Store }{{from, to}, {to, far}, {far, back}} {
		snaps, err := maintenance.Snapshots(t.Context(), hop.from, []maintenance.Name{{Dataset: "d"}})
		must(t, err)
		done, err := maintenance.Copy(t.Context(), hop.from, hop.to, snaps, maintenance.CopyOptions{Selections: true,
			Numbers: true})
		must(t, err)
		if len(done.Snapshots) != 2 || done.Selections != 1 || done.Tags != 1 {
			t.Errorf("copied %+v", done)
		}
		if done.Sent > 200 { // blobs of 140 rows, pages, chunks
			t.Errorf("%d blobs went over: what snapshots share more than once", done.Sent)
		}
		again, err := maintenance.Copy(t.Context(), hop.from, hop.to, snaps, maintenance.CopyOptions{Selections: true})
		must(t, err)
		if len(again.Snapshots) != 2 || !again.Snapshots[0].There || !again.Snapshots[1].There || again.SentBytes > 100 {
			t.Errorf("copied again: %+v", again)
		}
		for _, was := range snaps {
			is, err := hop.to.Snapshot(t.Context(), "d", was.Number)
			must(t, err)
			x, err := storetest.Read(t.Context(), hop.from, was)
			must(t, err)
			y, err := storetest.Read(t.Context(), hop.to, is)
			must(t, err)
			if !slices.EqualFunc(x, y, bytes.Equal) || is.Parent != was.Parent || !is.Created.Equal(was.Created) {
				t.Errorf("snapshot %d differs", was.Number)
			}
		}
		got, err := hop.to.Selection(t.Context(), "d", sel.Name())
		must(t, err)
		if got.Rows != sel.Rows || got.Snapshot != third.Number {
			t.Errorf("the selection came over as %+v", got)
		}
		if number, err := hop.to.Tagged(t.Context(), "d", "prod"); err != nil || number != second.Number {
			t.Errorf("the tag names %d (%v)", number, err)
		}
		list, err := maintenance.Snapshots(t.Context(), hop.to, nil)
		must(t, err)
		selections, err := maintenance.Selections(t.Context(), hop.to, list)
		must(t, err)
		found, err := maintenance.Verify(t.Context(), maintenance.Scope{Source: hop.to, Snapshots: list,
			Selections: selections}, maintenance.VerifyOptions{})
		must(t, err)
		if len(found.Damaged) > 0 {
			t.Errorf("the copy is damaged: %+v", found.Damaged)
		}
	}
	_, err := to.GC(t.Context(), store.GCOptions{}, nil)
	must(t, err)
	newest, err := to.Snapshot(t.Context(), "d", 0)
	must(t, err)
	_, err = storetest.Read(t.Context(), to, newest)
	must(t, err)
}

// appendRows commits a snapshot with the chunks of the newest one and more.
func appendRows(t *testing.T, s store.Store, rows [][]byte) *schema.Snapshot {
	t.Helper()
	in, err := s.Begin(t.Context(), "d")
	must(t, err)
	defer func() { must(t, in.Close()) }()
	base, err := s.Snapshot(t.Context(), "d", 0)
	must(t, err)
	snap, err := storetest.Put(t.Context(), in, rows, 16)
	must(t, err)
	snap.Parent, snap.Sets = base.Number, base.Sets
	snap.Chunks = append(slices.Clone(base.Chunks), snap.Chunks...)
	snap.Splits = nil
	made, err := in.Commit(t.Context(), snap)
	must(t, err)
	return made
}

// TestRepairSegments: a segment that is gone or torn is put back from a byte for byte copy of the bucket, with the manifest pages
// in it; from a copy of the snapshots in another store, where everything has other keys, come the rows of it.
func TestRepairSegments(t *testing.T) {
	dir := t.TempDir()
	opts := bucket.Options{Logger: slog.New(slog.DiscardHandler), SegmentBytes: 64 << 10,
		Renew: 100 * time.Millisecond, Lapse: time.Hour}
	_, err := bucket.Init(t.Context(), "file://"+dir, bucket.InitOptions{Options: opts})
	must(t, err)
	openAt := func(dir string) *bucket.Store {
		s, err := bucket.Open(t.Context(), "file://"+dir, opts)
		must(t, err)
		t.Cleanup(func() { must(t, s.Close()) })
		return s
	}
	s, far := openAt(dir), open(t, filepath.Join(t.TempDir(), "far"))
	large := blobs(3, 60)
	for i := range large {
		large[i] = bytes.Repeat(append(large[i], byte(i)), 1+9000/(len(large[i])+1))
	}
	commit(t, s, "d", large)
	snaps, err := maintenance.Snapshots(t.Context(), s, nil)
	must(t, err)
	_, err = maintenance.Copy(t.Context(), s, far, snaps, maintenance.CopyOptions{})
	must(t, err)
	copied := filepath.Join(t.TempDir(), "copied")
	must(t, os.CopyFS(copied, os.DirFS(dir)))
	twin := openAt(copied)
	scope := maintenance.Scope{Source: s, Snapshots: snaps}
	far1, err := maintenance.Snapshots(t.Context(), far, nil)
	must(t, err)
	segments, err := filepath.Glob(filepath.Join(copied, "seg", "*", "*"))
	must(t, err)
	if len(segments) < 5 {
		t.Fatalf("%d segments", len(segments))
	}
	byContent := 0
	for i, path := range segments {
		name, err := filepath.Rel(copied, path)
		must(t, err)
		at := filepath.Join(dir, name)
		whole, err := os.ReadFile(path)
		must(t, err)
		harm := func() {
			must(t, os.Remove(at))
			if i%2 == 1 {
				must(t, os.WriteFile(at, whole[:len(whole)/3], 0o600))
			}
		}
		harm()
		found, err := maintenance.Verify(t.Context(), scope, maintenance.VerifyOptions{Repair: s})
		must(t, err)
		if found.Lasting() == 0 {
			t.Errorf("%s: nothing is missed", name)
		}
		m := maintenance.NewMender(scope, s, &found)
		must(t, m.From(t.Context(), "far", maintenance.Scope{Source: far, Snapshots: far1}, &found))
		pages := slices.ContainsFunc(found.Damaged, func(d maintenance.Damage) bool {
			return slices.ContainsFunc(d.In, func(o maintenance.Occurrence) bool { return o.What == "manifest" })
		})
		if !pages && found.Lasting() > 0 {
			t.Errorf("%s: not all came back: %s", name, asJSON(t, found))
		}
		if !pages {
			byContent++
		} else {
			harm()
			found, err = maintenance.Verify(t.Context(), scope, maintenance.VerifyOptions{Repair: s,
				Elsewhere: []maintenance.Place{{Name: "twin", Get: twin.Get}}})
			must(t, err)
			if found.Lasting() > 0 || found.Repaired == 0 {
				t.Errorf("%s: not all came back from the twin: %s", name, asJSON(t, found))
			}
		}
		found, err = maintenance.Verify(t.Context(), scope, maintenance.VerifyOptions{})
		must(t, err)
		if len(found.Damaged) > 0 {
			t.Errorf("%s: damaged still: %s", name, asJSON(t, found))
		}
	}
	if byContent == 0 || byContent == len(segments) {
		t.Errorf("%d of %d segments have no page of a manifest", byContent, len(segments))
	}
	got, err := storetest.Read(t.Context(), s, snaps[0])
	must(t, err)
	if !slices.EqualFunc(got, large, bytes.Equal) {
		t.Error("the rows differ")
	}
}
