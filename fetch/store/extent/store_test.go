package extent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/klauspost/compress/zstd"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/fetch/store/extent"
	"bowstring/fetch/store/local"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

func openLocal(t testing.TB, dir string) *local.Store {
	t.Helper()
	s, err := local.Open(dir, local.Options{})
	must(t, err)
	return s
}

// TestConformance: a store that attached blobs can be read through is a store as any other.
func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Opener {
		dir := filepath.Join(t.TempDir(), "store")
		return func() (store.Store, error) {
			s, err := local.Open(dir, local.Options{})
			if err != nil {
				return nil, err
			}
			return extent.New(s, extent.Options{}), nil
		}
	})
}

// lying is a blob that is stored in an object.
type lying struct {
	ref  schema.BlobRef
	data []byte
}

// made is a dataset whose blobs are in a bucket.
type made struct {
	set   schema.ObjectSet
	blobs []lying
}

// fill puts n objects into a bucket: some hold blobs one behind the other, some are one blob, some have units.
func fill(rng *rand.Rand, p *pail, n int) *made {
	m := &made{set: schema.ObjectSet{Bucket: p.url}}
	type at struct {
		object         int
		packed         bool
		unit, from, to int64
		data           []byte
	}
	var places []at
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32() & 0x1f)
		}
		return b
	}
	packer, _ := zstd.NewWriter(nil)
	defer packer.Close()
	for i := range n {
		key := fmt.Sprintf("shard-%05d", i)
		var data []byte
		var units []schema.Unit
		switch rng.IntN(3) {
		case 0:
			data = random(rng.IntN(100_000))
			places = append(places, at{object: i, to: int64(len(data)), data: data})
		case 1:
			for range 1 + rng.IntN(5) {
				blob := random(rng.IntN(3000))
				from := int64(len(data))
				data = append(append(data, blob...), random(rng.IntN(100))...)
				places = append(places, at{object: i, from: from, to: from + int64(len(blob)), data: blob})
			}
		default:
			for range 1 + rng.IntN(3) {
				data = append(data, random(rng.IntN(50))...)
				whole := random(1 + rng.IntN(20_000))
				packed := packer.EncodeAll(whole, nil)
				u := schema.Unit{Offset: int64(len(data)), Length: int64(len(packed)), Size: int64(len(whole)),
					Codec: schema.CodecZstd}
				units, data = append(units, u), append(data, packed...)
				for range 1 + rng.IntN(6) {
					from := rng.Int64N(u.Size)
					to := from + rng.Int64N(u.Size-from)
					places = append(places, at{i, true, u.Offset, from, to, whole[from:to]})
				}
			}
		}
		o := p.put(key, data)
		o.Units = units
		m.set.Objects = append(m.set.Objects, o)
	}
	prefix := m.set.Prefix()
	for _, a := range places {
		sum := schema.Checksum(a.data)
		address := schema.ObjectAddress{Prefix: prefix, Object: uint32(a.object), Packed: a.packed, Offset: a.from, Unit: a.unit}
		m.blobs = append(m.blobs, lying{schema.BlobRef{Key: address.Key(sum), Size: a.to - a.from, Sum: sum}, a.data})
	}
	return m
}

var oneColumn = func() *arrow.Schema {
	s, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("data", "", false)})
	if err != nil {
		panic(err)
	}
	return s
}()

// attach commits a snapshot of the blobs.
func (m *made) attach(t testing.TB, s store.Store, dataset string) *schema.Snapshot {
	t.Helper()
	ctx := t.Context()
	in, err := s.Begin(ctx, dataset)
	must(t, err)
	defer func() { must(t, in.Close()) }()
	data, err := schema.EncodeObjectSet(&m.set)
	must(t, err)
	ref, err := in.Put(ctx, data)
	must(t, err)
	named := schema.SetRef{Prefix: m.set.Prefix(), Blob: ref}
	for _, b := range m.blobs {
		if b.ref.Unproven() {
			named.Unproven.Blobs++
			named.Unproven.Bytes += b.ref.Size
		}
	}
	snap := schema.Snapshot{Schema: oneColumn, Source: "bucket", Sets: []schema.SetRef{named}}
	if newest, err := s.Snapshot(ctx, dataset, 0); err == nil {
		snap.Parent = newest.Number
	}
	builder := schema.NewChunkBuilder(memory.DefaultAllocator, oneColumn)
	defer builder.Release()
	for i, b := range m.blobs {
		must(t, builder.Append(schema.SampleID(dataset, fmt.Sprint(i)), nil, 0, []*schema.BlobRef{&b.ref}))
	}
	page, chunk, err := builder.Finish()
	must(t, err)
	chunk.BlobRef, err = in.Put(ctx, page)
	must(t, err)
	snap.Chunks = []schema.Chunk{chunk}
	snap.Splits = []schema.Split{{Name: "train", Ranges: []schema.Range{{End: snap.Rows()}}}}
	got, err := in.Commit(ctx, snap)
	must(t, err)
	return got
}

