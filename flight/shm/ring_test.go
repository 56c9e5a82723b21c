package shm

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
)

// testRing is a ring over ordinary memory.
func testRing(n int64) *Ring {
	m := &memory{bytes: make([]byte, n)}
	m.once.Do(func() {}) // there is nothing to unmap
	return newRing("ring", m)
}

// Slots never overlap, whatever a client says and in whatever order, and what is writing
// or sent is never written anew.
func TestRingNeverOverlaps(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	r := testRing(16 * align)
	type held struct {
		slot *Slot
		mark byte
	}
	var live []held
	for range 5_000 {
		switch rng.IntN(6) {
		case 0, 1:
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // nobody lets go meanwhile
			slot, ok, err := r.Reserve(ctx, 1+rng.Uint64N(3), 1+rng.Int64N(3*align))
			if err != nil || !ok {
				continue
			}
			mark := byte(rng.Uint32())
			for i := range slot.Bytes() {
				slot.Bytes()[i] = mark
			}
			live = append(live, held{slot, mark})
			if rng.IntN(4) > 0 {
				slot.Sent()
			}
		case 2:
			r.take(rng.Uint64N(r.next + 2))
		default:
			if len(live) == 0 {
				continue
			}
			i := rng.IntN(len(live))
			h := live[i]
			if h.slot.state == writing {
				r.release(h.slot.Number) // a client that guesses: of no effect
				if !slices.Contains(r.slots, h.slot) {
					t.Fatal("a client has freed a slot that is being written")
				}
				h.slot.Sent()
				continue
			}
			for _, b := range h.slot.Bytes() {
				if b != h.mark {
					t.Fatalf("slot %d was written while it was out", h.slot.Number)
				}
			}
			r.release(h.slot.Number)
			r.release(h.slot.Number) // again, of no effect
			live = slices.Delete(live, i, i+1)
		}
		at := int64(0)
		for _, s := range r.slots {
			if s.Offset < at || s.Offset%align != 0 || s.Offset+s.length > r.size {
				t.Fatalf("slot %d lies at %d of %d, the one before ends at %d", s.Number, s.Offset, r.size, at)
			}
			at = s.Offset + s.length
		}
	}
}

// Who reserves waits while the client has something to take or to let go that it has not
// taken, and no longer.
func TestRingWaits(t *testing.T) {
	reserve := func(r *Ring, n int64) *Slot {
		s, ok, err := r.Reserve(t.Context(), 1, n)
		if err != nil || !ok {
			t.Fatalf("no room for %d bytes: %v", n, err)
		}
		return s
	}
	synctest.Test(t, func(t *testing.T) {
		r := testRing(1 << 20)
		a, b := reserve(r, 1<<19), reserve(r, 1<<19)
		a.Sent()
		b.Sent()
		done := make(chan *Slot, 1)
		again := func() {
			s, _, err := r.Reserve(t.Context(), 1, 1<<18)
			if err != nil {
				t.Error(err)
			}
			done <- s
		}
		go again()
		synctest.Wait()
		if len(done) > 0 {
			t.Fatal("there was room in a full ring")
		}
		r.take(a.Number)
		r.release(a.Number)
		if c := <-done; c == nil || c.Offset != a.Offset {
			t.Fatalf("the room that came free was not used: %+v", c)
		}
		// The client takes all that there is and keeps it: the next batch goes another way.
		r.take(b.Number)
		go again()
		c := <-done
		if c == nil {
			t.Fatal("the rest of the free slot was not used")
		}
		c.Sent()
		r.take(c.Number)
		for _, s := range slices.Clone(r.slots) {
			s.Sent()
			r.take(s.Number)
		}
		go again()
		if s := <-done; s != nil {
			t.Fatal("there was room where the client keeps all")
		}
	})
}

// A call that is cancelled waits no longer, and has nothing. Another call on the ring waits on.
func TestRingCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testRing(1 << 20)
		var full []*Slot
		for range 2 {
			s, _, err := r.Reserve(t.Context(), 1, 1<<19)
			if err != nil {
				t.Fatal(err)
			}
			s.Sent()
			full = append(full, s)
		}
		cause := errors.New("cancelled")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancelled, other := make(chan error, 1), make(chan *Slot, 1)
		go func() {
			_, _, err := r.Reserve(ctx, 2, 1<<18)
			cancelled <- err
		}()
		go func() {
			s, _, _ := r.Reserve(t.Context(), 3, 1<<18)
			other <- s
		}()
		synctest.Wait()
		cancel(cause)
		if err := <-cancelled; !errors.Is(err, cause) {
			t.Errorf("a cancelled call: %v", err)
		}
		synctest.Wait()
		if len(other) > 0 || len(r.slots) != 2 {
			t.Fatalf("%d slots are there", len(r.slots))
		}
		r.take(full[0].Number)
		r.release(full[0].Number)
		if s := <-other; s == nil || s.call != 3 {
			t.Errorf("the other call got %+v", s)
		}
	})
}

// A call that the client has ended gets nothing more, and what it was sent and did not take is free.
func TestRingEndedCall(t *testing.T) {
	r := testRing(1 << 20)
	one, _, _ := r.Reserve(t.Context(), 1, 1<<16)
	two, _, _ := r.Reserve(t.Context(), 1, 1<<16)
	late, _, _ := r.Reserve(t.Context(), 1, 1<<16)
	one.Sent()
	two.Sent()
	r.take(one.Number)
	r.end(1)
	late.Sent() // the handler did not know yet
	if len(r.slots) != 1 || r.slots[0] != one {
		t.Errorf("%d slots are left, want the one that was taken", len(r.slots))
	}
	if _, ok, _ := r.Reserve(t.Context(), 1, 1); ok {
		t.Error("an ended call got a slot")
	}
	if _, ok, _ := r.Reserve(t.Context(), 2, 1); !ok {
		t.Error("the next call got none")
	}
}

// What makes no sense is not believed.
func TestRingHears(t *testing.T) {
	r := testRing(1 << 20)
	for _, b := range [][]byte{make([]byte, 1), make([]byte, record), append([]byte{9}, make([]byte, record-1)...)} {
		if r.hear(b) {
			t.Errorf("% x was believed", b)
		}
	}
}

func FuzzRingHears(f *testing.F) {
	f.Add([]byte{saysTaken, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := testRing(1 << 20)
		s, _, _ := r.Reserve(t.Context(), 5, 1<<16)
		r.hear(b)
		if !slices.Contains(r.slots, s) {
			t.Error("a slot that is being written was freed")
		}
	})
}
