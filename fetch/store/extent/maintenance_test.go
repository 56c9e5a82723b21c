package extent_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bowstring/fetch/store"
	"bowstring/fetch/store/bucket"
	"bowstring/fetch/store/extent"
	"bowstring/fetch/store/maintenance"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// rows are the bytes of each row of a snapshot, in order.
func rows(t *testing.T, s store.Store, snap *schema.Snapshot) [][]byte {
	t.Helper()
	var all [][]byte
	err := store.EachPage(t.Context(), snap, snap.Chunks, s.Get, func(_ schema.Chunk, m *schema.Manifest) error {
		for pos := range m.Rows() {
			ref, _ := m.Blob(0, pos)
			blob, err := s.Get(t.Context(), ref)
			if err != nil {
				return err
			}
			all = append(all, bytes.Clone(blob.Bytes()))
			blob.Release()
		}
		return nil
	})
	must(t, err)
	return all
}

// twice attaches a dataset, and appends imported rows and then other attached ones to it.
func twice(t *testing.T, s store.Store, one, two *made) []*schema.Snapshot {
	t.Helper()
	first := one.attach(t, s, "d")
	in, err := s.Begin(t.Context(), "d")
	must(t, err)
	defer func() { must(t, in.Close()) }()
	snap, err := storetest.Put(t.Context(), in, [][]byte{[]byte("imported"), []byte("too")}, 10)
	must(t, err)
	snap.Schema, snap.Parent = first.Schema, first.Number
	snap.Chunks, snap.Sets = append(slices.Clone(first.Chunks), snap.Chunks...), first.Sets
	snap.Splits = []schema.Split{{Name: "train", Ranges: []schema.Range{{End: snap.Rows()}}}}
	second, err := in.Commit(t.Context(), snap)
	must(t, err)
	third := two.attach(t, s, "d")
	return []*schema.Snapshot{first, second, third}
}

// below are stores of each kind that blobs may be copied between, in this process.
var below = map[string]func(t *testing.T) store.Store{
	"local": func(t *testing.T) store.Store { return openLocal(t, filepath.Join(t.TempDir(), "store")) },
	"bucket": func(t *testing.T) store.Store {
		options := bucket.Options{Logger: slog.New(slog.DiscardHandler), SegmentBytes: 64 << 10,
			Renew: 100 * time.Millisecond, Lapse: time.Hour}
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(emptyBucket(t, options))))
		s, err := bucket.Open(t.Context(), "file://"+dir, options)
		must(t, err)
		return s
	},
}

// emptyBucket is a directory with an empty store in it, as if it were a bucket. It is made once: the proof takes long.
func emptyBucket(t *testing.T, options bucket.Options) string {
	t.Helper()
	proven.Do(func() {
		proven.dir, proven.err = os.MkdirTemp("", "bowstring-bucket-")
		if proven.err == nil {
			_, proven.err = bucket.Init(t.Context(), "file://"+proven.dir, bucket.InitOptions{Options: options})
		}
	})
	must(t, proven.err)
	return proven.dir
}

var proven struct {
	sync.Once
	dir string
	err error
}

// copies runs a test of copies between each two kinds of stores, by value and by reference.
func copies(t *testing.T, run func(t *testing.T, how maintenance.Attached, open func(kind int,
	buckets *pails) *extent.Store)) {
	for _, kinds := range [][2]string{{"local", "local"}, {"local", "bucket"}, {"bucket", "bucket"}, {"bucket", "local"}} {
		for _, how := range []maintenance.Attached{maintenance.ByValue, maintenance.ByReference} {
			t.Run(fmt.Sprintf("%s to %s by %s", kinds[0], kinds[1], how), func(t *testing.T) {
				run(t, how, func(kind int, buckets *pails) *extent.Store {
					s := extent.New(below[kinds[kind]](t), extent.Options{Buckets: buckets.open})
					t.Cleanup(func() { must(t, s.Close()) })
					return s
				})
			})
		}
	}
}

