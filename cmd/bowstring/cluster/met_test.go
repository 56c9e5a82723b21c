package cluster_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/internal/memshared"
)

// A node that calls is known soon, though the leases are hardly ever read.
func TestCallerIsFound(t *testing.T) {
	shared, quiet := memshared.New(), slog.New(slog.DiscardHandler)
	begin := func(id string) *members.Members {
		t.Helper()
		m, err := members.New(members.Options{Cluster: "c", Shared: shared, ReadEvery: time.Hour, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Start(t.Context(), layout.Node{ID: id, Address: "grpc://127.0.0.1:1", Weight: 1,
			Capacity: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	}
	a := begin("a")
	c, err := cluster.New(cluster.Options{Node: "a", Members: a, SnapshotName: func(uint32) string {
		return ""
	}, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	engine := newNodes(t, newStore(t, 1), 1, clusterOptions{}).list[0].engine
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer func() { stop(); running.Wait() }()
	running.Go(func() { c.Run(ctx, engine) })
	begin("b")
	c.Met("b")
	for end := time.Now().Add(time.Minute); len(a.View().Nodes) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a node that has called is not known")
		}
	}
}
