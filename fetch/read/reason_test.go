package read_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/read"
	"bowstring/schema"
	"bowstring/spill"
)

// Each read of the store is counted by why it was made there.
func TestReasons(t *testing.T) {
	at := spill.Place{Dataset: 1, Position: 7}
	refuses := func(context.Context, int64, []byte) ([]byte, error) { return nil, errors.New("it does not") }
	fails := func(_ context.Context, n int64, b []byte) ([]byte, error) {
		if n == 0 {
			return nil, schema.ErrUnavailable
		}
		return b, nil
	}
	for _, c := range []struct {
		reason string
		mine   bool
		has    bool                                                 // another node can be asked
		peer   func(context.Context, int64, []byte) ([]byte, error) // what it does
		far    func(context.Context, int64, []byte) ([]byte, error) // what the store does
		want   read.Want
		fill   bool
	}{
		{reason: "own", mine: true, want: read.Want{At: at}},
		{reason: "lent", mine: true, want: read.Want{At: at, Here: true}},
		{reason: "ahead", mine: true, want: read.Want{At: at}, fill: true},
		{reason: "page", mine: true},
		{reason: "page", want: read.Want{At: spill.PageAt(1, 0)}},
		{reason: "astray", has: true, want: read.Want{At: at, Here: true}},
		{reason: "unreachable", want: read.Want{At: at}},
		{reason: "refused", has: true, peer: refuses, want: read.Want{At: at}},
		{reason: "retry", has: true, peer: hang, want: read.Want{At: at}},
		{reason: "retry", mine: true, far: fails, want: read.Want{At: at}},
	} {
		synctest.Test(t, func(t *testing.T) {
			near, far := newFake(t), newFake(t)
			near.traits.Remote = true
			near.has, near.do, far.do = func(schema.BlobRef) bool { return c.has }, c.peer, c.far
			r := newReader(t, read.Options{NoHedge: true, Keeps: func(schema.Key) bool { return c.mine }}, peer{
				near}, read.Store(far))
			to := newTold()
			_, c.want.Ref = content(1)
			c.want.To, c.want.Context = to, t.Context()
			if c.fill {
				if v := r.Fill(&c.want, false); v != read.Begun {
					t.Fatalf("the verdict is %v", v)
				}
			} else {
				want(t, r, c.want)
			}
			o := to.next(t)
			if o.Err != nil {
				t.Fatal(o.Err)
			}
			o.Blob.Release()
			r.Close()
			st := r.Stats()
			if got, want := st.Reasons.Map(), map[string]int64{c.reason: 1}; !maps.Equal(got, want) {
				t.Errorf("counted are %v, want %v (%+v)", got, want, c)
			}
		})
	}
}

// Nodes that share a store begin with the floor of one together; a node alone begins with all of it.
func TestFloorIsShared(t *testing.T) {
	for sharers, least := range map[int]int64{1: 256, 4: 64} {
		synctest.Test(t, func(t *testing.T) {
			far := newFake(t)
			far.do = func(ctx context.Context, n int64, b []byte) ([]byte, error) {
				// one after another, as on a slow way
				timer := time.NewTimer(time.Duration(1+n) * 20 * time.Millisecond)
				defer timer.Stop()
				select {
				case <-timer.C:
					return b, nil
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}
			r := newReader(t, read.Options{NoHedge: true, Sharers: func() int { return sharers }}, read.Store(far))
			defer r.Close()
			to := make(outcomes, blobs)
			p := r.Open("", 1, "test", to)
			next, most := 0, int64(0)
			for done := 0; done < 2; {
				for ; next < blobs; next++ {
					_, ref := content(next)
					p.Ask(read.Want{Ref: ref, Context: t.Context()})
				}
				synctest.Wait()
				most = max(most, int64(r.Stats().InFlight))
				o := <-to
				o.Blob.Release()
				done++
			}
			if most < least*9/10 || most > least+16 {
				t.Errorf("of %d nodes one has up to %d reads in flight before it knows the way, want about %d", sharers,
					most, least)
			}
			p.Retire()
			r.Close()
			for len(to) > 0 {
				o := <-to
				o.Blob.Release()
			}
		})
	}
}
