package segment

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// newAsync makes a writer, or skips the test where the system has none.
func newAsync(t *testing.T) *asyncWriter {
	t.Helper()
	w, err := newAsyncWriter()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(w.close)
	return w
}

func TestAsyncWrites(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	const each = 1 << 20
	var group errgroup.Group
	for id := range int64(4) {
		w := newAsync(t)
		group.Go(func() error {
			r := rand.New(rand.NewPCG(seed, uint64(id)))
			for at := id * each; at < (id+1)*each; {
				var iovs [][]byte
				length := 0
				for range 1 + r.IntN(40) {
					part := bytes.Repeat([]byte{byte(r.IntN(256))}, 1+r.IntN(2000))
					if at+int64(length+len(part)) > (id+1)*each {
						part = part[:(id+1)*each-at-int64(length)]
					}
					if len(part) > 0 {
						iovs, length = append(iovs, part), length+len(part)
					}
				}
				want := bytes.Join(iovs, nil)
				n, err := w.pwritev(int(f.Fd()), iovs, at)
				if err != nil || n != length {
					return fmt.Errorf("wrote %d of %d bytes: %w", n, length, err)
				}
				got := make([]byte, length)
				if _, err := f.ReadAt(got, at); err != nil || !bytes.Equal(got, want) {
					return fmt.Errorf("at %d there are other bytes than were written: %w", at, err)
				}
				at += int64(length)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func TestAsyncFailures(t *testing.T) {
	w := newAsync(t)
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.pwritev(int(f.Fd()), [][]byte{{1}}, 0); !errors.Is(err, syscall.EBADF) {
		t.Errorf("writing to a file that was opened to be read: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := w.pwritev(int(out.Fd()), [][]byte{{1}}, math.MaxInt64-8); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("writing to where no file reaches: %v", err)
	}
	// It is none the worse for it.
	if n, err := w.pwritev(int(out.Fd()), [][]byte{{1, 2}, {3}}, 0); n != 3 || err != nil {
		t.Errorf("wrote %d bytes, %v", n, err)
	}
}

// A set keeps its writers, a few of them, until it is closed.
func TestAsyncWritersAreUsedAgain(t *testing.T) {
	newAsync(t)
	s, _ := newDirect(t, Options{})
	a := &s.io.writers
	for i := range 10 {
		appendBlob(t, s, content(fmt.Sprint(i), 100_000))
	}
	if len(a.idle) != 1 {
		t.Fatalf("%d writers, after writes one after another", len(a.idle))
	}
	var taken []*asyncWriter
	for range directKept + 2 {
		taken = append(taken, a.take())
	}
	last := taken[0]
	for _, w := range taken[1:] {
		a.give(w)
	}
	if len(a.idle) != directKept {
		t.Errorf("%d writers are kept, want %d", len(a.idle), directKept)
	}
	s.Close()
	if a.take() != nil || len(a.idle) != 0 {
		t.Error("a closed set has writers")
	}
	a.give(last) // of a write that outlived the set
	if len(a.idle) != 0 {
		t.Error("a closed set keeps writers")
	}
}
