package extent_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"bowstring/fetch/store"
	"bowstring/fetch/store/extent"
	"bowstring/fetch/store/tend"
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

// TestCopy: by value the bytes go over, and the copy needs no bucket; by reference sets and manifests go over, nothing is
// read from a bucket, and the copy reads where the source does. A copy that is made again sends nothing.
func TestCopy(t *testing.T) {
	for _, how := range []tend.Attached{tend.ByValue, tend.ByReference} {
		t.Run(string(how), func(t *testing.T) {
			rng := random(t)
			bucket, other := newPail("mem://photos"), newPail("mem://more")
			one, two := fill(rng, bucket, 30), fill(rng, other, 10)
			buckets := newPails(bucket, other)
			open := func(name string) *extent.Store {
				s := extent.New(openLocal(t, filepath.Join(t.TempDir(), name)), extent.Options{Buckets: buckets.open})
				t.Cleanup(func() { must(t, s.Close()) })
				return s
			}
			from, to := open("from"), open("to")
			snaps := twice(t, from, one, two)
			var want [][][]byte
			for i, snap := range snaps {
				read, err := from.Snapshot(t.Context(), "d", snap.Number)
				must(t, err)
				snaps[i], want = read, append(want, rows(t, from, read))
			}
			bucket.reads, other.reads = 0, 0
			for round := range 2 {
				done, err := tend.Copy(t.Context(), from, to, snaps, tend.CopyOptions{Attached: how})
				must(t, err)
				if len(done.Snapshots) != 3 || round == 1 && done.Sent != 0 {
					t.Fatalf("round %d: %+v", round, done)
				}
				if how == tend.ByReference && bucket.reads+other.reads > 0 {
					t.Fatalf("%d reads of buckets", bucket.reads+other.reads)
				}
			}
			if how == tend.ByValue {
				bucket.objects, other.objects = nil, nil
			}
			for i, snap := range snaps {
				got, err := to.Snapshot(t.Context(), "d", snap.Number)
				must(t, err)
				if how == tend.ByValue && got.Sets != nil || how == tend.ByReference && !reflect.DeepEqual(got, snap) {
					t.Errorf("snapshot %d became %+v of %+v", snap.Number, got, snap)
				}
				if !slices.EqualFunc(rows(t, to, got), want[i], bytes.Equal) {
					t.Errorf("snapshot %d has other rows", snap.Number)
				}
			}
			_, err := to.GC(t.Context(), store.GCOptions{}, nil)
			must(t, err)
			found, err := tend.Verify(t.Context(), tend.Scope{Source: to, Snapshots: snapshots(t, to)}, tend.VerifyOptions{})
			if err != nil || len(found.Damaged) > 0 {
				t.Errorf("verify: %+v, %v", found, err)
			}
		})
	}
}

func snapshots(t *testing.T, s store.Store) []*schema.Snapshot {
	t.Helper()
	list, err := tend.Snapshots(t.Context(), s, nil)
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
	verify := func(src store.Store) tend.Verification {
		t.Helper()
		found, err := tend.Verify(t.Context(), tend.Scope{Source: src, Snapshots: snapshots(t, s)}, tend.VerifyOptions{})
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
