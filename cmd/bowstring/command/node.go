package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"bowstring/cmd/bowstring/cluster"
	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/lineage"
	"bowstring/fetch/members"
	"bowstring/fetch/object"
	"bowstring/fetch/peers"
	"bowstring/fetch/store"
	"bowstring/fetch/store/extent"
	"bowstring/flight"
	"bowstring/flight/shm"
	"bowstring/schema"
	"bowstring/spill"
	"bowstring/spill/scale"
)

// node is a store with a server on it. serve runs one, and every other command runs one
// in its own process when it is given a store. newNode makes it and close ends it. The
// fields are constant after newNode, except observation, which start sets before the
// server runs. Optional parts are nil.
type node struct {
	store  store.Store
	spill  *spill.Cache // between store and engine
	engine *fetch.Engine
	scaler *scale.Scaler // changes the size of spill
	server *flight.Server
	served chan error // gets the result of Serve

	part    *clusterPart     // its configuration as a node of a cluster
	members *members.Members // the members of that cluster
	cluster *cluster.Cluster // reads from the other nodes

	figures *clusterFigures   // traffic with the other nodes, for metrics
	egress  *admission.Egress // limits what is sent to the other nodes

	observation *observation // metrics, console and traces
}

// limits configure a node. A zero field means the default of the package that uses it.
type limits struct {
	maxReads    int
	windowBytes int64
	readTimeout time.Duration
	uploadBytes int64
	evaluation  int64          // bytes
	flight      flight.Options // for the server; check fills in its defaults
	spill       spillConfig
	buckets     bucketList   // buckets that attached samples may be read from
	rights      bucketRights // credentials and tenants of buckets
	cluster     *clusterPart // configuration as a node of a cluster, or nil
	lineage     *lineage.Log // or nil; the caller closes it after the node
	serves      bool         // until a signal, and not for one command
}

// check sets the defaults of the server's options, and returns an error for invalid ones.
func (l *limits) check(log *slog.Logger) error {
	l.flight.Logger = log
	l.flight.EnsureDefaults()
	return l.flight.Validate()
}

// newNode opens the store at dir and everything on it. The store is created if create is
// set. far, unless it is nil, is a link with latency to the store. After an error, all
// that was opened is closed again.
//
// The parts are made from the bottom up: store, spill, cluster, engine, scaler, server.
// Each needs the ones before. release closes users before their dependencies.
func newNode(ctx context.Context, dir string, create bool, l limits, far Far, log *slog.Logger) (*node, error) {
	if err := l.check(log); err != nil {
		return nil, err
	}
	// Requests to buckets are always counted, also in a node of one command.
	if l.flight.Requests == nil {
		l.flight.Requests = object.NewRequests(object.RequestsOptions{Tenant: tenantOf})
	}
	// A store in a directory is as fast as the spill. A spill on it is for attached data
	// only, and is rejected if there is none.
	near := l.spill.dir != "" && l.spill.near
	store, err := openFarStore(ctx, dir, create && !near, far, readBuckets{l.flight.Requests, l.buckets, l.rights, l.serves}, log)
	if err != nil {
		return nil, err
	}
	if near {
		if err := checkAttached(ctx, store, dir); err != nil {
			return nil, errors.Join(err, store.Close())
		}
	}
	// From here on release closes everything that n has.
	n := &node{store: store, served: make(chan error, 1)}
	var future *spill.Future
	if l.spill.dir != "" {
		if n.spill, future, err = l.spill.open(log); err != nil {
			return nil, errors.Join(err, store.Close())
		}
	}
	var layouts fetch.Layouts // an interface that is nil, and does not hold a nil pointer, without a cluster
	var others *peers.Tier
	// Members exist before the tier, because the tier asks them where nodes are. A
	// failure from here on releases what is open.
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
		Memory:      admission.Limits{Uploads: l.uploadBytes, Evaluation: l.evaluation},
		MaxReads:    l.maxReads,
		ReadTimeout: l.readTimeout,
		Lineage:     l.lineage,
		Spill:       n.spill,
		Future:      future,
		Peers:       others,
		Requests:    l.flight.Requests,
		Logger:      log,
	})
	if err != nil {
		return nil, errors.Join(err, n.release())
	}
	if n.spill != nil {
		// The scaler changes the spill's budget between the two limits while the engine
		// runs.
		n.scaler, err = scale.New(scale.Options{
			Cache: n.spill, Future: future, Dir: l.spill.dir, Demand: n.engine.Demand,
			MinBytes: l.spill.minBytes, MaxBytes: l.spill.bytes, KeepFree: l.spill.keepFree, Logger: log,
		})
		if err != nil {
			return nil, errors.Join(err, n.release())
		}
		n.scaler.Start()
	}
	l.flight.Ledger = n.engine.Ledger() // one account of memory for engine and server
	l.flight.Node = n
	// The check is of a snapshot as a whole, and covers all buckets that it refers to.
	if attached, ok := store.(*extent.Store); ok && l.rights.limits() {
		l.flight.MayRead = func(ctx context.Context, tenant string, snap *schema.Snapshot) error {
			// The first bucket that is denied is the error.
			urls, err := attached.Buckets(ctx, snap)
			for _, url := range urls {
				err = cmp.Or(err, l.rights.mayRead(tenant, url))
			}
			return err
		}
	}
	n.server = flight.New(n.engine, l.flight)
	return n, nil
}

