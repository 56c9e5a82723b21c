package spill

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// use stores and reads at random and requires that nothing wrong is read.
func use(t *testing.T, c *Cache, r *rand.Rand, steps int) (hits int) {
	t.Helper()
	for range steps {
		i := r.IntN(300)
		if r.IntN(2) == 0 {
			put(c, i)
		} else if requireRight(t, c, i) {
			hits++
		}
	}
	return hits
}

// ticking is a clock that advances by a second with each look, so that pauses after failures pass.
func ticking() func() Time {
	var now atomic.Int64
	now.Store(int64(stampZero))
	return func() Time { return Time(now.Add(1e9)) }
}

// TestFailingSegments makes some of each operation on segments fail, then all, then none.
func TestFailingSegments(t *testing.T) {
	r := testRand(t)
	for _, op := range []segment.Op{
		segment.OpCreate, segment.OpAllocate, segment.OpWrite, segment.OpRead, segment.OpPunch, segment.OpTrim,
		segment.OpRemove,
	} {
		for _, failure := range []error{syscall.EIO, syscall.ENOSPC} {
			t.Run(fmt.Sprint(op, " ", failure), func(t *testing.T) {
				var share, failed atomic.Int64 // percent that fail; how many did
				var mu sync.Mutex
				chance := rand.New(rand.NewPCG(r.Uint64(), 0))
				opts := testOptions(t.TempDir())
				opts.Bytes, opts.SegmentBytes = MinBytes+(1<<20), 256<<10
				opts.Clock = ticking()
				opts.fault = func(o segment.Op, path string) error {
					mu.Lock()
					defer mu.Unlock()
					if o == op && chance.Int64N(100) < share.Load() {
						failed.Add(1)
						return &fs.PathError{Op: string(o), Path: path, Err: failure}
					}
					return nil
				}
				c := openCache(t, opts)
				for _, percent := range []int64{30, 100, 0} {
					share.Store(percent)
					hits := use(t, c, r, 250)
					for tries := 0; percent == 100 && failed.Load() == 0 && tries < 100; tries++ { // a segment goes with its last blob
						use(t, c, r, 50)
					}
					if st := c.Stats(); st.HeldBytes > st.BudgetBytes || percent == 0 && hits == 0 {
						t.Errorf("%d %% fail: %d hits, %+v", percent, hits, st)
					}
				}
				if n := usage(t, opts.Dir); n > opts.Bytes {
					t.Errorf("%d bytes of %d", n, opts.Bytes)
				}
				st := c.Stats()
				if st.ReadErrors+st.WriteErrors+st.DiskFull == 0 {
					t.Errorf("nothing was counted: %+v", st)
				}
				closeCache(t, c)
				opts.fault = nil
				c = openCache(t, opts)
				use(t, c, r, 50)
			})
		}
	}
}

// TestFailingIndex makes writes of the index fail from some moment on: the cache goes on, and what it has kept by then
// opens.
func TestFailingIndex(t *testing.T) {
	r := testRand(t)
	for round := range 12 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			left := atomic.Int64{}
			left.Store(1 << 40)
			opts := testOptions(t.TempDir())
			opts.fs = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && left.Add(-1) < 0 {
					return syscall.ENOSPC
				}
				return nil
			}))
			c := openCache(t, opts)
			use(t, c, r, 30)
			left.Store(r.Int64N(12))
			use(t, c, r, 400)
			// The database writes in the background: it is given more until it has to write and fails.
			for i := 0; !c.index.lost(); i++ {
				c.index.changes <- change{number: uint32(1000 + i%2000), name: fmt.Sprintf("%10000d", i)}
			}
			use(t, c, r, 200)
			st := c.Stats()
			if !st.IndexLost || st.Hits == 0 {
				t.Errorf("%+v", st)
			}
			closeCache(t, c)
			opts.fs = nil
			c = openCache(t, opts)
			requireExact(t, c)
			use(t, c, r, 200)
		})
	}
}

// TestSlowDisk holds up writes: Offer does not wait, what is there can be read, and what does not fit in the queue is
// dropped.
func TestSlowDisk(t *testing.T) {
	gate := make(chan struct{})
	var slow atomic.Bool
	opts := testOptions(t.TempDir())
	opts.QueueBytes = 1 << 20
	opts.fault = func(op segment.Op, _ string) error {
		if slow.Load() && op != segment.OpRead {
			<-gate
		}
		return nil
	}
	c := openCache(t, opts)
	for i := range 20 {
		put(c, i)
	}
	slow.Store(true)
	var released atomic.Int64
	for i := 100; i < 200; i++ {
		data, ref := content(i)
		c.Offer(ref, Place{}, 1e6, schema.NewBlob(data, owner{&released}))
		if !requireRight(t, c, i%20) {
			t.Fatal("a blob is not there")
		}
	}
	if st := c.Stats(); st.Busy == 0 {
		t.Errorf("%+v", st)
	}
	// A blob found in the queue holds no memory of the offer.
	data, ref := content(100)
	waits, ok := c.Get(ref, Place{})
	if !ok || !bytes.Equal(waits.Bytes(), data) {
		t.Error("a blob that waits is not found")
	}
	close(gate)
	closeCache(t, c)
	if released.Load() != 100 {
		t.Errorf("%d of 100 blobs offered were released", released.Load())
	}
	waits.Release()
}

