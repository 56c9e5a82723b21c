package extent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch/store"
	"bowstring/fetch/store/bucket"
	"bowstring/fetch/store/extent"
	"bowstring/fetch/store/local"
	"bowstring/fetch/store/maintenance"
	"bowstring/schema"
)

// lazily is what m would be if it was attached without being read. Each address is there once, and none is empty.
func (m *made) lazily() *made {
	l := &made{set: m.set}
	l.set.Unproven = true
	prefix := l.set.Prefix()
	seen := map[schema.Key]bool{}
	for _, b := range m.blobs {
		at, _ := schema.ParseObjectAddress(b.ref.Key)
		at.Prefix = prefix
		b.ref = schema.UnprovenRef(at, b.ref.Size)
		if b.ref.Size > 0 && !seen[b.ref.Key] {
			seen[b.ref.Key] = true
			l.blobs = append(l.blobs, b)
		}
	}
	return l
}

// prove reads a blob as the engine does: it is compared with its checksum, or gets it. It fails if other bytes come.
func (b lying) prove(ctx context.Context, s *extent.Store) error {
	ref := s.Proven(b.ref)
	got, err := s.Get(ctx, ref)
	if err != nil {
		return err
	}
	defer got.Release()
	if ref.Unproven() {
		ref, err = s.Prove(ctx, ref, got.Bytes())
	}
	if err == nil {
		err = ref.Check(got.Bytes())
	}
	if err == nil && !bytes.Equal(got.Bytes(), b.data) {
		return fmt.Errorf("wrong bytes of blob %s", ref.Key)
	}
	return err
}

// unpacked are the blobs that are stored in objects as they are: nothing of them is kept
// in memory.
func (m *made) unpacked() (list []lying) {
	for _, b := range m.blobs {
		if at, _ := schema.ParseObjectAddress(b.ref.Key); !at.Packed {
			list = append(list, b)
		}
	}
	return list
}

// places are stores for what is learned. Each opens the same data again, and several at once where sharing says so.
func places(t *testing.T, visit func(t *testing.T, open func(o extent.Options) *extent.Store, sharing bool)) {
	t.Run("local", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "store")
		visit(t, func(o extent.Options) *extent.Store {
			below, err := local.Open(dir, local.Options{})
			must(t, err)
			return extent.New(below, o)
		}, false)
	})
	t.Run("bucket", func(t *testing.T) {
		url := "file://" + t.TempDir()
		options := bucket.Options{Logger: slog.New(slog.DiscardHandler), Renew: 100 * time.Millisecond, Lapse: 2 * time.Second}
		_, err := bucket.Init(t.Context(), url, bucket.InitOptions{Options: options})
		must(t, err)
		visit(t, func(o extent.Options) *extent.Store {
			below, err := bucket.Open(t.Context(), url, options)
			must(t, err)
			return extent.New(below, o)
		}, true)
	})
}

func proofOf(t *testing.T, s *extent.Store, dataset string) store.Proof {
	t.Helper()
	snap, err := s.Snapshot(t.Context(), dataset, 0)
	must(t, err)
	p, err := s.Proof(t.Context(), snap)
	must(t, err)
	return p
}

