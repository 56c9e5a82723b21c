package bucket

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/internal/objecttest"
	"bowstring/internal/sharedtest"
)

// TestShared: a bucket is what nodes of a cluster share, where answers are lost, too.
func TestShared(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server := startServer(t, objecttest.Config{Seed: seed, PageSize: 2})
	url := at(server, "bucket")
	found(t, url)
	s := open(t, url, testOptions())
	t.Run("quiet", func(t *testing.T) { sharedtest.Run(t, s) })
	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Put}, Share: .2, Lose: true})
	t.Run("lost answers", func(t *testing.T) { sharedtest.Run(t, s) })
	server.Heal()
	t.Run("directory", func(t *testing.T) {
		url := "file://" + t.TempDir()
		found(t, url)
		sharedtest.Run(t, open(t, url, testOptions()))
	})
}

// TestSharedLapses: leases, claims and layouts lapse by the server's clock.
func TestSharedLapses(t *testing.T) {
	server := startServer(t, objecttest.Config{})
	url := at(server, "bucket")
	found(t, url)
	s := open(t, url, testOptions())
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.PutLease(ctx, "c", "node", []byte("l"), 10*time.Minute))
	must(s.PutLayout(ctx, "name", []byte("r"), time.Hour))
	_, err := s.ReserveLayout(ctx, "c", "plan", 1, "name", time.Hour)
	must(err)
	see := func(leases int, layout bool, claim string) {
		t.Helper()
		l, err := s.Leases(ctx, "c")
		if err != nil || len(l) != leases {
			t.Errorf("leases %q, %v", l, err)
		}
		if _, err := s.Layout(ctx, "name"); (err == nil) != layout {
			t.Errorf("the layout: %v", err)
		}
		if got, err := s.ReserveLayout(ctx, "c", "plan", 1, "", time.Hour); err != nil || got != claim {
			t.Errorf("the claim is %q, %v", got, err)
		}
	}
	see(1, true, "name")
	server.SetClock(5 * time.Minute)
	see(1, true, "name")
	server.SetClock(12 * time.Minute)
	see(0, true, "name")
	server.SetClock(2 * time.Hour)
	see(0, false, "")
	if got, err := s.ReserveLayout(ctx, "c", "plan", 1, "another", time.Hour); err != nil || got != "another" {
		t.Errorf("a claim after one that has lapsed: %q, %v", got, err)
	}
	server.SetClock(500 * 24 * time.Hour)
	// A real server would refuse a request signed by this machine's clock. This one
	// checks no signature without keys.
	if err := s.forgetClusters(ctx); err == nil && len(server.Keys("bucket")) > 2 {
		t.Errorf("%q is left", server.Keys("bucket"))
	}
}

// TestClusterOfThree: three nodes over a bucket alone see one another, agree on one layout for an epoch, and see a
// node leave.
func TestClusterOfThree(t *testing.T) {
	server := startServer(t, objecttest.Config{})
	url := at(server, "bucket")
	found(t, url)
	var nodes []*members.Members
	stores := make([]*Store, 3)
	for i := range stores {
		stores[i] = open(t, url, testOptions())
		m, err := members.New(members.Options{
			Cluster: "three", Shared: stores[i], Version: "test", Logger: slog.New(slog.DiscardHandler), TTL: 2 * time.Second,
			RenewEvery: 100 * time.Millisecond, ReadEvery: 100 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, m)
		id := fmt.Sprintf("node-%d", i)
		if err := m.Start(t.Context(), layout.Node{ID: id, Address: fmt.Sprintf("grpc://127.0.0.1:%d", 9000+i), Weight: 1, Capacity: 1 << 30}); err != nil {
			t.Fatal(err)
		}
	}
	waitFor := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	for i, m := range nodes {
		waitFor(fmt.Sprintf("node %d does not see three", i), func() bool { return len(m.View().Nodes) == 3 })
	}
	names := make([]string, len(nodes))
	for i, s := range stores {
		var err error
		if names[i], err = s.ReserveLayout(t.Context(), "three", "plan", 0, fmt.Sprint("layout of ", i), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if len(slices.Compact(names)) != 1 {
		t.Errorf("the epoch was claimed for %q", names)
	}
	if err := nodes[2].Close(); err != nil {
		t.Fatal(err)
	}
	for _, m := range nodes[:2] {
		waitFor("a node that has left is seen", func() bool { return len(m.View().Nodes) == 2 })
	}
	for _, m := range nodes[:2] {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
