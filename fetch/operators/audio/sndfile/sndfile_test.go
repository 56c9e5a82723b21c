//go:build cgo && linux

package sndfile

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bowstring/internal/leaktest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Command {
		if Serve(os.Stdin, os.Stdout) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	status := leaktest.Run(m)
	if err := os.RemoveAll(folder); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		status = 1
	}
	os.Exit(status)
}

// folder is where built leaves the library; empty where it was not called.
var folder string

var built = sync.OnceValues(func() (string, error) {
	var err error
	if folder, err = os.MkdirTemp("", "sndfile"); err != nil {
		return "", err
	}
	path := filepath.Join(folder, "bad.so")
	out, err := exec.Command("cc", "-shared", "-fPIC", "-o", path, "testdata/bad.c").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

// bad is processes with the library of testdata/bad.c.
func bad(t *testing.T) *pool {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	l := &pool{library: path, patience: time.Minute}
	t.Cleanup(l.close)
	if version, missing, err := l.version(); version != "bad-1" {
		t.Fatalf("version %q: %s, %v", version, missing, err)
	}
	return l
}

// text decodes a file in which each byte is a sample.
func text(l *pool, file string, offset, frames int) (string, error) {
	out := [][]float32{make([]float32, frames)}
	got, _, err := l.decode(context.Background(), []byte(file), request{Offset: int64(offset), Rate: 16000}, out)
	var b strings.Builder
	for _, x := range out[0][:got] {
		b.WriteByte(byte(x * 128))
	}
	return b.String(), err
}

// holds checks that files are decoded.
func holds(t *testing.T, l *pool) {
	t.Helper()
	if got, err := text(l, "these are samples", 6, 100); got != "are samples" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestFaults checks that a fault of the library in one file affects only that file.
func TestFaults(t *testing.T) {
	l := bad(t)
	holds(t, l)
	if _, err := text(l, "CRASH", 0, 5); !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "exit status") {
		t.Errorf("a crash: %v", err)
	}
	holds(t, l)
	if _, err := text(l, "no", 0, 5); !errors.Is(err, ErrNotOpened) {
		t.Errorf("no file of sound: %v", err)
	}
	if _, err := text(l, "short", 9, 1); !errors.Is(err, ErrNoSeek) {
		t.Errorf("beyond its end: %v", err)
	}
	out := [][]float32{make([]float32, 1), make([]float32, 1)}
	if _, _, err := l.decode(t.Context(), []byte("one channel"), request{Rate: 16000}, out); !errors.Is(err, ErrOther) {
		t.Errorf("two channels of one: %v", err)
	}
	holds(t, l)
	l.patience = 50 * time.Millisecond
	if _, err := text(l, "HANG", 0, 5); !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("what does not end: %v", err)
	}
	l.patience = time.Minute
	holds(t, l)
}

// TestCancelled checks that a call ends with its context, and the process with the call.
func TestCancelled(t *testing.T) {
	l := bad(t)
	started, why := filepath.Join(t.TempDir(), "started"), errors.New("the stream has ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error)
	go func() {
		_, _, err := l.decode(ctx, []byte("HANG "+started), request{Rate: 16000}, [][]float32{make([]float32, 5)})
		ended <- err
	}()
	for {
		if _, err := os.Stat(started); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel(why)
	if err := <-ended; !errors.Is(err, why) {
		t.Errorf("it ends with %v", err)
	}
	if len(l.idle) != 0 {
		t.Error("the process is kept")
	}
	holds(t, l)
	if _, _, err := l.decode(ctx, []byte("late"), request{Rate: 16000}, [][]float32{nil}); !errors.Is(err, why) {
		t.Errorf("after its end: %v", err)
	}
}

// TestKilled checks that no sample is lost if a process is killed, whether it is idle or in
// the middle of a file.
func TestKilled(t *testing.T) {
	l := bad(t)
	file := "ONCE " + filepath.Join(t.TempDir(), "made")
	if got, err := text(l, file, 0, len(file)); got != file || err != nil {
		t.Errorf("killed in the middle: %q, %v", got, err)
	}
	if _, err := os.Stat(file[5:]); err != nil {
		t.Error("the process was not killed")
	}
	p := l.take()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.put(p)
	holds(t, l)
}

// TestMany decodes side by side, files of every size among files that end processes.
func TestMany(t *testing.T) {
	l := bad(t)
	var all sync.WaitGroup
	for k := range 8 {
		all.Go(func() {
			file := strings.Repeat("0123456789abcdef", 1+k*500)
			for i := range 20 {
				if i%10 == k {
					if _, err := text(l, "CRASH", 0, 5); !errors.Is(err, ErrDied) {
						t.Errorf("a crash: %v", err)
					}
				}
				if got, err := text(l, file, 0, len(file)); got != file || err != nil {
					t.Errorf("%d bytes of %d, %v", len(got), len(file), err)
				}
			}
		})
	}
	all.Wait()
}

// TestSecrets checks that a process gets only the variables of the environment that it
// needs.
func TestSecrets(t *testing.T) {
	t.Setenv("BOWSTRING_TOKEN", "a secret")
	l := bad(t)
	for _, entry := range l.idle[0].cmd.Env {
		if strings.Contains(entry, "secret") {
			t.Error(entry)
		}
	}
}

func TestNoLibrary(t *testing.T) {
	l := &pool{library: filepath.Join(t.TempDir(), "none.so"), patience: time.Minute}
	version, missing, err := l.version()
	if version != "" || !strings.Contains(missing, "cannot be loaded") || err != nil {
		t.Errorf("version %q: %s, %v", version, missing, err)
	}
}

// TestNotStarted checks that a process that cannot be started is not the file's fault. The
// start is tried again, and the failure is not stored.
func TestNotStarted(t *testing.T) {
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	l := &pool{library: path, binary: filepath.Join(t.TempDir(), "later"), patience: time.Minute,
		pause: func(time.Duration) { tries++ }}
	t.Cleanup(l.close)
	if version, missing, err := l.version(); !errors.Is(err, ErrNoProcess) || version != "" || missing != "" {
		t.Errorf("version %q: %s, %v", version, missing, err)
	}
	if _, err := text(l, "a file", 0, 6); !errors.Is(err, ErrNoProcess) || errors.Is(err, ErrDied) {
		t.Errorf("a file for which no process can be started: %v", err)
	}
	if want := 2 * len(pauses); tries != want {
		t.Errorf("after %d pauses it was tried again, want %d", tries, want)
	}
	l.pause = func(time.Duration) { // the first try fails
		if err := os.Symlink(self, l.binary); err != nil {
			t.Error(err)
		}
	}
	holds(t, l)
	if version, missing, err := l.version(); version != "bad-1" || err != nil {
		t.Errorf("version %q: %s, %v", version, missing, err)
	}
}

// TestOtherLibrary checks that samples of two versions of the library are never mixed. The
// contract names the version that was found, so processes with another one are not used.
func TestOtherLibrary(t *testing.T) {
	l := bad(t)
	l.close() // as if its process had ended
	l.found.Store(&found{version: "bad-0"})
	if got, err := text(l, "a file", 0, 6); !errors.Is(err, ErrNoProcess) || got != "" ||
		!strings.Contains(err.Error(), "is bad-1, and was bad-0 before") {
		t.Errorf("%q, %v", got, err)
	}
	if len(l.idle) != 0 {
		t.Error("its process was kept")
	}
}

// TestStartsNone checks that a decoding process does not get the variable that would make
// it start processes itself.
func TestStartsNone(t *testing.T) {
	l := bad(t)
	for _, entry := range l.idle[0].cmd.Env {
		if strings.HasPrefix(entry, Library+"=") {
			t.Error(entry)
		}
	}
}

// BenchmarkPipe measures the cost of the pipe to another process: a file of 64 KB, half a
// minute of speech.
func BenchmarkPipe(b *testing.B) {
	path, err := built()
	if err != nil {
		b.Fatal(err)
	}
	l := &pool{library: path, patience: time.Minute}
	b.Cleanup(l.close)
	file, out := make([]byte, 64<<10), [][]float32{make([]float32, 480_000)}
	copy(file, "0000")
	for b.Loop() {
		if _, _, err := l.decode(b.Context(), file, request{Rate: 16000}, out); err != nil {
			b.Fatal(err)
		}
	}
}