// TestProve: the first read of each blob gives it its checksum for good: the next process
// knows it, and accepts no other byte. The number of proven blobs is counted. A learned
// checksum is read back, unless verify reports it damaged.
func TestProve(t *testing.T) {
	places(t, func(t *testing.T, open func(extent.Options) *extent.Store, _ bool) {
		rng := random(t)
		pail := newPail("mem://photos")
		m := fill(rng, pail, 60).lazily()
		options := extent.Options{Buckets: newPails(pail).open}
		s := open(options)
		m.attach(t, s, "d")
		var all int64
		for _, b := range m.blobs {
			all += b.ref.Size
		}
		want := store.Proof{OfBlobs: int64(len(m.blobs)), OfBytes: all}
		if got := proofOf(t, s, "d"); got != want {
			t.Fatalf("%+v is proven, want %+v", got, want)
		}
		half := len(m.blobs) / 2
		for i, b := range m.blobs[:half] {
			must(t, b.prove(t.Context(), s))
			must(t, b.prove(t.Context(), s)) // with what was learned
			if i%20 == 19 {
				must(t, s.KeepProofs(t.Context()))
			}
			want.Blobs, want.Bytes = want.Blobs+1, want.Bytes+b.ref.Size
		}
		if got := proofOf(t, s, "d"); got != want {
			t.Fatalf("%+v is proven, want %+v", got, want)
		}
		must(t, s.Close()) // keeps the rest

		s = open(options)
		if got := proofOf(t, s, "d"); got.Blobs != want.Blobs || got.OfBlobs != want.OfBlobs || got.Bytes != want.Bytes {
			t.Fatalf("%+v is proven, want %+v", got, want)
		}
		for _, b := range m.blobs {
			if ref := s.Proven(b.ref); ref.Unproven() != !slices.ContainsFunc(m.blobs[:half], func(x lying) bool {
				return x.ref == b.ref
			}) {
				t.Fatalf("%v is %v", b.ref, ref)
			}
		}
		found, err := maintenance.Verify(t.Context(), maintenance.Scope{Source: s, Snapshots: snapshots(t, s)},
			maintenance.VerifyOptions{})
		must(t, err)
		want.Blobs, want.Bytes = want.OfBlobs, want.OfBytes
		if len(found.Damaged) > 0 || found.Proof == nil || *found.Proof != want {
			t.Fatalf("verify: %+v, proof %+v; want %+v", found, found.Proof, want)
		}
		_, err = s.GC(t.Context(), store.GCOptions{}, nil)
		must(t, err)
		must(t, s.Close())

		s = open(options)
		pail.spoil = func(_ string, buf []byte) { buf[rng.IntN(len(buf))] ^= 1 }
		must(t, s.LearnProofs(t.Context(), snapshots(t, s)[0]))
		for _, b := range m.unpacked() {
			if err := b.prove(t.Context(), s); !errors.Is(err, schema.ErrDataLoss) {
				t.Fatalf("a read with a wrong byte: %v", err)
			}
		}
		must(t, s.Close())
		s = open(options) // nothing has loaded what is known
		for _, b := range m.unpacked() {
			got, err := s.Get(t.Context(), b.ref)
			must(t, err)
			_, err = s.Prove(t.Context(), b.ref, got.Bytes())
			got.Release()
			at, _ := schema.ParseObjectAddress(b.ref.Key)
			if !errors.Is(err, schema.ErrDataLoss) || !strings.Contains(err.Error(), m.set.Objects[at.Object].Key) {
				t.Fatalf("a read with a wrong byte: %v", err)
			}
		}
		pail.spoil = nil
		for _, b := range m.blobs {
			must(t, b.prove(t.Context(), s))
		}
		must(t, s.Close())
	})
}

// TestProversMeet: of two processes that read the same blobs at once, each learns what the other one kept first; where one
// of them got damaged bytes, the blob is a loss for it then, and its next read of the right bytes is right.
func TestProversMeet(t *testing.T) {
	places(t, func(t *testing.T, open func(extent.Options) *extent.Store, sharing bool) {
		if !sharing {
			t.Skip("one process has the store")
		}
		rng := random(t)
		good, bad := newPail("mem://photos"), newPail("mem://photos")
		m := fill(rng, good, 60).lazily()
		bad.objects = good.objects
		m.set.Bucket = good.url
		spoiled := map[string]bool{} // objects
		for _, o := range m.set.Objects {
			spoiled[o.Key] = rng.IntN(4) == 0
		}
		bad.spoil = func(key string, buf []byte) {
			if spoiled[key] {
				buf[len(buf)/2] ^= 0x40
			}
		}
		a := open(extent.Options{Buckets: newPails(good).open})
		m.attach(t, a, "d")
		b := open(extent.Options{Buckets: newPails(bad).open})
		list := m.unpacked()
		isSpoiled := func(x lying) bool {
			at, _ := schema.ParseObjectAddress(x.ref.Key)
			return spoiled[m.set.Objects[at.Object].Key]
		}
		learn := func(s *extent.Store, x lying) {
			got, err := s.Get(t.Context(), x.ref)
			must(t, err)
			_, err = s.Prove(t.Context(), x.ref, got.Bytes())
			must(t, err)
			got.Release()
		}
		for _, x := range list {
			learn(a, x)
			learn(b, x)
		}
		must(t, a.KeepProofs(t.Context()))
		must(t, b.KeepProofs(t.Context()))
		wrong := int64(0)
		for _, x := range list {
			err := x.prove(t.Context(), b)
			switch {
			case !isSpoiled(x):
				must(t, err)
			case !errors.Is(err, schema.ErrDataLoss):
				t.Fatalf("bytes that differ from those of another process: %v", err)
			default:
				wrong++
			}
			must(t, x.prove(t.Context(), a))
		}
		if st := b.ProofStats(); st.Wrong != wrong || wrong == 0 || st.Waiting != 0 {
			t.Errorf("%+v of %d spoiled blobs", st, wrong)
		}
		bad.spoil = nil
		for _, x := range list {
			must(t, x.prove(t.Context(), b))
		}
		must(t, a.Close())
		must(t, b.Close())
	})
}

