package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bowstring/internal/leaktest"
)

// patient is more than any disk takes that does not hang, on however busy a machine.
const patient = time.Minute

// killedEnv has this binary be a process that records the beginning of a read, and is killed then.
const killedEnv = "BOWSTRING_AUDIT_KILLED"

func TestMain(m *testing.M) {
	if path := os.Getenv(killedEnv); path != "" {
		l, err := Open(Options{Path: path, Patience: patient})
		if err == nil {
			err = l.Begin(context.Background(), Event{Event: Read, Phase: Begin, Principal: "ada", Dataset: "d"})
		}
		fmt.Println("begun", err)
		select {}
	}
	leaktest.Main(m)
}

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

// events reads a log, which must consist of lines of JSON.
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
	// Opened again, the log continues.
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
	if least := int64(1000 - 10 - atOnce); l.Lost() < least {
		t.Errorf("%d were lost, not %d or more: 10 fit into the queue, and a batch of %d was taken out at most",
			l.Lost(), least, atOnce)
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

// The beginning of a read is in the file when Begin returns: a process that is killed then has recorded it.
func TestBeginOutlivesSIGKILL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killedEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || said != "begun <nil>\n" {
		t.Error(said, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the process was not killed")
	}
	if got := events(t, path); len(got) != 1 || got[0].Phase != Begin || got[0].Principal != "ada" {
		t.Errorf("%+v", got)
	}
}

// If the disk hangs or fails, a read begins all the same, unless its line must be on stable
// storage first.
func TestBeginOfABadDisk(t *testing.T) {
	for _, strict := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "audit")
		l := open(t, Options{Path: path, Queue: 2, Patience: time.Millisecond, SyncReads: strict})
		l.mu.Lock() // the disk hangs
		ctx, cancel := context.WithCancelCause(t.Context())
		began := make(chan error, 1)
		go func() { began <- l.Begin(ctx, Event{Event: Read, Phase: Begin}) }()
		if strict {
			cancel(errors.New("the client has gone"))
		}
		if err := <-began; (err != nil) != strict {
			t.Errorf("strict %t: %v", strict, err)
		}
		cancel(nil)
		l.opts.Patience = patient // the rest does not hang: the outcome of each line is known when its Begin returns
		l.mu.Unlock()
		if err := l.Begin(t.Context(), Event{Event: Read, Phase: Begin}); err != nil {
			t.Errorf("strict %t: %v", strict, err)
		}
		l.mu.Lock()
		was := l.file.out
		l.file.out = must(os.Open(path)) // cannot be written
		l.mu.Unlock()
		if err := l.Begin(t.Context(), Event{Event: Read, Phase: Begin}); (err != nil) != strict {
			t.Errorf("strict %t, of a disk that fails: %v", strict, err)
		}
		l.mu.Lock()
		l.file.out.Close()
		l.file.out = was
		l.mu.Unlock()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := l.Begin(t.Context(), Event{Event: Read, Phase: Begin}); (err != nil) != strict {
			t.Errorf("strict %t, after Close: %v", strict, err)
		}
		begun, lost := 0, int64(0)
		for _, e := range events(t, path) {
			begun += strings.Count(e.Phase, Begin)
			lost += e.Count
		}
		if begun != 2 || lost != 1 || l.Lost() != 2 {
			t.Errorf("strict %t: %d are recorded, and that %d are not; %d are lost", strict, begun, lost, l.Lost())
		}
	}
}

// A full disk does not fill the server's log too. The log has one warning in a while,
// however many reads there are. When reads are recorded again, it has the number of those
// that were not.
func TestAFullDiskFillsNoLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	l := open(t, Options{Path: path, Patience: patient})
	var logged strings.Builder
	now := time.Unix(1e9, 0)
	l.mu.Lock() // before anything is written
	l.logger, l.now = slog.New(slog.NewTextHandler(&logged, nil)), func() time.Time { return now }
	was := l.file.out
	l.file.out = must(os.Open(path)) // cannot be written
	l.mu.Unlock()
	begin := func(n int) {
		for range n {
			if err := l.Begin(t.Context(), Event{Event: Read, Phase: Begin}); err != nil {
				t.Fatal(err)
			}
		}
	}
	begin(1000)
	now = now.Add(complainedEvery)
	begin(1000)
	l.mu.Lock()
	l.file.out.Close()
	l.file.out = was
	l.mu.Unlock()
	begin(2)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(logged.String(), "\n"); n != 3 || !strings.Contains(logged.String(), "count=2000") {
		t.Errorf("the log has %d lines, want 3:\n%.2000s", n, &logged)
	}
	if n := l.Lost(); n != 2000 {
		t.Errorf("%d are lost", n)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Files are renamed before they exceed MaxBytes. The newest Keep of them remain, and no
// line is divided.
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
	// Opened again, numbers continue and no file is overwritten.
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

// A failed write is an error of Write, and the next write is tried again.
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
