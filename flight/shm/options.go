package shm

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"bowstring/schema"
)

// Options tunes a Server. The zero value of each field but Path stands for its default.
type Options struct {
	// Path is the socket's, which is made, and removed in the end.
	Path string
	// Mode is who may connect, by the file's rights. Default 0600: the server's own user.
	Mode os.FileMode
	// UIDs are the users who may connect, of those whom Mode lets. Default: all of them.
	UIDs []uint32
	// RingBytes is the length of a ring. Default 64 MiB.
	RingBytes int64
	// Memory bounds all rings together. Default 1 GiB.
	Memory int64
	// UserMemory bounds the rings of one user. Default: half of Memory, but a ring at least, where Mode lets others
	// than the server's own user connect; else Memory.
	UserMemory int64
	// References has batches refer to blobs in files of the server's, which the client maps, where that saves a copy. It
	// can read all of such a file then, whatever it was sent: this is for servers all of whose clients may see all.
	References bool
	// PinnedBytes bounds the blobs that the slots of a ring refer to. What does not fit is copied. Default: a quarter of
	// AllPinnedBytes.
	PinnedBytes int64
	// AllPinnedBytes bounds those of all rings together. A cache cannot evict them. Default 1 GiB.
	AllPinnedBytes int64
	// Lease is for how long a client may say nothing while a batch waits for room in its ring. Then the ring is
	// abandoned: nothing more is written to it, and what comes goes by TCP. A trainer that pauses is such a client,
	// too. Default 10 minutes.
	Lease time.Duration
	// Logger receives what operators should know. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.Mode == 0 {
		o.Mode = 0o600
	}
	if o.RingBytes == 0 {
		o.RingBytes = 64 << 20
	}
	if o.Memory == 0 {
		o.Memory = 1 << 30
	}
	if o.UserMemory == 0 {
		o.UserMemory = o.Memory
		if o.Mode&0o022 != 0 {
			o.UserMemory = max(o.Memory/2, o.RingBytes)
		}
	}
	if o.References {
		if o.AllPinnedBytes == 0 {
			o.AllPinnedBytes = 1 << 30
		}
		if o.PinnedBytes == 0 {
			o.PinnedBytes = o.AllPinnedBytes / 4
		}
	} else {
		o.PinnedBytes, o.AllPinnedBytes = 0, 0
	}
	if o.Lease == 0 {
		o.Lease = 10 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	const page = 64 << 10 // a multiple of every page size
	switch {
	case !Supported:
		return fmt.Errorf("%w: memory can be shared with clients on Linux only", schema.ErrInvalid)
	case !filepath.IsAbs(o.Path):
		return &schema.FieldError{Field: "Path", Got: fmt.Sprintf("%q", o.Path), Want: "an absolute path"}
	case len(o.hidden()) > maxName:
		return &schema.FieldError{Field: "Path", Got: fmt.Sprintf("%d bytes", len(o.Path)),
			Want: fmt.Sprintf("at most %d, so that a unix socket's name is long enough for it and a suffix",
				maxName-len(o.hidden())+len(o.Path))}
	case o.Mode&^0o777 != 0:
		return &schema.FieldError{Field: "Mode", Got: fmt.Sprintf("%#o", uint32(o.Mode)), Want: "rights such as 0660"}
	case o.RingBytes < 1<<20 || o.RingBytes%page != 0:
		return &schema.FieldError{Field: "RingBytes", Got: fmt.Sprint(o.RingBytes),
			Want: "a multiple of 64 KiB, 1 MiB or more"}
	case o.Memory < o.RingBytes:
		return &schema.FieldError{Field: "Memory", Got: fmt.Sprint(o.Memory),
			Want: fmt.Sprintf("at least one ring, %d", o.RingBytes)}
	case o.UserMemory < o.RingBytes || o.UserMemory > o.Memory:
		return &schema.FieldError{Field: "UserMemory", Got: fmt.Sprint(o.UserMemory),
			Want: fmt.Sprintf("at least one ring, %d, and no more than all, %d", o.RingBytes, o.Memory)}
	case o.PinnedBytes < 0 || o.PinnedBytes > o.AllPinnedBytes:
		return &schema.FieldError{Field: "PinnedBytes", Got: fmt.Sprint(o.PinnedBytes),
			Want: fmt.Sprintf("no more than all, %d", o.AllPinnedBytes)}
	case o.Lease < 0:
		return &schema.FieldError{Field: "Lease", Got: o.Lease.String(), Want: "a positive time"}
	}
	return nil
}

// maxName is how many bytes a unix socket's name has.
const maxName = 107

// hidden is the socket's name before it is renamed into place.
func (o *Options) hidden() string { return fmt.Sprintf("%s.%d", o.Path, os.Getpid()) }
