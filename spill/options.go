package spill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// Options describe a Cache. Dir and Bytes are needed; the other fields have defaults.
type Options struct {
	// Dir is the directory, which the cache has to itself. It is created if it does not exist.
	Dir string
	// Bytes is the budget: the most disk space that the cache takes at any moment, including its index and dead space
	// that is not yet released. At least MinBytes.
	Bytes int64
	// KeepFree is the free space in bytes that the cache leaves on the disk. Default 1 GiB.
	KeepFree int64
	// Policy decides what is kept. Default: NextUse with Oracle if that is set, else Score.
	Policy Policy
	// Oracle knows the running jobs, as a *Future does.
	Oracle Oracle
	// Candidates is how many blobs are compared at each eviction. Default DefaultCandidates.
	Candidates int
	// SegmentBytes is the size of segment files. Default: 1/32 of the budget, at least 1 MiB and at most 1 GiB.
	SegmentBytes int64
	// QueueBytes bounds the size of offers that are not written yet. Default 64 MiB.
	QueueBytes int64
	// Writers is how many goroutines write offers. Default 2.
	Writers int
	// Clock is Oracle's clock, in nanoseconds since 1970; the cache stores its times across restarts. Default: the
	// system clock.
	Clock func() Time
	// Seed seeds the sampling of eviction candidates. Default: random.
	Seed uint64
	// Model is a disk without bytes, for simulations: there is no directory, and nothing survives the process. Index,
	// budget, admission and eviction are the same.
	Model *segment.Model
	// Logger receives messages for operators. Default slog.Default().
	Logger *slog.Logger

	// For tests: the file system of the index, faults of segments, and the free disk space.
	fs    vfs.FS
	fault func(op segment.Op, path string) error
	free  func(*os.File) (int64, error)
}

// MinBytes is the smallest budget.
const MinBytes = 2 * fixedOverhead

// EnsureDefaults sets fields that are zero to their defaults.
func (o *Options) EnsureDefaults() {
	if o.KeepFree == 0 {
		o.KeepFree = 1 << 30
	}
	if o.Policy == nil && o.Oracle != nil {
		o.Policy = NextUse(o.Oracle)
	} else if o.Policy == nil {
		o.Policy = Score()
	}
	if o.Candidates == 0 {
		o.Candidates = DefaultCandidates
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = segment.Blocks(min(max(o.Bytes/32, 1<<20), 1<<30))
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = 64 << 20
	}
	if o.Writers == 0 {
		o.Writers = 2
	}
	if o.Clock == nil {
		o.Clock = func() Time { return Time(time.Now().UnixNano()) }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.fs == nil {
		o.fs = vfs.Default
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if o.Model != nil {
		o.free = func(*os.File) (int64, error) { return math.MaxInt64 / 2, nil }
	} else if o.free == nil {
		o.free = freeSpace
	}
}

func freeSpace(f *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// Probe is a measurement of the cache's disk.
type Probe struct {
	Bytes           int64 // bytes written and read back
	Wrote, ReadBack time.Duration
}

// probePiece is how much is written and read at once: the size of a batch of offers.
const probePiece = 4 << 20

// Probe writes up to bytes bytes to a nameless file, bypassing the page cache, reads them back, and releases the
// space. It reserves them in the free part of the budget; no blob is evicted for them. It returns a schema.ErrLimit
// if there is no room for 4 MiB.
func (c *Cache) Probe(ctx context.Context, bytes int64) (p Probe, err error) {
	c.life.RLock()
	defer c.life.RUnlock()
	if c.closed.Load() {
		return p, fmt.Errorf("%w: the spill is closed", schema.ErrUnavailable)
	}
	bytes = min(bytes, c.space.left()) / probePiece * probePiece
	if bytes < probePiece || !c.space.grow(bytes) {
		return p, fmt.Errorf("%w: the spill has no room for a probe of %d bytes", schema.ErrLimit, probePiece)
	}
	defer c.space.held.Add(-bytes) // after the file is closed
	f, err := namelessFile(c.path(blobsDir))
	if err != nil {
		return p, fmt.Errorf("probing the disk of the spill: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	piece, err := unix.Mmap(-1, 0, probePiece, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return p, fmt.Errorf("memory for a probe: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(piece)) }()
	for i := range piece {
		piece[i] = byte(i*31 + i>>9) // disks may treat zeros specially
	}
	start := time.Now()
	for at := int64(0); at < bytes && ctx.Err() == nil; at += probePiece {
		if _, err := f.WriteAt(piece, at); err != nil {
			return p, fmt.Errorf("probing the disk of the spill: %w", err)
		}
		p.Bytes += probePiece
	}
	if err := f.Sync(); err != nil {
		return p, fmt.Errorf("probing the disk of the spill: %w", err)
	}
	p.Wrote = time.Since(start)
	start = time.Now()
	for at := int64(0); at < p.Bytes && ctx.Err() == nil; at += probePiece {
		if n, err := f.ReadAt(piece, at); err != nil && (n < probePiece || !errors.Is(err, io.EOF)) {
			return p, fmt.Errorf("probing the disk of the spill: %w", err)
		}
	}
	p.ReadBack = time.Since(start)
	return p, context.Cause(ctx)
}

// namelessFile makes a file that is gone when it is closed or the process dies. It bypasses the page cache if the
// file system can do that.
func namelessFile(dir string) (*os.File, error) {
	for _, flags := range []int{unix.O_TMPFILE | unix.O_DIRECT, unix.O_TMPFILE} {
		if f, err := os.OpenFile(dir, os.O_RDWR|flags, 0o600); err == nil {
			return f, nil
		}
	}
	f, err := os.CreateTemp(dir, "probe-*")
	if err == nil {
		err = os.Remove(f.Name())
	}
	return f, err
}
