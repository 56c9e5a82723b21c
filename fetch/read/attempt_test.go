package read_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/read"
	"bowstring/schema"
	"bowstring/spill"
)

// grace bounds the time between a read's timeout and its error: the period of the timer, plus the extra time for the
// bytes of a small blob.
const grace = 100 * time.Millisecond

// placed is a store with a place.
type placed struct{ *fake }

func (placed) Where() string { return "keyspace k at 10.0.0.7:9042" }

// A read times out, whatever the store does: it sends nothing, it does not even return when its context ends, or it
// sometimes fails in addition to attempts that hang.
func TestReadEndsInTime(t *testing.T) {
	release := make(chan struct{}) // made outside the bubbles; replaced in each
	for name, do := range map[string]func(ctx context.Context, n int64, b []byte) ([]byte, error){
		"silent": hang,
		"deaf": func(_ context.Context, _ int64, _ []byte) ([]byte, error) {
			<-release
			return nil, fmt.Errorf("%w: released", schema.ErrUnavailable)
		},
		"bringing late": func(_ context.Context, _ int64, b []byte) ([]byte, error) {
			<-release
			return b, nil
		},
		"failing beside": func(ctx context.Context, n int64, b []byte) ([]byte, error) {
			if n%2 == 0 {
				return hang(ctx, n, b)
			}
			time.Sleep(300 * time.Millisecond)
			return nil, fmt.Errorf("%w: a node is down", schema.ErrUnavailable)
		},
	} {
		for _, near := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,near=%t", name, near), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					release = make(chan struct{})
					far := newFake(t)
					far.do = do
					list := []read.Tier{read.Store(placed{far})}
					if near {
						other := newFake(t)
						other.traits.Remote = true
						other.do = do
						list = append([]read.Tier{peer{other}}, list...)
					}
					const limit = 8 * time.Second
					r := newReader(t, read.Options{ReadTimeout: limit}, list...)
					to := newOutcomes()
					_, ref := content(0)
					began := time.Now()
					want(t, r, read.Want{Ref: ref, To: to})
					o := to.next(t)
					took := time.Since(began)
					if !errors.Is(o.Err, schema.ErrUnavailable) || took < limit-2*time.Second || took > limit+grace {
						t.Errorf("after %s: %v; want an error after %s", took, o.Err, limit)
					}
					if name != "failing beside" || took >= limit {
						for _, part := range []string{ref.Key.String(), "keyspace k at 10.0.0.7:9042", "8.0", "check"} {
							if !strings.Contains(o.Err.Error(), part) {
								t.Errorf("the error does not say %q: %v", part, o.Err)
							}
						}
					}
					if s := r.Stats(); s.InFlight != 0 || s.Held != 0 || s.Failed != 1 {
						t.Errorf("afterwards %d reads are in flight, %d held, %d failed", s.InFlight, s.Held, s.Failed)
					}
					close(release)
					r.Close() // waits for abandoned attempts; newFake finds blobs that are not released
				})
			})
		}
	}
}

// A large blob may take longer than ReadTimeout, in proportion to its size.
func TestLargeBlobHasTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := newFake(t)
		data := make([]byte, 5<<20)
		ref := schema.RefOf(data)
		far.known[ref.Key] = data
		far.do = func(_ context.Context, _ int64, b []byte) ([]byte, error) {
			time.Sleep(5 * time.Second)
			return b, nil
		}
		r := newReader(t, read.Options{ReadTimeout: time.Second}, read.Store(far))
		b, err := r.Get(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		r.Close()
	})
}

// Requests that wait for their turn behind reads that the store does not answer get no new timeout. A new request
// gets one, because the store may answer again.
func TestWaitingForATurnIsPartOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := newFake(t)
		far.do = hang
		const limit = 8 * time.Second
		r := newReader(t, read.Options{ReadTimeout: limit}, read.Store(far))
		began := time.Now()
		try := func(i int, since time.Time, to inbox) time.Duration {
			_, ref := content(i)
			want(t, r, read.Want{Ref: ref, To: to, Since: since})
			if o := to.next(t); !errors.Is(o.Err, schema.ErrUnavailable) {
				t.Error(o.Err)
			}
			return time.Since(began)
		}
		if took := try(0, began, newOutcomes()); took < limit || took > limit+grace {
			t.Errorf("the first read ends after %s, want %s", took, limit)
		}
		if took := try(1, began, newOutcomes()); took > limit+2*grace {
			t.Errorf("one that was wanted at the same time ends after %s, want %s", took, limit)
		}
		at := time.Now()
		if took := try(2, at, newOutcomes()) - at.Sub(began); took < limit || took > limit+grace {
			t.Errorf("one that was wanted afterwards ends after %s, want %s", took, limit)
		}
		// The store answers again: requests that have waited for long are read.
		far.do = nil
		to := newOutcomes()
		_, ref := content(3)
		want(t, r, read.Want{Ref: ref, To: to, Since: began})
		requireBlob(t, to.next(t), 3, 0)
		r.Close()
	})
}

