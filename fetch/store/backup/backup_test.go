package backup_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"bowstring/fetch/store"
	"bowstring/fetch/store/backup"
	"bowstring/fetch/store/local"
	"bowstring/fetch/store/tend"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T) *local.Store {
	t.Helper()
	s, err := local.Open(filepath.Join(t.TempDir(), "store"), local.Options{Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// blobs makes count blobs that depend on the seed alone.
func blobs(seed uint64, count int) [][]byte {
	r := rand.New(rand.NewPCG(seed, 1))
	list := make([][]byte, count)
	for i := range list {
		list[i] = make([]byte, r.IntN(3000))
		for j := range list[i] {
			list[i][j] = byte(r.Uint32())
		}
	}
	return list
}

func commit(t *testing.T, s store.Store, dataset string, rows [][]byte) *schema.Snapshot {
	t.Helper()
	in, err := s.Begin(t.Context(), dataset)
	must(t, err)
	defer func() { must(t, in.Close()) }()
	snap, err := storetest.Put(t.Context(), in, rows, 16)
	must(t, err)
	if newest, err := s.Snapshot(t.Context(), dataset, 0); err == nil {
		snap.Parent = newest.Number
	}
	made, err := in.Commit(t.Context(), snap)
	must(t, err)
	return made
}

func saveSelection(t *testing.T, s store.Store, snap *schema.Snapshot) schema.Selection {
	t.Helper()
	in, err := s.Begin(t.Context(), snap.Dataset)
	must(t, err)
	defer func() { must(t, in.Close()) }()
	ref, err := in.Put(t.Context(), []byte("a bitmap"))
	must(t, err)
	sel := schema.Selection{Dataset: snap.Dataset, Snapshot: snap.Number, Rows: 2, Bitmap: ref, Owner: "ann"}
	must(t, s.SaveSelection(t.Context(), in, sel))
	return sel
}

func scopeOf(t *testing.T, src tend.Source, names ...tend.Name) tend.Scope {
	t.Helper()
	snaps, err := tend.Snapshots(t.Context(), src, names)
	must(t, err)
	selections, err := tend.Selections(t.Context(), src, snaps)
	must(t, err)
	return tend.Scope{Source: src, Snapshots: snaps, Selections: selections}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return string(b)
}

func openGeneration(t *testing.T, dir string, n int64) *backup.Generation {
	t.Helper()
	g, err := backup.Open(dir, n)
	must(t, err)
	t.Cleanup(func() { must(t, g.Close()) })
	return g
}

// restore copies a generation into a new store, and requires that it is what it was.
func restore(t *testing.T, g *backup.Generation, from store.Store) {
	t.Helper()
	to := open(t)
	scope := scopeOf(t, g)
	_, err := tend.Copy(t.Context(), g, to, scope.Snapshots, tend.CopyOptions{Selections: true})
	must(t, err)
	for _, snap := range scope.Snapshots {
		back, err := to.Snapshot(t.Context(), snap.Dataset, snap.Number)
		must(t, err)
		if asJSON(t, back) != asJSON(t, snap) {
			t.Fatalf("restored %s, was %s", asJSON(t, back), asJSON(t, snap))
		}
		was, err := storetest.Read(t.Context(), from, snap)
		must(t, err)
		is, err := storetest.Read(t.Context(), to, back)
		must(t, err)
		if !slices.EqualFunc(was, is, bytes.Equal) {
			t.Fatalf("the rows of %s@%d differ", snap.Dataset, snap.Number)
		}
	}
	for _, sel := range scope.Selections {
		back, err := to.Selection(t.Context(), sel.Dataset, sel.Name())
		must(t, err)
		if asJSON(t, back) != asJSON(t, sel) {
			t.Errorf("restored %s, was %s", asJSON(t, back), asJSON(t, sel))
		}
	}
}

func TestGenerations(t *testing.T) {
	s, dir := open(t), filepath.Join(t.TempDir(), "backup")
	rows := blobs(1, 100)
	commit(t, s, "d", rows[:60])
	commit(t, s, "e", blobs(11, 200)) // in packs of its own, some of it
	opts := backup.Options{Store: "here", PackBytes: 20_000}
	first, err := backup.Write(t.Context(), dir, scopeOf(t, s), opts)
	must(t, err)
	saveSelection(t, s, commit(t, s, "d", rows))
	must(t, s.Drop(t.Context(), "e", 0))
	second, err := backup.Write(t.Context(), dir, scopeOf(t, s), opts)
	must(t, err)
	third, err := backup.Write(t.Context(), dir, scopeOf(t, s, tend.Name{Dataset: "d", Number: 2}), opts)
	must(t, err)
	if first.Generation != 1 || second.Generation != 2 || third.Generation != 3 {
		t.Fatalf("generations %d, %d, %d", first.Generation, second.Generation, third.Generation)
	}
	if first.New != first.Blobs || second.New >= 60 || second.New < 40 || third.New != 0 {
		t.Errorf("of %d, %d and %d blobs %d, %d and %d are new", first.Blobs, second.Blobs, third.Blobs, first.New,
			second.New, third.New)
	}
	for n := range int64(3) {
		g := openGeneration(t, dir, n+1)
		restore(t, g, s)
		found, err := tend.Verify(t.Context(), scopeOf(t, g), tend.VerifyOptions{})
		must(t, err)
		if len(found.Damaged) != 0 {
			t.Errorf("generation %d: %s", n+1, asJSON(t, found))
		}
	}
	if about := openGeneration(t, dir, 0).About(); about.Generation != 3 || about.Store != "here" ||
		asJSON(t, about.Snapshots) != `["d@2"]` || about.Selections != 1 {
		t.Errorf("the newest: %s", asJSON(t, about))
	}
	if _, err := backup.Open(dir, 9); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("a generation that there is not: %v", err)
	}

	pruned, err := backup.Prune(dir, 1)
	must(t, err)
	if asJSON(t, pruned.Generations) != "[1,2]" || pruned.Packs == 0 || pruned.FreedBytes == 0 {
		t.Errorf("pruned %s", asJSON(t, pruned))
	}
	restore(t, openGeneration(t, dir, 3), s)
	if pruned, err = backup.Prune(dir, 1); err != nil || len(pruned.Generations) != 0 || pruned.Packs != 0 {
		t.Errorf("pruned again %s, %v", asJSON(t, pruned), err)
	}
	fourth, err := backup.Write(t.Context(), dir, scopeOf(t, s), opts)
	must(t, err)
	if fourth.Generation != 4 {
		t.Errorf("after pruning generation %d", fourth.Generation)
	}
	restore(t, openGeneration(t, dir, 4), s)
}

// TestStandardTools reads a backup as somebody without this program would.
func TestStandardTools(t *testing.T) {
	s, dir := open(t), t.TempDir()
	rows := blobs(2, 20)
	commit(t, s, "d", rows)
	_, err := backup.Write(t.Context(), dir, scopeOf(t, s), backup.Options{PackBytes: 10_000})
	must(t, err)
	have := map[string]bool{}
	packs, err := filepath.Glob(filepath.Join(dir, "packs", "*.tar"))
	must(t, err)
	for _, path := range packs {
		f, err := os.Open(path)
		must(t, err)
		defer f.Close()
		r := tar.NewReader(f)
		for {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			data, err := io.ReadAll(r)
			must(t, err)
			key := fmt.Sprintf("%x", sha256.Sum256(data))
			if h.Name != key[:2]+"/"+key {
				t.Errorf("%s has the content of %s", h.Name, key)
			}
			have[key] = true
		}
	}
	for _, row := range rows {
		if !have[fmt.Sprintf("%x", sha256.Sum256(row))] {
			t.Errorf("a row of %d bytes is in no pack", len(row))
		}
	}
	if len(packs) < 2 {
		t.Errorf("%d packs", len(packs))
	}
	catalog, err := os.ReadFile(filepath.Join(dir, "generations", "00000001.json"))
	must(t, err)
	sum, err := os.ReadFile(filepath.Join(dir, "generations", "00000001.json.sha256"))
	must(t, err)
	if want := fmt.Sprintf("%x  00000001.json\n", sha256.Sum256(catalog)); string(sum) != want {
		t.Errorf("checksum %q, want %q", sum, want)
	}
}

// stopping ends its context after so many reads.
type stopping struct {
	*local.Store
	mu   sync.Mutex
	left int
	stop context.CancelFunc
}

func (s *stopping) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	s.mu.Lock()
	if s.left--; s.left == 0 {
		s.stop()
	}
	s.mu.Unlock()
	return s.Store.Get(ctx, ref)
}

func TestStopped(t *testing.T) {
	s, dir := open(t), t.TempDir()
	rows := blobs(3, 120)
	commit(t, s, "d", rows[:20])
	scope := scopeOf(t, s)
	_, err := backup.Write(t.Context(), dir, scope, backup.Options{})
	must(t, err)
	commit(t, s, "d", rows)
	scope = scopeOf(t, s)
	var written int64
	for stops := 0; ; stops++ {
		if stops > 100 {
			t.Fatal("it never comes to its end")
		}
		ctx, stop := context.WithCancel(t.Context())
		scope.Source = &stopping{Store: s, left: 30, stop: stop}
		done, err := backup.Write(ctx, dir, scope, backup.Options{Workers: 1, PackBytes: 5000})
		stop()
		written += done.New
		if err == nil {
			if stops < 3 || written != done.Blobs-23 { // 20 blobs, an index and two pages were there
				t.Errorf("stopped %d times; %d blobs were written, of %d", stops, written, done.Blobs)
			}
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		// What was whole stays whole, and a tar that was not finished is nobody's.
		if list, err := backup.List(dir); err != nil || len(list) != 1 {
			t.Fatalf("generations %v, %v", list, err)
		}
		must(t, os.WriteFile(filepath.Join(dir, "packs", "00009999.tar"), []byte("half"), 0o600))
	}
	if _, err := os.Stat(filepath.Join(dir, "packs", "00009999.tar")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tar that was not finished: %v", err)
	}
	restore(t, openGeneration(t, dir, 1), s)
	restore(t, openGeneration(t, dir, 2), s)
}

func TestOnlyOneWrites(t *testing.T) {
	s, dir := open(t), t.TempDir()
	commit(t, s, "d", blobs(4, 3))
	scope := scopeOf(t, s)
	var inner error
	scope.Source = &hooked{Store: s, hook: func() {
		_, inner = backup.Write(t.Context(), dir, scopeOf(t, s), backup.Options{})
	}}
	_, err := backup.Write(t.Context(), dir, scope, backup.Options{Workers: 1})
	must(t, err)
	if !errors.Is(inner, schema.ErrUnavailable) {
		t.Errorf("a second writer: %v", inner)
	}
}

type hooked struct {
	*local.Store
	once sync.Once
	hook func()
}

func (h *hooked) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	h.once.Do(h.hook)
	return h.Store.Get(ctx, ref)
}

func TestRefused(t *testing.T) {
	s := open(t)
	commit(t, s, "d", blobs(5, 3))
	full := t.TempDir()
	must(t, os.WriteFile(filepath.Join(full, "thesis.txt"), []byte("text"), 0o600))
	if _, err := backup.Write(t.Context(), full, scopeOf(t, s), backup.Options{}); !errors.Is(err, schema.ErrInvalid) ||
		!strings.Contains(err.Error(), "thesis.txt") {
		t.Errorf("a directory with something else: %v", err)
	}
	newer := t.TempDir()
	must(t, os.WriteFile(filepath.Join(newer, "BACKUP"), []byte(`{"format":"bowstring-backup","version":2}`), 0o600))
	if _, err := backup.Write(t.Context(), newer, scopeOf(t, s), backup.Options{}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("a newer format: %v", err)
	}
	if _, err := backup.Open(t.TempDir(), 0); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("no backup: %v", err)
	}
	if _, err := backup.Prune(t.TempDir(), 0); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("keep nothing: %v", err)
	}
}

