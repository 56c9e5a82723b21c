package usage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// Options tunes a Book. The zero value of each field but Dir stands for its default.
type Options struct {
	// Dir is the directory. Open creates it if it is missing. Only one server at a time
	// may use it.
	Dir string
	// Keep is for how many days the record is kept. Default 400.
	Keep int
	// Entries bounds the pairs of tenant and dataset of a day. Amounts beyond are added
	// up under Other. Default 10,000.
	Entries int
	// Every is the interval of writes: at most so much is lost if the process dies.
	// Default 15 s.
	Every time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Logger gets errors of reading and writing the directory. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.Keep == 0 {
		o.Keep = 400
	}
	if o.Entries == 0 {
		o.Entries = 10_000
	}
	if o.Every == 0 {
		o.Every = 15 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	switch {
	case o.Dir == "":
		return &schema.FieldError{Field: "Dir", Got: "nothing", Want: "a directory"}
	case o.Keep < 1:
		return &schema.FieldError{Field: "Keep", Got: fmt.Sprint(o.Keep), Want: "1 day or more"}
	case o.Entries < 1:
		return &schema.FieldError{Field: "Entries", Got: fmt.Sprint(o.Entries), Want: "1 or more"}
	case o.Every < 0:
		return &schema.FieldError{Field: "Every", Got: o.Every.String(), Want: "a positive time"}
	}
	return nil
}

// Book is the record of usage. It is safe for concurrent use. Amounts are added in
// memory, and Run writes them: a stream never waits for the disk.
type Book struct {
	opts Options
	// lock is the open file whose flock keeps other servers out of the directory.
	lock *os.File

	writing sync.Mutex // held while files are written; mu is taken after it, and never held during a write

	mu     sync.Mutex
	closed bool            // guarded by mu
	days   map[string]*day // days with recent amounts; guarded by mu
	failed string          // the error that was logged last, "" if the last write succeeded; guarded by writing
}

type key struct{ tenant, dataset string }

// day is the usage of one day in UTC. It is guarded by Book.mu.
type day struct {
	entries map[key]Amount // total of the day, what was loaded from disk included
	changed bool           // since the last write
}

// Open creates or opens the directory. It returns schema.ErrUnavailable if another
// process uses it. The caller calls Close.
func Open(opts Options) (*Book, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("usage: %w", err)
	}
	if err := os.MkdirAll(opts.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("usage: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(opts.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("usage: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: another server keeps what is used in %s: %w", schema.ErrUnavailable,
			opts.Dir, err), lock.Close())
	}
	return &Book{opts: opts, lock: lock, days: map[string]*day{}}, nil
}

// Add adds an amount to today's entry of a tenant and a dataset. It reads the file of the
// day if the process has not added to that day before, and otherwise waits for no disk.
// After Close it does nothing.
func (b *Book) Add(tenant, dataset string, a Amount) {
	if a == (Amount{}) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	d := b.dayLocked(dayOf(b.opts.Now()))
	add(d.entries, b.opts.Entries, key{tenant, dataset}, a)
	d.changed = true
}

// add adds to an entry. If the day has its maximum of entries, it adds to Other of the
// tenant, and if that is no entry yet, to Other of Other: totals stay right, and memory
// is bounded.
func add(to map[key]Amount, most int, k key, a Amount) {
	for _, k := range []key{k, {k.tenant, Other}, {Other, Other}} {
		sum, ok := to[k]
		if ok || len(to) < most || k.tenant == Other {
			sum.Add(a)
			to[k] = sum
			return
		}
	}
}

// dayLocked returns a day, and loads it if it is not in memory. Writing a day that was
// not loaded would replace its file by the new amounts alone.
func (b *Book) dayLocked(name string) *day {
	d := b.days[name]
	if d == nil {
		d = &day{entries: b.load(name)}
		b.days[name] = d
	}
	return d
}

