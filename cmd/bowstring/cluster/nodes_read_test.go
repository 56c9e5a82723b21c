package cluster_test

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch"
)

// run reads epochs of one job with a rank at each node, and requires each sample once in each.
func (c *nodes) run(n, epochs int, each func(epoch int)) {
	c.t.Helper()
	for epoch := range epochs {
		seen := make([]atomic.Int32, n)
		var g errgroup.Group
		for rank, node := range c.list {
			g.Go(func() error { return node.epoch(c.t, 7, uint64(epoch), rank, len(c.list), seen, nil) })
		}
		if err := g.Wait(); err != nil {
			c.t.Fatal(err)
		}
		for pos := range seen {
			if got := seen[pos].Load(); got != 1 {
				c.t.Fatalf("epoch %d: position %d was served %d times", epoch, pos, got)
			}
		}
		if each != nil {
			each(epoch)
		}
	}
}

// Nodes read each blob from the store once, for all of them, and afterwards from each other.
func TestOneReadForAll(t *testing.T) {
	const n = 2000
	s := newStore(t, n)
	s.delay = 5 * time.Millisecond
	c := newNodes(t, s, 4, clusterOptions{key: []byte("a key that the nodes have in common")})
	before := int64(0)
	c.run(n, 3, func(epoch int) {
		reads := s.blobs.Load()
		var again int64 // on a busy machine a read may be silent for so long that it is attempted again
		for _, node := range c.list {
			again += node.engine.Stats().Retries
		}
		t.Logf("epoch %d: %d reads of the store, %d attempts again", epoch, reads-before, again)
		if most := n*102/100 + again; epoch == 0 && reads > most {
			t.Errorf("the first epoch took %d reads of the store, want %d at most", reads, most)
		}
		if most := n/100 + again; epoch > 0 && reads-before > most {
			t.Errorf("epoch %d took %d reads of the store, want %d at most", epoch, reads-before, most)
		}
		before = reads
	})
	var peer int64
	for _, node := range c.list {
		st := node.engine.Stats()
		peer += st.PeerReads
		// The sender releases a blob a little after the requester has it.
		end := time.Now().Add(time.Minute)
		for use, bytes := out(node.engine); bytes != 0; use, bytes = out(node.engine) {
			if time.Now().After(end) {
				t.Fatalf("node %s has %d bytes out for %s", node.name, bytes, use)
			}
			time.Sleep(time.Millisecond)
		}
	}
	if peer < n {
		t.Errorf("%d blobs came from other nodes, want most of %d", peer, 3*n)
	}
}

// out is the memory that an engine uses, without what it keeps.
func out(e *fetch.Engine) (use string, bytes int64) {
	for _, a := range e.Stats().Memory {
		if a.Used != 0 && a.Use != "pages of manifests" && a.Use != "uploads" {
			return a.Use, a.Used
		}
	}
	return "", 0
}
