package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/lineage"
	"bowstring/fetch/members"
	"bowstring/fetch/peers"
	"bowstring/fetch/store"
	"bowstring/flight"
	"bowstring/spill"
	"bowstring/spill/scale"
)

// node is a store with a server on it: what serve runs, and what every other
// command runs in its own process when it is given a store.
type node struct {
	store  store.Store
	spill  *spill.Cache // between store and engine, or nil
	engine *fetch.Engine
	scaler *scale.Scaler // of spill, or nil
	server *flight.Server
	served chan error // what Serve returned

	part    *clusterPart     // of a cluster, or nil
	members *members.Members // of the cluster that it is a node of, or nil
	cluster *cluster.Cluster // what it reads from the others by, or nil

	figures *clusterFigures   // of that, or nil
	egress  *admission.Egress // what it has sent to the others, or nil

	observation *observation // looks at all that, or nil
}

// limits bound what a node takes on. Zero stands for the default of the package concerned.
type limits struct {
	maxReads    int
	windowBytes int64
	readTimeout time.Duration
	uploadBytes int64
	flight      flight.Options // what clients may do
	spill       spillConfig
	cluster     *clusterPart // what it is in a cluster, or nil
	lineage     *lineage.Log // of what is handed out, or nil; the caller's to close, after the node
}

// check fills in what clients may do, and reports what cannot be.
func (l *limits) check(log *slog.Logger) error {
	l.flight.Logger = log
	l.flight.EnsureDefaults()
	return l.flight.Validate()
}

// newNode opens the store at dir, which is created if create says so. It is
// as far away as far says, unless that is nil.
func newNode(ctx context.Context, dir string, create bool, l limits, far Far, log *slog.Logger) (*node, error) {
	if err := l.check(log); err != nil {
		return nil, err
	}
	store, err := openFarStore(ctx, dir, create, far, log)
	if err != nil {
		return nil, err
	}
	n := &node{store: store, served: make(chan error, 1)}
	var future *spill.Future
	if l.spill.dir != "" {
		if n.spill, future, err = l.spill.open(log); err != nil {
			return nil, errors.Join(err, store.Close())
		}
	}
	var layouts fetch.Layouts // nil, and no nil pointer, without a cluster
	var others *peers.Tier
	if l.cluster != nil {
		if n.members, err = membersOf(store, l.cluster.name, log); err == nil {
			n.egress = l.cluster.egress
			err = l.cluster.join(n, &l.flight, log)
		}
		if err != nil {
			return nil, errors.Join(err, n.release())
		}
		layouts = n.members
		if n.cluster != nil {
			others = n.cluster.Tier()
		}
	}
	n.engine, err = fetch.NewEngine(store, fetch.Options{
		Layouts:     layouts,
		WindowBytes: l.windowBytes,
		Memory:      admission.Limits{Uploads: l.uploadBytes},
		MaxReads:    l.maxReads,
		ReadTimeout: l.readTimeout,
		Lineage:     l.lineage,
		Spill:       n.spill,
		Future:      future,
		Peers:       others,
		Logger:      log,
	})
	if err != nil {
		return nil, errors.Join(err, n.release())
	}
	if n.spill != nil {
		n.scaler, err = scale.New(scale.Options{
			Cache: n.spill, Future: future, Dir: l.spill.dir, Demand: n.engine.Demand,
			MinBytes: l.spill.minBytes, MaxBytes: l.spill.bytes, KeepFree: l.spill.keepFree, Logger: log,
		})
		if err != nil {
			return nil, errors.Join(err, n.release())
		}
		n.scaler.Start()
	}
	l.flight.Ledger = n.engine.Ledger() // one for all that requests take
	l.flight.Node = n
	n.server = flight.New(n.engine, l.flight)
	return n, nil
}

// SpillScale implements flight.Node.
func (n *node) SpillScale() any {
	if n.scaler != nil {
		if d := n.scaler.Last(); !d.At.IsZero() {
			return d
		}
	}
	return nil
}

// serve starts answering on l, which the server closes.
func (n *node) serve(l net.Listener) {
	go func() { n.served <- n.server.Serve(l) }()
}

// close lets running calls finish until ctx ends, then ends them, and closes
// the store. It waits for everything the node has started. errCut says that
// calls had to be ended.
func (n *node) close(ctx context.Context) error {
	var cut error
	if err := n.server.Shutdown(ctx); err != nil {
		cut = fmt.Errorf("%w: %w", errCut, err)
	}
	served := <-n.served
	return errors.Join(cut, served, n.observation.close(), n.release())
}

// release closes what newNode opened, once nobody calls the server: what is
// used after what uses it.
func (n *node) release() error {
	if n.scaler != nil {
		n.scaler.Stop()
	}
	var err error
	if n.members != nil {
		err = n.members.Close()
	}
	if n.engine != nil {
		err = errors.Join(err, n.engine.Close())
	}
	if n.cluster != nil {
		err = errors.Join(err, n.cluster.Close())
	}
	if n.spill != nil {
		err = errors.Join(err, n.spill.Close())
	}
	return errors.Join(err, n.store.Close())
}

// errCut: a server stopped before its streams had come to their end.
var errCut = errors.New("streams were cut off")

// defaultWindow is the memory that streams may hold where none is configured:
// a quarter of what the process may use, by its control group or the machine.
func defaultWindow() int64 {
	memory, err := memlimit.FromCgroup()
	if err != nil {
		memory, err = memlimit.FromSystem()
	}
	if err != nil || memory/4 > 1<<40 {
		return 0 // the engine's own default
	}
	return max(int64(memory/4), 64<<20)
}
