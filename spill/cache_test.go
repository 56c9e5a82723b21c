package spill

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bowstring/schema"
)

func TestStoredIsThere(t *testing.T) {
	opts := testOptions(filepath.Join(t.TempDir(), "new", "spill"))
	c := openCache(t, opts)
	number := c.Dataset("d@1")
	if again := c.Dataset("d@1"); number == 0 || again != number {
		t.Fatalf("the dataset is number %d, and then %d", number, again)
	}
	const n = 60
	for i := range n {
		data, ref := content(i)
		at := Place{Dataset: number, Position: int64(i)}
		if b, ok := c.Get(ref, at); ok {
			b.Release()
			t.Fatalf("blob %d is there before it was stored", i)
		}
		if !c.Put(ref, at, 1e6, data) {
			t.Fatalf("blob %d was not stored", i)
		}
		if c.Put(ref, at, 1e6, data) {
			t.Fatalf("blob %d was stored twice", i)
		}
		if !requireRight(t, c, i) || !c.Has(ref) {
			t.Fatalf("blob %d is not there", i)
		}
	}
	st := c.Stats()
	if d := st.Datasets["d@1"]; d.Entries != n || d.Misses != n || d.Stored != n || st.Hits != n || st.Entries != n ||
		st.Bytes != d.Bytes {
		t.Errorf("%+v", st)
	}
	requireExact(t, c)
	for _, reopen := range []string{"once", "twice"} {
		closeCache(t, c)
		c = openCache(t, opts)
		for i := range n {
			if !requireRight(t, c, i) {
				t.Fatalf("blob %d is not there after the cache was opened %s more", i, reopen)
			}
		}
		if c.Dataset("d@1") != number {
			t.Error("the dataset has another number")
		}
		if st := c.Stats(); st.Entries != n || st.Damaged != 0 || st.Datasets["d@1"].Entries != n {
			t.Errorf("opened %s more: %+v", reopen, st)
		}
		requireExact(t, c)
	}
}

// TestPinned holds blobs while everything else is evicted, the cache shrinks, is closed and its directory removed.
func TestPinned(t *testing.T) {
	opts := testOptions(t.TempDir())
	c := openCache(t, opts)
	var held []schema.Blob
	for i := range 10 {
		put(c, i)
		_, ref := content(i)
		b, ok := c.Get(ref, Place{})
		if !ok {
			t.Fatal("a blob is not there")
		}
		held = append(held, b)
	}
	for i := 10; i < 600; i++ {
		put(c, i)
	}
	if st := c.Stats(); st.Evicted == 0 || st.HeldBytes > st.BudgetBytes {
		t.Fatalf("%+v", st)
	}
	c.Resize(MinBytes)
	if st := c.Stats(); st.HeldBytes > MinBytes {
		t.Errorf("after it was made smaller: %+v", st)
	}
	closeCache(t, c)
	if err := os.RemoveAll(opts.Dir); err != nil {
		t.Fatal(err)
	}
	for i := range held {
		if data, _ := content(i); !bytes.Equal(held[i].Bytes(), data) {
			t.Errorf("pinned blob %d has changed", i)
		}
		requireExtent(t, &held[i])
		held[i].Release()
	}
}

// TestBudget stores, reads, pins and resizes at random, and compares what the cache holds with its budget after each
// step, by the files: those of the index included.
func TestBudget(t *testing.T) {
	r := testRand(t)
	for _, policy := range []Policy{Score(), LRU(), NextUse(&Future{}), Static()} {
		t.Run(policy.Name(), func(t *testing.T) {
			opts := testOptions(t.TempDir())
			opts.Policy = policy
			opts.Bytes = MinBytes + r.Int64N(8<<20)
			c := openCache(t, opts)
			budget := opts.Bytes
			var held []schema.Blob
			check := func() {
				t.Helper()
				if st := c.Stats(); st.HeldBytes > budget {
					t.Fatalf("the cache counts %d bytes of %d", st.HeldBytes, budget)
				}
				if n := usage(t, opts.Dir); n > budget {
					t.Fatalf("the cache has %d bytes of %d", n, budget)
				}
			}
			for step := range 400 {
				switch k := r.IntN(100); {
				case k < 60:
					put(c, r.IntN(500))
				case k < 80:
					requireRight(t, c, r.IntN(500))
				case k < 90:
					_, ref := content(r.IntN(500))
					if b, ok := c.Get(ref, Place{}); ok {
						held = append(held, b)
					}
				case len(held) > 20:
					for i := range held {
						held[i].Release()
					}
					held = held[:0]
				case k == 99 && step%3 == 0:
					for i := range held {
						held[i].Release()
					}
					held = held[:0]
					budget = MinBytes + r.Int64N(8<<20)
					c.Resize(budget)
				}
				check()
			}
			for i := range held {
				held[i].Release()
			}
			closeCache(t, c)
			check()
			opts.Bytes = max(MinBytes, budget-r.Int64N(4<<20))
			budget = opts.Bytes
			c = openCache(t, opts)
			check()
			requireExact(t, c)
		})
	}
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	c := openCache(t, testOptions(t.TempDir()))
	seed := testRand(t).Uint64()
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			at := c.Dataset(fmt.Sprint("d", w%2))
			for range 300 {
				data, ref := content(r.IntN(250))
				place := Place{Dataset: at, Position: int64(r.IntN(250))}
				switch r.IntN(6) {
				case 0:
					c.Put(ref, place, 1e6, data)
				case 1, 2:
					c.Offer(ref, place, 1e6, schema.NewBlob(data, nil))
				case 3:
					if r.IntN(20) == 0 {
						c.Resize(MinBytes + r.Int64N(8<<20))
					}
					c.Stats()
				default:
					b, ok := c.Get(ref, place)
					if ok && !bytes.Equal(b.Bytes(), data) {
						t.Error("wrong bytes")
					}
					b.Release()
				}
			}
		})
	}
	wg.Wait()
	closeCache(t, c)
	if b, ok := c.Get(schema.BlobRef{}, Place{}); ok {
		b.Release()
		t.Error("a closed cache has something")
	}
	if put(c, 1) {
		t.Error("a closed cache stores")
	}
	c = openCache(t, c.opts)
	requireExact(t, c)
	if st := c.Stats(); st.Damaged != 0 {
		t.Errorf("%+v", st)
	}
}

