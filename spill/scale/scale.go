// Package scale changes the budget of a cache in operation: up while that pays and disk and memory allow it, down
// when other programs need the space.
//
// Every few seconds a [Scaler] reads the state of the disk, of memory, of consumers' waits, and the plans of the
// running jobs. The first of these rules that applies decides. The [Decision] names the rule, the reason and the
// figures.
//
//   - limits: a budget outside its limits is moved inside them.
//   - disk: if less than KeepFree is free, or will be at the next decision if other programs continue as since the
//     last one, the budget shrinks at once to leave KeepFree and a reserve. A full disk stops other programs, while a
//     cache only saves time. For a predicted shortage the cache releases at most a quarter of what it holds. The use
//     by others is computed from the fall of free space plus the cache's own, so that the cache does not react to its
//     own growth.
//   - memory: with less than 5 % available, the budget shrinks by 1/32 of what is held. Releasing disk space also
//     releases its mapped pages at once, while the kernel reclaims pages in use slowly. But most blobs are on disk
//     only, so this rule is slow.
//   - tight: if free space is within the reserve above KeepFree, and a smaller cache would have the same hits because
//     no running job would use the rest, the budget shrinks by an eighth. While there is room such a cache is kept:
//     it costs nothing, and a job may come back.
//   - grow: the budget grows, to at most 1.5 ×, if all conditions hold. Consumers waited for the store for at least 5
//     % of the time; otherwise more hits would make no job faster. Bytes come from the store, because otherwise the
//     bottleneck is the cache's own disk. The budget is full. 10 % of memory is available, because hits are served
//     from mapped files. The disk has twice the reserve above KeepFree. Nothing had to shrink recently. And by the
//     forecast, the largest size it can grow to would raise the share of hits by at least 2 points.
//   - hold: otherwise. The reason names the condition that is missing.
//
// In each rule, the threshold for growing leaves more than the threshold for shrinking, so that under constant
// conditions the budget settles.
//
// The forecast is a scaled-down trace of what the running jobs will use. It has some thousand positions drawn at
// random, the same for all jobs on a dataset. The plans determine which job uses them when, in the current epoch, the one
// before, and the next ones as far as they are known. So jobs with one seed, with overlapping selections, or about to
// end are counted correctly. A dataset gets positions in proportion to its bytes, so each represents as many bytes.
// The trace is replayed with the optimum ([replay.Trace.OptimumFrom]), which takes a hundredth of the time of a
// replay of eviction by next use; that policy comes within 1.5 % of it. For another policy it is an upper bound of
// the gain.
package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/dustin/go-humanize"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"bowstring/schema"
	"bowstring/spill"
)