// load reads a day's file. If that fails, it renames the file to .damaged and logs the
// error: accounting goes on with an empty day, and the operator can restore the file by
// hand.
func (b *Book) load(name string) map[key]Amount {
	entries := map[key]Amount{}
	list, err := readDay(b.path(name), name)
	if err != nil {
		b.opts.Logger.Error("what was used on a day cannot be read, and is put aside", "file", b.path(name), "error",
			err)
		if err := os.Rename(b.path(name), b.path(name)+".damaged"); err != nil {
			b.opts.Logger.Error("it cannot be put aside, and will be lost", "error", err)
		}
		return entries
	}
	for _, e := range list {
		entries[key{e.Tenant, e.Dataset}] = e.Amount
	}
	return entries
}

func (b *Book) path(day string) string { return filepath.Join(b.opts.Dir, day+suffix) }

// MaxDays bounds the days of one filter.
const MaxDays = 1000

// Bytes estimates the memory that Each needs, which holds the entries of one day at a
// time.
func (b *Book) Bytes() int64 { return int64(b.opts.Entries) * 512 }

// Each calls visit with the entries that match a filter, sorted by day, tenant and
// dataset. turn runs the work of each day when the scheduler allows it, because decoding
// a large day takes CPU time. Each returns schema.ErrLimit if more than MaxDays recorded
// days match. visit must not keep the entry.
func (b *Book) Each(ctx context.Context, f Filter, turn func(func() error) error, visit func(*Entry) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	names, err := b.named(&f)
	if err != nil {
		return err
	}
	if len(names) > MaxDays {
		return fmt.Errorf("%w: %d days are on record between %q and %q, at most %d are returned at once; name fewer by "+
			"since and until", schema.ErrLimit, len(names), f.Since, f.Until, MaxDays)
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var list []Entry
		err := turn(func() (err error) {
			list, err = b.entries(name, &f)
			return err
		})
		if err != nil {
			return err
		}
		for i := range list {
			if err := visit(&list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// named returns the recorded days that match a filter, sorted. Days in memory may have no
// file yet.
func (b *Book) named(f *Filter) ([]string, error) {
	names, err := b.onDisk()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	names = slices.AppendSeq(names, maps.Keys(b.days))
	b.mu.Unlock()
	names = slices.DeleteFunc(names, func(name string) bool { return !f.days(name) })
	slices.Sort(names)
	return slices.Compact(names), nil
}

// entries returns the entries of a day that match a filter, sorted. A day in memory is at
// least as new as its file.
func (b *Book) entries(name string, f *Filter) (list []Entry, err error) {
	b.mu.Lock()
	d := b.days[name]
	if d != nil {
		for k, a := range d.entries {
			if e := (Entry{name, k.tenant, k.dataset, a}); f.match(&e) {
				list = append(list, e)
			}
		}
	}
	b.mu.Unlock()
	if d == nil {
		list, err = readDay(b.path(name), name)
		if err != nil {
			return nil, fmt.Errorf("%w: what was used on %s cannot be read: %w", schema.ErrDataLoss, name, err)
		}
		list = slices.DeleteFunc(list, func(e Entry) bool { return !f.match(&e) })
	}
	return sorted(list), nil
}

// onDisk returns the days that have files, sorted, as os.ReadDir sorts.
func (b *Book) onDisk() ([]string, error) {
	files, err := os.ReadDir(b.opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("usage: %w", err)
	}
	var names []string
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), suffix); ok && isDay(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Run writes the new amounts at each interval until ctx ends. It calls collect before
// each write, if collect is not nil, so that running streams add what they have used so
// far.
func (b *Book) Run(ctx context.Context, collect func()) {
	tick := time.NewTicker(b.opts.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if collect != nil {
			collect()
		}
		b.report(ctx, b.Flush())
	}
}

// report logs an error of a write. It logs a repeated error once only, because a full
// disk fails every 15 s.
func (b *Book) report(ctx context.Context, err error) {
	b.writing.Lock()
	defer b.writing.Unlock()
	why := ""
	if err != nil {
		why = err.Error()
	}
	if why != "" && why != b.failed {
		b.opts.Logger.LogAttrs(ctx, slog.LevelError, "what was used cannot be written, and is kept in memory",
			slog.String("error", why))
	}
	b.failed = why
}

// Close writes the new amounts and unlocks the directory. Later calls do nothing.
func (b *Book) Close() error {
	err := b.Flush()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	return errors.Join(err, b.lock.Close())
}
