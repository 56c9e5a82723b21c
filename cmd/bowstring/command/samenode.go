package command

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"bowstring/flight/shm"
)

// sameNodeFlags share memory with clients on the server's node.
type sameNodeFlags struct {
	Local       string   `setting:"" type:"path" placeholder:"SOCKET" help:"Share memory with clients on this node, by a socket of that name: they get blobs without a copy through TCP (default: not)."`
	LocalMode   string   `setting:"" default:"0600" placeholder:"MODE" help:"Who may connect to that socket, as of a file (default: ${default}, the server's own user)."`
	LocalUID    []uint32 `setting:"" name:"local-uid" placeholder:"UID" help:"Users who may, of those whom --local-mode lets (default: all of them)."`
	LocalRing   size     `setting:"" default:"64MiB" placeholder:"SIZE" help:"Memory for each stream of such a client (default: ${default})."`
	LocalMemory size     `setting:"" default:"1GiB" placeholder:"SIZE" help:"Memory for all of them together; who comes later is served by TCP (default: ${default})."`

	LocalUserMemory size          `setting:"" default:"auto" placeholder:"SIZE" help:"Memory for those of one user (default: auto, half of --local-memory where --local-mode lets others than the server's user connect, else all)."`
	LocalReferences bool          `setting:"" help:"Let such clients that ask for it read blobs where they lie in the files of the spill, or of an embedded store, without any copy. They can read all of those files: not with --rules or --tenants."`
	LocalPinned     size          `setting:"" default:"auto" placeholder:"SIZE" help:"Blobs that one of their streams may keep from being evicted so (default: auto, a quarter of --local-all-pinned)."`
	LocalAllPinned  size          `setting:"" default:"auto" placeholder:"SIZE" help:"Blobs that all of them together may; what goes beyond is copied (default: auto, a quarter of the spill and 1 GiB at most)."`
	LocalLease      time.Duration `setting:"" default:"10m" placeholder:"TIME" help:"For how long such a client may say nothing while a batch waits for room in its memory; then it is served by TCP (default: ${default})."`
}

// mode reads --local-mode.
func (f *sameNodeFlags) mode() (os.FileMode, error) {
	n, err := strconv.ParseUint(f.LocalMode, 8, 32)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("--local-mode: got %q, want rights in octal, such as 0660", f.LocalMode)
	}
	return os.FileMode(n), nil
}

// check is called as part of Validate.
func (f *sameNodeFlags) check() error {
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
	case spill.dir != "" && int64(c.LocalAllPinned) > spill.bytes/2:
		return usagef("--local-all-pinned: got %s, want half of --spill-bytes at most, which is %s: what is pinned "+
			"cannot be evicted", c.LocalAllPinned, size(spill.bytes))
	default:
		return nil
	}
	return usagef("--local-references and %s exclude each other: who is handed a file of the cache can read all of it, "+
		"whosever it is", guard)
}

// options are those of the socket. spill is the budget of the spill, 0 if there is none.
func (f *sameNodeFlags) options(log *slog.Logger, spill int64) (shm.Options, error) {
	mode, err := f.mode()
	if err != nil {
		return shm.Options{}, err
	}
	path, err := filepath.Abs(f.Local)
	if err != nil {
		return shm.Options{}, fmt.Errorf("--local: %w", err)
	}
	o := shm.Options{Path: path, Mode: mode, UIDs: f.LocalUID, RingBytes: int64(f.LocalRing),
		Memory: int64(f.LocalMemory), UserMemory: int64(f.LocalUserMemory), Lease: f.LocalLease, Logger: log,
		References: f.LocalReferences, PinnedBytes: int64(f.LocalPinned), AllPinnedBytes: int64(f.LocalAllPinned)}
	if o.AllPinnedBytes == 0 && spill > 0 {
		o.AllPinnedBytes = min(spill/4, 1<<30)
	}
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return shm.Options{}, fmt.Errorf("--local, --local-ring, --local-memory, --local-user-memory, "+
			"--local-pinned, --local-all-pinned and --local-lease: %w", err)
	}
	return o, nil
}

// open makes the socket; nil if there is to be none.
func (f *sameNodeFlags) open(log *slog.Logger, spill int64) (*shm.Server, error) {
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
