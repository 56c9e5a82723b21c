//go:build cassandra

package cql

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/cql/cassandratest"
)

// TestNodeLost has one node of three stopped, and later killed, while blobs are
// read and snapshots committed: none of it fails.
func TestNodeLost(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three servers")
	}
	nodes := cassandratest.StartCluster(t)
	uri := fmt.Sprintf("cql://%s,%s:%d,%s/lost?rf=3&timeout=2s&grace=0s&conns=2", nodes[0].IP, nodes[1].IP, nodes[0].Port, nodes[2].IP)
	s, err := Open(t.Context(), uri, Options{Create: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	data := blobs("lost", 200, 5000)
	if _, err := importInto(t.Context(), s, "d", 0, data); err != nil {
		t.Fatal(err)
	}
	// read has every blob read while something happens, before half of them are.
	read := func(happens func()) {
		t.Helper()
		var done atomic.Int64
		var g errgroup.Group
		g.SetLimit(16)
		for i, b := range data {
			if i == len(data)/2 {
				happens()
			}
			g.Go(func() error {
				defer done.Add(1)
				if err := has(t, s, b); err != nil {
					return fmt.Errorf("blob %d: %w", i, err)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		if done.Load() != int64(len(data)) {
			t.Errorf("%d of %d reads were made", done.Load(), len(data))
		}
	}
	signal := func(n *cassandratest.Node, sig syscall.Signal) {
		t.Helper()
		if err := n.Signal(sig); err != nil {
			t.Error(err)
		}
	}
	read(func() { signal(nodes[1], syscall.SIGSTOP) })
	signal(nodes[1], syscall.SIGCONT)
	read(func() { nodes[2].Kill() })
	if _, err := importInto(t.Context(), s, "d", 1, blobs("after", 5, 100)); err != nil {
		t.Errorf("an import with a node down: %v", err)
	}
}