// extents are what a snapshot names of objects elsewhere: its object sets, and the references of its rows.
func extents(t *testing.T, s store.Store, snap *schema.Snapshot) (sets []schema.ObjectSet, refs []schema.BlobRef) {
	t.Helper()
	ours := map[schema.ObjectPrefix]bool{}
	for _, set := range snap.Sets {
		if set.Blob == (schema.BlobRef{}) {
			continue
		}
		blob, err := s.Get(t.Context(), set.Blob)
		must(t, err)
		list, err := schema.DecodeObjectSet(blob.Bytes())
		must(t, err)
		blob.Release()
		sets, ours[set.Prefix] = append(sets, *list), true
	}
	must(t, store.EachPage(t.Context(), snap, snap.Chunks, s.Get, func(_ schema.Chunk, m *schema.Manifest) error {
		for pos := range m.Rows() {
			if ref, ok := m.Blob(0, pos); ok && ours[schema.ObjectPrefix(ref.Key[:12])] {
				refs = append(refs, ref)
			}
		}
		return nil
	}))
	return sets, refs
}

// TestCopy: by value the bytes go over, and the copy needs no bucket; by reference sets and manifests go over, nothing is
// read from a bucket, and the copy reads where the source does: its rows have the very references, and what was imported
// among them is the target's own. A copy that is made again sends nothing, and one of what was appended only that.
func TestCopy(t *testing.T) {
	copies(t, func(t *testing.T, how maintenance.Attached, open func(int, *pails) *extent.Store) {
		rng := random(t)
		bucket, other := newPail("mem://photos"), newPail("mem://more")
		one, two := fill(rng, bucket, 30), fill(rng, other, 10)
		buckets := newPails(bucket, other)
		from, to := open(0, buckets), open(1, buckets)
		snaps := twice(t, from, one, two)
		var want [][][]byte
		for i, snap := range snaps {
			read, err := from.Snapshot(t.Context(), "d", snap.Number)
			must(t, err)
			snaps[i], want = read, append(want, rows(t, from, read))
		}
		bucket.reads, other.reads = 0, 0
		var first maintenance.Copied
		for round, some := range [][]*schema.Snapshot{snaps[:1], snaps, snaps} {
			done, err := maintenance.Copy(t.Context(), from, to, some, maintenance.CopyOptions{Attached: how})
			must(t, err)
			if len(done.Snapshots) != len(some) || round == 2 && done.Sent != 0 {
				t.Fatalf("round %d: %+v", round, done)
			}
			if round == 1 && done.Sent >= first.Sent+40 {
				t.Errorf("the second copy has sent %d blobs, the first %d", done.Sent, first.Sent)
			}
			if first = done; how == maintenance.ByReference && bucket.reads+other.reads > 0 {
				t.Fatalf("%d reads of buckets", bucket.reads+other.reads)
			}
		}
		if how == maintenance.ByValue {
			bucket.objects, other.objects = nil, nil
		}
		for i, snap := range snaps {
			got, err := to.Snapshot(t.Context(), "d", snap.Number)
			must(t, err)
			sets, refs := extents(t, to, got)
			wantSets, wantRefs := extents(t, from, snap)
			if how == maintenance.ByValue {
				wantSets, wantRefs = nil, nil
			}
			if !reflect.DeepEqual(sets, wantSets) || !slices.Equal(refs, wantRefs) {
				t.Errorf("snapshot %d names %d extents in %d sets, want %d in %d", snap.Number, len(refs), len(sets), len(wantRefs),
					len(wantSets))
			}
			if !from.Traits().Segments && !to.Traits().Segments && how == maintenance.ByReference && !reflect.DeepEqual(got,
				snap) {
				t.Errorf("snapshot %d became %+v of %+v", snap.Number, got, snap)
			}
			if got.Parent != snap.Parent || !got.Created.Equal(snap.Created) || got.Source != snap.Source {
				t.Errorf("snapshot %d became %+v of %+v", snap.Number, got, snap)
			}
			if !slices.EqualFunc(rows(t, to, got), want[i], bytes.Equal) {
				t.Errorf("snapshot %d has other rows", snap.Number)
			}
		}
		must(t, to.Drop(t.Context(), "d", 1))
		_, err := to.GC(t.Context(), store.GCOptions{}, nil)
		must(t, err)
		found, err := maintenance.Verify(t.Context(), maintenance.Scope{Source: to, Snapshots: snapshots(t, to)},
			maintenance.VerifyOptions{})
		if err != nil || len(found.Damaged) > 0 {
			t.Errorf("verify: %+v, %v", found, err)
		}
	})
}