// TestProversAtOnce: many processes prove and keep at once; what is kept in the end is of all blobs, and each once.
func TestProversAtOnce(t *testing.T) {
	places(t, func(t *testing.T, open func(extent.Options) *extent.Store, sharing bool) {
		if !sharing {
			t.Skip("one process has the store")
		}
		rng := random(t)
		pail := newPail("mem://photos")
		m := fill(rng, pail, 40).lazily()
		options := extent.Options{Buckets: newPails(pail).open}
		first := open(options)
		m.attach(t, first, "d")
		must(t, first.Close())
		var all sync.WaitGroup
		for range 3 {
			s := open(options)
			order := rng.Perm(len(m.blobs))
			all.Go(func() {
				for n, i := range order {
					if err := m.blobs[i].prove(t.Context(), s); err != nil {
						t.Error(err)
					}
					if n%40 == 39 {
						if err := s.KeepProofs(t.Context()); err != nil {
							t.Error(err)
						}
					}
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		s := open(options)
		defer func() { must(t, s.Close()) }()
		runs, err := maintenance.Proofs(t.Context(), s, snapshots(t, s))
		must(t, err)
		kept, bytes := int64(0), int64(0)
		for _, run := range runs {
			kept, bytes = kept+run.Blobs, bytes+run.Bytes
		}
		got := proofOf(t, s, "d")
		if got.Blobs != int64(len(m.blobs)) || kept != got.Blobs || bytes != got.OfBytes {
			t.Errorf("%d checksums, of %d bytes, are kept of %d blobs: %+v", kept, bytes, len(m.blobs), got)
		}
	})
}

// faulty is a store whose changes fail now and then, after they were made or before.
type faulty struct {
	store.Store
	fails func(what string) error
}

func (f *faulty) Below() store.Store { return f.Store }

func (f *faulty) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	if err := f.fails("begin"); err != nil {
		return nil, err
	}
	in, err := f.Store.Begin(ctx, dataset)
	return &faultyIngest{in, f}, err
}

type faultyIngest struct {
	store.Ingest
	f *faulty
}

func (in *faultyIngest) SaveProofs(ctx context.Context, p schema.ObjectPrefix, was, now []store.ProofRun) error {
	if err := in.f.fails("before"); err != nil {
		return err
	}
	if err := in.Ingest.SaveProofs(ctx, p, was, now); err != nil {
		return err
	}
	return in.f.fails("after")
}

// TestProveKilled: a process ends between what it has read and what it has kept, or its changes fail, with their answers
// lost or not. The next one knows of each blob what was kept, or learns it; none is wrong, and a collection leaves nothing.
func TestProveKilled(t *testing.T) {
	rng := random(t)
	pail := newPail("mem://photos")
	m := fill(rng, pail, 60).lazily()
	dir := filepath.Join(t.TempDir(), "store")
	options := extent.Options{Buckets: newPails(pail).open}
	s := extent.New(openLocal(t, dir), options)
	m.attach(t, s, "d")
	must(t, s.Close())
	for range 30 {
		var dead atomic.Bool
		f := &faulty{openLocal(t, dir), func(string) error {
			if dead.Load() || rng.IntN(3) == 0 {
				return fmt.Errorf("%w: for the test", schema.ErrUnavailable)
			}
			return nil
		}}
		s := extent.New(f, options)
		for range rng.IntN(40) {
			must(t, m.blobs[rng.IntN(len(m.blobs))].prove(t.Context(), s))
			if rng.IntN(5) == 0 {
				if err := s.KeepProofs(t.Context()); err != nil && !errors.Is(err, schema.ErrUnavailable) {
					t.Fatal(err)
				}
			}
		}
		dead.Store(true) // what is not kept now is lost with the process
		must(t, s.Close())
	}
	s = extent.New(openLocal(t, dir), options)
	defer func() { must(t, s.Close()) }()
	for _, b := range m.blobs {
		must(t, b.prove(t.Context(), s))
	}
	must(t, s.KeepProofs(t.Context()))
	if got := proofOf(t, s, "d"); got.Blobs != got.OfBlobs {
		t.Errorf("%+v", got)
	}
	runs, err := maintenance.Proofs(t.Context(), s, snapshots(t, s))
	must(t, err)
	kept := int64(0)
	for _, run := range runs {
		kept += run.Blobs
	}
	if kept != int64(len(m.blobs)) {
		t.Errorf("%d checksums are kept of %d blobs", kept, len(m.blobs))
	}
	before := s.Stats().Blobs
	_, err = s.GC(t.Context(), store.GCOptions{}, nil)
	must(t, err)
	if want := int64(2 + len(runs)); s.Stats().Blobs != want { // a page, the set, the checksums
		t.Errorf("a collection of %d blobs leaves %d, want %d", before, s.Stats().Blobs, want)
	}
}

// TestProofsAreJoined: however often a few checksums are kept, there are few blobs of them.
func TestProofsAreJoined(t *testing.T) {
	pail := newPail("mem://photos")
	m := fill(random(t), pail, 120).lazily()
	s := extent.New(openLocal(t, filepath.Join(t.TempDir(), "store")), extent.Options{Buckets: newPails(pail).open})
	defer func() { must(t, s.Close()) }()
	m.attach(t, s, "d")
	for i, b := range m.blobs {
		must(t, b.prove(t.Context(), s))
		must(t, s.KeepProofs(t.Context()))
		runs, err := maintenance.Proofs(t.Context(), s, snapshots(t, s))
		must(t, err)
		if len(runs) > 10 {
			t.Fatalf("%d blobs of checksums after %d", len(runs), i+1)
		}
	}
}

// TestProofsAreBounded: memory holds at most the allowed number of checksums. Reads
// beyond it are right, and their checksums are not kept. Stored checksums of one set make
// room for those of another, and are still compared.
func TestProofsAreBounded(t *testing.T) {
	rng := random(t)
	one, two := newPail("mem://one"), newPail("mem://two")
	a, b := fill(rng, one, 20).lazily(), fill(rng, two, 20).lazily()
	dir := filepath.Join(t.TempDir(), "store")
	options := extent.Options{Buckets: newPails(one, two).open, Proofs: int64(min(len(a.blobs), len(b.blobs)) - 1)}
	s := extent.New(openLocal(t, dir), options)
	a.attach(t, s, "a")
	b.attach(t, s, "b")
	for _, x := range slices.Concat(a.blobs, b.blobs) {
		must(t, x.prove(t.Context(), s))
	}
	if got := proofOf(t, s, "a"); got.Blobs != options.Proofs {
		t.Errorf("%+v is known, want %d", got, options.Proofs)
	}
	must(t, s.Close())

	options.Proofs = 0
	s = extent.New(openLocal(t, dir), options)
	for _, x := range slices.Concat(a.blobs, b.blobs) {
		must(t, x.prove(t.Context(), s))
	}
	must(t, s.Close())
	options.Proofs = 2
	s = extent.New(openLocal(t, dir), options)
	defer func() { must(t, s.Close()) }()
	spoil := false
	for _, p := range []*pail{one, two} {
		p.spoil = func(_ string, buf []byte) {
			if spoil {
				buf[0] ^= 1
			}
		}
	}
	for range 200 {
		list := [][]lying{a.unpacked(), b.unpacked()}[rng.IntN(2)]
		spoil = rng.IntN(2) == 0
		err := list[rng.IntN(len(list))].prove(t.Context(), s)
		if spoil != errors.Is(err, schema.ErrDataLoss) || !spoil && err != nil {
			t.Fatalf("spoiled %v: %v", spoil, err)
		}
	}
}

// TestCopyProofs: a copy by reference has what was learned, also of a snapshot that it had before; a copy by value has
// ordinary blobs.
func TestCopyProofs(t *testing.T) {
	copies(t, func(t *testing.T, how maintenance.Attached, open func(int, *pails) *extent.Store) {
		rng := random(t)
		pail := newPail("mem://photos")
		m := fill(rng, pail, 30).lazily()
		buckets := newPails(pail)
		from, to := open(0, buckets), open(1, buckets)
		m.attach(t, from, "d")
		for _, part := range [][]lying{m.blobs[:10], m.blobs[5:20], m.blobs} {
			for _, b := range part {
				must(t, b.prove(t.Context(), from))
			}
			must(t, from.KeepProofs(t.Context()))
			_, err := maintenance.Copy(t.Context(), from, to, snapshots(t, from), maintenance.CopyOptions{Attached: how})
			must(t, err)
			if got, want := proofOf(t, to, "d"), proofOf(t, from, "d"); how == maintenance.ByReference &&
				(got.Blobs != want.Blobs || got.OfBlobs != want.OfBlobs) {
				t.Errorf("%+v is proven, want %+v", got, want)
			}
		}
		if how == maintenance.ByValue {
			pail.objects = nil
		}
		snap := snapshots(t, to)[0]
		for i, data := range rowsProven(t, to, snap) {
			if !bytes.Equal(data, m.blobs[i].data) {
				t.Fatalf("row %d has other bytes", i)
			}
		}
		found, err := maintenance.Verify(t.Context(), maintenance.Scope{Source: to, Snapshots: snapshots(t, to)},
			maintenance.VerifyOptions{})
		if err != nil || len(found.Damaged) > 0 || (found.Proof == nil) != (how == maintenance.ByValue) {
			t.Errorf("verify: %+v, %v", found, err)
		}
	})
}

func rowsProven(t *testing.T, s *extent.Store, snap *schema.Snapshot) [][]byte {
	t.Helper()
	if rng := rand.IntN(2); rng == 0 {
		must(t, s.LearnProofs(t.Context(), snap))
	}
	return rows(t, s, snap)
}

// TestVerifyProofs: checksums that were learned and are damaged are found, and named.
func TestVerifyProofs(t *testing.T) {
	pail := newPail("mem://photos")
	m := fill(random(t), pail, 10).lazily()
	dir := filepath.Join(t.TempDir(), "store")
	s := extent.New(openLocal(t, dir), extent.Options{Buckets: newPails(pail).open})
	m.attach(t, s, "d")
	for _, b := range m.blobs {
		must(t, b.prove(t.Context(), s))
	}
	must(t, s.Close())
	s = extent.New(openLocal(t, dir), extent.Options{Buckets: newPails(pail).open})
	runs, err := maintenance.Proofs(t.Context(), s, snapshots(t, s))
	must(t, err)
	must(t, s.Close())
	below := &lossy{Store: openLocal(t, dir), key: runs[0].Key}
	s = extent.New(below, extent.Options{Buckets: newPails(pail).open})
	defer func() { must(t, s.Close()) }()
	found, err := maintenance.Verify(t.Context(), maintenance.Scope{Source: s, Snapshots: snapshots(t, s)},
		maintenance.VerifyOptions{})
	must(t, err)
	if !slices.ContainsFunc(found.Damaged, func(d maintenance.Damage) bool {
		return d.Key == runs[0].Key && len(d.In) == 1 && d.In[0].What == "checksums of object set "+m.set.Prefix().String()
	}) {
		t.Errorf("%+v", found)
	}
	if err := s.LearnProofs(t.Context(), snapshots(t, s)[0]); !errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("the dataset is opened without what was learned: %v", err)
	}
}

// lossy is a store that has lost a blob.
type lossy struct {
	store.Store
	key schema.Key
}

func (s *lossy) Below() store.Store { return s.Store }

func (s *lossy) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if ref.Key == s.key {
		return schema.Blob{}, fmt.Errorf("%w: blob %s", schema.ErrNotFound, ref.Key)
	}
	return s.Store.Get(ctx, ref)
}
