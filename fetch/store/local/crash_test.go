package local

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"bowstring/fetch/store"
	"bowstring/internal/storetest"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// requireWhole requires that everything the store shows is there, byte for
// byte, and returns the newest snapshot's number.
func requireWhole(t *testing.T, s *Store) int64 {
	t.Helper()
	ctx := t.Context()
	list, err := s.Datasets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var newest int64
	for _, d := range list {
		for _, number := range d.Snapshots {
			snap, err := s.Snapshot(ctx, d.Name, number)
			if err != nil {
				t.Fatal(err)
			}
			got, err := storetest.Read(ctx, s, snap)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(got, sourceBlobs(snap.Source), bytes.Equal) {
				t.Fatalf("%s@%d does not hold what was imported from %s", d.Name, number, snap.Source)
			}
			newest = number
		}
	}
	return newest
}

// requireExact requires that no blob is damaged and that the store's count of
// its blobs is right.
func requireExact(t *testing.T, s *Store) {
	t.Helper()
	v, err := s.Verify(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	st := s.Stats()
	if len(v.Damaged) != 0 || v.Blobs != st.Blobs || v.Bytes != st.StoredBytes {
		t.Fatalf("%d of %d blobs are damaged; there are %d bytes; the store counts %+v", len(v.Damaged), v.Blobs,
			v.Bytes, st)
	}
}

// TestKill kills a process that imports, drops and collects, after a number of lines of
// its output, and opens the store that it leaves.
func TestKill(t *testing.T) {
	const seed = 42
	kills, perDir := 60, 6
	if testing.Short() {
		kills = 6
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var dir string
	var acked int64
	moments := map[string]int{}
	for k := range kills {
		if k%perDir == 0 {
			dir, acked = filepath.Join(t.TempDir(), "store"), 0
		}
		c := startChild(t, "import", dir, k)
		left, last := 1+r.IntN(120), ""
		hear := func(line string) {
			last = line
			var n int64
			if _, err := fmt.Sscanf(line, "committed %d", &n); err == nil {
				acked = n
			}
		}
		c.until(t, func(line string) bool {
			hear(line)
			left--
			return left == 0
		})
		c.kill(t, hear)
		moments[strings.Fields(last)[0]]++

		s, err := Open(dir, testOptions())
		if err != nil {
			t.Fatalf("kill %d, after %q: %v", k, last, err)
		}
		if newest := requireWhole(t, s); newest < acked {
			t.Fatalf("kill %d, after %q: the newest snapshot is %d, and %d was committed", k, last, newest, acked)
		}
		requireExact(t, s)
		if k%2 == 0 { // every other time the next import is the next child's
			snap, err := importSource(t.Context(), s, "d", fmt.Sprint("after ", k), func(string) {})
			if err != nil {
				t.Fatalf("kill %d, after %q: the next import: %v", k, last, err)
			}
			acked = snap.Number
			if _, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil {
				t.Fatalf("kill %d, after %q: the next collection: %v", k, last, err)
			}
			requireWhole(t, s)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("killed after %v", moments)
}

// TestPowerLoss simulates crashes of the machine. Only synced data of the database's
// files survives for certain, and only the durable prefix of segments. The rest is kept,
// cut off, zeroed or replaced, page by page.
func TestPowerLoss(t *testing.T) {
	const seed = 5
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			dir, mem := powerLossDir(t), vfs.NewCrashableMem()
			var acked int64
			for generation := range 4 {
				opts := testOptions()
				opts.fs, opts.boot = mem, fmt.Sprintf("boot %d", generation)
				s, err := Open(dir, opts)
				if err != nil {
					t.Fatalf("generation %d: %v", generation, err)
				}
				if newest := requireWhole(t, s); newest < acked {
					t.Fatalf("generation %d: the newest snapshot is %d, and %d was committed", generation, newest,
						acked)
				}
				for i := range r.IntN(4) {
					snap, err := importSource(t.Context(), s, "d", fmt.Sprintf("%d/%d", generation, i), func(string) {})
					if err != nil {
						t.Fatal(err)
					}
					acked = snap.Number
					if acked > 1 && r.IntN(3) == 0 {
						if err := s.Drop(t.Context(), "d", acked-1); err != nil && !errors.Is(err, schema.ErrNotFound) {
							t.Fatal(err)
						}
						if _, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil {
							t.Fatal(err)
						}
					}
				}
				// An import that does not get to its commit.
				in, err := s.Begin(t.Context(), "d")
				if err != nil {
					t.Fatal(err)
				}
				pending := sourceBlobs(fmt.Sprintf("%d/pending", generation))
				for _, data := range pending {
					if _, err := in.Put(t.Context(), data); err != nil {
						t.Fatal(err)
					}
				}

				crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[r.IntN(3)], RNG: r})
				lost := loseSegments(t, s, r)
				if err := errors.Join(in.Close(), s.Close()); err != nil {
					t.Fatal(err)
				}
				mem = crashed
				lost(t)

				opts.fs, opts.boot = mem, opts.boot+" and a half"
				if s, err = Open(dir, opts); err != nil {
					t.Fatalf("generation %d: %v", generation, err)
				}
				// Uncommitted data may be gone, and is never wrong.
				for _, data := range pending {
					ref := schema.RefOf(data)
					b, err := s.Get(t.Context(), ref)
					switch {
					case err == nil:
						if err := ref.Check(b.Bytes()); err != nil {
							t.Errorf("generation %d: %v", generation, err)
						}
						b.Release()
					case !errors.Is(err, schema.ErrNotFound) && !errors.Is(err, schema.ErrDataLoss):
						t.Error(err)
					}
				}
				// Put again it is there, whatever the index still says of it.
				snap, err := importSource(t.Context(), s, "d", fmt.Sprintf("%d/pending", generation), func(string) {})
				if err != nil {
					t.Fatal(err)
				}
				acked = snap.Number
				requireWhole(t, s)
				if _, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil {
					t.Fatal(err)
				}
				requireWhole(t, s)
				requireExact(t, s)
				if generation%2 == 0 { // else the next generation finds it unclean
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					continue
				}
				crashed = mem.CrashClone(vfs.CrashCloneCfg{})
				lost = loseSegments(t, s, r)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				mem = crashed
				lost(t)
			}
		})
	}
}

