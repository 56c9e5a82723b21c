package members_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/internal/leaktest"
	"bowstring/internal/memshared"
	"bowstring/internal/sharedtest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

// errAway is the error of an unreachable store.
var errAway = fmt.Errorf("%w: out of reach", schema.ErrUnavailable)

func node(id string) layout.Node {
	return layout.Node{ID: id, Address: "grpc://" + id + ":1", Weight: 1, Capacity: 1 << 30}
}

// member returns a member that has not started.
func member(t *testing.T, s members.Shared) *members.Members {
	t.Helper()
	m, err := members.New(members.Options{Cluster: "c", Shared: s, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// started returns a member that has started.
func started(t *testing.T, s members.Shared, id string) *members.Members {
	t.Helper()
	m := member(t, s)
	if err := m.Start(t.Context(), node(id)); err != nil {
		t.Fatal(err)
	}
	return m
}

func ids(m *members.Members) string {
	var list []string
	for _, n := range m.View().Nodes {
		list = append(list, n.ID)
	}
	return strings.Join(list, " ")
}

// wantSeen sleeps in virtual time, then checks which nodes a member sees.
func wantSeen(t *testing.T, m *members.Members, after time.Duration, want string) {
	t.Helper()
	time.Sleep(after) // by the bubble's clock
	synctest.Wait()
	if got := ids(m); got != want {
		t.Errorf("after %s more the nodes are %q, want %q", after, got, want)
	}
}

func TestJoinLeaveDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memshared.New()
		a := started(t, s, "a")
		b := started(t, s, "b")
		if got := ids(b); got != "a b" {
			t.Errorf("a new node knows of %q at once, want all", got)
		}
		wantSeen(t, a, 10*time.Second, "a b")
		c := started(t, partitioned{s, func() bool { return true }}, "c")
		_ = c
		wantSeen(t, a, 0, "a b")
		if err := b.Close(); err != nil { // a clean shutdown
			t.Fatal(err)
		}
		wantSeen(t, a, 10*time.Second, "a")
	})
}

// partitioned is a Shared that accepts the first lease, and then no other.
type partitioned struct {
	*memshared.Shared
	cut func() bool
}

func (p partitioned) PutLease(ctx context.Context, cluster, id string, lease []byte, ttl time.Duration) error {
	if p.cut() {
		return nil // like a stalled process: the write never arrives
	}
	return p.Shared.PutLease(ctx, cluster, id, lease, ttl)
}

// A node whose leases stop counts as gone after a TTL and a read.
func TestDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memshared.New()
		a := started(t, s, "a")
		var mu sync.Mutex
		dead := false
		started(t, partitioned{s, func() bool { mu.Lock(); defer mu.Unlock(); return dead }}, "b")
		wantSeen(t, a, 30*time.Second, "a b")
		mu.Lock()
		dead = true
		mu.Unlock()
		wantSeen(t, a, 6*time.Second, "a b") // its lease is no older than 3.75 s, and lapses after 10
		wantSeen(t, a, 13*time.Second, "a")
	})
}

// While the store is out of reach the last view stays. When it is back, all leases have expired, but no running node
// counts as gone.
func TestStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memshared.New()
		a, b, c := started(t, s, "a"), started(t, s, "b"), started(t, s, "c")
		wantSeen(t, a, 20*time.Second, "a b c")
		s.Inject(func(string, string) (error, error) { return errAway, nil })
		wantSeen(t, a, time.Minute, "a b c")
		if a.View().Err == nil || time.Since(a.View().At) < 50*time.Second {
			t.Errorf("the view does not say how old it is: %+v", a.View())
		}
		var readsOnly = true // renewals succeed later than reads
		var mu sync.Mutex
		s.Inject(func(op, _ string) (error, error) {
			mu.Lock()
			defer mu.Unlock()
			if readsOnly && op == "PutLease" {
				return errAway, nil
			}
			return nil, nil
		})
		wantSeen(t, a, 8*time.Second, "a b c") // a read succeeds and returns no lease
		mu.Lock()
		readsOnly = false
		mu.Unlock()
		wantSeen(t, b, 20*time.Second, "a b c")
		wantSeen(t, c, time.Minute, "a b c")
	})
}

func TestBadLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memshared.New()
		for id, lease := range map[string]string{"x": "{", "y": `{"node": {"id": "z"}}`,
			"w": `{"node": {"id": "w", "weight": -1}}`} {
			if err := s.PutLease(t.Context(), "c", id, []byte(lease), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		wantSeen(t, started(t, s, "a"), 0, "a")
		other, err := members.New(members.Options{Cluster: "d", Shared: s, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		if v, err := other.Refresh(t.Context()); err != nil || len(v.Nodes) != 0 {
			t.Errorf("another cluster has %v, %v", v.Nodes, err)
		}
	})
}

// hanging is a store that never answers one write of each node.
type hanging struct {
	members.Shared
	mu     sync.Mutex
	writes map[string]int
}

func (h *hanging) PutLease(ctx context.Context, cluster, id string, lease []byte, ttl time.Duration) error {
	h.mu.Lock()
	h.writes[id]++
	second := h.writes[id] == 2
	h.mu.Unlock()
	if second {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", schema.ErrUnavailable, ctx.Err())
	}
	return h.Shared.PutLease(ctx, cluster, id, lease, ttl)
}

// A lease survives one lost renewal.
func TestLostRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memshared.New()
		h := &hanging{Shared: s, writes: map[string]int{}}
		const n = 5
		for i := range n {
			started(t, h, fmt.Sprintf("n%02d", i))
		}
		for range 300 {
			time.Sleep(100 * time.Millisecond)
			leases, err := s.Leases(t.Context(), "c")
			if err != nil || len(leases) != n {
				t.Fatalf("%d leases, %v; want %d", len(leases), err, n)
			}
		}
	})
}