// sharers returns the number of nodes that read the store, including this one.
func (n *node) sharers() int {
	if n == nil || n.members == nil {
		return 1
	}
	return max(len(n.members.View().Nodes), 1)
}

// SpillScale implements flight.Node. It is nil before the first decision.
func (n *node) SpillScale() any {
	if n.scaler != nil {
		if d := n.scaler.Last(); !d.At.IsZero() {
			return d
		}
	}
	return nil
}

// serve starts to answer on l, which the server closes.
func (n *node) serve(l net.Listener) {
	go func() { n.served <- n.server.Serve(l) }()
}

// close lets running calls finish until ctx ends, cancels the rest, and closes the store.
// It waits for all goroutines of the node. The error wraps errCut if calls had to be
// cancelled.
func (n *node) close(ctx context.Context) error {
	// Shutdown returns an error if it had to cancel calls. The store is closed all the
	// same.
	var cut error
	if err := n.server.Shutdown(ctx); err != nil {
		cut = fmt.Errorf("%w: %w", errCut, err)
	}
	// Serve returns, because Shutdown closes the listener.
	served := <-n.served
	return errors.Join(cut, served, n.observation.close(), n.release())
}

// release closes what newNode opened, when no client calls the server any more. It closes
// users before their dependencies, and accepts a node that is only partly made.
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

// errCut reports that a server stopped before its streams had ended.
var errCut = errors.New("streams were cut off")

// defaultWindow is the default memory of streams: a quarter of what the process may use,
// by its control group or else the machine.
func defaultWindow() int64 {
	// A control group's limit is tighter than the machine's memory.
	memory, err := memlimit.FromCgroup()
	if err != nil {
		memory, err = memlimit.FromSystem()
	}
	if err != nil || memory/4 > 1<<40 {
		return 0 // not plausible: the engine's own default
	}
	return max(int64(memory/4), 64<<20)
}

// spillConfig is the configuration of the spill in bytes. Without a directory there is no
// spill.
type spillConfig struct {
	dir                       string
	near                      bool // the store is in a directory, so that the spill is for attached data
	bytes, minBytes, keepFree int64
	policy                    spill.Policy // nil: keep what jobs will use soonest
}