// check reads a blob, and compares it.
func (b lying) check(ctx context.Context, s store.Store) error {
	got, err := s.Get(ctx, b.ref)
	if err != nil {
		return err
	}
	defer got.Release()
	if !bytes.Equal(got.Bytes(), b.data) {
		return fmt.Errorf("wrong bytes of blob %s", b.ref.Key)
	}
	return b.ref.Check(got.Bytes())
}

// TestRead: blobs are read from their objects, also out of units, and Locate returns
// where they are. A store that has opened no snapshot finds the set. Buckets are opened
// once, and closed with the store.
func TestRead(t *testing.T) {
	rng := random(t)
	bucket := newPail("mem://photos")
	m := fill(rng, bucket, 60)
	dir := filepath.Join(t.TempDir(), "store")
	buckets := newPails(bucket)
	for round, known := range []bool{true, true, false} {
		s := extent.New(openLocal(t, dir), extent.Options{Buckets: buckets.open})
		if round == 0 {
			m.attach(t, s, "d")
		}
		if known {
			snap, err := s.Snapshot(t.Context(), "d", 0)
			must(t, err)
			if len(snap.Sets) != 1 {
				t.Fatalf("the snapshot names %v", snap.Sets)
			}
		}
		var all sync.WaitGroup
		for _, b := range m.blobs {
			all.Go(func() {
				if err := b.check(t.Context(), s); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, b := range m.blobs {
			at, ok, err := s.Locate(t.Context(), b.ref)
			if err != nil || !ok {
				t.Fatalf("located: %v, %v", ok, err)
			}
			data := make([]byte, at.Length)
			must(t, at.Bucket.Range(t.Context(), at.Object.Key, at.Object.Version, at.Offset, data))
			if at.Unit != nil {
				whole := make([]byte, at.Unit.Size)
				must(t, extent.Decode(at.Unit.Codec, data, whole))
				data = whole[at.At : at.At+b.ref.Size]
			}
			if !bytes.Equal(data, b.data) {
				t.Fatalf("other bytes are at %+v", at)
			}
			if _, ok := s.Addressed(b.ref.Key); !ok {
				t.Fatalf("%s is taken for a hash", b.ref.Key)
			}
		}
		if st := s.Stats(); st.BlobReads < int64(len(m.blobs)) {
			t.Errorf("%d reads of %d blobs are counted", st.BlobReads, len(m.blobs))
		}
		must(t, s.Close())
		if buckets.opened != round+1 || bucket.closed != round+1 {
			t.Errorf("round %d: opened %d times, closed %d times", round, buckets.opened, bucket.closed)
		}
		if err := m.blobs[0].check(t.Context(), s); !errors.Is(err, schema.ErrUnavailable) {
			t.Errorf("a read of a closed store: %v", err)
		}
	}
}

// TestErrors: what is wrong with an object is said by name.
func TestErrors(t *testing.T) {
	bucket := newPail("mem://photos")
	m := fill(rand.New(rand.NewPCG(1, 1)), bucket, 40)
	buckets := newPails(bucket)
	s := extent.New(openLocal(t, filepath.Join(t.TempDir(), "store")), extent.Options{Buckets: buckets.open})
	defer func() { must(t, s.Close()) }()
	m.attach(t, s, "d")
	i := slices.IndexFunc(m.blobs, func(b lying) bool { return len(b.data) > 0 })
	b := m.blobs[i]
	address, _ := schema.ParseObjectAddress(b.ref.Key)
	o := m.set.Objects[address.Object]
	was := bucket.objects[o.Key]
	fails := func(what string, ref schema.BlobRef, kind error, says ...string) {
		t.Helper()
		got, err := s.Get(t.Context(), ref)
		if err == nil {
			got.Release()
		}
		if !errors.Is(err, kind) {
			t.Errorf("%s: %v", what, err)
			return
		}
		for _, text := range says {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %q is not in %q", what, text, err)
			}
		}
	}
	buckets.fails = fmt.Errorf("%w: no credentials", schema.ErrDenied)
	fails("no credentials", b.ref, schema.ErrDenied, bucket.url)
	buckets.fails = nil
	now := bucket.put(o.Key, append([]byte("changed"), was...))
	fails("changed", b.ref, schema.ErrDataLoss, o.Key, bucket.url, o.Version.ETag, now.Version.ETag)
	bucket.remove(o.Key)
	fails("gone", b.ref, schema.ErrDataLoss, o.Key, bucket.url, o.Version.ETag)
	bucket.put(o.Key, was)
	for _, kind := range []error{schema.ErrDenied, schema.ErrUnavailable, schema.ErrNotSupported} {
		bucket.before = func(context.Context, string) error { return fmt.Errorf("%w: 503", kind) }
		fails("status", b.ref, kind, o.Key, bucket.url)
	}
	bucket.before = func(context.Context, string) error { return &object.ThrottledError{Bucket: bucket.url, Key: o.Key} }
	fails("throttled", b.ref, schema.ErrUnavailable, o.Key)
	bucket.before = nil
	must(t, b.check(t.Context(), s))

	at := func(change func(*schema.ObjectAddress)) schema.BlobRef {
		a := address
		change(&a)
		return schema.BlobRef{Key: a.Key(b.ref.Sum), Size: b.ref.Size, Sum: b.ref.Sum}
	}
	fails("no such object", at(func(a *schema.ObjectAddress) { a.Object = 40 }), schema.ErrDataLoss, "40")
	fails("no such unit", at(func(a *schema.ObjectAddress) { a.Packed, a.Unit = true, 1<<40 }), schema.ErrDataLoss, o.Key)
	fails("beyond its end", at(func(a *schema.ObjectAddress) { a.Packed, a.Offset = false, o.Size }), schema.ErrDataLoss, o.Key)
	fails("no such set", at(func(a *schema.ObjectAddress) { a.Prefix[0]++ }), schema.ErrNotFound)
	negative := b.ref
	negative.Size = -1
	fails("negative", negative, schema.ErrDataLoss)
	if err := s.Repair(t.Context(), b.ref, b.data); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("repaired: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := b.check(ended, s); !errors.Is(err, context.Canceled) {
		t.Errorf("a read whose context has ended: %v", err)
	}
}

// TestRebuild: what is attached is there again when the database of the store was made anew, and counts as missing
// nothing but sets that are.
func TestRebuild(t *testing.T) {
	bucket := newPail("mem://photos")
	m := fill(random(t), bucket, 20)
	dir := filepath.Join(t.TempDir(), "store")
	buckets := newPails(bucket)
	s := extent.New(openLocal(t, dir), extent.Options{Buckets: buckets.open})
	m.attach(t, s, "d")
	must(t, s.Close())
	must(t, os.RemoveAll(filepath.Join(dir, "pebble")))
	report, err := local.Rebuild(t.Context(), dir, local.RebuildOptions{})
	must(t, err)
	if len(report.Missing) > 0 || report.Snapshots != 1 {
		t.Errorf("%+v", report)
	}
	s = extent.New(openLocal(t, dir), extent.Options{Buckets: buckets.open})
	defer func() { must(t, s.Close()) }()
	for _, b := range m.blobs {
		must(t, b.check(t.Context(), s))
	}
}

// TestMoreUnits: of two sets with the same prefix, whichever has the unit of an address is taken, in whatever order their
// snapshots are opened, and if none has been.
func TestMoreUnits(t *testing.T) {
	rng := random(t)
	bucket := newPail("mem://photos")
	m := fill(rng, bucket, 30)
	less := *m
	less.set.Objects = slices.Clone(m.set.Objects)
	for i := range less.set.Objects {
		less.set.Objects[i].Units = nil
	}
	dir := filepath.Join(t.TempDir(), "store")
	buckets := newPails(bucket)
	for _, order := range [][]int64{{1, 2}, {2, 1}, {1}, {2}, {}} {
		s := extent.New(openLocal(t, dir), extent.Options{Buckets: buckets.open})
		if len(order) == 2 && order[0] == 1 {
			less.attach(t, s, "d")
			m.attach(t, s, "d")
		}
		for _, number := range order {
			_, err := s.Snapshot(t.Context(), "d", number)
			must(t, err)
		}
		for _, b := range m.blobs {
			must(t, b.check(t.Context(), s))
		}
		must(t, s.Close())
	}
}