// TestPlannedStays fills a cache with what a job uses at various times: what is left is what it uses first.
func TestPlannedStays(t *testing.T) {
	future := &Future{}
	opts := testOptions(t.TempDir())
	opts.Oracle = future
	opts.Clock = func() Time { return stampZero }
	c := openCache(t, opts)
	at := c.Dataset("d")
	if _, err := future.Add(JobOptions{Dataset: at, Order: ascending(1000), Epochs: 1}, stampZero); err != nil {
		t.Fatal(err)
	}
	r := testRand(t)
	refs := make([]schema.BlobRef, 1000)
	for _, i := range r.Perm(1000) {
		var data []byte
		data, refs[i] = fill(r, 100_000)
		c.Put(refs[i], Place{Dataset: at, Position: int64(i)}, 1e6, data)
	}
	there := 0
	for i, ref := range refs {
		if c.Has(ref) {
			there++
		} else if i < 100 {
			t.Errorf("what is used as number %d is not there", i)
		}
	}
	if c.Has(refs[999]) || there < 140 {
		t.Errorf("%d are there", there)
	}
	st := c.Stats()
	if d := st.Datasets["d"]; d.Bypassed == 0 || d.Evicted == 0 || d.Bypassed+d.Stored != 1000 ||
		st.WrittenBytes > 110*st.StoredBytes/100 {
		t.Errorf("%+v", st)
	}
}

// ascending is the order of epochs that are not shuffled.
type ascending int64

func (n ascending) Rows() int64 { return int64(n) }

func (n ascending) Index(_, position int64) (int64, bool) { return position, position < int64(n) }

func TestDirectoryIsLocked(t *testing.T) {
	opts := testOptions(t.TempDir())
	c := openCache(t, opts)
	_, err := Open(opts)
	if !errors.Is(err, schema.ErrUnavailable) || !contains(err, fmt.Sprint("process ", os.Getpid())) ||
		!contains(err, opts.Dir) {
		t.Errorf("opened twice: %v", err)
	}
	closeCache(t, c)
	openCache(t, opts)
}

func TestForeignDirectoryIsRefused(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"something else":      {"notes.txt": "mine"},
		"an unnamed index":    {"index/MANIFEST": ""},
		"a store":             {"FORMAT": `{"format":"bowstring-local","version":1}`, "pebble/x": "", "segments/x": ""},
		"a damaged store":     {"FORMAT": `{"format`, "pebble/x": "", "segments/x": ""},
		"another new program": {"FORMAT": `{"format":"other","version":1}`},
	} {
		dir := t.TempDir()
		for path, text := range files {
			path = filepath.Join(dir, path)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
				os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Open(testOptions(dir))
		if !errors.Is(err, schema.ErrInvalid) || !contains(err, dir) {
			t.Errorf("%s: %v", name, err)
		}
		for path, text := range files {
			if b, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(b) != text {
				t.Errorf("%s: %s was changed: %v", name, path, err)
			}
		}
	}
	for _, opts := range []Options{{Bytes: 1 << 30}, {Dir: t.TempDir(), Bytes: 100}} {
		if _, err := Open(opts); !errors.Is(err, schema.ErrInvalid) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

func TestOtherFormatBeginsAnew(t *testing.T) {
	for _, text := range []string{`{"format":"bowstring-spill","version":0}`,
		`{"format":"bowstring-spill","version":1}`, `{"format":"bowstring-spill","version":3}`, `{"for`, ""} {
		opts := testOptions(t.TempDir())
		c := openCache(t, opts)
		put(c, 1)
		closeCache(t, c)
		if err := os.WriteFile(filepath.Join(opts.Dir, formatFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c = openCache(t, opts)
		if requireRight(t, c, 1) || !strings.Contains(log.String(), "another format") {
			t.Errorf("%q: a cache of another format was read; the log says %q", text, log.String())
		}
		put(c, 2)
		closeCache(t, c)
		c = openCache(t, opts)
		if !requireRight(t, c, 2) {
			t.Errorf("%q: the new cache does not keep what is stored", text)
		}
		closeCache(t, c)
	}
}
