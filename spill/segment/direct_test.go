package segment

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"bowstring/schema"
)

// newDirect makes a set that writes past the page cache, or skips the test where the file system cannot.
func newDirect(t *testing.T, opts Options) (*Set, string) {
	t.Helper()
	opts.Direct = true
	s, dir := newSet(t, opts)
	probe := filepath.Join(dir, "probe")
	if err := os.WriteFile(probe, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := openDirect(probe)
	if f == nil {
		t.Skip("the file system of the temporary directory has no direct writes")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return s, dir
}

// sizes are around every limit that there is.
func sizes(r *rand.Rand) int {
	around := []int{0, Align, Block, directMin, directMin + Block, 110_000, directSize, 2 * directSize}
	return max(0, around[r.IntN(len(around))]+r.IntN(300)-150)
}

func TestDirect(t *testing.T) {
	t.Run("async", func(t *testing.T) {
		newAsync(t)
		testDirect(t, false)
	})
	t.Run("sync", func(t *testing.T) { testDirect(t, true) })
}

func testDirect(t *testing.T, waiting bool) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s, dir := newDirect(t, Options{MaxBytes: 8 << 20})
	s.io.writers.none = waiting
	var mu sync.Mutex
	want := map[Location][]byte{}
	check := func(r *rand.Rand) {
		mu.Lock()
		var loc Location
		var data []byte
		skip := r.IntN(len(want))
		for loc, data = range want {
			if skip--; skip < 0 {
				break
			}
		}
		mu.Unlock()
		requireBlob(t, s, loc, data)
	}
	records := 100
	if testing.Short() {
		records = 20
	}
	var group errgroup.Group
	for w := range uint64(4) {
		group.Go(func() error {
			r := rand.New(rand.NewPCG(seed, w))
			for i := range records {
				data := content(fmt.Sprint(w, i), sizes(r))
				ref := schema.RefOf(data)
				loc, err := s.Append(ref.Key, ref.Sum, data)
				if err != nil {
					return err
				}
				mu.Lock()
				want[loc] = data
				mu.Unlock()
				if len(data) >= directMin && (loc.Offset-HeaderSize)%Block != 0 {
					t.Errorf("a record of %d bytes is at %d, inside a block", len(data), loc.Offset)
				}
				check(r)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}

	// No two records of which one was written directly share a block.
	type run struct{ from, to int64 }
	blocks := map[uint32][]run{}
	for loc := range want {
		from := loc.Offset - HeaderSize
		to := from + Footprint(loc.Length)
		if loc.Length >= directMin {
			to = from + s.Footprint(loc.Length)
		}
		blocks[loc.Segment] = append(blocks[loc.Segment], run{from, to})
	}
	for id, runs := range blocks {
		slices.SortFunc(runs, func(a, b run) int { return int(a.from - b.from) })
		for i, r := range runs[1:] {
			if r.from < runs[i].to {
				t.Errorf("segment %d: a record at %d begins before %d, where the one before it ends", id, r.from,
					runs[i].to)
			}
		}
	}

	// A scan finds all of them and no damage, and so does another set.
	again := NewSet(dir, Options{})
	defer again.Close()
	found := 0
	for _, g := range s.Segments() {
		for rec, err := range g.Scan(ScanOptions{Payloads: true}) {
			switch {
			case err != nil:
				t.Fatal(err)
			case !rec.Void:
				found++
				if data, ok := want[Location{g.ID(), rec.Offset, rec.Length}]; !ok ||
					schema.RefOf(data).Key != rec.Key {
					t.Errorf("the scan found a record at %d of segment %d that was not written", rec.Offset, g.ID())
				}
			}
		}
		if _, err := again.Attach(g.ID(), g.Size(), g.Durable(), false); err != nil {
			t.Fatal(err)
		}
	}
	if found != len(want) {
		t.Errorf("the scan found %d records of %d", found, len(want))
	}
	for loc, data := range want {
		requireBlob(t, again, loc, data)
	}
}

// Directly written blobs are not in memory until they are read; that is their purpose.
func TestDirectTakesNoMemory(t *testing.T) {
	s, _ := newDirect(t, Options{})
	data := content("blob", 200_000)
	loc := appendBlob(t, s, data)
	b := s.Segment(loc.Segment).mem[loc.Offset : loc.Offset+loc.Length]
	if schema.Resident(b) {
		t.Error("the pages of a blob written past the page cache are in it")
	}
	requireBlob(t, s, loc, data)
	if !schema.Resident(b) {
		t.Error("the pages of a blob that was read are not in memory")
	}
}

// Blocks that the file system refuses to write past the page cache, as from a buffer at an odd address, are written
// through it.
func TestDirectRefused(t *testing.T) {
	t.Run("async", func(t *testing.T) {
		newAsync(t)
		testDirectRefused(t, false)
	})
	t.Run("sync", func(t *testing.T) { testDirectRefused(t, true) })
}

func testDirectRefused(t *testing.T, waiting bool) {
	s, _ := newDirect(t, Options{})
	s.io.writers.none = waiting
	odd := make([]byte, directSize+1)
	s.io.buffers.give(odd[1-uintptr(unsafe.Pointer(unsafe.SliceData(odd)))%2:][:directSize])
	data := content("blob", 100_000)
	loc := appendBlob(t, s, data)
	if b := s.Segment(loc.Segment).mem[loc.Offset : loc.Offset+loc.Length]; !schema.Resident(b) {
		t.Error("a blob from a buffer at an odd address was written directly: nothing was refused")
	}
	requireBlob(t, s, loc, data)
}

// A write that fails leaves a void that a scan gets over, its last block included.
func TestDirectFailure(t *testing.T) {
	fail := false
	s, _ := newDirect(t, Options{Fault: func(op Op, _ string) error {
		if op == OpWrite && fail {
			return syscall.EIO
		}
		return nil
	}})
	first := appendBlob(t, s, content("first", 1000))
	fail = true
	if _, err := s.Append(schema.Key{}, 0, make([]byte, 100_000)); err == nil {
		t.Fatal("a write that was to fail succeeded")
	}
	fail = false
	data := content("second", 120_000)
	last := appendBlob(t, s, data)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	var good []int64
	for rec, err := range s.Segment(first.Segment).Scan(ScanOptions{Payloads: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if !rec.Void {
			good = append(good, rec.Offset)
		}
	}
	if !slices.Equal(good, []int64{first.Offset, last.Offset}) {
		t.Errorf("the scan found records at %d, want %d and %d", good, first.Offset, last.Offset)
	}
	requireBlob(t, s, last, data)
}

// inFrame is a copy of the data in a frame, whose rest is not zero.
func inFrame(data []byte) (frame, payload []byte) {
	size := int(schema.FrameSize(int64(len(data))))
	memory := make([]byte, size+Block)
	begin := int(-uintptr(unsafe.Pointer(unsafe.SliceData(memory))) % Block)
	frame = memory[begin : begin+size : begin+size]
	for i := range frame {
		frame[i] = 0xa5
	}
	payload = frame[HeaderSize:][:len(data):len(data)]
	copy(payload, data)
	return frame, payload
}

// Blobs in frames are written from there, together, with the same bytes on disk as copied ones.
func TestDirectFromFrames(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, framed := range []float64{1, 0.5} {
		s, _ := newDirect(t, Options{MaxBytes: 64 << 20})
		want := map[Location][]byte{}
		for round := range 20 {
			var writes []Write
			var contents [][]byte
			for i := range 1 + r.IntN(20) {
				data := content(fmt.Sprint(round, i), directMin+r.IntN(200_000))
				reserved, err := s.Reserve(int64(len(data)))
				if err != nil {
					t.Fatal(err)
				}
				ref := schema.RefOf(data)
				w := Write{Reservation: reserved, Key: ref.Key, Sum: ref.Sum, Payload: data}
				if r.Float64() < framed {
					w.Frame, w.Payload = inFrame(data)
				}
				writes, contents = append(writes, w), append(contents, data)
			}
			WriteAll(writes)
			for i, w := range writes {
				if w.Err != nil {
					t.Fatal(w.Err)
				}
				if !slices.Equal(w.Payload, contents[i]) {
					t.Fatal("a payload was changed while it was written")
				}
				want[w.Location()] = contents[i]
			}
		}
		for loc, data := range want {
			requireBlob(t, s, loc, data)
		}
		if err := s.Sync(); err != nil { // which gives the first block's rest a header
			t.Fatal(err)
		}
		found := 0
		for _, g := range s.Segments() {
			for rec, err := range g.Scan(ScanOptions{Payloads: true}) {
				if err != nil {
					t.Fatal(err)
				}
				if !rec.Void {
					found++
				}
			}
		}
		if found != len(want) {
			t.Errorf("the scan found %d records of %d", found, len(want))
		}
		if copied := len(s.io.buffers) > 0; copied != (framed < 1) {
			t.Errorf("with %g of the blobs in frames: copied %v", framed, copied)
		}
	}
}

// A payload whose frame is invalid is copied.
func TestDirectFromNoFrame(t *testing.T) {
	s, _ := newDirect(t, Options{})
	data := content("blob", 100_000)
	ref := schema.RefOf(data)
	frame, payload := inFrame(data)
	odd, oddPayload := inFrame(append([]byte{1}, data...))
	for name, w := range map[string]Write{
		"of another length":       {Payload: payload, Frame: frame[:len(frame)-Block]},
		"of other bytes":          {Payload: data, Frame: frame},
		"in which it begins late": {Payload: oddPayload[1:], Frame: odd},
		"not at a block":          {Payload: payload, Frame: append(make([]byte, 1, len(frame)+1), frame[1:]...)},
	} {
		var err error
		if w.Reservation, err = s.Reserve(int64(len(data))); err != nil {
			t.Fatal(err)
		}
		w.Key, w.Sum = ref.Key, ref.Sum
		before := slices.Clone(w.Frame)
		writes := []Write{w}
		WriteAll(writes)
		if writes[0].Err != nil {
			t.Fatal(name, writes[0].Err)
		}
		if !slices.Equal(w.Frame, before) {
			t.Errorf("a frame %s was filled in", name)
		}
		requireBlob(t, s, w.Location(), data)
	}
}
