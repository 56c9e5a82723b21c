package shm

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"bowstring/schema"
)

// pinnedBlob is the owner of a blob that says when it was let go of.
type pinnedBlob struct{ out *atomic.Int64 }

func (p pinnedBlob) Unpin() { p.out.Add(-1) }

// referringRing is a testRing that may have so many bytes pinned, and a way to make a slot that refers to some.
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

// Whatever ends a slot lets go of what it refers to, once, and whatever is no end does not.
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

// A ring's end lets go of everything but what is being written, and that ends when it is.
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

// What would be too much is copied: at once where it can never fit, where other rings have it, or where the client has
// taken all; else when the client has let go.
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
		t.Error("a ring refers to blobs that was not told to")
	}
	if _, ok, err := r.ReserveReferring(t.Context(), 1, 64, 1); ok || err != nil {
		t.Errorf("got %t, %v", ok, err)
	}
}
