package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, opts Options) *Log {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	l, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// events reads a record, which is nothing but lines of JSON.
func events(t *testing.T, path string) (list []Event) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		list = append(list, e)
	}
	return list
}

// A write is in the file when Write returns; reads are by the end of Close.
func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	l := open(t, Options{Path: path})
	if err := l.Write(Event{Event: Drop, Principal: "ada", Dataset: "d"}); err != nil {
		t.Fatal(err)
	}
	if got := events(t, path); len(got) != 1 || got[0].Principal != "ada" || got[0].Time.IsZero() {
		t.Fatalf("%+v", got)
	}
	for i := range 100 {
		l.Read(Event{Event: Read, Rows: int64(i)})
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := events(t, path); len(got) != 101 || got[100].Rows != 99 {
		t.Errorf("%d events", len(got))
	}
	l.Read(Event{Event: Read})
	if err := l.Write(Event{Event: Drop}); err == nil {
		t.Error("a closed log takes a write")
	}
	// Opened again, it goes on.
	l = open(t, Options{Path: path})
	if err := l.Write(Event{Event: Write}); err != nil {
		t.Fatal(err)
	}
	if got := events(t, path); len(got) != 102 {
		t.Errorf("%d events", len(got))
	}
}

// Reads never wait: those that the queue has no room for are counted, and the count is
// recorded.
func TestReadsNeverWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	l := open(t, Options{Path: path, Queue: 10})
	l.mu.Lock() // the disk hangs
	for range 1000 {
		l.Read(Event{Event: Read})
	}
	l.mu.Unlock()
	if l.Lost() < 1000-12 {
		t.Errorf("%d were lost; 10 fit into the queue, and one or two were taken out", l.Lost())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var reads, lost int64
	for _, e := range events(t, path) {
		switch e.Event {
		case Read:
			reads++
		case Dropped:
			lost += e.Count
		}
	}
	if reads+lost != 1000 || lost != l.Lost() {
		t.Errorf("%d reads and %d that were lost are recorded, of 1000; Lost says %d", reads, lost, l.Lost())
	}
}

// Files are put aside before they get too long; as many as are to be kept are, and no
// line is cut.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit")
	l := open(t, Options{Path: path, MaxBytes: 1000, Keep: 3})
	for i := range 100 {
		if err := l.Write(Event{Event: Write, Rows: int64(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	names, err := filepath.Glob(path + "*")
	if err != nil || len(names) != 4 {
		t.Fatal(names, err)
	}
	var last int64
	slices.SortFunc(names[1:], func(a, b string) int { return len(a) - len(b) + strings.Compare(a, b) })
	for _, name := range append(names[1:], path) {
		if info, err := os.Stat(name); err != nil || info.Size() > 1000 {
			t.Error(name, info.Size(), err)
		}
		for _, e := range events(t, name) {
			if last != 0 && e.Rows != last+1 {
				t.Errorf("%s: %d after %d", name, e.Rows, last)
			}
			last = e.Rows
		}
	}
	if last != 100 {
		t.Errorf("the last event is %d", last)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// Opened again, numbers go on and nothing is written over.
	before, err := filepath.Glob(path + ".*")
	if err != nil {
		t.Fatal(err)
	}
	l = open(t, Options{Path: path, MaxBytes: 100})
	for range 3 {
		if err := l.Write(Event{Event: Write}); err != nil {
			t.Fatal(err)
		}
	}
	after, err := filepath.Glob(path + ".*")
	if err != nil || len(after) != len(before)+3 {
		t.Error(before, after, err)
	}
}

// After a crash within a line, the next one begins on a line of its own.
func TestTornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	if err := os.WriteFile(path, []byte(`{"time":"20`), 0o600); err != nil {
		t.Fatal(err)
	}
	l := open(t, Options{Path: path})
	if err := l.Write(Event{Event: Write, Principal: "ada"}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(text), "{\"time\":\"20\n{") || !strings.HasSuffix(string(text), "}\n") {
		t.Errorf("%q, %v", text, err)
	}
}

// What cannot be written is an error of Write, and the next one is tried anew.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit")
	l := open(t, Options{Path: path})
	l.mu.Lock()
	l.file.out.Close() // as a disk that fails
	l.mu.Unlock()
	if err := l.Write(Event{Event: Drop}); err == nil {
		t.Error("a write that was not recorded succeeded")
	}
	l.mu.Lock()
	l.file.out = nil
	l.mu.Unlock()
	if err := l.Write(Event{Event: Drop, Principal: "eve"}); err != nil {
		t.Error(err)
	}
	if got := events(t, path); len(got) != 1 || got[0].Principal != "eve" {
		t.Error(got)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{}, {Path: "x", MaxBytes: -1}, {Path: "x", Keep: -1}, {Path: "x", Queue: -1},
		{Path: t.TempDir()}, {Path: "/nowhere/at/all"}} {
		if l, err := Open(o); err == nil {
			t.Errorf("%+v was taken", o)
			l.Close()
		} else if fmt.Sprint(err) == "" {
			t.Error("an error without words")
		}
	}
}
