package cluster_test

import (
	"log/slog"
	"testing"
	"time"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/internal/memshared"
	"bowstring/schema"
)

// Nodes with the same view agree on one owner of each blob; the blobs of a node that
// leaves belong to the others.
func TestNodesShareBlobs(t *testing.T) {
	shared := memshared.New()
	type node struct {
		members *members.Members
		cluster *cluster.Cluster
	}
	join := func(id string) node {
		t.Helper()
		m, err := members.New(members.Options{Cluster: "c", Shared: shared, TTL: 5 * time.Second,
			RenewEvery: 100 * time.Millisecond, ReadEvery: 100 * time.Millisecond,
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Start(t.Context(), layout.Node{ID: id, Address: "grpc://127.0.0.1:1", Weight: 1,
			Capacity: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		c, err := cluster.New(cluster.Options{Node: id, Members: m, SnapshotName: func(uint32) string {
			return ""
		}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return node{m, c}
	}
	leave := func(n node) {
		t.Helper()
		if err := n.cluster.Close(); err != nil {
			t.Error(err)
		}
		if err := n.members.Close(); err != nil {
			t.Error(err)
		}
	}
	list := []node{join("a"), join("b"), join("c")}
	owners := func() (counts []int) {
		t.Helper()
		for _, n := range list {
			if _, err := n.members.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := n.cluster.Refresh(); err != nil {
				t.Fatal(err)
			}
		}
		counts = make([]int, len(list))
		for i := range 3000 {
			ref := schema.RefOf([]byte{byte(i), byte(i >> 8)})
			owners := 0
			for k, n := range list {
				if n.cluster.Tier().Owns(ref) {
					counts[k]++
					owners++
				}
			}
			if owners != 1 {
				t.Fatalf("%d nodes own key %s, want 1", owners, ref.Key)
			}
		}
		return counts
	}
	for _, n := range owners() {
		if n < 800 || n > 1200 {
			t.Errorf("a node of three owns %d of 3,000 blobs", n)
		}
	}
	leave(list[2])
	list = list[:2]
	for _, n := range list { // the others believe it when its lease has been missing for as long as one lasts
		for len(n.members.View().Nodes) > 2 {
			if _, err := n.members.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // no event says that a lease has expired
		}
	}
	for _, n := range owners() {
		if n < 1300 || n > 1700 {
			t.Errorf("a node of two owns %d of 3,000 blobs", n)
		}
	}
	leave(list[0])
	leave(list[1])
}
