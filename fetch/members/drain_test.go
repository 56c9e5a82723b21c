package members_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/internal/memshared"
	"bowstring/schema"
)

func leaving(m *members.Members) string {
	var list []string
	for _, n := range m.View().Leaving {
		list = append(list, n.ID)
	}
	return strings.Join(list, " ")
}

// As soon as a draining node says so it owns nothing, and other nodes request from it what it holds. If the drain is
// withdrawn, it is an owner again.
func TestDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memshared.New()
		a, b, c := started(t, s, "a"), started(t, s, "b"), started(t, s, "c")
		wantSeen(t, a, 10*time.Second, "a b c")
		owned := map[schema.BlobRef]bool{} // owned by c
		for i := range 3000 {
			if key := layout.RefIn(uint16(i)); len(c.Route(key).Ask) == 0 {
				owned[key] = true
			}
		}
		if err := c.SetDraining(t.Context(), &members.Draining{Since: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if ids(c) != "a b" || leaving(c) != "c" {
			t.Errorf("the node that drains sees nodes %q, leaving %q", ids(c), leaving(c))
		}
		wantSeen(t, a, 8*time.Second, "a b")
		synctest.Wait()
		for key := range owned {
			for name, m := range map[string]*members.Members{"a": a, "b": b} {
				r := m.Route(key)
				if previous := len(r.Ask) == 1 && r.Ask[0] == "c"; r.Keep != r.Held || r.Held != previous {
					t.Fatalf("%s comes by what c owned by %+v", name, r)
				}
			}
			if r := c.Route(key); r.Keep || len(r.Ask) != 1 {
				t.Fatalf("c comes by what it owned by %+v", r)
			}
		}
		if err := c.SetDraining(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		wantSeen(t, a, 8*time.Second, "a b c")
		for key := range owned {
			if r := c.Route(key); !r.Keep || len(r.Ask) > 0 {
				t.Fatalf("c, which stays, comes by what it owns by %+v", r)
			}
		}
	})
}

// An order in the store makes a node drain, and can be withdrawn. The node's next process does not receive it.
func TestOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memshared.New()
		a := started(t, s, "a")
		started(t, s, "b")
		other := member(t, s)
		if err := other.Order(t.Context(), "x", true); !errors.Is(err, schema.ErrNotFound) ||
			!strings.Contains(err.Error(), "a, b") {
			t.Errorf("an order to no node: %v", err)
		}
		if err := other.Order(t.Context(), "a", true); err != nil {
			t.Fatal(err)
		}
		wantSeen(t, a, 8*time.Second, "a b") // an order is no lease
		if !a.Ordered() {
			t.Error("the node does not know of its order")
		}
		if err := other.Order(t.Context(), "a", false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(8 * time.Second) // by the bubble's clock
		if a.Ordered() {
			t.Error("the order was taken back, and stands")
		}
		if err := other.Order(t.Context(), "a", true); err != nil {
			t.Fatal(err)
		}
		again := started(t, s, "a")
		if _, err := again.Refresh(t.Context()); err != nil || again.Ordered() {
			t.Errorf("a process that came after the order has it; %v", err)
		}
		_ = again.Close()
	})
}

// If two processes run as one node, the later one counts. Whatever the earlier one writes, other nodes see only the
// later one, and the earlier one stops.
func TestIncarnations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memshared.New()
		other := started(t, s, "b")
		var mu sync.Mutex
		writes := 0
		counting := counted{s, func() { mu.Lock(); writes++; mu.Unlock() }}
		first := member(t, counting)
		at := func(port string) layout.Node {
			n := node("a")
			n.Address = "grpc://a:" + port
			return n
		}
		if err := first.Start(t.Context(), at("1")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		again := member(t, s)
		if err := again.Start(t.Context(), at("2")); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range 120 {
			time.Sleep(time.Second)
			synctest.Wait()
			if got := other.View().Nodes[0].Address; got != "grpc://a:2" {
				t.Fatalf("after %d s others see the process at %s", i+1, got)
			}
		}
		mu.Lock()
		before := writes
		mu.Unlock()
		time.Sleep(time.Minute)
		mu.Lock()
		if writes > before {
			t.Errorf("the earlier process has written its lease %d times within a minute", writes-before)
		}
		mu.Unlock()
		if err := again.Close(); err != nil { // the later process runs on alone
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := other.View().Nodes[0].Address; got != "grpc://a:1" {
			t.Errorf("others see the process at %s, and the one there is, is at grpc://a:1", got)
		}
	})
}

// counted counts writes of leases.
type counted struct {
	*memshared.Shared
	count func()
}

func (c counted) PutLease(ctx context.Context, cluster, id string, lease []byte, ttl time.Duration) error {
	c.count()
	return c.Shared.PutLease(ctx, cluster, id, lease, ttl)
}

// Claims are writes that readers cause, so their rate is limited.
func TestClaimsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := started(t, memshared.New(), "a")
		made := 0
		var err error
		for epoch := range uint64(3000) {
			if _, err = a.Reserve(t.Context(), "p", epoch, 1, nil); err != nil {
				break
			}
			made++
		}
		limit, ok := errors.AsType[*schema.LimitError](err)
		if !ok || limit.After <= 0 || made != 1000 {
			t.Fatalf("%d claims were made, then %v", made, err)
		}
		if _, err := a.Reserve(t.Context(), "p", 5, 1, nil); err != nil {
			t.Errorf("what was claimed before: %v", err)
		}
		time.Sleep(limit.After)
		if _, err := a.Reserve(t.Context(), "p", 5000, 1, nil); err != nil {
			t.Errorf("after the time that was said: %v", err)
		}
	})
}
