package command

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"bowstring/fetch/store/cql"
	"bowstring/spill"
)

// spillConfig is what the flags come to on this machine. Without a directory there is no cache.
type spillConfig struct {
	dir                       string
	bytes, minBytes, keepFree int64
	policy                    spill.Policy // nil: what jobs will use soonest stays
}

// config works the flags out for a server of a store. Sizes are those of the file system on which the directory is, or
// will be made.
func (f *spillFlags) config(app *App, policy spill.Policy) (spillConfig, error) {
	c := spillConfig{dir: f.Spill, keepFree: int64(f.SpillKeepFree), policy: policy}
	if c.dir == "" {
		return c, nil
	}
	if store := app.globals.Store; app.Far == nil && !cql.IsURI(store) {
		return c, usagef("--spill: the store %s is on this machine already, and keeping it a second time gains "+
			"nothing; serve without --spill", store)
	}
	disk, err := diskBytes(c.dir)
	if err != nil {
		return c, fmt.Errorf("--spill: %w", err)
	}
	c.bytes = f.SpillBytes.of(disk)
	if c.bytes < spill.MinBytes {
		return c, usagef("--spill-bytes: got %s, want %s or more", f.SpillBytes.on(c.dir, disk), size(spill.MinBytes))
	}
	c.minBytes = max(c.bytes/10, spill.MinBytes)
	if f.SpillMinBytes != (portion{}) {
		c.minBytes = f.SpillMinBytes.of(disk)
	}
	if c.minBytes < spill.MinBytes || c.minBytes > c.bytes {
		return c, usagef("--spill-min-bytes: got %s, want %s to --spill-bytes, which is %s",
			f.SpillMinBytes.on(c.dir, disk), size(spill.MinBytes), f.SpillBytes.on(c.dir, disk))
	}
	return c, nil
}

// open opens the cache, and makes the future that it evicts by.
func (c *spillConfig) open(log *slog.Logger) (*spill.Cache, *spill.Future, error) {
	future := &spill.Future{}
	begun := time.Now()
	cache, err := spill.Open(spill.Options{
		Dir: c.dir, Bytes: c.bytes, KeepFree: c.keepFree, Policy: c.policy, Oracle: future, Logger: log,
	})
	if err != nil {
		return nil, nil, err
	}
	st := cache.Stats()
	log.Info("spill opened", "directory", c.dir, "budget", humanize.IBytes(uint64(c.bytes)), "min_budget",
		humanize.IBytes(uint64(c.minBytes)),
		"policy", st.Policy, "entries", st.Entries, "bytes", humanize.IBytes(uint64(st.Bytes)), "seconds",
		time.Since(begun).Seconds())
	return cache, future, nil
}

// diskBytes is the size of the file system that a directory is on. One that is not there yet will be on its parent's.
func diskBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	for at := dir; ; at = filepath.Dir(at) {
		err := unix.Statfs(at, &st)
		if err == nil {
			return int64(st.Blocks) * st.Bsize, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return 0, &fs.PathError{Op: "statfs", Path: at, Err: err}
		}
	}
}

// portion is a number of bytes, or a share of what there is: 200GB, 30%. The zero value is auto.
type portion struct {
	bytes   size
	percent float64
}

// UnmarshalText reads a size or a share.
func (p *portion) UnmarshalText(text []byte) error {
	number, isShare := strings.CutSuffix(string(text), "%")
	if !isShare {
		*p = portion{}
		if err := p.bytes.UnmarshalText(text); err != nil {
			return fmt.Errorf("got %q, want a size such as 200GB, a share such as 30%%, or auto", text)
		}
		return nil
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v > 0 && v <= 100) {
		return fmt.Errorf("got %q, want a share of more than 0%% and up to 100%%", text)
	}
	*p = portion{percent: v}
	return nil
}

func (p portion) String() string {
	if p.percent > 0 {
		return strconv.FormatFloat(p.percent, 'g', -1, 64) + "%"
	}
	return p.bytes.String()
}

// of is how much it is of so many bytes.
func (p portion) of(total int64) int64 {
	return cmp.Or(int64(p.bytes), int64(p.percent/100*float64(total)))
}

// on says what it is of the file system of a directory, for messages.
func (p portion) on(dir string, disk int64) string {
	if p.percent == 0 {
		return p.String()
	}
	return fmt.Sprintf("%s (%s of the %s of the file system of %s)", humanize.IBytes(uint64(p.of(disk))), p,
		humanize.IBytes(uint64(disk)), dir)
}
