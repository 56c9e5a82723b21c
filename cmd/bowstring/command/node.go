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
	evaluation  int64          // bytes
	flight      flight.Options // what clients may do
	spill       spillConfig
	buckets     bucketList   // that attached samples may be read from
	rights      bucketRights // by which credentials, and for which tenants
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
	if l.flight.Requests == nil {
		l.flight.Requests = object.NewRequests(object.RequestsOptions{Tenant: tenantOf})
	}
	near := l.spill.dir != "" && l.spill.near
	store, err := openFarStore(ctx, dir, create && !near, far, readBuckets{l.flight.Requests, l.buckets, l.rights}, log)
	if err != nil {
		return nil, err
	}
	if near {
		if err := checkAttached(ctx, store, dir); err != nil {
			return nil, errors.Join(err, store.Close())
		}
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
	if attached, ok := store.(*extent.Store); ok && l.rights.limits() {
		l.flight.MayRead = func(ctx context.Context, tenant string, snap *schema.Snapshot) error {
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

// sharers is how many nodes read the store, this one among them.
func (n *node) sharers() int {
	if n == nil || n.members == nil {
		return 1
	}
	return max(len(n.members.View().Nodes), 1)
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

// release closes what newNode opened, once no client calls the server: dependencies after
// their users.
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

// spillConfig is what the flags come to on this machine. Without a directory there is no cache.
type spillConfig struct {
	dir                       string
	near                      bool // the store is in a directory: the cache is for what is attached
	bytes, minBytes, keepFree int64
	policy                    spill.Policy // nil: what jobs will use soonest stays
}

// config works the flags out for a server of a store. Sizes are those of the file system on which the directory is, or
// will be made.
func (f *spillFlags) config(app *App, policy spill.Policy) (spillConfig, error) {
	c := spillConfig{dir: f.Spill, keepFree: int64(f.SpillKeepFree), policy: policy}
	if c.dir == "" {
		return c, nil
	}
	c.near = app.Far == nil && !IsRemote(app.globals.Store)
	disk, err := diskBytes(c.dir)
	if err != nil {
		return c, fmt.Errorf("--spill: %w", err)
	}
	c.bytes = f.SpillBytes.of(disk)
	if c.bytes < spill.MinBytes {
		return c, usagef("--spill-bytes: got %s, want %s or more", f.SpillBytes.on(c.dir, disk), size(spill.MinBytes))
	}
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

// checkAttached is an error for a store in a directory without data that is attached: a cache of it gains nothing.
// Only the process that has the store open can attach, so that none comes while it serves.
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
			if err != nil && !errors.Is(err, schema.ErrDataLoss) && !errors.Is(err, schema.ErrNotFound) {
				return err
			}
		}
	}
	return usagef("--spill: the store %s is on this machine already, and keeping it a second time gains nothing; "+
		"serve without --spill", dir)
}

// open opens the cache, and makes the future that it evicts by.
func (c *spillConfig) open(log *slog.Logger) (*spill.Cache, *spill.Future, error) {
	future := &spill.Future{}
	begun := time.Now()
	cache, err := spill.Open(spill.Options{
		Dir: c.dir, Bytes: c.bytes, KeepFree: c.keepFree, Policy: c.policy, Oracle: future, Logger: log,
	})
	if err != nil {
		return nil, nil, err
	}
	st := cache.Stats()
	log.Info("spill opened", "directory", c.dir, "budget", humanize.IBytes(uint64(c.bytes)), "min_budget",
		humanize.IBytes(uint64(c.minBytes)),
		"policy", st.Policy, "entries", st.Entries, "bytes", humanize.IBytes(uint64(st.Bytes)), "seconds",
		time.Since(begun).Seconds())
	return cache, future, nil
}

// diskBytes is the size of the file system that a directory is on. One that is not there yet will be on its parent's.
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

// portion is a number of bytes, or a share of what there is: 200GB, 30%. The zero value is auto.
type portion struct {
	bytes   size
	percent float64
}

// UnmarshalText reads a size or a share.
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

// of is the share of a number of bytes.
func (p portion) of(total int64) int64 {
	return cmp.Or(int64(p.bytes), int64(p.percent/100*float64(total)))
}

// on says what it is of the file system of a directory, for messages.
func (p portion) on(dir string, disk int64) string {
	if p.percent == 0 {
		return p.String()
	}
	return fmt.Sprintf("%s (%s of the %s of the file system of %s)", humanize.IBytes(uint64(p.of(disk))), p,
		humanize.IBytes(uint64(disk)), dir)
}

// mode reads --local-mode.
func (f *localFlags) mode() (os.FileMode, error) {
	n, err := strconv.ParseUint(f.LocalMode, 8, 32)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("--local-mode: got %q, want rights in octal, such as 0660", f.LocalMode)
	}
	return os.FileMode(n), nil
}

// check is called as part of Validate.
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

// checkReferences refuses references where somebody could read by them what he may not, or where there is nothing that
// could be referred to. far says that the store's files are not this process's.
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

// options are those of the socket. spill is the budget of the spill, 0 if there is none.
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
	if o.AllPinnedBytes == 0 && spill > 0 {
		o.AllPinnedBytes = min(spill/4, 1<<30)
	}
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return shm.Options{}, fmt.Errorf("--local, --local-ring, --local-memory and --local-pinned: %w", err)
	}
	return o, nil
}

// open makes the socket; nil if there is to be none.
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