type owner struct{ released *atomic.Int64 }

func (o owner) Unpin() { o.released.Add(1) }

// TestFullDisk has the free space shrink, below what is to be left and to nothing, on a file system of its own where
// that can be mounted.
func TestFullDisk(t *testing.T) {
	r := testRand(t)
	t.Run("reserve", func(t *testing.T) {
		var free atomic.Int64
		free.Store(1 << 30)
		opts := testOptions(t.TempDir())
		opts.Clock, opts.KeepFree = ticking(), 1<<20
		opts.free = func(*os.File) (int64, error) { return free.Load(), nil }
		c := openCache(t, opts)
		for i := range 60 {
			put(c, i)
		}
		before := c.Stats()
		free.Store(1 << 19)
		c.Trim() // cannot help, as free does not change with it
		if st := c.Stats(); st.Entries >= before.Entries {
			t.Errorf("%d blobs were there, and %d are with a full disk", before.Entries, st.Entries)
		}
		for i := 100; i < 120; i++ {
			if put(c, i) {
				t.Fatal("a blob was stored though the free space is to be left alone")
			}
		}
		free.Store(1 << 30)
		if use(t, c, r, 200) == 0 {
			t.Error("nothing is stored once there is space again")
		}
	})
	t.Run("tmpfs", func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
			t.Skip("mounting needs rights: ", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
		opts := testOptions(filepath.Join(dir, "spill"))
		opts.Bytes, opts.Clock = 64<<20, ticking()
		c := openCache(t, opts)
		use(t, c, r, 600)
		// Somebody else takes the rest, so that even the index finds no space.
		f, err := os.Create(filepath.Join(dir, "other"))
		if err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := f.Write(make([]byte, 64<<10)); err != nil {
				break
			}
		}
		use(t, c, r, 600)
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			t.Fatal(err)
		}
		if use(t, c, r, 300) == 0 {
			t.Error("nothing is stored once there is space again")
		}
		closeCache(t, c)
		c = openCache(t, opts)
		use(t, c, r, 50)
		closeCache(t, c)
	})
}

// TestWithoutHoles runs on a file system that cannot punch holes: segments are given back whole.
func TestWithoutHoles(t *testing.T) {
	r := testRand(t)
	opts := testOptions(t.TempDir())
	opts.fault = func(op segment.Op, _ string) error {
		if op == segment.OpPunch {
			return syscall.EOPNOTSUPP
		}
		return nil
	}
	c := openCache(t, opts)
	for round := range 8 {
		use(t, c, r, 200)
		if n := usage(t, opts.Dir); n > opts.Bytes {
			t.Fatalf("%d bytes of %d", n, opts.Bytes)
		}
		if round == 4 {
			closeCache(t, c)
			c = openCache(t, opts)
		}
	}
	if st := c.Stats(); st.Evicted == 0 || st.Hits == 0 || st.Segments > c.maxSegments() {
		t.Errorf("%+v", st)
	}
	requireExact(t, c)
}

// TestFewBlobsOfManySegments evicts all but a few blobs of each segment, so that what is left has to be moved.
func TestFewBlobsOfManySegments(t *testing.T) {
	opts := testOptions(t.TempDir())
	opts.SegmentBytes = 512 << 10
	future := &Future{}
	opts.Oracle = future
	opts.Clock = func() Time { return stampZero }
	c := openCache(t, opts)
	at := c.Dataset("d")
	// One in twenty is used next, the others the later the earlier they come, so that each is admitted in the place of
	// another.
	order := placed{}
	const n = 6000
	for i := range int64(n) {
		order[i] = 2*n - i
		if i%20 == 0 {
			order[i] = i / 20
		}
	}
	if _, err := future.Add(JobOptions{Dataset: at, Order: order, Epochs: 1}, stampZero); err != nil {
		t.Fatal(err)
	}
	r := testRand(t)
	refs := make([]schema.BlobRef, n)
	for i := range refs {
		var data []byte
		data, refs[i] = fill(r, 20_000)
		c.Put(refs[i], Place{Dataset: at, Position: int64(i)}, 1e6, data)
	}
	moved := c.Stats().MovedBytes
	closeCache(t, c)
	c = openCache(t, c.opts)
	st := c.Stats()
	if st.Segments > c.maxSegments()+1 {
		t.Errorf("%d segments, want at most %d", st.Segments, c.maxSegments())
	}
	kept := 0
	for i := 0; i < n; i += 20 {
		b, ok := c.Get(refs[i], Place{})
		if ok {
			kept++
		}
		b.Release()
	}
	t.Logf("%d of %d are there in %d segments, %d bytes were moved", kept, n/20, st.Segments, moved)
	if moved == 0 || kept < n/20-2 {
		t.Errorf("%d of %d are there, %d bytes were moved", kept, n/20, moved)
	}
	requireExact(t, c)
	if c.Stats().Damaged > 0 {
		t.Errorf("%+v", c.Stats())
	}
}

// placed is an order by table.
type placed map[int64]int64

func (p placed) Rows() int64 { return 2*int64(len(p)) + 1 }

func (p placed) Index(_, position int64) (int64, bool) { i, ok := p[position]; return i, ok }