// Options describe a Scaler. Cache, Future, MinBytes, MaxBytes, Demand and one of Dir and Disk are needed; the other
// fields have defaults.
type Options struct {
	Cache  Cache
	Future *spill.Future // the running jobs
	// MinBytes and MaxBytes are the limits of the budget.
	MinBytes, MaxBytes int64
	// KeepFree is the free space in bytes that stays on the disk; use the value of the cache's options. Default 1
	// GiB.
	KeepFree int64
	// Period is the time between decisions. Default 10 s.
	Period time.Duration
	// Demand returns what consumers needed so far.
	Demand func() spill.Demand
	// Dir is the directory of the cache.
	Dir string
	// Disk returns how many bytes are free on the cache's disk. Default: Free(Dir).
	Disk func() (free int64, err error)
	// Memory returns the available and the total bytes of memory. Default: [Memory].
	Memory func() (available, total int64, err error)
	// Logger receives each decision, at Info if the budget changes, otherwise at Debug. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults sets fields that are zero to their defaults.
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

// check returns a schema.FieldError for an option that is missing or outside of its
// range.
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

// Cache is what is scaled, such as a *[spill.Cache].
type Cache interface {
	Resize(bytes int64)
	Stats() spill.Stats
}

// Decision is one decision, with its figures.
type Decision struct {
	At        time.Time `json:"at"`
	FromBytes int64     `json:"from_bytes"`
	ToBytes   int64     `json:"to_bytes"` // equal to FromBytes if the budget stays
	Rule      string    `json:"rule"`     // limits, disk, memory, tight, grow or hold
	Reason    string    `json:"reason"`   // in words
	Inputs    Inputs    `json:"inputs"`
}

// Inputs are the figures of a decision.
type Inputs struct {
	HeldBytes int64 `json:"held_bytes"` // disk space of the cache
	FreeBytes int64 `json:"free_bytes"` // free on the disk
	// FallBytes is the predicted fall of free space in a period, from the last one; at most a quarter of HeldBytes.
	FallBytes      int64 `json:"fall_bytes"`
	AvailableBytes int64 `json:"available_bytes"` // of memory
	MemoryBytes    int64 `json:"memory_bytes"`    // total memory
	Jobs           int   `json:"jobs"`            // running jobs
	// Streamed is the mean number of open streams over the last periods.
	Streamed float64 `json:"streamed"`
	// Waited is the share of their time that consumers waited for the store.
	Waited         float64 `json:"waited"`
	BytesPerSecond float64 `json:"bytes_per_second"`           // to consumers
	SpillShare     float64 `json:"spill_share"`                // share of those bytes from the cache
	HitsNow        float64 `json:"forecast_hits,omitempty"`    // share of bytes from the cache with the current budget
	OtherBytes     int64   `json:"forecast_bytes,omitempty"`   // another budget that was considered; 0 if none was
	HitsOther      float64 `json:"forecast_hits_at,omitempty"` // share of bytes from the cache with that budget
}

// The thresholds of the rules; see the package documentation.
const (
	waits       = 0.05  // share of waiting time from which growing is considered
	fromStore   = 0.02  // share of bytes from the store from which growing is considered
	worthwhile  = 0.02  // rise of the share of hits that is worth growing
	same        = 0.005 // fall of the share of hits that does not count
	full        = 0.9   // share of the budget from which it counts as full
	memoryScant = 0.10  // share of available memory below which the budget does not grow
	memoryShort = 0.05  // and below which it shrinks
	pause       = 6     // periods without growth after shrinking
	demandSpan  = 2     // periods over which consumers are observed
	maxChanges  = 32    // decisions that are stored
)

// Scaler changes the budget of a cache. It is safe for concurrent use.
type Scaler struct {
	opts Options

	stepping sync.Mutex // held during a step; guards what follows
	forecast forecaster
	space    observation[int64] // free space plus the cache's own
	demand   []observation[spill.Demand]
	shrunk   time.Time // last time

	mu      sync.Mutex // guards what follows
	last    Decision
	changes []Decision

	cancel  context.CancelFunc
	running sync.WaitGroup
}

// observation is a value at a time.
type observation[T any] struct {
	at    time.Time
	value T
}

// New returns a scaler. It does nothing until Start. The error, a [schema.FieldError], says what is wrong with the
// options.
func New(opts Options) (*Scaler, error) {
	opts.EnsureDefaults()
	if err := opts.check(); err != nil {
		return nil, fmt.Errorf("scale the spill: %w", err)
	}
	return &Scaler{opts: opts}, nil
}

// Start takes a step at once, and then one per period, until Stop. Call it once.
func (s *Scaler) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.running.Go(func() { s.Run(ctx) })
}

// Stop ends what Start began, and waits for it. The budget stays. The cache must not be closed before.
func (s *Scaler) Stop() {
	if s.cancel != nil {
		s.cancel()
	}
	s.running.Wait()
}

// Run takes a step at once, and then one per period, until the context ends.
func (s *Scaler) Run(ctx context.Context) {
	tick := time.NewTicker(s.opts.Period)
	defer tick.Stop()
	for now := time.Now(); ctx.Err() == nil; {
		s.Step(now)
		select {
		case <-ctx.Done():
		case now = <-tick.C:
		}
	}
}