// TestCopyMixed: what the target has of a dataset by value stays so, and what comes later by reference names its own
// extents alone, and the other way round.
func TestCopyMixed(t *testing.T) {
	copies(t, func(t *testing.T, how maintenance.Attached, open func(int, *pails) *extent.Store) {
		rng := random(t)
		pail, other := newPail("mem://photos"), newPail("mem://more")
		buckets := newPails(pail, other)
		from, to := open(0, buckets), open(1, buckets)
		snaps := twice(t, from, fill(rng, pail, 20), fill(rng, other, 10))
		then := map[maintenance.Attached]maintenance.Attached{maintenance.ByValue: maintenance.ByReference,
			maintenance.ByReference: maintenance.ByValue}[how]
		_, err := maintenance.Copy(t.Context(), from, to, snaps[:1], maintenance.CopyOptions{Attached: how})
		must(t, err)
		done, err := maintenance.Copy(t.Context(), from, to, snaps, maintenance.CopyOptions{Attached: then})
		must(t, err)
		if !done.Snapshots[0].There {
			t.Errorf("%+v", done)
		}
		for _, snap := range snaps {
			want, err := from.Snapshot(t.Context(), "d", snap.Number)
			must(t, err)
			got, err := to.Snapshot(t.Context(), "d", snap.Number)
			must(t, err)
			if !slices.EqualFunc(rows(t, to, got), rows(t, from, want), bytes.Equal) {
				t.Errorf("snapshot %d has other rows", snap.Number)
			}
			if sets, _ := extents(t, to, got); snap.Number > 1 && (len(sets) > 0) != (then == maintenance.ByReference) {
				t.Errorf("snapshot %d, copied by %s, names %d sets", snap.Number, then, len(sets))
			}
		}
	})
}

func snapshots(t *testing.T, s store.Store) []*schema.Snapshot {
	t.Helper()
	list, err := maintenance.Snapshots(t.Context(), s, nil)
	must(t, err)
	return list
}

// TestVerify: extents are read and compared, and a set that is gone is named once, not for each of its blobs.
func TestVerify(t *testing.T) {
	rng := random(t)
	bucket := newPail("mem://photos")
	m := fill(rng, bucket, 30)
	s := extent.New(openLocal(t, filepath.Join(t.TempDir(), "store")),
		extent.Options{Buckets: newPails(bucket).open, SetBytes: 1})
	defer func() { must(t, s.Close()) }()
	m.attach(t, s, "d")
	verify := func(src store.Store) maintenance.Verification {
		t.Helper()
		found, err := maintenance.Verify(t.Context(), maintenance.Scope{Source: src, Snapshots: snapshots(t, s)},
			maintenance.VerifyOptions{})
		must(t, err)
		return found
	}
	whole := verify(s)
	if len(whole.Damaged) > 0 || whole.Blobs < int64(len(m.set.Objects)) {
		t.Errorf("%+v", whole)
	}
	i := slices.IndexFunc(m.blobs, func(b lying) bool {
		at, _ := schema.ParseObjectAddress(b.ref.Key)
		return len(b.data) > 0 && !at.Packed // decoded units are kept as they were
	})
	address, _ := schema.ParseObjectAddress(m.blobs[i].ref.Key)
	key := m.set.Objects[address.Object].Key
	bucket.put(key, []byte("something else"))
	found := verify(s)
	if len(found.Damaged) == 0 {
		t.Error("an object that changed is not found")
	}
	for _, d := range found.Damaged {
		if !strings.Contains(d.Problem, key) || len(d.In) != 1 || d.In[0].What != "column data" {
			t.Errorf("%+v", d)
		}
	}
	ref := snapshots(t, s)[0].Sets[0].Blob
	lost := verify(&without{Store: s, key: ref.Key})
	if len(lost.Damaged) != 1 || lost.Damaged[0].Key != ref.Key || len(lost.Damaged[0].In) != 1 ||
		lost.Damaged[0].In[0].What != fmt.Sprint("object set ", m.set.Prefix()) {
		t.Errorf("%+v", lost)
	}
}

// without is a store that has lost a blob.
type without struct {
	*extent.Store
	key schema.Key
}

func (s *without) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if ref.Key == s.key {
		return schema.Blob{}, schema.ErrNotFound
	}
	return s.Store.Get(ctx, ref)
}
