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
	// Path is the path of the socket. Listen creates it and Close removes it.
	Path string
	// Mode is the file mode of the socket, which says which users may connect. Default
	// 0600: the server's own user.
	Mode os.FileMode
	// UIDs are the users that get rings, among those that Mode lets connect. Default: all
	// of them.
	UIDs []uint32
	// RingBytes is the length of a ring. Default 64 MiB.
	RingBytes int64
	// Memory bounds all rings together. Default 1 GiB.
	Memory int64
	// UserMemory bounds the rings of one user. The default is Memory if only the server's
	// own user can connect. Otherwise it is half of Memory, and at least one ring, so
	// that one user cannot take everything.
	UserMemory int64
	// References lets batches refer to blobs in files of the server, which the client
	// maps, if this saves a copy. The client can then read all of such a file, whatever
	// it was sent. Use it only if every client may read all data.
	References bool
	// PinnedBytes bounds the blobs that the slots of one ring refer to. Blobs beyond it
	// are copied. Default: a quarter of AllPinnedBytes.
	PinnedBytes int64
	// AllPinnedBytes bounds the same for all rings together. The spill cannot evict
	// pinned blobs. Default 1 GiB.
	AllPinnedBytes int64
	// Lease is how long a client may be silent while a batch waits for room in its ring.
	// Then the server abandons the ring: it writes nothing more to it and sends the
	// following batches by TCP. A trainer that pauses is silent, too, hence the long
	// default of 10 minutes.
	Lease time.Duration
	// Logger gets the events that operators should know. Default slog.Default().
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

// maxName is the largest length in bytes of a unix socket's path (sun_path, 108 with the
// final zero).
const maxName = 107

// hidden is the socket's path before Listen renames it to Path. The pid keeps two servers
// that start at once apart.
func (o *Options) hidden() string { return fmt.Sprintf("%s.%d", o.Path, os.Getpid()) }