// Last is the last decision. Its At is zero before the first.
func (s *Scaler) Last() Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// History returns the last decisions that changed the budget, at most 32, newest last.
func (s *Scaler) History() []Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.changes)
}

// Step takes one decision, applies it, and returns it. Evictions are done when it returns.
func (s *Scaler) Step(now time.Time) Decision {
	s.stepping.Lock()
	defer s.stepping.Unlock()
	d := s.decide(now)
	d.At = now
	changed := d.ToBytes != d.FromBytes
	if changed {
		if d.ToBytes < d.FromBytes && d.Rule != "limits" {
			s.shrunk = now
		}
		s.opts.Cache.Resize(d.ToBytes)
	}
	s.mu.Lock()
	s.last = d
	if changed {
		s.changes = append(s.changes, d)
		s.changes = slices.Delete(s.changes, 0, max(len(s.changes)-maxChanges, 0))
	}
	s.mu.Unlock()
	in := d.Inputs
	log := s.opts.Logger.With("from", bytes(d.FromBytes), "to", bytes(d.ToBytes), "rule", d.Rule, "reason", d.Reason,
		"held", bytes(in.HeldBytes), "disk_free", bytes(in.FreeBytes), "memory_available", bytes(in.AvailableBytes),
		"waited", in.Waited, "spill_share", in.SpillShare, "bytes_per_second", in.BytesPerSecond, "jobs", in.Jobs)
	if changed {
		log.Info("the budget of the spill changes")
	} else {
		log.Debug("the budget of the spill stays")
	}
	return d
}

