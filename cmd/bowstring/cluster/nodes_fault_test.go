package cluster_test

import (
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/peers"
	"bowstring/flight/peer"
	"bowstring/schema"
)

// A node that does not know the cluster's key reads from the store, and gets nothing from others.
func TestWrongKey(t *testing.T) {
	const n = 300
	s := newStore(t, n)
	c := &nodes{t: t, addr: map[string]string{}}
	o := clusterOptions{key: []byte("a key that the nodes have in common"), wrongKey: []byte("another key")}
	for i, name := range []string{"a", "b"} {
		c.list = append(c.list, c.start(s, name, []string{"a", "b"}, i, o))
	}
	if err := c.list[0].tier.SetNodes([]string{"b"}); err != nil {
		t.Fatal(err)
	}
	seen := make([]atomic.Int32, n)
	if err := c.list[0].epoch(t, 7, 0, 0, 1, seen, nil); err != nil {
		t.Fatal(err)
	}
	if st := c.list[0].engine.Stats(); st.PeerReads != 0 || st.Reads < n {
		t.Errorf("%d blobs came from another node and %d from the store, want all %d from the store", st.PeerReads,
			st.Reads, n)
	}
}

// Two nodes that take each other for the owner of everything read from the store, and do not wait for
// each other.
func TestViewsThatDiffer(t *testing.T) {
	const n = 600
	s := newStore(t, n)
	c := newNodes(t, s, 2, clusterOptions{})
	for i, node := range c.list {
		node.dir.owners.Store(&[]string{c.list[1-i].name})
	}
	c.run(n, 2, nil)
	for _, node := range c.list {
		// Each read would wait. On a busy machine some are silent by themselves.
		if st := node.engine.Stats(); st.Retries > n/10 {
			t.Errorf("node %s waited until reads were silent, %d times", node.name, st.Retries)
		}
		for _, st := range node.tier.Stats() {
			if st.Refused > 0 || st.Answered == 0 {
				t.Errorf("node %s has %d answers of %s, and %d asks that failed", node.name, st.Answered, st.Node,
					st.Refused)
			}
		}
	}
}

// A node that waits for the store sends heartbeats to the requester.
func TestOwnerThatWaits(t *testing.T) {
	s := newStore(t, 1)
	s.gate = make(chan struct{})
	c := newNodes(t, s, 1, clusterOptions{})
	link, err := peer.Dial(c.list[0].addr, peer.Options{Node: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s did not happen", what)
			}
		}
	}
	until("a connection", link.Up)
	var got sync.WaitGroup
	got.Go(func() {
		b, err := link.Get(t.Context(), peers.Ask{Ref: schema.RefOf(content(0))})
		if err != nil {
			t.Errorf("the blob, at last: %v", err)
		}
		b.Release()
	})
	for range 3 {
		last := link.Heard()
		until("a sign of life", func() bool { return link.Heard().After(last) })
	}
	close(s.gate)
	got.Wait()
}

// Owners whose disks are full keep nothing, and still read for all: the store is read about once an epoch for each
// sample.
func TestOwnersWithoutRoom(t *testing.T) {
	const n = 300
	s := newStore(t, n)
	s.delay = time.Millisecond
	c := newNodes(t, s, 3, clusterOptions{keepFree: 1 << 60})
	c.run(n, 2, nil)
	for _, node := range c.list {
		if st := node.spill.Stats(); st.Entries != 0 {
			t.Errorf("node %s keeps %d blobs on a disk without room", node.name, st.Entries)
		}
	}
	if reads := s.blobs.Load(); reads < n || reads > 5*n/2 {
		t.Errorf("two epochs of %d samples took %d reads of the store", n, reads)
	}
}

