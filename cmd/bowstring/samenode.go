package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"bowstring/flight/samenode"
)

// sameNodeFlags share memory with clients on the server's node.
type sameNodeFlags struct {
	Local       string   `setting:"" type:"path" placeholder:"SOCKET" help:"Share memory with clients on this node, by a socket of that name: they get blobs without a copy through TCP (default: not)."`
	LocalMode   string   `setting:"" default:"0600" placeholder:"MODE" help:"Who may connect to that socket, as of a file (default: ${default}, the server's own user)."`
	LocalUID    []uint32 `setting:"" name:"local-uid" placeholder:"UID" help:"Users who may, of those whom --local-mode lets (default: all of them)."`
	LocalRing   size     `setting:"" default:"64MiB" placeholder:"SIZE" help:"Memory for each stream of such a client (default: ${default})."`
	LocalMemory size     `setting:"" default:"1GiB" placeholder:"SIZE" help:"Memory for all of them together; who comes later is served by TCP (default: ${default})."`

	LocalUserMemory size          `setting:"" default:"auto" placeholder:"SIZE" help:"Memory for those of one user (default: auto, half of --local-memory where --local-mode lets others than the server's user connect, else all)."`
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
		return nil
	}
	_, err := f.options(nil)
	return err
}

func (f *sameNodeFlags) options(log *slog.Logger) (samenode.Options, error) {
	mode, err := f.mode()
	if err != nil {
		return samenode.Options{}, err
	}
	path, err := filepath.Abs(f.Local)
	if err != nil {
		return samenode.Options{}, fmt.Errorf("--local: %w", err)
	}
	o := samenode.Options{Path: path, Mode: mode, UIDs: f.LocalUID, RingBytes: int64(f.LocalRing),
		Memory: int64(f.LocalMemory), UserMemory: int64(f.LocalUserMemory), Lease: f.LocalLease, Logger: log}
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return samenode.Options{}, fmt.Errorf("--local, --local-ring, --local-memory, --local-user-memory and "+
			"--local-lease: %w", err)
	}
	return o, nil
}

// open makes the socket; nil if there is to be none.
func (f *sameNodeFlags) open(log *slog.Logger) (*samenode.Server, error) {
	if f.Local == "" {
		return nil, nil
	}
	o, err := f.options(log)
	if err != nil {
		return nil, err
	}
	s, err := samenode.Listen(o)
	if err != nil {
		return nil, fmt.Errorf("--local: %w", err)
	}
	return s, nil
}
