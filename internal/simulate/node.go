package simulate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch"
	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/fetch/peers"
	"bowstring/schema"
	"bowstring/spill"
	"bowstring/spill/segment"
)

// manifests is what a server keeps of manifests by default.
const manifests = 128 << 20

// minSpill is the least cache there is.
const minSpill = spill.MinBytes

// node is a machine with a server that runs, or not.
type node struct {
	world *world
	index int
	id    string
	zone  int

	cores, reads, writes *server
	frozen               atomic.Bool // it stands still

	mu    sync.Mutex
	life  *life // of the server that runs; nil if none does
	links struct {
		slow  float64 // by how much its links are slower
		still bool
	}

	// Of the server that runs, or ran last; used by the one goroutine that begins and ends it.
	cache  *spill.Cache
	future *spill.Future
}

// life is a server from its start to its end.
type life struct {
	node    *node
	gone    context.Context
	die     context.CancelFunc
	engine  *fetch.Engine
	members *members.Members // nil of one that is alone
	cluster *cluster.Cluster // likewise
	inbox   *inbox
	running sync.WaitGroup
	loans   sync.WaitGroup // grows under node.mu, while the node has this life

	mu        sync.Mutex
	borrowers map[*life]*borrower // other servers that read by way of this one
}

// begin starts the server.
func (n *node) begin(keepCache bool) error {
	w := n.world
	ctx, die := context.WithCancel(context.Background())
	l := &life{node: n, gone: ctx, die: die, borrowers: map[*life]*borrower{}, inbox: newInbox()}
	if n.cache != nil && !keepCache {
		if err := n.cache.Close(); err != nil {
			return err
		}
		n.cache = nil
	}
	if n.cache == nil && w.file.Spill.Bytes > 0 {
		n.future = &spill.Future{}
		var err error
		n.cache, err = spill.Open(spill.Options{
			Bytes: w.file.Spill.Bytes, Oracle: n.future, Seed: w.file.Seed<<16 + uint64(n.index) + 1, Writers: 1,
			Logger: w.log,
			Model:  &segment.Model{Bytes: content, Wait: n.disk},
		})
		if err != nil {
			return err
		}
	}
	opts := fetch.Options{
		WindowBytes: w.file.Nodes.WindowBytes, Resident: w.resident, Spill: n.cache, Future: n.future, Logger: w.log,
	}
	// Manifests stay in memory: half of what they have is for those that are read whole.
	opts.Memory.Manifests = max(manifests, 3*w.resident)
	if !w.file.Nodes.Alone {
		if err := l.join(&opts); err != nil {
			return err
		}
	}
	var err error
	if l.engine, err = fetch.NewEngine(nearStore{w.store, n}, opts); err != nil {
		return err
	}
	if l.cluster != nil {
		l.running.Go(func() { l.cluster.Run(ctx, l.engine) })
		l.running.Go(func() { l.inbox.follow(ctx, l.engine, w.failed) })
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.life = l
	return nil
}

// join makes the server a member of the cluster.
func (l *life) join(opts *fetch.Options) (err error) {
	n, w := l.node, l.node.world
	if l.members, err = w.member(n); err != nil {
		return err
	}
	if err := l.members.Start(l.gone, n.described()); err != nil {
		return err
	}
	name := func(uint32) string { return "" }
	if n.cache != nil {
		name = n.cache.DatasetName
	}
	l.cluster, err = cluster.New(cluster.Options{
		Node: n.id, Members: l.members, SnapshotName: name, Logger: w.log,
		Dial: func(other layout.Node) (peers.Link, error) {
			to := w.byID[other.ID]
			if to == nil {
				return nil, fmt.Errorf("%w: node %s", schema.ErrNotFound, other.ID)
			}
			return &link{from: l, to: to}, nil
		},
	})
	if err != nil {
		return err
	}
	if err := l.cluster.Look(); err != nil {
		return err
	}
	opts.Layouts, opts.Peers = l.members, l.cluster.Tier()
	return nil
}

// described is what others know of the node.
func (n *node) described() layout.Node {
	f := &n.world.file
	return layout.Node{ID: n.id, Address: "grpc://" + n.id + ":1", Zone: fmt.Sprint("zone-", n.zone),
		Weight: f.Nodes.Ranks, Capacity: spill.Capacity(f.Spill.Bytes)}
}

// end ends the server: in order, or as a process that is killed, whose lease stays.
func (n *node) end(inOrder bool) error {
	n.mu.Lock()
	l := n.life
	n.life = nil
	if l != nil {
		l.die()
	}
	n.mu.Unlock()
	if l == nil {
		return nil
	}
	var err error
	if l.members != nil {
		if !inOrder {
			n.frozen.Store(true) // what is written of its lease is lost
		}
		err = l.members.Close()
		n.frozen.Store(false)
	}
	l.loans.Wait()
	l.mu.Lock()
	for _, b := range l.borrowers {
		b.close()
	}
	l.mu.Unlock()
	l.running.Wait()
	err = errors.Join(err, l.engine.Close())
	n.world.retire(l)
	if l.cluster != nil {
		err = errors.Join(err, l.cluster.Close())
	}
	return err
}

// lives returns the server that runs; nil if none does.
func (n *node) lives() *life {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.life
}

// disk is how long the node's disk takes.
func (n *node) disk(op segment.Op, bytes int64) {
	switch s := &n.world.file.Spill; op {
	case segment.OpRead:
		_ = n.reads.do(context.Background(), per(float64(bytes), s.ReadBytesPerS))
	case segment.OpWrite:
		_ = n.writes.do(context.Background(), per(float64(bytes), s.WriteBytesPerS))
	}
}

// work is what the node's processors do for so many samples.
func (n *node) work(ctx context.Context, samples int, bytes int64) error {
	c := &n.world.file.Node
	return n.cores.do(ctx, time.Duration(float64(samples)*c.USPerSample*1e3)+seconds(float64(bytes)/1e9*c.SPerGB))
}

// receive has bytes of the store come to the node.
func (n *node) receive(ctx context.Context, bytes int64) error {
	w := n.world
	return w.network.send(ctx, w.storeEnd(), int32(n.index), func() []int32 {
		return []int32{w.storeOut(), w.storeIn(n.index), w.in(n.index)}
	}, bytes)
}

// limitLocked has the node's links carry what they can now. n.mu is held.
func (n *node) limitLocked() {
	w := n.world
	now := func(rate float64) float64 {
		if n.links.still {
			return 0
		}
		return orInf(rate) / max(n.links.slow, 1)
	}
	net := &w.file.Network
	w.network.limit(w.in(n.index), now(net.BytesPerS))
	w.network.limit(w.out(n.index), now(net.BytesPerS))
	w.network.limit(w.storeIn(n.index), now(net.StoreBytesPerS))
}

// setLinks changes what the node's links are like.
func (n *node) setLinks(change func(slow *float64, still *bool)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.links.slow, &n.links.still)
	n.limitLocked()
}
