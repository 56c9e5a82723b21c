package spill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// Probe says how fast the disk of a cache is.
type Probe struct {
	Bytes           int64 // that were written, and read
	Wrote, ReadBack time.Duration
}

// probePiece is how much is written and read at once: as much as offers are gathered to.
const probePiece = 4 << 20

// Probe writes up to so many bytes to a file that has no name, past the page cache, reads them back, and
// gives the space back. They are taken from the budget first, from what is left of it: no
// blob makes room. It is a schema.ErrLimit where there is no room for a piece of 4 MiB.
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
	defer c.space.held.Add(-bytes) // after the file is gone
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
		piece[i] = byte(i*31 + i>>9) // no disk takes zeroes for data
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

// namelessFile makes a file that is gone when it is closed, whatever becomes of the process,
// past the page cache where the file system has that.
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