// A node that ends in the middle of an epoch costs the others reads of the store, and no sample. Its rank goes on
// elsewhere.
func TestNodeEnds(t *testing.T) {
	const n = 2000
	s := newStore(t, n)
	s.delay = time.Millisecond
	c := newNodes(t, s, 3, clusterOptions{})
	seen := make([]atomic.Int32, n)
	var g errgroup.Group
	var batches atomic.Int32
	ended := make(chan struct{})
	for rank, node := range c.list[:2] {
		g.Go(func() error {
			return node.epoch(t, 7, 0, rank, 2, seen, func() {
				if batches.Add(1) == 4 {
					c.stop(c.list[2])
					close(ended)
				}
			})
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	<-ended
	for pos := range seen {
		if got := seen[pos].Load(); got != 1 {
			t.Fatalf("position %d was served %d times", pos, got)
		}
	}
}

// way is a TCP proxy whose connections can be made to stall, as if the other end were
// stopped.
type way struct {
	lis     net.Listener
	to      string
	stalled atomic.Bool
	mu      sync.Mutex
	conns   []net.Conn
	wake    chan struct{} // closed when the way goes on
	done    sync.WaitGroup
}

func newWay(t *testing.T, to string) *way {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &way{lis: lis, to: to, wake: make(chan struct{})}
	w.done.Go(w.accept)
	t.Cleanup(func() {
		_ = lis.Close()
		w.goOn()
		w.mu.Lock()
		for _, c := range w.conns {
			_ = c.Close()
		}
		w.mu.Unlock()
		w.done.Wait()
	})
	return w
}

func (w *way) accept() {
	for {
		from, err := w.lis.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", w.to)
		if err != nil {
			_ = from.Close()
			continue
		}
		w.mu.Lock()
		w.conns = append(w.conns, from, to)
		w.mu.Unlock()
		w.done.Go(func() { w.copy(to, from) })
		w.done.Go(func() { w.copy(from, to) })
	}
}

func (w *way) copy(to io.WriteCloser, from io.ReadCloser) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if w.stalled.Load() {
			w.mu.Lock()
			wake := w.wake
			w.mu.Unlock()
			<-wake
		}
		if n > 0 {
			if _, werr := to.Write(b[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			_, _ = to.Close(), from.Close()
			return
		}
	}
}

func (w *way) stall() { w.stalled.Store(true) }

func (w *way) goOn() {
	if w.stalled.Swap(false) {
		w.mu.Lock()
		defer w.mu.Unlock()
		close(w.wake)
		w.wake = make(chan struct{})
	}
}

// A node that says nothing any more is not waited for; when it answers again, it is asked again.
func TestSilentNode(t *testing.T) {
	const n = 2000
	s := newStore(t, n)
	s.delay = time.Millisecond
	var ways []*way
	c := newNodes(t, s, 2, clusterOptions{patience: 50 * time.Millisecond, through: func(addr string) string {
		w := newWay(t, addr)
		ways = append(ways, w)
		return w.lis.Addr().String()
	}})
	a := c.list[0]
	seen := make([]atomic.Int32, n)
	batches := 0
	silent := func() bool {
		return slices.ContainsFunc(a.tier.Stats(), func(st peers.NodeStats) bool { return st.Silent })
	}
	wasSilent := false
	if err := a.epoch(t, 7, 0, 0, 1, seen, func() {
		if batches++; batches == 2 {
			ways[1].stall()
		}
		wasSilent = wasSilent || silent()
	}); err != nil {
		t.Fatal(err)
	}
	for pos := range seen {
		if got := seen[pos].Load(); got != 1 {
			t.Fatalf("position %d was served %d times", pos, got)
		}
	}
	if !wasSilent {
		t.Error("no node noticed that another one was silent")
	}
	ways[1].goOn()
	for epoch := uint64(1); silent(); epoch++ { // it is asked now and then
		if err := a.epoch(t, 7, epoch, 0, 1, make([]atomic.Int32, n), nil); err != nil {
			t.Fatal(err)
		}
	}
	before := a.engine.Stats().PeerReads
	if err := a.epoch(t, 8, 0, 0, 1, make([]atomic.Int32, n), nil); err != nil {
		t.Fatal(err)
	}
	if a.engine.Stats().PeerReads == before {
		t.Error("a node that answers again is asked for nothing")
	}
}
