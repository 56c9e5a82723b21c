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
	// Dir is the directory, which is made if it is not there. One server has it, at a time.
	Dir string
	// Keep is for how many days what was used is kept. Default 400.
	Keep int
	// Entries is how many tenants with datasets are told apart on a day. Default 10,000.
	Entries int
	// Every is how often what was counted is written. Default 15 s.
	Every time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Logger is told when the directory cannot be read or written. Default slog.Default().
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

// Book is what was used. It is safe for concurrent use.
type Book struct {
	opts Options
	lock *os.File

	writing sync.Mutex // held while files are written, and not while things are counted

	mu     sync.Mutex
	closed bool            // guarded by mu
	days   map[string]*day // in memory: those that were added to of late; guarded by mu
	failed string          // what was logged last, "" if nothing is wrong; guarded by writing
}

type key struct{ tenant, dataset string }

// day is guarded by Book.mu.
type day struct {
	entries map[key]Amount
	changed bool
}

// Open opens or makes the directory. It is a schema.ErrUnavailable if another process has it.
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

// Add counts what a tenant has used of a dataset now. It does not wait for a disk, but
// for a look at the file of a day that is new to the process.
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

// add adds to an entry, or to that of others where there are too many.
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

func (b *Book) dayLocked(name string) *day {
	d := b.days[name]
	if d == nil {
		d = &day{entries: b.load(name)}
		b.days[name] = d
	}
	return d
}

// load reads what is there of a day. A file that cannot be read is put aside, and told of.
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

// MaxDays is how many days one filter may name.
const MaxDays = 1000

// Bytes is about what Each takes in memory: it has the entries of one day at a time.
func (b *Book) Bytes() int64 { return int64(b.opts.Entries) * 512 }

// Each calls visit with the entries that a filter names, by day, tenant and dataset. turn runs what takes a processor
// for a while, a day at once, when it may. It is a schema.ErrLimit if the filter names more than MaxDays days that there
// is a record of.
func (b *Book) Each(ctx context.Context, f Filter, turn func(func() error) error, visit func(*Entry) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	names, err := b.named(&f)
	if err != nil {
		return err
	}
	if len(names) > MaxDays {
		return fmt.Errorf("%w: %d days are on record between %q and %q, at most %d are told at once; name fewer by since "+
			"and until", schema.ErrLimit, len(names), f.Since, f.Until, MaxDays)
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

// named lists the days that a filter names of which there is something, in their order.
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

// entries returns those of a day that a filter names, sorted.
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

// onDisk lists the days of which there are files.
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

// Run writes what is counted until ctx ends, and calls collect before each time, which
// may be nil.
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

// report logs an error once for as long as it stays the same.
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

// Close writes what was counted, and lets go of the directory.
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
