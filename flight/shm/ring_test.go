package shm

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"bowstring/schema"
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
			cancel() // no slot is released meanwhile
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
				t.Fatalf("slot %d is at %d of %d, the one before ends at %d", s.Number, s.Offset, r.size, at)
			}
			at = s.Offset + s.length
		}
	}
}

// A reservation waits only while the client has something to take or something that it
// has not taken to release.
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

// Reports that make no sense are ignored.
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

// pinnedBlob is the owner of a blob. It records the release.
type pinnedBlob struct{ out *atomic.Int64 }

func (p pinnedBlob) Unpin() { p.out.Add(-1) }

// referringRing is a testRing with a bound of pinned bytes, and a function that makes a
// slot with references.
func referringRing(most, all int64) (r *Ring, out *atomic.Int64,
	refer func(ctx context.Context, n int64) (*Slot, bool, error)) {
	r = testRing(1 << 14)
	r.most, r.node = most, &pinned{most: all}
	out = &atomic.Int64{}
	return r, out, func(ctx context.Context, n int64) (*Slot, bool, error) {
		slot, ok, err := r.ReserveReferring(ctx, 1, 64, n)
		if ok {
			out.Add(1)
			slot.Keep([]schema.Blob{schema.NewBlob(make([]byte, n), pinnedBlob{out})})
		}
		return slot, ok, err
	}
}

func mustRefer(t *testing.T, refer func(context.Context, int64) (*Slot, bool, error), n int64) *Slot {
	t.Helper()
	slot, ok, err := refer(t.Context(), n)
	if err != nil || !ok {
		t.Fatalf("%d bytes cannot be referred to: %v", n, err)
	}
	return slot
}

// Each way in which a slot ends releases its blobs, once. Nothing else releases them.
func TestPinsEndWithTheirSlot(t *testing.T) {
	r, out, refer := referringRing(100, 100)
	requirePinned := func(when string, blobs, bytes int64) {
		t.Helper()
		if out.Load() != blobs || r.pinned != bytes || r.node.bytes.Load() != bytes {
			t.Errorf("%s %d blobs are pinned, %d bytes of the ring and %d of all; want %d and %d", when, out.Load(),
				r.pinned, r.node.bytes.Load(), blobs, bytes)
		}
	}
	dropped := mustRefer(t, refer, 10)
	dropped.Drop()
	dropped.Drop()
	requirePinned("after a drop", 0, 0)

	writing := mustRefer(t, refer, 10)
	r.release(writing.Number)
	r.take(writing.Number)
	requirePinned("while it is being written", 1, 10)
	writing.Sent()
	r.take(writing.Number)
	r.end(1) // what was taken before stays
	requirePinned("when it was taken", 1, 10)
	r.release(writing.Number + 1)
	r.release(writing.Number)
	r.release(writing.Number)
	requirePinned("after releases", 0, 0)

	r.ended = 0
	untaken := mustRefer(t, refer, 20)
	untaken.Sent()
	requirePinned("when it was sent", 1, 20)
	r.end(1)
	requirePinned("after its call", 0, 0)
	if r.referred != 30 {
		t.Errorf("%d bytes were referred to, want 30", r.referred)
	}
}

// The end of a ring releases all slots except those that are being written, which end
// when they are written.
func TestPinsEndWithTheirRing(t *testing.T) {
	r, out, refer := referringRing(100, 100)
	r.users = 1
	writing, sent, has := mustRefer(t, refer, 10), mustRefer(t, refer, 10), mustRefer(t, refer, 10)
	sent.Sent()
	has.Sent()
	r.take(has.Number)
	r.close()
	if n := out.Load(); n != 1 {
		t.Errorf("%d blobs are pinned after the end, want that of the slot that is being written", n)
	}
	writing.Sent()
	if out.Load() != 0 || r.node.bytes.Load() != 0 {
		t.Errorf("%d blobs and %d bytes are pinned after all", out.Load(), r.node.bytes.Load())
	}
	r.Leave()
}

// A batch whose references do not fit is copied: at once if they can never fit, if other
// rings have the room, or if the client has taken everything; otherwise it waits for a
// release.
func TestPinsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, out, refer := referringRing(100, 120)
		requireCopied := func(why string, n int64) {
			t.Helper()
			was := r.copied
			if _, ok, err := refer(t.Context(), n); ok || err != nil || r.copied != was+1 {
				t.Errorf("%s: referred to is %t, copied %d, %v", why, ok, r.copied-was, err)
			}
		}
		requireCopied("more than half of the ring's", 51)
		a, b := mustRefer(t, refer, 50), mustRefer(t, refer, 50)
		a.Sent()
		b.Sent()
		r.take(a.Number)
		got := make(chan *Slot)
		go func() {
			slot, _, _ := refer(t.Context(), 50)
			got <- slot
		}()
		synctest.Wait() // until it waits: the client has not taken b
		if r.waiting != 1 {
			t.Errorf("%d wait", r.waiting)
		}
		r.release(a.Number)
		c := <-got
		if c == nil {
			t.Fatal("what waited was not referred to when there was room")
		}
		c.Sent()
		r.take(b.Number)
		r.take(c.Number)
		requireCopied("all is taken", 10)
		r.release(b.Number)
		if !r.node.reserve(60) { // another ring's
			t.Fatal("no room for another ring")
		}
		requireCopied("others have it", 20)
		r.node.free(60)
		r.release(c.Number)
		if out.Load() != 0 || r.node.bytes.Load() != 0 {
			t.Errorf("%d blobs and %d bytes are pinned after all", out.Load(), r.node.bytes.Load())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		d, e := mustRefer(t, refer, 50), mustRefer(t, refer, 50)
		if _, ok, err := refer(ctx, 50); ok || err == nil {
			t.Errorf("who waited in vain got %t, %v", ok, err)
		}
		d.Drop()
		e.Drop()
	})
}

// Without the option nothing is referred to.
func TestNothingIsReferredTo(t *testing.T) {
	r := testRing(1 << 14)
	if r.Refers() {
		t.Error("a ring refers to blobs without permission")
	}
	if _, ok, err := r.ReserveReferring(t.Context(), 1, 64, 1); ok || err != nil {
		t.Errorf("got %t, %v", ok, err)
	}
}
