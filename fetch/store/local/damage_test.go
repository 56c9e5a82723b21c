package local

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"bowstring/fetch/store"
	"bowstring/internal/rounds"
	"bowstring/schema"
)

// damageSample makes a store with tables, a log and a manifest, and returns a copy of its
// directory: as it is after a clean shutdown, or after its process was killed.
func damageSample(t *testing.T, clean bool) (image string, has committed) {
	t.Helper()
	dir := t.TempDir()
	for generation := range 4 {
		s, err := Open(dir, testOptions())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			name := fmt.Sprint("d", (generation+i)%3)
			if _, err := importSource(t.Context(), s, name, fmt.Sprintf("%d/%d", generation, i),
				func(string) {}); err != nil {
				t.Fatal(err)
			}
		}
		if generation == 2 {
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := s.Drop(t.Context(), "d0", 1); err != nil {
				t.Fatal(err)
			}
			if _, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if generation == 1 {
			if err := errors.Join(s.Tag(t.Context(), "d1", "prod", 1), s.Tag(t.Context(), "d1", "old", 1)); err != nil {
				t.Fatal(err)
			}
		}
		if generation == 3 {
			if err := errors.Join(s.Tag(t.Context(), "d1", "prod", 2), s.Untag(t.Context(), "d1", "old")); err != nil {
				t.Fatal(err)
			}
			if has, err = contents(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if !clean {
				image = copyStore(t, dir)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if clean {
		image = copyStore(t, dir)
	}
	// The rest of a dead process in it has no meaning, and is removed at the next end.
	if err := os.Truncate(filepath.Join(image, lockFile), 0); err != nil {
		t.Fatal(err)
	}
	return image, has
}

func copyStore(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// fileSums are the files under a directory, with the hashes of their content.
func fileSums(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, path))
		sum := sha256.Sum256(data)
		fmt.Fprintln(&b, path, len(data), hex.EncodeToString(sum[:8]))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// flipBit flips one bit of a file in a directory, and returns which. Each file is equally
// likely.
func flipBit(t *testing.T, dir string, r *rand.Rand) string {
	t.Helper()
	var files []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil {
			t.Fatal(err)
		} else if info.Size() > 0 {
			files = append(files, e.Name())
		}
	}
	name := files[r.IntN(len(files))]
	path := filepath.Join(dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bit := r.IntN(len(data) * 8)
	data[bit/8] ^= 1 << (bit % 8)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("bit %d of %s", bit, name)
}

// refused requires an error that says in one line that data was lost, and what to do.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, schema.ErrDataLoss) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("%s: %v", what, err)
	}
}

// readDamaged opens a damaged store and reads everything. Each answer must be right, or an error.
func readDamaged(t *testing.T, what, dir string, has committed) (whole bool) {
	t.Helper()
	s, err := Open(dir, testOptions())
	if err != nil {
		refused(t, what, err)
		if !strings.Contains(err.Error(), "store rebuild") {
			t.Errorf("%s: the refusal does not say what to run: %v", what, err)
		}
		return false
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}()
	return readOpened(t, what, s, has)
}

// TestFlippedDatabase flips single bits in the files of the database. Nothing is ever
// silently missing, no number is given out twice, reading changes no file, and a
// rebuild brings everything back.
func TestFlippedDatabase(t *testing.T) {
	const seed = 11
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	flips := rounds.Count(20, 60)
	if testing.Short() {
		flips = 8
	}
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprint("clean ", clean), func(t *testing.T) {
			image, has := damageSample(t, clean)
			if !readDamaged(t, "no bit", copyStore(t, image), has) {
				t.Fatal("the undamaged store cannot be read")
			}
			var noticed atomic.Int64
			t.Run("flips", func(t *testing.T) {
				for i := range flips {
					r := rand.New(rand.NewPCG(r.Uint64(), 0))
					t.Run(fmt.Sprint(i), func(t *testing.T) {
						t.Parallel() // it waits for the disk mostly
						dir := copyStore(t, image)
						what := flipBit(t, filepath.Join(dir, pebbleDir), r)
						before := fileSums(t, dir)
						if !readDamaged(t, what, dir, has) {
							noticed.Add(1)
						}
						if after := fileSums(t, dir); after != before {
							t.Fatalf("%s: reading changed the files from\n%s to\n%s", what, before, after)
						}
						requireNoOldNumber(t, what, copyStore(t, dir), has)
						requireRebuilt(t, what, dir, has)
					})
				}
			})
			t.Logf("%d of %d flips were noticed", noticed.Load(), flips)
			if noticed.Load() == 0 {
				t.Error("no flip was noticed")
			}
		})
	}
}

