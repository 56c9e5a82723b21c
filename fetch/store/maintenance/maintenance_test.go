package maintenance_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/fetch/store/maintenance"
	"bowstring/internal/leaktest"
	"bowstring/internal/storetest"
	"bowstring/schema"
	"bowstring/spill/segment"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// open opens a store of small segments, which is closed at the end.
func open(t *testing.T, dir string) *local.Store {
	t.Helper()
	s, err := local.Open(dir, local.Options{SegmentBytes: 256 << 10, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// blobs makes count blobs that depend on the seed alone.
func blobs(seed uint64, count int) [][]byte {
	r := rand.New(rand.NewPCG(seed, 1))
	list := make([][]byte, count)
	for i := range list {
		list[i] = make([]byte, 1+r.IntN(5000))
		if i%50 == 7 {
			list[i] = make([]byte, 100_000+r.IntN(100_000)) // hashed in pieces
		}
		for j := range list[i] {
			list[i][j] = byte(r.Uint32())
		}
	}
	return list
}

// commit makes the next snapshot of the blobs, and a selection of it.
func commit(t *testing.T, s store.Store, dataset string, rows [][]byte) *schema.Snapshot {
	t.Helper()
	ctx := t.Context()
	in, err := s.Begin(ctx, dataset)
	must(t, err)
	defer func() { must(t, in.Close()) }()
	snap, err := storetest.Put(ctx, in, rows, 16)
	must(t, err)
	if newest, err := s.Snapshot(ctx, dataset, 0); err == nil {
		snap.Parent = newest.Number
	}
	made, err := in.Commit(ctx, snap)
	must(t, err)
	return made
}

func selectRows(t *testing.T, s store.Store, snap *schema.Snapshot, bitmap []byte) schema.Selection {
	t.Helper()
	ctx := t.Context()
	in, err := s.Begin(ctx, snap.Dataset)
	must(t, err)
	defer func() { must(t, in.Close()) }()
	ref, err := in.Put(ctx, bitmap)
	must(t, err)
	sel := schema.Selection{Dataset: snap.Dataset, Snapshot: snap.Number, Rows: 3, Bitmap: ref,
		Created: time.Unix(1e9, 0).UTC()}
	must(t, in.SaveSelection(ctx, sel))
	return sel
}

// damage flips a bit of each of the blobs in the files of a store that no process has
// open.
func damage(t *testing.T, dir string, keys ...schema.Key) {
	t.Helper()
	segments := filepath.Join(dir, "segments")
	ids, err := segment.List(segments)
	must(t, err)
	left := slices.Clone(keys)
	for _, id := range ids {
		f, err := os.OpenFile(filepath.Join(segments, segment.FileName(id)), os.O_RDWR, 0)
		must(t, err)
		st, err := f.Stat()
		must(t, err)
		for rec, err := range segment.Scan(f, id, st.Size(), segment.ScanOptions{}) {
			must(t, err)
			i := slices.Index(left, rec.Key)
			if i < 0 {
				continue
			}
			var b [1]byte
			_, err = f.ReadAt(b[:], rec.Offset+rec.Length/2)
			must(t, err)
			b[0] ^= 4
			_, err = f.WriteAt(b[:], rec.Offset+rec.Length/2)
			must(t, err)
			left = slices.Delete(left, i, i+1)
		}
		must(t, f.Close())
	}
	if len(left) > 0 {
		t.Fatalf("the files have no blobs %v", left)
	}
}

func scopeOf(t *testing.T, s store.Store, memory int64, names ...maintenance.Name) maintenance.Scope {
	t.Helper()
	snaps, err := maintenance.Snapshots(t.Context(), s, names)
	must(t, err)
	selections, err := maintenance.Selections(t.Context(), s, snaps)
	must(t, err)
	return maintenance.Scope{Source: s, Snapshots: snaps, Selections: selections, Memory: memory}
}

// spoiled is a store of two snapshots that share rows, of which some blobs are damaged.
func spoiled(t *testing.T) (dir string, rows [][]byte, sel schema.Selection) {
	dir = filepath.Join(t.TempDir(), "store")
	rows = blobs(1, 100)
	s := open(t, dir)
	commit(t, s, "d", rows[:60])
	second := commit(t, s, "d", slices.Concat(rows[:40], rows[60:], rows[:1]))
	commit(t, s, "e", rows[90:])
	sel = selectRows(t, s, second, []byte("12345678"))
	must(t, s.Close())
	damage(t, dir, schema.RefOf(rows[0]).Key, schema.RefOf(rows[57]).Key, schema.RefOf(rows[99]).Key, sel.Bitmap.Key)
	return dir, rows, sel
}

func TestVerifySaysWhatIsDamagedAndWhoHasIt(t *testing.T) {
	dir, rows, sel := spoiled(t)
	s := open(t, dir)
	want := map[string][]maintenance.Occurrence{
		schema.RefOf(rows[0]).Key.String(): {
			{Dataset: "d", Snapshot: 1, What: "column data", Rows: []int64{0}, Count: 1},
			{Dataset: "d", Snapshot: 2, What: "column data", Rows: []int64{0, 80}, Count: 2},
		},
		schema.RefOf(rows[57]).Key.String(): {{Dataset: "d", Snapshot: 1, What: "column data", Rows: []int64{57},
			Count: 1}},
		schema.RefOf(rows[99]).Key.String(): {
			{Dataset: "d", Snapshot: 2, What: "column data", Rows: []int64{79}, Count: 1},
			{Dataset: "e", Snapshot: 1, What: "column data", Rows: []int64{9}, Count: 1},
		},
		sel.Bitmap.Key.String(): {{Dataset: "d", Snapshot: 2, What: "selection " + sel.Name(), Rows: []int64{}}},
	}
	for _, memory := range []int64{0, 10_000, 700} {
		scope := scopeOf(t, s, memory)
		if passes := scope.Passes(); memory == 700 && passes < 10 || memory == 0 && passes != 1 {
			t.Fatalf("%d passes with %d bytes of memory", passes, memory)
		}
		found, err := maintenance.Verify(t.Context(), scope, maintenance.VerifyOptions{Workers: 4})
		must(t, err)
		got := map[string][]maintenance.Occurrence{}
		for _, d := range found.Damaged {
			got[d.Key.String()] = d.In
		}
		if a, b := asJSON(t, got), asJSON(t, want); a != b {
			t.Errorf("with %d bytes of memory:\n%s\nwant\n%s", memory, a, b)
		}
		list, err := everyPage(t, scope)
		must(t, err)
		chunks := len(list)
		if found.Blobs != int64(100+chunks+1) || found.Lasting() != 4 {
			t.Errorf("%d blobs were read, with %d chunks; %d are damaged", found.Blobs, chunks, found.Lasting())
		}
	}
	// A verification of an undamaged snapshot reports nothing of the others.
	found, err := maintenance.Verify(t.Context(), scopeOf(t, s, 0, maintenance.Name{Dataset: "e", Number: 1}),
		maintenance.VerifyOptions{})
	must(t, err)
	if len(found.Damaged) != 1 || len(found.Damaged[0].In) != 1 {
		t.Errorf("of e@1: %s", asJSON(t, found))
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return string(b)
}

func TestRepair(t *testing.T) {
	dir, rows, sel := spoiled(t)
	spare := open(t, filepath.Join(t.TempDir(), "spare"))
	commit(t, spare, "other", rows[:60])
	s := open(t, dir)
	scope := scopeOf(t, s, 0)
	found, err := maintenance.Verify(t.Context(), scope, maintenance.VerifyOptions{
		Repair:    s,
		Elsewhere: []maintenance.Place{{Name: "the damaged store", Get: s.Get}, {Name: "spare", Get: spare.Get}},
	})
	must(t, err)
	if found.Repaired != 2 || found.Lasting() != 2 {
		t.Fatalf("repaired %d, damaged still %d", found.Repaired, found.Lasting())
	}
	for _, d := range found.Damaged {
		if d.Repaired != (d.Whole == "spare") {
			t.Errorf("%s", asJSON(t, d))
		}
	}
	// The others come as they come.
	m := maintenance.NewMender(scope, s, &found)
	for _, b := range append(rows, []byte("12345678")) {
		must(t, m.Offer(t.Context(), "the source", b, &found))
	}
	if m.Wants() != 0 || found.Lasting() != 0 {
		t.Fatalf("%d are wanted still, %d damaged", m.Wants(), found.Lasting())
	}
	stats := s.Stats()
	must(t, s.Close())
	s = open(t, dir)
	if now := s.Stats(); now.Blobs != stats.Blobs || now.StoredBytes != stats.StoredBytes {
		t.Errorf("the store counts %+v, before it was closed %+v", now, stats)
	}
	found, err = maintenance.Verify(t.Context(), scopeOf(t, s, 0), maintenance.VerifyOptions{})
	must(t, err)
	if len(found.Damaged) != 0 {
		t.Errorf("after the repair: %s", asJSON(t, found.Damaged))
	}
	// Replaced blobs are garbage, and collecting them harms nothing.
	_, err = s.GC(t.Context(), store.GCOptions{}, nil)
	must(t, err)
	if found, err = maintenance.Verify(t.Context(), scopeOf(t, s, 0), maintenance.VerifyOptions{}); err != nil ||
		len(found.Damaged) != 0 {
		t.Errorf("after a collection: %v, %s", err, asJSON(t, found.Damaged))
	}
	if _, err := s.Selection(t.Context(), "d", sel.Name()); err != nil {
		t.Error(err)
	}
}

func TestRepairTakesNothingElse(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"))
	if err := s.Repair(t.Context(), schema.RefOf([]byte("right")), []byte("wrong")); !errors.Is(err,
		schema.ErrInvalid) {
		t.Errorf("a repair with other bytes: %v", err)
	}
}

func TestDamagedManifest(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := open(t, dir)
	rows := blobs(2, 40)
	snap := commit(t, s, "d", rows)
	scope := scopeOf(t, s, 0)
	list, err := everyPage(t, scope)
	must(t, err)
	if len(list) != 4 || list[0] != snap.Chunks[0].BlobRef || list[1] != snap.Chunks[1].BlobRef {
		t.Fatalf("%v; want an index, a page, and the two pages of the index", list)
	}
	page := list[3].Key // positions 16 to 31
	must(t, s.Close())
	damage(t, dir, page, schema.RefOf(rows[20]).Key, schema.RefOf(rows[2]).Key)
	s = open(t, dir)
	found, err := maintenance.Verify(t.Context(), scopeOf(t, s, 0), maintenance.VerifyOptions{})
	must(t, err)
	for _, d := range found.Damaged {
		switch {
		case d.Key == page:
			if in := asJSON(t,
				d.In); in != `[{"dataset":"d","snapshot":1,"what":"manifest","rows":[16,31],"count":16}]` {
				t.Error(in)
			}
		case d.Key != schema.RefOf(rows[2]).Key: // row 20 is in the chunk that cannot be read
			t.Error(asJSON(t, d))
		}
	}
	if len(found.Damaged) != 2 {
		t.Errorf("%d are damaged", len(found.Damaged))
	}
}

// counting is a source that cancels its context after a number of reads.
type counting struct {
	*local.Store
	mu   sync.Mutex
	left int
	stop context.CancelFunc
	read map[schema.Key]int
}

func (c *counting) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	c.mu.Lock()
	if c.left--; c.left == 0 {
		c.stop()
	}
	c.read[ref.Key]++
	c.mu.Unlock()
	return c.Store.Get(ctx, ref)
}

func TestVerifyGoesOnWhereItWas(t *testing.T) {
	dir, _, _ := spoiled(t)
	s := open(t, dir)
	state := filepath.Join(t.TempDir(), "state")
	whole, err := maintenance.Verify(t.Context(), scopeOf(t, s, 2000), maintenance.VerifyOptions{})
	must(t, err)
	chunks := map[schema.Key]bool{}
	all := scopeOf(t, s, 2000)
	list, err := everyPage(t, all)
	must(t, err)
	for _, ref := range list {
		chunks[ref.Key] = true
	}
	reads, stops := map[schema.Key]int{}, 0
	for {
		ctx, stop := context.WithCancel(t.Context())
		src := &counting{Store: s, left: 40, stop: stop, read: reads}
		names, err := maintenance.Resumed(state)
		must(t, err)
		if stops > 0 && len(names) != 3 {
			t.Fatalf("the file names %v", names)
		}
		scope := scopeOf(t, s, 2000, names...)
		scope.Source = src
		found, err := maintenance.Verify(ctx, scope, maintenance.VerifyOptions{Resume: state, Workers: 1})
		stop()
		if err == nil {
			if a, b := asJSON(t, found.Damaged), asJSON(t, whole.Damaged); a != b || found.Lasting() != 4 {
				t.Errorf("found\n%s, in one run\n%s", a, b)
			}
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if stops++; stops > 50 {
			t.Fatal("it never comes to its end")
		}
		if stops == 1 { // what comes meanwhile is not of it
			commit(t, s, "new", blobs(9, 5))
		}
	}
	if stops < 3 {
		t.Errorf("stopped %d times only", stops)
	}
	for key, n := range reads {
		if !chunks[key] && n > 2 { // once more at most, where it was stopped, and the damaged ones
			t.Errorf("blob %s was read %d times", key, n)
		}
	}
	if _, err := os.Stat(state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
	must(t, os.WriteFile(state, []byte(`{"format":"another"}`), 0o600))
	if _, err := maintenance.Verify(t.Context(), all, maintenance.VerifyOptions{Resume: state}); !errors.Is(err,
		schema.ErrInvalid) {
		t.Errorf("a file of something else: %v", err)
	}
}

func TestVerifyKeepsTheRate(t *testing.T) {
	dir, _, _ := spoiled(t)
	ctx, stop := context.WithCancel(t.Context())
	// At a byte a second nothing is done before it is stopped.
	src := &counting{Store: open(t, dir), stop: stop, read: map[schema.Key]int{}}
	scope := scopeOf(t, src.Store, 0)
	scope.Source = src
	time.AfterFunc(50*time.Millisecond, stop)
	if found, err := maintenance.Verify(ctx, scope, maintenance.VerifyOptions{Rate: 1}); err == nil || found.Blobs != 0 {
		t.Errorf("%d blobs, %v", found.Blobs, err)
	}
}
