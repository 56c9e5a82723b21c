package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch"
	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/fetch/peers"
	"bowstring/fetch/store"
	"bowstring/internal/memshared"
	"bowstring/schema"
	"bowstring/spill"
	"bowstring/spill/segment"
)

// churnWorld is a cluster in a bubble: members, layouts, drains, tiers, caches and engines are those of serve; the
// network, the disks and what the nodes share are models.
type churnWorld struct {
	rng     *rand.Rand // of what happens; used by one goroutine
	shared  *memshared.Shared
	store   store.Store
	noHedge bool
	nodes   []*churnNode
	total   *churnTotal

	mu      sync.Mutex
	quiet   map[[2]int]bool // ways on which nothing passes, from and to
	wrong   map[[2]int]bool // ways on which blobs are damaged
	dark    map[int]bool    // nodes that do not reach what all share
	side    map[int]int     // of a split brain on which side each node is: it sees leases of that side alone
	heal    chan struct{}   // closed, and made anew, when one of these changes
	layouts map[string]*layout.Layout
}

// churnTotal is what happened over all seeds.
type churnTotal struct {
	mu                                                      sync.Mutex
	reads, damaged, drains, stays, joins, kept, splits, old int64
	held, forward, seconds                                  int64
}

func (t *churnTotal) add(n *int64, by int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*n += by
}

// churnNode is a machine of the cluster.
type churnNode struct {
	world    *churnWorld
	index    int
	id, zone string
	capacity int64

	mu    sync.Mutex
	life  *churnLife // of the server that runs; nil if none does
	cache *spill.Cache
	next  *spill.Future
}

// churnLife is a server from its start to its end.
type churnLife struct {
	node      *churnNode
	protocol  int
	gone      context.Context
	die       context.CancelFunc
	engine    *fetch.Engine
	members   *members.Members
	cluster   *cluster.Cluster
	reports   chan churnReport
	running   sync.WaitGroup
	peerReads sync.WaitGroup // grows under node.mu, while the node has this life
	killed    bool           // what it says of its lease comes to nothing; guarded by world.mu

	mu      sync.Mutex
	leaving bool
	streams int
	handed  [2]int64                // blobs, and bytes
	stay    context.CancelCauseFunc // of the drain that runs; nil if none does
	drained chan struct{}           // closed when that has ended
}

// churnShared is what all share, as a node reaches it.
type churnShared struct {
	*memshared.Shared
	life *churnLife
}

var errDark = fmt.Errorf("%w: what the nodes share is out of reach", schema.ErrUnavailable)

// reaches reports whether the node can write and read what all share.
func (s churnShared) reaches() error {
	w := s.life.node.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dark[s.life.node.index] || s.life.killed {
		return errDark
	}
	return nil
}

func (s churnShared) PutLease(ctx context.Context, cluster, id string, lease []byte, ttl time.Duration) error {
	if err := s.reaches(); err != nil {
		return err
	}
	return s.Shared.PutLease(ctx, cluster, id, lease, ttl)
}

func (s churnShared) RemoveLease(ctx context.Context, cluster, id string) error {
	if err := s.reaches(); err != nil {
		return err
	}
	return s.Shared.RemoveLease(ctx, cluster, id)
}

// Leases are those that the node's side sees.
func (s churnShared) Leases(ctx context.Context, name string) (map[string][]byte, error) {
	if err := s.reaches(); err != nil {
		return nil, err
	}
	rows, err := s.Shared.Leases(ctx, name)
	w := s.life.node.world
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.nodes {
		if w.side[n.index] != w.side[s.life.node.index] {
			delete(rows, n.id)
		}
	}
	return rows, err
}

func (s churnShared) ReserveLayout(ctx context.Context, cluster, plan string, epoch uint64, name string,
	ttl time.Duration) (string, error) {
	if err := s.reaches(); err != nil {
		return "", err
	}
	return s.Shared.ReserveLayout(ctx, cluster, plan, epoch, name, ttl)
}

// layout computes each layout once for all nodes.
func (w *churnWorld) layout(r layout.Record) (*layout.Layout, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.layouts[r.Name()]; l != nil {
		return l, nil
	}
	l, err := layout.New(r)
	if err == nil {
		w.layouts[r.Name()] = l
	}
	return l, err
}

// farStore is the store as a node reads it: from far away.
type farStore struct {
	store.Store
	rtt time.Duration
}

func (s farStore) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := churnPause(ctx, s.rtt); err != nil {
		return schema.Blob{}, err
	}
	return s.Store.Get(ctx, ref)
}

