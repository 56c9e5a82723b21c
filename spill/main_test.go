package spill

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"bowstring/internal/leaktest"
	"bowstring/schema"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests, to repeat a run; 0 draws one")

func TestMain(m *testing.M) {
	if os.Getenv(childDir) != "" {
		fmt.Fprintln(os.Stderr, "child:", child())
		os.Exit(3)
	}
	leaktest.Main(m)
}

// testRand returns the random numbers of a test, whose seed it logs.
func testRand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -args -seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

type blob struct {
	data []byte
	ref  schema.BlobRef
}

var contents sync.Map // of numbers to blobs

// content is the bytes of blob number i, and its reference.
func content(i int) ([]byte, schema.BlobRef) {
	if known, ok := contents.Load(i); ok {
		b := known.(blob)
		return b.data, b.ref
	}
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(i))
	r := rand.New(rand.NewChaCha8(seed))
	size := r.IntN(200_000)
	switch r.IntN(8) {
	case 0:
		size %= 3000
	case 1:
		size = size%64 + 8
	}
	data, ref := fill(r, size)
	contents.Store(i, blob{data, ref})
	return data, ref
}

func fill(r *rand.Rand, size int) ([]byte, schema.BlobRef) {
	b := make([]byte, size, size+8)
	for at := 0; at < size; at += 8 {
		binary.LittleEndian.PutUint64(b[at:at+8:cap(b)], r.Uint64())
	}
	return b, schema.RefOf(b)
}

// testOptions make a small cache with a quiet log.
func testOptions(dir string) Options {
	return Options{Dir: dir, Bytes: 24 << 20, KeepFree: 1, Logger: slog.New(slog.DiscardHandler)}
}

func openCache(t testing.TB, opts Options) *Cache {
	t.Helper()
	c, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeCache(t, c) })
	return c
}

func closeCache(t testing.TB, c *Cache) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// requireRight gets a blob and requires that its bytes are right if it is there.
func requireRight(t testing.TB, c *Cache, i int) bool {
	t.Helper()
	data, ref := content(i)
	b, ok := c.Get(ref, Place{Position: int64(i)})
	if ok && string(b.Bytes()) != string(data) {
		t.Fatalf("blob %d has wrong bytes", i)
	}
	b.Release()
	return ok
}

// put stores blob number i.
func put(c *Cache, i int) bool {
	data, ref := content(i)
	return c.Put(ref, Place{Position: int64(i)}, 1e6, data)
}

// usage is what the file system holds of the files below dir. One that goes meanwhile counts for nothing.
func usage(t testing.TB, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !d.IsDir() {
			n += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// requireExact requires that the cache's accounting agrees with the files, after all blobs were released.
func requireExact(t testing.TB, c *Cache) {
	t.Helper()
	st := c.Stats()
	segments := usage(t, c.path(blobsDir))
	counted := st.HeldBytes - fixedOverhead - st.Entries*overhead
	// The file system's own blocks for extents, of which overhead is a part.
	if slack := int64(64<<10) + st.Entries*overhead; segments > counted+slack || counted > segments+64<<10 {
		t.Errorf("the cache counts %d bytes of segments, the file system has %d: %+v", counted, segments, st)
	}
}

func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }
