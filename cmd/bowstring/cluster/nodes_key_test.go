package cluster_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/fetch/peers"
	"bowstring/flight/peer"
	"bowstring/internal/memshared"
	"bowstring/schema"
)

var (
	firstKey  = []byte("the first key that the nodes have in common")
	secondKey = []byte("the second key that the nodes have in common")
)

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// The key is exchanged on running nodes, step by step, while streams read: none breaks,
// each sample comes with its bytes, and after each step all nodes read from each other.
// In the end no node accepts the old key.
func TestKeyIsRotated(t *testing.T) {
	const n, epochs = 400, 12
	s := newStore(t, n)
	s.delay = 200 * time.Microsecond
	c := newNodes(t, s, 3, clusterOptions{key: firstKey})
	stale, err := peer.Dial(c.list[0].addr, peer.Options{Node: "y", Keys: peer.NewKeys(firstKey),
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer stale.Close()
	eventually(t, "a way with the old key", stale.Up)
	var rotated atomic.Bool
	var reading errgroup.Group
	for rank, node := range c.list {
		reading.Go(func() error {
			for epoch := uint64(0); epoch < epochs || !rotated.Load(); epoch++ {
				if err := node.epoch(t, uint64(rank), epoch, 0, 1, make([]atomic.Int32, n), nil); err != nil {
					return err
				}
			}
			return nil
		})
	}
	answered := func(n *node) (all int64) {
		for _, st := range n.tier.Stats() {
			all += st.Answered
		}
		return all
	}
	whole := func() {
		t.Helper()
		eventually(t, "a way between all nodes", func() bool {
			for _, n := range c.list {
				for _, st := range n.tier.Stats() {
					if !st.Up {
						return false
					}
				}
			}
			return true
		})
	}
	for _, step := range [][][]byte{{firstKey, secondKey}, {secondKey, firstKey}, {secondKey}} {
		for _, node := range c.list { // one after another, as files come to nodes
			node.keys.Set(step...)
			whole()
		}
	}
	eventually(t, "the end of a way that was set up with the old key", func() bool { return !stale.Up() })
	rotated.Store(true)
	if err := reading.Wait(); err != nil {
		t.Error(err)
	}
	for _, node := range c.list {
		if answered(node) == 0 {
			t.Errorf("node %s has read nothing from the others", node.name)
		}
	}
	for name, key := range map[string][]byte{"old": firstKey, "new": secondKey} {
		link, err := peer.Dial(c.list[0].addr, peer.Options{Node: "x", Keys: peer.NewKeys(key),
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if name == "new" {
			eventually(t, "a way with the new key", link.Up)
		} else if b, err := link.Get(t.Context(), peers.Ask{Ref: schema.RefOf(content(0))}); err == nil || link.Up() {
			b.Release()
			t.Error("the old key lets a node in")
		}
		if err := link.Close(); err != nil {
			t.Error(err)
		}
	}
}

// listening is an address at which whatever comes is passed on to a node, and kept.
type listening struct {
	address string
	to      string

	mu    sync.Mutex
	heard [][]byte // of each connection, what the asking side has said
}

func listen(t *testing.T, to string) *listening {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &listening{address: lis.Addr().String(), to: to}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			from, err := lis.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { l.pass(from) })
		}
	})
	t.Cleanup(func() { _ = lis.Close(); serving.Wait() })
	return l
}

func (l *listening) pass(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer to.Close()
	var back sync.WaitGroup
	back.Go(func() { _, _ = io.Copy(from, to); _ = from.Close() })
	var said []byte
	b := make([]byte, 4096)
	for {
		n, err := from.Read(b)
		said = append(said, b[:n]...)
		if _, failed := to.Write(b[:n]); err != nil || failed != nil {
			break
		}
	}
	_ = to.Close()
	back.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = append(l.heard, said)
}