// Leases with impossible figures, written by hand, do not stop nodes from computing owners.
func TestLeasesOfTooMuch(t *testing.T) {
	s := memshared.New()
	for _, id := range []string{"x", "y"} {
		lease := fmt.Sprintf(`{"node": {"id": %q, "address": "grpc://x:1", "weight": 1, "capacity": %d}}`, id,
			int64(math.MaxInt64))
		if err := s.PutLease(t.Context(), "c", id, []byte(lease), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	a := started(t, s, "a")
	asked := map[string]int{}
	for i := range 3000 {
		for _, id := range a.Route(layout.RefIn(uint16(i))).Ask {
			asked[id]++
		}
	}
	if asked["x"] == 0 || asked["y"] == 0 {
		t.Errorf("a asks %v of 3000", asked)
	}
}

// An epoch has one layout, however many nodes request it, whatever their views, and whichever answers are lost.
func TestClaims(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := memshared.New()
	var all []*members.Members
	for i := range 6 { // each sees the nodes before it
		all = append(all, started(t, s, fmt.Sprintf("n%d", i)))
	}
	var mu sync.Mutex
	s.Inject(func(string, string) (before, after error) {
		mu.Lock()
		defer mu.Unlock()
		switch rng.IntN(6) {
		case 0:
			return errAway, nil
		case 1:
			return nil, errAway
		}
		return nil, nil
	})
	for epoch := range uint64(30) {
		names := make([]string, len(all))
		var wg sync.WaitGroup
		for i, m := range all {
			wg.Go(func() {
				for range 1000 {
					l, err := m.Reserve(t.Context(), "plan", epoch, 1<<20, nil)
					if err == nil {
						names[i] = l.Name()
						return
					}
					if !errors.Is(err, schema.ErrUnavailable) {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if len(slices.Compact(names)) != 1 || names[0] == "" {
			t.Fatalf("epoch %d has layouts %q", epoch, names)
		}
	}
	s.Inject(nil)
}

func TestLayouts(t *testing.T) {
	s := memshared.New()
	a := started(t, s, "a")
	l, err := a.Reserve(t.Context(), "p", 1, 1<<20, []string{"a", "a"})
	if err != nil || l.Record().Nodes[0].Weight != 2 {
		t.Fatalf("%+v, %v", l, err)
	}
	if again, err := member(t, s).Layout(t.Context(), l.Name()); err != nil || again.Name() != l.Name() {
		t.Errorf("another node finds %v, %v", again, err)
	}
	if _, err := a.Layout(t.Context(), strings.Repeat("0", 64)); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("a layout that is not there: %v", err)
	}
	if err := s.PutLayout(t.Context(), strings.Repeat("1", 64), l.Record().Marshal(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Layout(t.Context(), strings.Repeat("1", 64)); !errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("a layout under a wrong name: %v", err)
	}
	if _, err := a.Reserve(t.Context(), "p", 2, 1<<20, []string{"b"}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("a rank beside no node: %v", err)
	}
	s.Inject(func(string, string) (error, error) { return errAway, nil })
	if again, err := a.Reserve(t.Context(), "p", 1, 1<<20, nil); err != nil || again.Name() != l.Name() {
		t.Errorf("what is known, while the store is away: %v, %v", again, err)
	}
	if _, err := a.Reserve(t.Context(), "p", 3, 1<<20, nil); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("what is not known, while the store is away: %v", err)
	}
	if _, err := member(t, memshared.New()).Reserve(t.Context(), "p", 3, 1<<20, nil); !errors.Is(err,
		schema.ErrUnavailable) {
		t.Errorf("without a node: %v", err)
	}
}

// Each blob has one owner. All nodes with the same view name it, and it requests the blob from no node.
func TestOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock does not advance, so no node reads or renews
		s := memshared.New()
		if got := member(t, s).Route(schema.BlobRef{}); len(got.Ask) > 0 || !got.Keep {
			t.Errorf("a member that has not started asks %v", got)
		}
		started(t, s, "a")
		b, c := started(t, s, "b"), started(t, s, "c") // b has not seen c yet
		asked := map[string]int{}
		for i := range 3000 {
			key := layout.RefIn(uint16(i))
			for _, id := range c.Route(key).Ask {
				asked[id]++
			}
			for _, id := range b.Route(key).Ask {
				if id != "a" {
					t.Fatalf("b asks %s", id)
				}
			}
		}
		if asked["a"] < 800 || asked["b"] < 800 || len(asked) != 2 {
			t.Errorf("c asks %v of 3000", asked)
		}
		for slot := range layout.Slots {
			for _, m := range []*members.Members{b, c} {
				key := layout.RefIn(uint16(slot))
				if r, got := m.Route(key), m.Owns(key); layout.SlotOf(key) != uint16(slot) ||
					got != (r.Keep || len(r.Ask) == 0) {
					t.Fatalf("slot %d, which %+v is the route to: Owns says %v", slot, r, got)
				}
			}
		}
		if n := testing.AllocsPerRun(100, func() { c.Route(layout.RefIn(258)) }); n != 0 {
			t.Errorf("%g allocations", n)
		}
	})
}

func TestOptions(t *testing.T) {
	for _, o := range []members.Options{{Cluster: "c"}, {Shared: memshared.New()},
		{Cluster: "c", Shared: memshared.New(), TTL: 5 * time.Second}} {
		if _, err := members.New(o); !errors.Is(err, schema.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestMemory(t *testing.T) { sharedtest.Run(t, memshared.New()) }

// A restarted node stays a member when its previous process ends.
func TestStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memshared.New()
		first, other := started(t, s, "a"), started(t, s, "b")
		again := started(t, s, "a")
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		leases, err := s.Leases(t.Context(), "c")
		if err != nil || len(leases) != 2 {
			t.Errorf("there are leases of %d nodes, error %v; want those of a and b", len(leases), err)
		}
		wantSeen(t, other, 7*time.Second, "a b")
		_ = again.Close()
		_ = other.Close()
	})
}
