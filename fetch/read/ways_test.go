package read_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/read"
	"bowstring/schema"
)

// gatherer is the last tier: some of its blobs are in a bucket, and all others are local.
type gatherer struct {
	peer
	in func(schema.BlobRef) bool
}

func (g gatherer) Traits() read.Traits             { return read.Traits{Together: 16} }
func (g gatherer) Gathers(ref schema.BlobRef) bool { return g.in(ref) }

// A store that answers at once says nothing about the path to the bucket with attached blobs: as many reads may be in
// flight there as to a distant store, at first and later.
func TestBucketHasAWayOfItsOwn(t *testing.T) {
	const latency = 150 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		far := newFake(t)
		in := func(ref schema.BlobRef) bool { return ref.Key[0]%2 == 0 }
		var near, away []int
		for i := range blobs {
			if _, ref := content(i); in(ref) {
				away = append(away, i)
			} else {
				near = append(near, i)
			}
		}
		slow := false
		far.do = func(ctx context.Context, _ int64, b []byte) ([]byte, error) {
			if slow {
				time.Sleep(latency)
			}
			return b, nil
		}
		r := newReader(t, read.Options{NoHedge: true}, gatherer{peer{far}, in})
		read1 := func(i int) {
			_, ref := content(i)
			b, err := r.Get(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		for _, i := range near {
			read1(i)
			time.Sleep(time.Millisecond)
		}
		if p := r.Path(false); p.Far() {
			t.Errorf("the store is far away: %+v", p)
		}
		if p := r.Path(true); !p.Far() {
			t.Errorf("a bucket that has not answered is taken for a near one: %+v", p)
		}
		slow = true
		for pass := range 2 {
			to := newOutcomes()
			began := time.Now()
			for _, i := range away {
				_, ref := content(i)
				if !begins(t, r, read.Want{Ref: ref, To: to}) {
					t.Fatalf("pass %d: of %d reads of the bucket %d may be under way", pass, len(away), r.Stats().InFlight)
				}
			}
			for range away {
				o := to.next(t)
				if o.Err != nil {
					t.Fatal(o.Err)
				}
				o.Blob.Release()
			}
			if took := time.Since(began); took > 2*latency {
				t.Errorf("pass %d took %s", pass, took)
			}
		}
		if p := r.Path(true); p.Latency < latency {
			t.Errorf("the way to the bucket is %+v, want a latency of %s", p, latency)
		}
		if p := r.Path(false); p.Far() {
			t.Errorf("the way to the store is %+v", p)
		}
		if st := r.Stats(); st.MinLatency < latency || st.InFlight != 0 || st.BytesInFlight != 0 {
			t.Errorf("%+v", st)
		}
		r.Close()
	})
}

// joining is a gatherer. Every other of its blobs comes at once, with a blob that was read before.
type joining struct{ gatherer }

func (j joining) Fetch(cells []read.Cell, to read.Answers) {
	read.Each(cells, to, func(c *read.Cell) (a read.Answer) {
		took := 150 * time.Millisecond
		if a.Joined = c.Ref.Key[0]%2 == 0; a.Joined {
			took = 50 * time.Microsecond
		}
		time.Sleep(took)
		a.Blob, a.Err = j.Get(c.Context, c.Ref)
		return a
	})
}

// A blob that comes with another one takes no time. The path keeps the latency of its requests: with that of the blob
// it would seem to carry next to nothing.
func TestJoinedAnswersMeasureNoPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := joining{gatherer{peer{newFake(t)}, func(schema.BlobRef) bool { return true }}}
		r := newReader(t, read.Options{NoHedge: true}, tier)
		for range 4 {
			to := newOutcomes()
			for i := range blobs {
				_, ref := content(i)
				if !begins(t, r, read.Want{Ref: ref, To: to}) {
					t.Fatalf("%d reads are in flight, and no more may be", r.Stats().InFlight)
				}
			}
			for range blobs {
				o := to.next(t)
				if o.Err != nil {
					t.Fatal(o.Err)
				}
				o.Blob.Release()
			}
		}
		if st := r.Stats(); st.MinLatency < 150*time.Millisecond || st.P50 < 150*time.Millisecond {
			t.Errorf("the least latency is %s and the median %s, want 150 ms", st.MinLatency, st.P50)
		}
		r.Close()
	})
}

// A node that is slow to bring a blob of a bucket may be reading a large span, so this node does not read the blob in
// addition. It does for a blob outside buckets.
func TestNoHedgeOfAnOwner(t *testing.T) {
	for _, inBucket := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			near, far := newFake(t), newFake(t)
			near.traits.Remote = true
			near.do = func(ctx context.Context, n int64, b []byte) ([]byte, error) {
				took := 10 * time.Millisecond
				if n == blobs-1 {
					took = 500 * time.Millisecond
				}
				select {
				case <-time.After(took):
					return b, nil
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}
			r := newReader(t, read.Options{}, peer{near},
				gatherer{peer{far}, func(schema.BlobRef) bool { return inBucket }})
			to := newOutcomes()
			for i := range blobs {
				_, ref := content(i)
				want(t, r, read.Want{Ref: ref, To: to})
				o := to.next(t)
				if o.Err != nil {
					t.Fatal(o.Err)
				}
				o.Blob.Release()
			}
			r.Close()
			if hedged := r.Stats().Hedges > 0; hedged == inBucket || hedged != (far.gets.Load() > 0) {
				t.Errorf("in a bucket %t: %d hedges, %d reads here", inBucket, r.Stats().Hedges, far.gets.Load())
			}
		})
	}
}