// config computes the configuration from the flags. Shares are of the file system that
// the directory is on, or will be on.
func (f *spillFlags) config(app *App, policy spill.Policy) (spillConfig, error) {
	c := spillConfig{dir: f.Spill, keepFree: int64(f.SpillKeepFree), policy: policy}
	if c.dir == "" {
		return c, nil
	}
	c.near = app.Far == nil && !IsRemote(app.globals.Store)
	// A share needs the size of the disk.
	disk, err := diskBytes(c.dir)
	if err != nil {
		return c, fmt.Errorf("--spill: %w", err)
	}
	c.bytes = f.SpillBytes.of(disk)
	if c.bytes < spill.MinBytes {
		return c, usagef("--spill-bytes: got %s, want %s or more", f.SpillBytes.on(c.dir, disk), size(spill.MinBytes))
	}
	// A tenth is the default minimum, and never less than a spill can work with.
	c.minBytes = max(c.bytes/10, spill.MinBytes)
	if f.SpillMinBytes != (portion{}) {
		c.minBytes = f.SpillMinBytes.of(disk)
	}
	if c.minBytes < spill.MinBytes || c.minBytes > c.bytes {
		return c, usagef("--spill-min-bytes: got %s, want %s to --spill-bytes, which is %s",
			f.SpillMinBytes.on(c.dir, disk), size(spill.MinBytes), f.SpillBytes.on(c.dir, disk))
	}
	return c, nil
}

// checkAttached returns an error for a store in a directory without attached data,
// because a spill for it gains nothing. One check at the start is enough: only the
// process that has the store open can attach.
func checkAttached(ctx context.Context, s store.Store, dir string) error {
	datasets, err := s.Datasets(ctx)
	if err != nil {
		return err
	}
	for _, d := range datasets {
		for _, number := range d.Snapshots {
			snap, err := s.Snapshot(ctx, d.Name, number)
			if err == nil && len(snap.Sets) > 0 {
				return nil
			}
			// Damaged and dropped snapshots do not decide.
			if err != nil && !errors.Is(err, schema.ErrDataLoss) && !errors.Is(err, schema.ErrNotFound) {
				return err
			}
		}
	}
	return usagef("--spill: the store %s is on this machine already, and keeping it a second time gains nothing; "+
		"serve without --spill", dir)
}

// open opens the spill. It also makes the future by which it evicts: the engine fills in
// what the jobs will read.
func (c *spillConfig) open(log *slog.Logger) (*spill.Cache, *spill.Future, error) {
	future := &spill.Future{}
	begun := time.Now()
	cache, err := spill.Open(spill.Options{
		Dir: c.dir, Bytes: c.bytes, KeepFree: c.keepFree, Policy: c.policy, Oracle: future, Logger: log,
	})
	if err != nil {
		return nil, nil, err
	}
	// A spill keeps its blobs over restarts. The log shows what it began with.
	st := cache.Stats()
	log.Info("spill opened", "directory", c.dir, "budget", humanize.IBytes(uint64(c.bytes)), "min_budget",
		humanize.IBytes(uint64(c.minBytes)),
		"policy", st.Policy, "entries", st.Entries, "bytes", humanize.IBytes(uint64(st.Bytes)), "seconds",
		time.Since(begun).Seconds())
	return cache, future, nil
}

// diskBytes returns the size of the file system of a directory. A directory that does not
// exist yet will be on that of its nearest existing parent.
func diskBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	for at := dir; ; at = filepath.Dir(at) {
		err := unix.Statfs(at, &st)
		if err == nil {
			return int64(st.Blocks) * st.Bsize, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return 0, &fs.PathError{Op: "statfs", Path: at, Err: err}
		}
	}
}

// portion is a number of bytes or a share of a disk, such as 200GB or 30%. The zero value
// is auto. At most one field is set.
type portion struct {
	bytes   size
	percent float64
}

// UnmarshalText parses a size, a share or auto.
func (p *portion) UnmarshalText(text []byte) error {
	number, isShare := strings.CutSuffix(string(text), "%")
	if !isShare {
		*p = portion{}
		if err := p.bytes.UnmarshalText(text); err != nil {
			return fmt.Errorf("got %q, want a size such as 200GB, a share such as 30%%, or auto", text)
		}
		return nil
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v > 0 && v <= 100) {
		return fmt.Errorf("got %q, want a share of more than 0%% and up to 100%%", text)
	}
	*p = portion{percent: v}
	return nil
}

