package scale

import (
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

// Options describe a Scaler. Cache, Future, MinBytes, MaxBytes, Demand and one of Dir and Disk must be set; the zero
// value of each other field stands for its default.
type Options struct {
	Cache  Cache
	Future *spill.Future // the jobs that run
	// MinBytes and MaxBytes are the limits of the budget.
	MinBytes, MaxBytes int64
	// KeepFree is the free space in bytes that is left on the disk, for others; the cache should be told the same.
	// Default 1 GiB.
	KeepFree int64
	// Period is the time between decisions. Default 10 s.
	Period time.Duration
	// Demand says what consumers needed so far.
	Demand func() spill.Demand
	// Dir is the directory of the cache.
	Dir string
	// Disk says how many bytes are free where the cache is. Default: Free(Dir).
	Disk func() (free int64, err error)
	// Memory says how many bytes of memory are available and how many there are. Default: [Memory].
	Memory func() (available, total int64, err error)
	// Logger receives each decision, at Info where the budget changes, otherwise at Debug. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.KeepFree == 0 {
		o.KeepFree = 1 << 30
	}
	if o.Period == 0 {
		o.Period = 10 * time.Second
	}
	if o.Disk == nil && o.Dir != "" {
		o.Disk = Free(o.Dir)
	}
	if o.Memory == nil {
		o.Memory = Memory
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

func (o *Options) check() error {
	bad := func(field, got, want string) error { return &schema.FieldError{Field: field, Got: got, Want: want} }
	switch {
	case o.Cache == nil:
		return bad("cache", "none", "the cache to scale")
	case o.Future == nil:
		return bad("future", "none", "the jobs that run")
	case o.Demand == nil:
		return bad("demand", "none", "what consumers need")
	case o.Disk == nil:
		return bad("dir", "none", "the directory of the cache")
	case o.MinBytes < spill.MinBytes:
		return bad("min_bytes", strconv.FormatInt(o.MinBytes, 10), fmt.Sprintf("%d or more", spill.MinBytes))
	case o.MaxBytes < o.MinBytes:
		return bad("max_bytes", strconv.FormatInt(o.MaxBytes, 10), fmt.Sprintf("the minimum, %d, or more", o.MinBytes))
	case o.KeepFree < 0:
		return bad("keep_free", strconv.FormatInt(o.KeepFree, 10), "0 bytes or more")
	case o.Period < 0:
		return bad("period", o.Period.String(), "a time of more than 0")
	}
	return nil
}