// TestFlippedBits flips bits in each kind of file: what was flipped is found, by the catalog's
// checksum or by Verify, and never taken for what it is not.
func TestFlippedBits(t *testing.T) {
	const seed = 6
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s, dir := open(t), t.TempDir()
	commit(t, s, "d", blobs(seed, 30))
	_, err := backup.Write(t.Context(), dir, scopeOf(t, s), backup.Options{})
	must(t, err)
	for _, name := range []string{"generations/00000001.json", "packs/00000001.index", "packs/00000001.tar"} {
		path := filepath.Join(dir, name)
		whole, err := os.ReadFile(path)
		must(t, err)
		for range 50 {
			spoiled := bytes.Clone(whole)
			at := r.IntN(len(spoiled))
			spoiled[at] ^= 1 << r.IntN(8)
			must(t, os.WriteFile(path, spoiled, 0o600))
			g, err := backup.Open(dir, 0)
			if strings.HasSuffix(name, ".json") {
				if !errors.Is(err, schema.ErrDataLoss) {
					t.Errorf("bit flipped at %d of %s: %v", at, name, err)
				}
				continue
			}
			must(t, err)
			found, err := tend.Verify(t.Context(), scopeOf(t, g), tend.VerifyOptions{})
			must(t, err)
			must(t, g.Close())
			if strings.HasSuffix(name, ".index") && len(found.Damaged) == 0 && !sameButCase(whole[at], spoiled[at]) {
				t.Errorf("bit flipped at %d of %s, from %q to %q: nothing was found", at, name, whole[at], spoiled[at])
			}
			for _, d := range found.Damaged {
				if d.Whole != "" || !strings.HasPrefix(d.Problem, "data loss") &&
					!strings.HasPrefix(d.Problem, "not found") {
					t.Errorf("%s", asJSON(t, d))
				}
			}
		}
		must(t, os.WriteFile(path, whole, 0o600))
	}
}

// sameButCase: the hexadecimal digits mean the same.
func sameButCase(a, b byte) bool { return strings.EqualFold(string(a), string(b)) }