// A listener at a node's address gets nothing by which it can read from others: not by
// passing on what a node says there, nor by saying it again. The key is not in it.
func TestListenerGetsNothing(t *testing.T) {
	s := newStore(t, 10)
	c := newNodes(t, s, 1, clusterOptions{key: firstKey})
	node := c.list[0]
	node.at.Store(node.addr)
	l := listen(t, node.addr)
	ask := func(address, other string) (*peer.Link, error) {
		return peer.Dial(address, peer.Options{Node: "x", Other: other, Keys: peer.NewKeys(firstKey),
			Logger: slog.New(slog.DiscardHandler)})
	}
	right, err := ask(node.addr, "a")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a way to the node", right.Up)
	passed, err := ask(l.address, "a")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a node that says what it has to say", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.heard) >= 3
	})
	if passed.Up() {
		t.Error("what was passed on has let a node in")
	}
	if err := errors.Join(right.Close(), passed.Close()); err != nil {
		t.Error(err)
	}
	// All of a connection by which a node was let in, once more.
	node.at.Store("")
	once := listen(t, node.addr)
	link, err := ask(once.address, "a")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a way to the node", link.Up)
	b, err := link.Get(t.Context(), peers.Ask{Ref: schema.RefOf(content(1))})
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	if err := link.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the end of the connection", func() bool {
		once.mu.Lock()
		defer once.mu.Unlock()
		return len(once.heard) > 0
	})
	sent := func() (blobs int64) {
		for _, st := range node.server.SentToPeers() {
			blobs += st.Blobs
		}
		return blobs
	}
	before := sent()
	conn, err := net.Dial("tcp", node.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(once.heard[0]); err != nil {
		t.Fatal(err)
	}
	again := peer.Accept(plainConn{conn}, nil)
	for err == nil {
		var said []byte
		if said, err = again.Receive(1 << 20); bytes.Contains(said, content(1)[:100]) {
			t.Error("what was heard once has brought a blob once more")
		}
	}
	if status.Code(err) != codes.Unauthenticated || sent() != before {
		t.Errorf("what was heard once, said again: %v, want UNAUTHENTICATED; %d blobs were sent, want %d", err, sent(),
			before)
	}
	for _, heard := range append(l.heard, once.heard...) {
		if bytes.Contains(heard, firstKey) {
			t.Error("the key was sent")
		}
	}
}

// A node that has a certificate asks none whose address says that it has none, unless it is to.
func TestPlaintextIsRefused(t *testing.T) {
	for _, plaintext := range []bool{false, true} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var dialled atomic.Int32
		var serving sync.WaitGroup
		serving.Go(func() {
			for {
				conn, err := lis.Accept()
				if err != nil {
					return
				}
				dialled.Add(1)
				_ = conn.Close()
			}
		})
		shared := memshared.New()
		join := func(id, address string) *members.Members {
			m, err := members.New(members.Options{Cluster: "c", Shared: shared, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			self := layout.Node{ID: id, Address: address, Weight: 1, Capacity: 1 << 30}
			if err := m.Start(t.Context(), self); err != nil {
				t.Fatal(err)
			}
			return m
		}
		b := join("b", "grpc://"+lis.Addr().String())
		a := join("a", "grpc+tls://127.0.0.1:1")
		var log bytes.Buffer
		c, err := cluster.New(cluster.Options{Node: "a", Members: a, SnapshotName: func(uint32) string { return "" },
			Keys: peer.NewKeys(firstKey), Plaintext: plaintext, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Refresh(); err != nil {
			t.Fatal(err)
		}
		st := c.Tier().Stats()
		if len(st) != 1 || st[0].Node != "b" || st[0].Up {
			t.Errorf("of the others %+v is known", st)
		}
		if plaintext {
			eventually(t, "a connection", func() bool { return dialled.Load() > 0 })
		}
		if err := errors.Join(c.Close(), a.Close(), b.Close(), lis.Close()); err != nil {
			t.Error(err)
		}
		serving.Wait()
		if refused := strings.Contains(log.String(), "another node is not asked"); refused == plaintext {
			t.Errorf("a node without a certificate is refused: %v, want %v; the log says %s", refused, !plaintext,
				log.String())
		}
		if !plaintext && dialled.Load() > 0 {
			t.Errorf("a node without a certificate was dialled %d times", dialled.Load())
		}
	}
}