func (p portion) String() string {
	if p.percent > 0 {
		return strconv.FormatFloat(p.percent, 'g', -1, 64) + "%"
	}
	return p.bytes.String()
}

// of returns the number of bytes, if the whole has total bytes.
func (p portion) of(total int64) int64 {
	return cmp.Or(int64(p.bytes), int64(p.percent/100*float64(total)))
}

// on returns the portion for messages, with the bytes that a share is on this disk.
func (p portion) on(dir string, disk int64) string {
	if p.percent == 0 {
		return p.String()
	}
	return fmt.Sprintf("%s (%s of the %s of the file system of %s)", humanize.IBytes(uint64(p.of(disk))), p,
		humanize.IBytes(uint64(disk)), dir)
}

// mode parses --local-mode.
func (f *localFlags) mode() (os.FileMode, error) {
	n, err := strconv.ParseUint(f.LocalMode, 8, 32)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("--local-mode: got %q, want rights in octal, such as 0660", f.LocalMode)
	}
	return os.FileMode(n), nil
}

// check is part of Validate. It builds the options, so that their errors appear before
// the start.
func (f *localFlags) check() error {
	if _, err := f.mode(); err != nil {
		return err
	}
	if f.Local == "" {
		if f.LocalReferences {
			return errors.New("--local-references: it takes --local, the socket by which clients are handed files")
		}
		return nil
	}
	_, err := f.options(nil, 0)
	return err
}

// checkReferences rejects --local-references in two cases. With rules or tenants, a
// client could read blobs that it may not: a descriptor of a file of the spill gives
// access to the whole file. Without a local file there is nothing to refer to. far means
// that the store's files are not on this machine.
func (c *ServeCmd) checkReferences(far bool, spill *spillConfig) error {
	var guard string
	switch {
	case !c.LocalReferences:
		return nil
	case c.Tenants != "":
		guard = "--tenants"
	case c.Rules != "":
		guard = "--rules"
	case far && spill.dir == "":
		return usagef("--local-references: there is no spill for the blobs; --spill makes one")
	case spill.dir != "" && int64(c.LocalPinned) > spill.bytes/2:
		return usagef("--local-pinned: got %s, want half of --spill-bytes at most, which is %s: what is pinned "+
			"cannot be evicted", c.LocalPinned, size(spill.bytes))
	default:
		return nil
	}
	return usagef("--local-references and %s exclude each other: who is handed a file of the cache can read all of it, "+
		"whosever it is", guard)
}

// options returns the options of the socket. spill is the budget of the spill, and 0
// without one.
func (f *localFlags) options(log *slog.Logger, spill int64) (shm.Options, error) {
	mode, err := f.mode()
	if err != nil {
		return shm.Options{}, err
	}
	path, err := filepath.Abs(f.Local)
	if err != nil {
		return shm.Options{}, fmt.Errorf("--local: %w", err)
	}
	o := shm.Options{Path: path, Mode: mode, UIDs: f.LocalUID, RingBytes: int64(f.LocalRing),
		Memory: int64(f.LocalMemory), Logger: log,
		References: f.LocalReferences, AllPinnedBytes: int64(f.LocalPinned)}
	// Pinned blobs cannot be evicted. By default they leave the spill three quarters.
	if o.AllPinnedBytes == 0 && spill > 0 {
		o.AllPinnedBytes = min(spill/4, 1<<30)
	}
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return shm.Options{}, fmt.Errorf("--local, --local-ring, --local-memory and --local-pinned: %w", err)
	}
	return o, nil
}

// open makes the socket. The result is nil without --local.
func (f *localFlags) open(log *slog.Logger, spill int64) (*shm.Server, error) {
	if f.Local == "" {
		return nil, nil
	}
	o, err := f.options(log, spill)
	if err != nil {
		return nil, err
	}
	s, err := shm.Listen(o)
	if err != nil {
		return nil, fmt.Errorf("--local: %w", err)
	}
	return s, nil
}