// powerLossDir is a directory for a store whose database is in memory.
func powerLossDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := createDirectory(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, pebbleDir), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// loseSegments makes copies of the segments as a crash of the machine might leave them.
// It returns a function that replaces the segments by these copies.
func loseSegments(t *testing.T, s *Store, r *rand.Rand) func(*testing.T) {
	t.Helper()
	files := map[string][]byte{}
	for _, g := range s.set.Segments() {
		path := filepath.Join(s.dir, segmentsDir, segment.FileName(g.ID()))
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		durable := int(g.Durable())
		fate := r.IntN(4)
		if fate == 0 {
			data = data[:durable+r.IntN(len(data)-durable+1)]
		}
		for at := durable; fate == 1 && at < len(data); at += 4096 {
			page := data[at:min(at+4096, len(data))]
			switch r.IntN(3) {
			case 0:
				clear(page)
			case 1:
				for i := range page {
					page[i] = byte(r.Uint32())
				}
			}
		}
		if fate == 2 && len(data) > durable {
			data[durable+r.IntN(len(data)-durable)] ^= 1 << r.IntN(8)
		}
		files[path] = data
	}
	return func(t *testing.T) {
		t.Helper()
		segments := filepath.Join(s.dir, segmentsDir)
		if err := errors.Join(os.RemoveAll(segments), os.Mkdir(segments, 0o755)); err != nil {
			t.Fatal(err)
		}
		for path, data := range files {
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestUnsyncedIsCutOff damages the first record after the durable length and
// requires that the catalog remembers where to stop.
func TestUnsyncedIsCutOff(t *testing.T) {
	dir := t.TempDir()
	opts := testOptions()
	opts.boot = "one"
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := importSource(t.Context(), s, "d", "kept", func(string) {}); err != nil {
		t.Fatal(err)
	}
	in, err := s.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	var refs []schema.BlobRef
	for i := range 3 {
		ref, err := in.Put(t.Context(), []byte(strings.Repeat(fmt.Sprint("lost ", i), 100)))
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	e, ok, err := s.entry(refs[1].Key)
	if err != nil || !ok {
		t.Fatal(err)
	}
	if err := s.db.LogData(nil, pebble.Sync); err != nil { // the index is on disk
		t.Fatal(err)
	}
	// The image of the directory while the store is open, with a flipped bit.
	crash := t.TempDir()
	if err := os.CopyFS(filepath.Join(crash, "store"), os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	crash = filepath.Join(crash, "store")
	if err := errors.Join(in.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	flip(t, filepath.Join(crash, segmentsDir, segment.FileName(e.Segment)), e.Offset+20)

	for _, boot := range []string{"two", "two", "three"} {
		opts.boot = boot
		if s, err = Open(crash, opts); err != nil {
			t.Fatal(err)
		}
		requireWhole(t, s)
		for i, ref := range refs {
			b, err := s.Get(t.Context(), ref)
			if i == 0 && err != nil { // before the damage
				t.Errorf("boot %s: %v", boot, err)
			} else if i > 0 && !errors.Is(err, schema.ErrDataLoss) && !errors.Is(err, schema.ErrNotFound) {
				t.Errorf("boot %s: a blob behind the damage: %v", boot, err)
			}
			b.Release()
		}
		if _, err := importSource(t.Context(), s, "d", "next "+boot, func(string) {}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
