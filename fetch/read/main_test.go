package read_test

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/internal/leaktest"
	"bowstring/schema"
	"bowstring/spill"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// quiet drops logs of the faults that tests make.
var quiet = slog.New(slog.DiscardHandler)

// content is blob number i: 1,008 to about 4,000 bytes.
func content(i int) ([]byte, schema.BlobRef) {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(i))
	b := make([]byte, 1008+i*61%3000)
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
	return b, schema.RefOf(b)
}

// newLocal opens an empty store in a directory, with an ingest for puts.
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

// inbox is a Receiver that records its outcomes, for up to a hundred requests.
type inbox chan read.Outcome

func newOutcomes() inbox { return make(inbox, 100) }

func (c inbox) Receive(list []read.Outcome) {
	for _, o := range list {
		c <- o
	}
}

func (inbox) More() {}

// want requests a blob in a place of its own, and waits until it has its turn.
func want(t testing.TB, r *read.Reader, w read.Want) {
	t.Helper()
	asked(t, r, w, func(waits func() bool) {
		for end := time.Now().Add(time.Minute); waits(); time.Sleep(200 * time.Microsecond) {
			if time.Now().After(end) {
				t.Fatalf("a read gets no turn: %+v", r.Stats())
			}
		}
	})
}

// begins requests a blob in a place of its own, and waits for its turn until it seems to get none.
func begins(t testing.TB, r *read.Reader, w read.Want) (began bool) {
	t.Helper()
	asked(t, r, w, func(waits func() bool) {
		for range 50 {
			if began = !waits(); began {
				return
			}
			time.Sleep(200 * time.Microsecond)
		}
	})
	return began
}

// asked requests a blob in a place of its own, and closes it after wait.
func asked(t testing.TB, r *read.Reader, w read.Want, wait func(waits func() bool)) {
	t.Helper()
	if w.Context == nil {
		w.Context = t.Context()
	}
	p := r.Open("", 1, "test", w.To)
	p.Ask(w)
	wait(func() bool { return p.Waiting() > 0 })
	p.Retire()
}

// next returns a receiver's next outcome.
func (c inbox) next(t testing.TB) read.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case o := <-c:
		return o
	case <-ctx.Done():
		t.Fatal("no outcome came")
		return read.Outcome{}
	}
}

// until waits for an effect of another goroutine.
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