// If other nodes bring all blobs, a long silence of the store does not matter.
func TestStoreThatIsNotAskedIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := newFake(t), newFake(t)
		near.traits.Remote = true
		near.do = func(_ context.Context, _ int64, b []byte) ([]byte, error) {
			time.Sleep(time.Second)
			return b, nil
		}
		r := newReader(t, read.Options{ReadTimeout: 8 * time.Second, NoHedge: true}, peer{near}, read.Store(far))
		began := time.Now()
		for i := range 20 {
			to := newOutcomes()
			_, ref := content(i)
			want(t, r, read.Want{Ref: ref, To: to, Since: began})
			requireBlob(t, to.next(t), i, 0)
		}
		r.Close()
	})
}

// A store whose calls never return does not take an unbounded number of threads.
func TestAttemptsThatNeverEndAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		far := newFake(t)
		far.do = func(_ context.Context, _ int64, _ []byte) ([]byte, error) {
			<-release
			return nil, fmt.Errorf("%w: released", schema.ErrUnavailable)
		}
		r := newReader(t, read.Options{ReadTimeout: 100 * time.Millisecond}, read.Store(far))
		var last error
		for i := range 2000 {
			to := newOutcomes()
			_, ref := content(i % blobs)
			want(t, r, read.Want{Ref: ref, To: to})
			last = to.next(t).Err
		}
		if n := far.gets.Load(); n > 1100 {
			t.Errorf("%d calls are under way after 2000 reads that were abandoned", n)
		}
		if last == nil || !strings.Contains(last.Error(), "have not ended") {
			t.Errorf("the last read ends with %v", last)
		}
		close(release)
		r.Close()
	})
}

// A read that waits for another node, for as long as that takes with a queue before the store, is not made a second
// time here. A read that the other node never ends is.
func TestAwayIsLeftAlone(t *testing.T) {
	for _, test := range []struct {
		takes time.Duration
		tier  int
	}{{4 * time.Second, 0}, {time.Hour, 1}} {
		synctest.Test(t, func(t *testing.T) {
			near, far := newFake(t), newFake(t)
			near.traits.Remote = true
			near.do = func(ctx context.Context, _ int64, b []byte) ([]byte, error) {
				timer := time.NewTimer(test.takes)
				defer timer.Stop()
				select {
				case <-timer.C:
					return b, nil
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}
			r := newReader(t, read.Options{NoHedge: true}, peer{near}, read.Store(far))
			to := newOutcomes()
			_, ref := content(0)
			want(t, r, read.Want{Ref: ref, To: to})
			requireBlob(t, to.next(t), 0, test.tier)
			r.Close()
			if got := far.gets.Load(); got != int64(test.tier) {
				t.Errorf("what another node brings after %s was read %d times here, want %d", test.takes, got,
					test.tier)
			}
		})
	}
}

// A read on behalf of another node does not wait for that node: a blob that the store has lost is lost for both.
func TestHereDoesNotWait(t *testing.T) {
	other, far := newFake(t), newFake(t)
	other.traits, other.do = read.Traits{Remote: true}, hang
	far.do = func(context.Context, int64, []byte) ([]byte, error) {
		return nil, fmt.Errorf("%w: it was there once", schema.ErrDataLoss)
	}
	r := newReader(t, read.Options{NoHedge: true}, peer{other}, read.Store(far))
	_, ref := content(1)
	own, forPeer := newOutcomes(), newOutcomes()
	want(t, r, read.Want{Ref: ref, To: own})
	until(t, "the other node is asked", func() bool { return other.gets.Load() == 1 })
	want(t, r, read.Want{Ref: ref, To: forPeer, Here: true})
	for _, to := range []inbox{own, forPeer} {
		if o := to.next(t); !errors.Is(o.Err, schema.ErrDataLoss) {
			t.Errorf("got %v, want ErrDataLoss", o.Err)
		}
	}
}

// Each read of the store is counted by its reason.
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
		owns   bool
		has    bool                                                 // another node can be asked
		peer   func(context.Context, int64, []byte) ([]byte, error) // what that node does
		far    func(context.Context, int64, []byte) ([]byte, error) // what the store does
		want   read.Want
		fill   bool
	}{
		{reason: "own", owns: true, want: read.Want{At: at}},
		{reason: "peer", owns: true, want: read.Want{At: at, Here: true}},
		{reason: "ahead", owns: true, want: read.Want{At: at}, fill: true},
		{reason: "page", owns: true},
		{reason: "page", want: read.Want{At: spill.PageAt(1, 0)}},
		{reason: "astray", has: true, want: read.Want{At: at, Here: true}},
		{reason: "unreachable", want: read.Want{At: at}},
		{reason: "refused", has: true, peer: refuses, want: read.Want{At: at}},
		{reason: "retry", has: true, peer: hang, want: read.Want{At: at}},
		{reason: "retry", owns: true, far: fails, want: read.Want{At: at}},
	} {
		synctest.Test(t, func(t *testing.T) {
			near, far := newFake(t), newFake(t)
			near.traits.Remote = true
			near.has, near.do, far.do = func(schema.BlobRef) bool { return c.has }, c.peer, c.far
			r := newReader(t, read.Options{NoHedge: true, Keeps: func(schema.BlobRef) bool { return c.owns }}, peer{
				near}, read.Store(far))
			to := newOutcomes()
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

// Nodes that share a store begin with one floor together; a single node begins with all of it.
func TestFloorIsShared(t *testing.T) {
	for sharers, least := range map[int]int64{1: 256, 4: 64} {
		synctest.Test(t, func(t *testing.T) {
			far := newFake(t)
			far.do = func(ctx context.Context, n int64, b []byte) ([]byte, error) {
				// one after another, as on a slow path
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
