package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func newSet(t testing.TB, opts Options) (*Set, string) {
	t.Helper()
	dir := t.TempDir()
	if opts.NewID == nil {
		var next atomic.Uint32
		opts.NewID = func() (uint32, error) { return next.Add(1), nil }
	}
	s := NewSet(dir, opts)
	t.Cleanup(s.Close)
	return s, dir
}

func content(name string, n int) []byte {
	var seed [32]byte
	copy(seed[:], name)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
	return b
}

func appendBlob(t testing.TB, s *Set, data []byte) Location {
	t.Helper()
	ref := schema.RefOf(data)
	loc, err := s.Append(ref.Key, ref.Sum, data)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

func requireBlob(t testing.TB, s *Set, loc Location, want []byte) {
	t.Helper()
	b, err := s.Get(loc)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if !bytes.Equal(b.Bytes(), want) {
		t.Fatalf("%+v holds other bytes than were put", loc)
	}
}

func TestAppendAndGet(t *testing.T) {
	s, dir := newSet(t, Options{MaxBytes: 1 << 20})
	want := map[Location][]byte{}
	for i, n := range []int{0, 1, 63, 64, 65, 4095, 4096, 110_000, 0, 3 << 20, 10, 900_000, 200_000} {
		data := content(fmt.Sprint(i), n)
		loc := appendBlob(t, s, data)
		if loc.Offset%Align != 0 {
			t.Errorf("a payload is at offset %d", loc.Offset)
		}
		want[loc] = data
		for loc, data := range want { // the segment is readable as it grows
			requireBlob(t, s, loc, data)
		}
	}
	for loc := range want {
		b, err := s.Get(loc)
		if err != nil {
			t.Fatal(err)
		}
		if p := uintptr(unsafe.Pointer(unsafe.SliceData(b.Bytes()))); p%Align != 0 {
			t.Errorf("a payload is mapped at %#x", p)
		}
		b.Release()
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	ends := map[uint32]int64{}
	for _, g := range s.Segments() {
		if g.Durable() != g.Size() {
			t.Errorf("after a sync %d of %d bytes of segment %d are durable", g.Durable(), g.Size(), g.ID())
		}
		if g.Size() > 1<<20 {
			n := 0
			for range g.Scan(ScanOptions{}) {
				n++
			}
			if n != 1 {
				t.Errorf("segment %d of %d bytes has %d records, want the large one alone", g.ID(), g.Size(), n)
			}
		}
		ends[g.ID()] = g.Size()
	}
	if len(ends) < 3 {
		t.Errorf("there are %d segments, want the blobs spread over several", len(ends))
	}

	// Another set over the same files.
	ids, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	again := NewSet(dir, Options{MaxBytes: 1 << 20, NewID: func() (uint32, error) { return 100, nil }})
	defer again.Close()
	for i, id := range ids {
		if _, err := again.Attach(id, ends[id], ends[id], i == len(ids)-1); err != nil {
			t.Fatal(err)
		}
	}
	for loc, data := range want {
		requireBlob(t, again, loc, data)
	}
	data := content("one more", 5000)
	loc := appendBlob(t, again, data)
	if loc.Segment != ids[len(ids)-1] {
		t.Errorf("the append went to segment %d, not to the last one, %d", loc.Segment, ids[len(ids)-1])
	}
	requireBlob(t, again, loc, data)
}

func TestRebuildIndexByScan(t *testing.T) {
	s, _ := newSet(t, Options{MaxBytes: 1 << 20})
	want := map[schema.Key]Location{}
	var mu sync.Mutex
	var g errgroup.Group
	for w := range 8 {
		g.Go(func() error {
			r := rand.New(rand.NewPCG(7, uint64(w)))
			for i := range 60 {
				data := content(fmt.Sprintf("%d/%d", w, i), r.IntN(30_000))
				ref := schema.RefOf(data)
				loc, err := s.Append(ref.Key, ref.Sum, data)
				if err != nil {
					return err
				}
				b, err := s.Get(loc)
				if err != nil {
					return err
				}
				err = ref.Check(b.Bytes())
				b.Release()
				if err != nil {
					return err
				}
				mu.Lock()
				want[ref.Key] = loc
				mu.Unlock()
				if i%20 == 0 {
					if err := s.Sync(); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	got := map[schema.Key]Location{}
	for _, g := range s.Segments() {
		for rec, err := range g.Scan(ScanOptions{Payloads: true}) {
			if err != nil {
				t.Fatal(err)
			}
			got[rec.Key] = Location{g.ID(), rec.Offset, rec.Length}
		}
	}
	if len(got) != len(want) {
		t.Fatalf("the scan found %d records of %d", len(got), len(want))
	}
	for k, loc := range want {
		if got[k] != loc {
			t.Errorf("%s is at %+v, the scan says %+v", k, loc, got[k])
		}
	}
}

func TestSealedSegmentsAreTrimmed(t *testing.T) {
	s, dir := newSet(t, Options{})
	loc := appendBlob(t, s, content("x", 1000))
	s.Roll()
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, FileName(loc.Segment)), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != HeaderSize+Footprint(1000) || st.Blocks*512 > 64<<10 {
		t.Errorf("a sealed segment of %d bytes takes %d on disk", st.Size, st.Blocks*512)
	}
}

// TestKilledSegmentsAreTrimmed attaches a segment as a killed process leaves
// it, with space allocated beyond its end, and one that has none.
func TestKilledSegmentsAreTrimmed(t *testing.T) {
	s, dir := newSet(t, Options{})
	loc := appendBlob(t, s, content("x", 1000))
	path := filepath.Join(dir, FileName(loc.Segment))
	var before, after, again syscall.Stat_t
	for _, st := range []*syscall.Stat_t{&before, &after, &again} {
		if err := syscall.Stat(path, st); err != nil {
			t.Fatal(err)
		}
		other := NewSet(dir, Options{})
		if _, err := other.Attach(loc.Segment, st.Size, 0, false); err != nil {
			t.Fatal(err)
		}
		requireBlob(t, other, loc, content("x", 1000))
		other.Close()
	}
	if before.Blocks*512 < 1<<20 {
		t.Skip("the file system does not allocate ahead")
	}
	if after.Size != before.Size || after.Blocks*512 > 128<<10 {
		t.Errorf("%d bytes on disk became %d for a file of %d", before.Blocks*512, after.Blocks*512, after.Size)
	}
	if again.Mtim != after.Mtim {
		t.Error("a segment with nothing to trim was written to")
	}
}

func TestAttachRefuses(t *testing.T) {
	s, dir := newSet(t, Options{})
	loc := appendBlob(t, s, content("x", 1000))
	path := filepath.Join(dir, FileName(loc.Segment))
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(id uint32, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, FileName(id)), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(50, data) // another segment's number
	newer := slices.Clone(data)
	newer[8] = 9
	binary.LittleEndian.PutUint32(newer[12:], 51)
	write(51, newer)
	write(52, data[:10])
	write(53, nil)
	for _, id := range []uint32{50, 51, 52, 53, 54} {
		if _, err := s.Attach(id, int64(len(data)), 0, false); err == nil {
			t.Errorf("segment %d was attached", id)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{1 << 10, 110_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s, _ := newSet(b, Options{MaxBytes: 64 << 20})
			data := content("bench", size)
			ref := schema.RefOf(data)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				loc, err := s.Append(ref.Key, ref.Sum, data)
				if err != nil {
					b.Fatal(err)
				}
				if loc.Segment > 4 { // bound the disk space
					if err := s.Retire(loc.Segment - 4); err != nil && !errors.Is(err, schema.ErrInvalid) {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	s, _ := newSet(b, Options{})
	const n = 512
	var locs [n]Location
	for i := range locs {
		locs[i] = appendBlob(b, s, content(fmt.Sprint(i), 110_000))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		blob, err := s.Get(locs[i%n])
		if err != nil {
			b.Fatal(err)
		}
		blob.Release()
		i++
	}
}
