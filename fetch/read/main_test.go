package read_test

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/schema"
	"bowstring/spill"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet drops what is logged of the faults that tests make.
var quiet = slog.New(slog.DiscardHandler)

// content is blob number i: 1,008 to about 4,000 bytes.
func content(i int) ([]byte, schema.BlobRef) {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(i))
	b := make([]byte, 1008+i*61%3000)
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
	return b, schema.RefOf(b)
}

// newLocal opens an empty store in a directory, and an ingest of it that keeps what is put through it.
func newLocal(t testing.TB, dir string) (store.Store, store.Ingest) {
	t.Helper()
	s, err := local.Open(dir, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := s.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, in
}

// newSpill opens an empty spill in a directory.
func newSpill(t testing.TB, dir string) *spill.Cache {
	t.Helper()
	c, err := spill.Open(spill.Options{Dir: dir, Bytes: spill.MinBytes + (16 << 20), KeepFree: 1, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// newReader returns a reader that the test closes, before the tiers.
func newReader(t testing.TB, opts read.Options, list ...read.Tier) *read.Reader {
	t.Helper()
	opts.Logger = quiet
	r, err := read.New(list, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// told is a Receiver that keeps what it is told, for up to a hundred wants.
type told chan read.Outcome

func newTold() told { return make(told, 100) }

func (c told) Receive(_ read.Token, o read.Outcome) { c <- o }

// want tries for a blob that no window has, starts the read if one is to be, and returns the verdict.
func want(t testing.TB, r *read.Reader, w read.Want) read.Verdict {
	t.Helper()
	if w.Context == nil {
		w.Context = t.Context()
	}
	v, first, held := r.Try(&w, r.Look(&w))
	switch v {
	case read.Begun:
		r.Start(first)
	case read.Held:
		w.To.Receive(w.Token, read.Outcome{Ref: w.Ref, Blob: held})
	}
	return v
}

// next returns what a receiver is told next.
func (c told) next(t testing.TB) read.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case o := <-c:
		return o
	case <-ctx.Done():
		t.Fatal("nothing is told")
		return read.Outcome{}
	}
}

// until waits for something that another goroutine does.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("never: ", what)
		}
	}
}