// requireNoOldNumber imports into a damaged store, which may be refused.
func requireNoOldNumber(t *testing.T, what, dir string, has committed) {
	t.Helper()
	s, err := Open(dir, testOptions())
	if err != nil {
		refused(t, what, err)
		return
	}
	defer func() {
		if err := s.Close(); err != nil && !errors.Is(err, schema.ErrDataLoss) {
			t.Errorf("%s: %v", what, err)
		}
	}()
	snap, err := importSource(t.Context(), s, "d1", "after", func(string) {})
	if err != nil {
		refused(t, what, err)
		return
	}
	if old, ok := has[fmt.Sprintf("d1@%d", snap.Number)]; ok {
		t.Fatalf("%s: the number %d, of %s, was given out again", what, snap.Number, old)
	}
}

// requireRebuilt rebuilds a store and requires all that was committed, and room for more.
func requireRebuilt(t *testing.T, what, dir string, has committed) {
	t.Helper()
	report, err := Rebuild(t.Context(), dir, RebuildOptions{Logger: testOptions().Logger})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if len(report.Missing)+len(report.Damage) > 0 || report.Snapshots != has.snapshots() {
		t.Fatalf("%s: %+v", what, report)
	}
	if !readDamaged(t, what+", rebuilt", dir, has) {
		t.Fatalf("%s: the rebuilt store is not whole", what)
	}
	s, err := Open(dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	requireExact(t, s)
	last := int64(0)
	for name := range has {
		var n int64
		if _, err := fmt.Sscanf(name, "d1@%d", &n); err == nil {
			last = max(last, n)
		}
	}
	snap, err := importSource(t.Context(), s, "d1", "after", func(string) {})
	if err != nil || snap.Number != last+1 {
		t.Fatalf("%s: the next snapshot is %+v, want number %d: %v", what, snap, last+1, err)
	}
	if _, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	requireWhole(t, s)
	requireExact(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFlippedJournal flips bits of the journal. The store stays usable, and writes a new
// journal.
func TestFlippedJournal(t *testing.T) {
	const seed = 12
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	image, has := damageSample(t, true)
	for range 20 {
		dir := copyStore(t, image)
		what := flipBit(t, filepath.Join(dir, journalDir), r)
		if !readDamaged(t, what, dir, has) {
			t.Fatalf("%s: the store is not whole", what)
		}
		requireRebuilt(t, what, dir, has)
		h, err := readJournal(defaultFS(nil), filepath.Join(dir, journalDir))
		if err != nil || h.damage != nil || h.change == 0 {
			t.Fatalf("%s: the journal was not written anew: %v, %v", what, err, h.damage)
		}
	}
}

// TestBothCopiesDamaged: a rebuild fails, unless it is asked to keep what can be read.
func TestBothCopiesDamaged(t *testing.T) {
	image, has := damageSample(t, true)
	journals, err := filepath.Glob(filepath.Join(image, journalDir, "*"+journalSuffix))
	if err != nil || len(journals) != 1 {
		t.Fatal(journals, err)
	}
	st, err := os.Stat(journals[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(image, pebbleDir)),
		os.Truncate(journals[0], st.Size()*3/4)); err != nil {
		t.Fatal(err)
	}
	flip(t, journals[0], 100)
	opts := RebuildOptions{Logger: testOptions().Logger}
	if _, err := Open(image, testOptions()); !errors.Is(err, schema.ErrDataLoss) {
		t.Fatalf("a store without its database: %v", err)
	}
	_, err = Rebuild(t.Context(), image, opts)
	refused(t, "both copies", err)
	opts.Lossy = true
	report, err := Rebuild(t.Context(), image, opts)
	if err != nil {
		t.Fatal(err)
	}
	s := openTest(t, image, testOptions())
	got, err := contents(t.Context(), s)
	if err != nil || len(got) != report.Snapshots {
		t.Fatalf("%v, %v; want %d snapshots", got, err, report.Snapshots)
	}
	for name, source := range got {
		if has[name] != source {
			t.Errorf("%s is of %s, and was of %s", name, source, has[name])
		}
	}
	requireWhole(t, s)
}

// TestRebuildDamagedSegment says which snapshots miss something.
func TestRebuildDamagedSegment(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"good", "bad"} {
		if _, err := importSource(t.Context(), s, d, d, func(string) {}); err != nil {
			t.Fatal(err)
		}
	}
	e, _, err := s.entry(schema.RefOf(sourceBlobs("bad")[1]).Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	flip(t, filepath.Join(dir, segmentsDir, fmt.Sprintf("%08x.seg", e.Segment)), e.Offset+5)
	opts := RebuildOptions{Logger: testOptions().Logger, Payloads: true}
	seen := int64(0)
	opts.Progress = func(p RebuildProgress) { seen = max(seen, p.Bytes) }
	report, err := Rebuild(t.Context(), dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	want := []MissingBlobs{{Dataset: "bad", Snapshot: 1, Blobs: 1}}
	if len(report.Damage) != 1 || !slices.Equal(report.Missing, want) || seen == 0 {
		t.Errorf("%+v, want missing %+v", report, want)
	}
}
