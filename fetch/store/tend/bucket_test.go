package tend_test

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"bowstring/fetch/store"
	"bowstring/fetch/store/bucket"
	"bowstring/fetch/store/tend"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// inBucket makes a store in a directory that is taken for a bucket.
func inBucket(t *testing.T) *bucket.Store {
	t.Helper()
	url := "file://" + t.TempDir()
	opts := bucket.Options{Logger: slog.New(slog.DiscardHandler), SegmentBytes: 256 << 10, Renew: 100 * time.Millisecond}
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
		snaps, err := tend.Snapshots(t.Context(), hop.from, []tend.Name{{Dataset: "d"}})
		must(t, err)
		done, err := tend.Copy(t.Context(), hop.from, hop.to, snaps, tend.CopyOptions{Selections: true, Numbers: true})
		must(t, err)
		if len(done.Snapshots) != 2 || done.Selections != 1 || done.Tags != 1 {
			t.Errorf("copied %+v", done)
		}
		if done.Sent > 200 { // blobs of 140 rows, pages, chunks
			t.Errorf("%d blobs went over: what snapshots share more than once", done.Sent)
		}
		again, err := tend.Copy(t.Context(), hop.from, hop.to, snaps, tend.CopyOptions{Selections: true})
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
		list, err := tend.Snapshots(t.Context(), hop.to, nil)
		must(t, err)
		selections, err := tend.Selections(t.Context(), hop.to, list)
		must(t, err)
		found, err := tend.Verify(t.Context(), tend.Scope{Source: hop.to, Snapshots: list, Selections: selections}, tend.VerifyOptions{})
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
