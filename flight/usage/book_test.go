package usage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// clock is one that tests set.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time { return time.Unix(0, c.at.Load()) }
func (c *clock) set(day string) {
	c.at.Store(must(time.Parse(time.DateOnly, day)).Add(time.Hour).UnixNano())
}
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
func opened(t *testing.T, o Options) *Book {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// list is what Each visits.
func list(b *Book, f Filter) (entries []Entry, err error) {
	err = b.Each(context.Background(), f, func(do func() error) error { return do() }, func(e *Entry) error {
		entries = append(entries, *e)
		return nil
	})
	return entries, err
}

func listed(t *testing.T, b *Book, f Filter) (out []string) {
	t.Helper()
	entries, err := list(b, f)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, fmt.Sprintf("%s %s %s %d", e.Day, e.Tenant, e.Dataset, e.Rows))
	}
	return out
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Written amounts survive. A process that is killed loses the amounts since its last write.
func TestBookSurvives(t *testing.T) {
	dir, c := t.TempDir(), &clock{}
	c.set("2026-03-01")
	o := Options{Dir: dir, Now: c.now}
	b := opened(t, o)
	b.Add("a", "d", Amount{Rows: 1, Bytes: 10, Seconds: 0.5})
	b.Add("a", "d", Amount{Rows: 2})
	b.Add("a", "e", Amount{Rows: 4})
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	b.Add("b", "d", Amount{Rows: 8})
	want(t, listed(t, b, Filter{}), "2026-03-01 a d 3", "2026-03-01 a e 4", "2026-03-01 b d 8")
	if _, err := Open(o); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("a second one at the same time: %v", err)
	}
	b.mu.Lock() // it is killed
	b.closed = true
	b.mu.Unlock()
	_ = b.lock.Close()
	b = opened(t, o)
	b.Add("a", "d", Amount{Rows: 100})
	c.set("2026-03-02")
	b.Add("a", "d", Amount{Rows: 16})
	want(t, listed(t, b, Filter{}), "2026-03-01 a d 103", "2026-03-01 a e 4", "2026-03-02 a d 16")
	// A clock that steps back adds to the day that it says.
	if err := errors.Join(b.Flush(), b.Flush()); err != nil {
		t.Fatal(err)
	}
	c.set("2026-03-01")
	b.Add("a", "e", Amount{Rows: 1000})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = opened(t, o)
	want(t, listed(t, b, Filter{Tenant: "a", Dataset: "e"}), "2026-03-01 a e 1004")
	want(t, listed(t, b, Filter{Since: "2026-03-02"}), "2026-03-02 a d 16")
	want(t, listed(t, b, Filter{Until: "2026-03-01", Dataset: "d"}), "2026-03-01 a d 103")
	if _, err := list(b, Filter{Since: "yesterday"}); !errors.Is(err, schema.ErrInvalid) {
		t.Error(err)
	}
}

// It stays within its bounds, and what was used is in the sums whatever its name.
func TestBookIsBounded(t *testing.T) {
	dir, c := t.TempDir(), &clock{}
	b := opened(t, Options{Dir: dir, Now: c.now, Entries: 10, Keep: 3})
	for day := range 9 {
		c.set(fmt.Sprintf("2026-03-%02d", day+1))
		for i := range 50 {
			b.Add(fmt.Sprint("t", i%20), fmt.Sprint("d", i), Amount{Rows: 1})
		}
		if err := b.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := list(b, Filter{})
	if err != nil {
		t.Fatal(err)
	}
	days, rows := map[string]int{}, int64(0)
	for _, e := range entries {
		days[e.Day]++
		rows += e.Rows
	}
	if len(days) > 4 || rows != int64(50*len(days)) {
		t.Errorf("%d rows on %v", rows, days)
	}
	for day, n := range days {
		if n > 11 {
			t.Errorf("%d entries on %s", n, day)
		}
	}
}

// A damaged file is renamed, and amounts whose write failed are written later.
func TestBookOfABadDisk(t *testing.T) {
	dir, c := t.TempDir(), &clock{}
	c.set("2026-03-01")
	file := filepath.Join(dir, "2026-03-01.jsonl")
	if err := os.WriteFile(file, []byte("{\"day\":\"2026-0"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := opened(t, Options{Dir: dir, Now: c.now})
	b.Add("a", "d", Amount{Rows: 1})
	if _, err := os.Stat(file + ".damaged"); err != nil {
		t.Error(err)
	}
	if err := os.Mkdir(file+".new", 0o700); err != nil { // in the way
		t.Fatal(err)
	}
	if err := b.Flush(); err == nil {
		t.Error("it says that it has written")
	}
	if err := os.Remove(file + ".new"); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, listed(t, opened(t, Options{Dir: dir, Now: c.now}), Filter{}), "2026-03-01 a d 1")
}

// Nothing is lost or counted twice, whatever comes together.
func TestBookTogether(t *testing.T) {
	dir := t.TempDir()
	b := opened(t, Options{Dir: dir})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 200 {
				b.Add("a", fmt.Sprint("d", n%5), Amount{Rows: 1})
				if n%50 == i {
					_, _ = list(b, Filter{})
					_ = b.Flush()
				}
			}
		})
	}
	wg.Wait()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := list(opened(t, Options{Dir: dir}), Filter{})
	var rows int64
	for _, e := range entries {
		rows += e.Rows
	}
	if err != nil || rows != 800 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

// A day at a time is gone through, each in a turn; a caller that has gone ends it, and so do too many days.
func TestEachIsBounded(t *testing.T) {
	dir := t.TempDir()
	b := opened(t, Options{Dir: dir, Keep: 5000})
	day := must(time.Parse(time.DateOnly, "2020-01-01"))
	for range MaxDays + 1 {
		name := day.Format(time.DateOnly)
		text := fmt.Sprintf("{\"day\":%q,\"tenant\":\"a\",\"dataset\":\"d\",\"rows\":1}\n", name)
		if err := os.WriteFile(filepath.Join(dir, name+suffix), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		day = day.AddDate(0, 0, 1)
	}
	if _, err := list(b, Filter{}); !errors.Is(err, schema.ErrLimit) {
		t.Errorf("%d days: %v", MaxDays+1, err)
	}
	if entries, err := list(b, Filter{Since: "2020-01-02"}); err != nil || len(entries) != MaxDays {
		t.Errorf("%d days: %d, %v", MaxDays, len(entries), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	turns := 0
	err := b.Each(ctx, Filter{Since: "2020-01-02"}, func(do func() error) error {
		if turns++; turns == 3 {
			cancel()
		}
		return do()
	}, func(*Entry) error { return nil })
	if !errors.Is(err, context.Canceled) || turns != 3 {
		t.Errorf("%v after %d turns", err, turns)
	}
}