// decide applies the rules in order.
func (s *Scaler) decide(now time.Time) Decision {
	o := &s.opts
	st := o.Cache.Stats()
	d := Decision{FromBytes: st.BudgetBytes, ToBytes: st.BudgetBytes, Rule: "hold"}
	in := &d.Inputs
	in.HeldBytes = st.HeldBytes
	jobs := o.Future.Jobs()
	in.Jobs = o.Future.Len()
	free, diskErr := o.Disk()
	if diskErr == nil {
		in.FreeBytes = free
		in.FallBytes = min(s.falls(now, free+st.HeldBytes), st.HeldBytes/4)
	}
	available, total, memoryErr := o.Memory()
	if memoryErr == nil {
		in.AvailableBytes, in.MemoryBytes = available, total
	}
	observed := s.observe(now, in)

	var rowBytes int64
	if st.Entries > 0 {
		rowBytes = st.Bytes / st.Entries
	}
	// compare forecasts the share of hits with the current budget and with another.
	compare := func(other int64) (known bool, err error) {
		f, err := s.forecast.get(jobs, rowBytes)
		in.OtherBytes = other
		if f != nil {
			in.HitsNow, in.HitsOther = f.rate(st.HeldBytes, d.FromBytes), f.rate(st.HeldBytes, other)
		}
		return f != nil, err
	}
	hold := func(format string, args ...any) Decision {
		d.Reason = fmt.Sprintf(format, args...)
		return d
	}
	change := func(rule string, to int64, format string, args ...any) Decision {
		d.Rule, d.ToBytes = rule, to
		return hold(format, args...)
	}

	from := d.FromBytes
	if to := min(max(from, o.MinBytes), o.MaxBytes); to != from {
		return change("limits", to, "the budget was outside of its limits, %s to %s", bytes(o.MinBytes),
			bytes(o.MaxBytes))
	}
	if diskErr != nil {
		return hold("what is free on the disk is not known: %v", diskErr)
	}
	left := free - in.FallBytes - o.KeepFree // in a period, above KeepFree
	reserve := max(o.KeepFree/4, o.MaxBytes/64)
	room := st.HeldBytes + left // for the cache
	if left < 0 {
		to := max(room-reserve, o.MinBytes)
		if to < from {
			return change("disk", to, "%s are free on the disk, %s less in a period, and %s are to be left",
				bytes(free), bytes(in.FallBytes), bytes(o.KeepFree))
		}
		return hold("the disk is too full, %s are free, but the budget is as low as that can make it", bytes(free))
	}
	if memoryErr == nil && float64(available) < memoryShort*float64(total) {
		held := min(from, st.HeldBytes)
		if to := max(held-held/32, o.MinBytes); to < from {
			return change("memory", to, "%s of %s of memory are available", bytes(available), bytes(total))
		}
		return hold("memory is short, %s of %s are available, but the budget is at its minimum", bytes(available),
			bytes(total))
	}
	if left < reserve {
		to := max(from-from/8, room-reserve, o.MinBytes)
		if to >= from {
			return hold("the disk is nearly full, %s are free, but the budget is as low as that can make it",
				bytes(free))
		}
		known, err := compare(to)
		switch {
		case err != nil:
			return hold("%v", err)
		case in.HitsNow-in.HitsOther > same:
			return hold("the disk is nearly full, but with less than %s hits would fall from %s to %s", bytes(from),
				percent(in.HitsNow), percent(in.HitsOther))
		case !known && in.Jobs > 0:
			return hold("the disk is nearly full, %s are free, but what jobs will use is not known", bytes(free))
		case known:
			return change("tight", to, "the disk is nearly full, %s are free, and with less cache hits stay at %s",
				bytes(free), percent(in.HitsOther))
		}
		return change("tight", to, "the disk is nearly full, %s are free, and no job runs", bytes(free))
	}

	most := min(o.MaxBytes, room-2*reserve)
	switch {
	case !observed:
		return hold("consumers were not observed yet")
	case in.Streamed < 0.1:
		return hold("no consumer streams; what is held costs nothing while there is room")
	case in.Waited < waits:
		return hold("consumers waited %s of their time for the store: with more cache they would be no faster",
			percent(in.Waited))
	case 1-in.SpillShare < fromStore:
		return hold("consumers waited %s of their time, but all bytes came from the cache", percent(in.Waited))
	case from == o.MaxBytes:
		return hold("consumers waited %s of their time for the store, but the budget is at its maximum",
			percent(in.Waited))
	case float64(st.HeldBytes) < full*float64(from):
		return hold("the budget is not used up: %s of %s are held", bytes(st.HeldBytes), bytes(from))
	case !s.shrunk.IsZero() && now.Sub(s.shrunk) < pause*o.Period:
		return hold("the budget had to shrink %s ago", now.Sub(s.shrunk).Round(time.Second))
	case memoryErr != nil:
		return hold("what memory is available is not known: %v", memoryErr)
	case float64(available) < memoryScant*float64(total):
		return hold("%s of %s of memory are available, which is too little for more", bytes(available), bytes(total))
	case most < from+from/64 && most < o.MaxBytes || most <= from:
		return hold("%s are free on the disk, which is too little for more", bytes(free))
	}
	known, err := compare(most)
	switch {
	case err != nil:
		return hold("%v", err)
	case !known:
		return hold("what jobs will use is not known")
	case in.HitsOther-in.HitsNow < worthwhile:
		return hold("with %s hits would be %s, and they are %s with %s: more cache would not pay", bytes(most),
			percent(in.HitsOther), percent(in.HitsNow), bytes(from))
	}
	return change("grow", min(from+from/2, most), "consumers waited %s of their time for the store, and with %s hits "+
		"would rise from %s to %s",
		percent(in.Waited), bytes(most), percent(in.HitsNow), percent(in.HitsOther))
}

// falls predicts by how much free space plus the cache's own will fall in a period, from what others took since the
// last step.
func (s *Scaler) falls(now time.Time, space int64) int64 {
	last := s.space
	s.space = observation[int64]{now, space}
	if last.at.IsZero() || !now.After(last.at) || space >= last.value {
		return 0
	}
	return int64(float64(last.value-space) * float64(s.opts.Period) / float64(now.Sub(last.at)))
}