func churnPause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin starts the server, with the cache that it had or with a new one.
func (n *churnNode) begin(protocol int, keep bool) (err error) {
	w, log := n.world, slog.New(slog.DiscardHandler)
	l := &churnLife{node: n, protocol: protocol, reports: make(chan churnReport, 64)}
	l.gone, l.die = context.WithCancel(context.Background())
	if n.cache != nil && !keep {
		if err := n.cache.Close(); err != nil {
			return err
		}
		n.cache = nil
	}
	if n.cache == nil {
		n.next = &spill.Future{}
		model := &segment.Model{Bytes: churnContent, Wait: func(segment.Op, int64) {
			time.Sleep(100 * time.Microsecond)
		}}
		n.cache, err = spill.Open(spill.Options{Bytes: spill.MinBytes, Oracle: n.next, Seed: uint64(n.index + 1),
			Writers: 1, Logger: log, Model: model})
		if err != nil {
			return err
		}
	}
	l.members, err = members.New(members.Options{Cluster: "c", Shared: churnShared{w.shared, l}, NewLayout: w.layout,
		Logger: log, Chance: func(d time.Duration) time.Duration {
			return d * time.Duration(1+n.index%4) / 5
		}})
	if err != nil {
		return err
	}
	self := layout.Node{ID: n.id, Address: "grpc://" + n.id + ":1", Zone: n.zone, Weight: 1, Capacity: n.capacity}
	if err := l.members.Start(l.gone, self); err != nil {
		l.die()
		return err
	}
	l.cluster, err = cluster.New(cluster.Options{
		Node: n.id, Members: l.members, SnapshotName: n.cache.DatasetName, Logger: log,
		Dial: func(other layout.Node) (peers.Link, error) {
			for _, to := range w.nodes {
				if to.id == other.ID {
					return &churnLink{from: l, to: to}, nil
				}
			}
			return nil, schema.ErrNotFound
		},
	})
	if err != nil {
		return err
	}
	l.engine, err = fetch.NewEngine(w.store, fetch.Options{
		WindowBytes: 64 << 10, Spill: n.cache, Future: n.next, Peers: l.cluster.Tier(), Layouts: l.members, Logger: log,
		ReadTimeout: time.Minute, NoHedge: w.noHedge,
	})
	if err != nil {
		return err
	}
	l.running.Go(func() { l.cluster.Run(l.gone, l.engine) })
	l.running.Go(l.follow)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.life = l
	return nil
}

// end ends the server: in order, or as one that is killed, whose lease stays.
func (n *churnNode) end(kill bool) error {
	n.mu.Lock()
	l := n.life
	n.life = nil
	n.mu.Unlock()
	if l == nil {
		return nil
	}
	w := n.world
	w.mu.Lock()
	l.killed = kill
	w.mu.Unlock()
	l.undrain(context.Canceled)
	l.die()
	err := l.members.Close()
	l.peerReads.Wait()
	l.running.Wait()
	w.total.add(&w.total.reads, l.engine.Stats().PeerReads)
	return errors.Join(err, l.engine.Close(), l.cluster.Close())
}

// lives returns the server that runs; nil if none does.
func (n *churnNode) lives() *churnLife {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.life
}

// rank reads a rank's share of its epochs, on whatever node takes it, from where it was when another one ended.
func (w *churnWorld) rank(ctx context.Context, rng *rand.Rand, t schema.Ticket, epochs int,
	seen func(epoch int, pos int64) error) error {
	for epoch := range epochs {
		t.Request.Shuffle = &schema.Shuffle{Seed: t.Request.Shuffle.Seed, Epoch: uint64(epoch)}
		at := schema.Ticket{Request: t.Request, Rank: t.Rank}
		for done := false; !done; {
			l := w.nodes[rng.IntN(len(w.nodes))].lives()
			if l == nil || !l.enter() {
				if err := churnPause(ctx, 50*time.Millisecond); err != nil {
					return fmt.Errorf("rank %d finds no node: %w", t.Rank, err)
				}
				continue
			}
			var err error
			done, err = w.readOn(ctx, l, rng, &at, func(pos int64) error { return seen(epoch, pos) })
			l.exit()
			switch {
			case ctx.Err() != nil:
				return fmt.Errorf("epoch %d does not come to its end at rank %d: %w", epoch, t.Rank,
					errors.Join(context.Cause(ctx), err))
			case err != nil && !errors.Is(err, schema.ErrUnavailable) && l.gone.Err() == nil:
				return err
			}
			if !done {
				if err := churnPause(ctx, 10*time.Millisecond); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// readOn reads on at a server until that ends or leaves; t is where it got to.
func (w *churnWorld) readOn(ctx context.Context, l *churnLife, rng *rand.Rand, t *schema.Ticket,
	seen func(pos int64) error) (done bool, err error) {
	j, err := l.engine.Open(ctx, t.Request)
	if err != nil {
		return false, err
	}
	defer j.Close()
	s, err := l.engine.Stream(ctx, j, *t)
	if err != nil {
		return false, err
	}
	defer s.Close()
	for !l.leaves() {
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		for i, pos := range b.Positions {
			blob := b.Blobs[0][i].Bytes()
			if int64(len(blob)) != churnSize(pos) || string(blob) != string(churnContent(churnSize(pos))) {
				err = errors.Join(err, fmt.Errorf("%w: position %d has the bytes of another", schema.ErrDataLoss, pos))
			}
			err = errors.Join(err, seen(pos))
		}
		*t = b.Resume
		b.Release()
		if err != nil {
			return false, err
		}
		if err := churnPause(ctx, time.Duration(rng.IntN(2000))*time.Millisecond); err != nil { // it trains
			return false, err
		}
	}
	return false, nil
}
