package command

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"bowstring/flight/shm"
)

// mode reads --local-mode.
func (f *localFlags) mode() (os.FileMode, error) {
	n, err := strconv.ParseUint(f.LocalMode, 8, 32)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("--local-mode: got %q, want rights in octal, such as 0660", f.LocalMode)
	}
	return os.FileMode(n), nil
}

// check is called as part of Validate.
func (f *localFlags) check() error {
	if _, err := f.mode(); err != nil {
		return err
	}
	if f.Local == "" {
		if f.LocalReferences {
			return errors.New("--local-references: it takes --local, the socket by which clients are handed files")
		}
		return nil
	}
	_, err := f.options(nil, 0)
	return err
}

// checkReferences refuses references where somebody could read by them what he may not, or where there is nothing that
// could be referred to. far says that the store's files are not this process's.
func (c *ServeCmd) checkReferences(far bool, spill *spillConfig) error {
	var guard string
	switch {
	case !c.LocalReferences:
		return nil
	case c.Tenants != "":
		guard = "--tenants"
	case c.Rules != "":
		guard = "--rules"
	case far && spill.dir == "":
		return usagef("--local-references: there is no spill that blobs could lie in; --spill makes one")
	case spill.dir != "" && int64(c.LocalPinned) > spill.bytes/2:
		return usagef("--local-pinned: got %s, want half of --spill-bytes at most, which is %s: what is pinned "+
			"cannot be evicted", c.LocalPinned, size(spill.bytes))
	default:
		return nil
	}
	return usagef("--local-references and %s exclude each other: who is handed a file of the cache can read all of it, "+
		"whosever it is", guard)
}

// options are those of the socket. spill is the budget of the spill, 0 if there is none.
func (f *localFlags) options(log *slog.Logger, spill int64) (shm.Options, error) {
	mode, err := f.mode()
	if err != nil {
		return shm.Options{}, err
	}
	path, err := filepath.Abs(f.Local)
	if err != nil {
		return shm.Options{}, fmt.Errorf("--local: %w", err)
	}
	o := shm.Options{Path: path, Mode: mode, UIDs: f.LocalUID, RingBytes: int64(f.LocalRing),
		Memory: int64(f.LocalMemory), Logger: log,
		References: f.LocalReferences, AllPinnedBytes: int64(f.LocalPinned)}
	if o.AllPinnedBytes == 0 && spill > 0 {
		o.AllPinnedBytes = min(spill/4, 1<<30)
	}
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return shm.Options{}, fmt.Errorf("--local, --local-ring, --local-memory and --local-pinned: %w", err)
	}
	return o, nil
}

// open makes the socket; nil if there is to be none.
func (f *localFlags) open(log *slog.Logger, spill int64) (*shm.Server, error) {
	if f.Local == "" {
		return nil, nil
	}
	o, err := f.options(log, spill)
	if err != nil {
		return nil, err
	}
	s, err := shm.Listen(o)
	if err != nil {
		return nil, fmt.Errorf("--local: %w", err)
	}
	return s, nil
}