// observe fills in what consumers did in the last periods; false before the first period is over.
func (s *Scaler) observe(now time.Time, in *Inputs) bool {
	s.demand = append(s.demand, observation[spill.Demand]{now, s.opts.Demand()})
	s.demand = slices.Delete(s.demand, 0, max(len(s.demand)-demandSpan-1, 0))
	first, last := s.demand[0], s.demand[len(s.demand)-1]
	seconds := last.at.Sub(first.at).Seconds()
	if seconds <= 0 {
		return false
	}
	d := last.value.Sub(first.value)
	in.Streamed = d.Streamed.Seconds() / seconds
	if d.Streamed > 0 {
		in.Waited = d.Waited.Seconds() / d.Streamed.Seconds()
	}
	if all := d.StoreBytes + d.SpillBytes; all > 0 {
		in.BytesPerSecond = float64(all) / seconds
		in.SpillShare = float64(d.SpillBytes) / float64(all)
	}
	return true
}

// bytes formats a size for a decision's reason.
func bytes(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// percent formats a share for a decision's reason.
func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 1, 64) + " %" }

// Free returns a function that returns the bytes that this process may use on the file system of a directory.
func Free(dir string) func() (int64, error) {
	return func() (int64, error) {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		return int64(st.Bavail) * st.Bsize, nil
	}
}

// Memory returns how many bytes of memory this process could still get, and the total: of the machine, or of its
// control group if that has less. Pages of files count as available, because the kernel reclaims them.
func Memory() (available, total int64, err error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, err
	}
	m, err := fs.Meminfo()
	if err != nil {
		return 0, 0, err
	}
	if m.MemAvailableBytes == nil || m.MemTotalBytes == nil {
		return 0, 0, errors.New("/proc/meminfo does not say what is available")
	}
	available, total = int64(*m.MemAvailableBytes), int64(*m.MemTotalBytes)
	limit, err := memlimit.FromCgroup()
	if err != nil || limit >= uint64(total) {
		return available, total, nil //nolint:nilerr // no limit is no error
	}
	used, err := groupUses(fs)
	if err != nil {
		return 0, 0, fmt.Errorf("memory of the control group: %w", err)
	}
	return max(min(available, int64(limit)-used), 0), int64(limit), nil
}

// groupUses is the memory of this process's control group that cannot be reclaimed at once.
func groupUses(fs procfs.FS) (int64, error) {
	self, err := fs.Self()
	if err != nil {
		return 0, err
	}
	groups, err := self.Cgroups()
	if err != nil {
		return 0, err
	}
	mounts, err := self.MountInfo()
	if err != nil {
		return 0, err
	}
	for _, m := range mounts {
		_, v1 := m.SuperOptions["memory"]
		if v1 = v1 && m.FSType == "cgroup"; !v1 && m.FSType != "cgroup2" {
			continue
		}
		for _, g := range groups {
			if v1 && !slices.Contains(g.Controllers, "memory") || !v1 && g.HierarchyID != 0 {
				continue
			}
			// In a container the mount may show the group as its root.
			below, err := filepath.Rel(m.Root, g.Path)
			if err != nil || strings.HasPrefix(below, "..") {
				below = "."
			}
			used, err := usesOf(filepath.Join(m.MountPoint, below), v1)
			if errors.Is(err, os.ErrNotExist) {
				continue // the other cgroup version has the memory controller
			}
			return used, err
		}
	}
	return 0, errors.New("no mounted control group has it")
}

// usesOf reads what a control group uses.
func usesOf(dir string, v1 bool) (used int64, err error) {
	file, prefix := "memory.current", ""
	if v1 {
		file, prefix = "memory.usage_in_bytes", "total_"
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscan(string(text), &used); err != nil {
		return 0, fmt.Errorf("%s: %w", filepath.Join(dir, file), err)
	}
	text, err = os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	for r := strings.NewReader(string(text)); ; {
		var name string
		var bytes int64
		switch _, err := fmt.Fscan(r, &name, &bytes); {
		case errors.Is(err, io.EOF):
			return max(used, 0), nil
		case err != nil:
			return 0, fmt.Errorf("%s: %w", filepath.Join(dir, "memory.stat"), err)
		case name == prefix+"inactive_file" || name == prefix+"active_file":
			used -= bytes
		}
	}
}
