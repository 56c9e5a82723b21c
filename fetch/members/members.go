// Package members knows the nodes of a cluster, and which layout an epoch uses.
//
// Each node holds a lease in the store that all nodes share ([Shared]): a row that expires unless the node renews it.
// There is no gossip, no consensus protocol and no extra port. While the store cannot be reached, a node keeps its
// last view. Reads from a peer that is gone fail then, and the node reads the store instead.
//
// The store keeps layouts by name. The layout of an epoch of a plan is claimed once, by a transaction of the store,
// so that ranks of different nodes get the same layout.
//
// Package fetch/layout says what follows from a layout. Packages such as fetch/store/cql keep the rows.
package members

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"bowstring/fetch/layout"
	"bowstring/schema"
)

// Shared is the storage that the nodes of a cluster share. It is safe for concurrent use. Errors wrap the sentinels
// of package schema.
type Shared interface {
	// PutLease writes the lease of a node. It expires after ttl unless it is written again.
	PutLease(ctx context.Context, cluster, id string, lease []byte, ttl time.Duration) error
	// Leases returns the leases that have not expired, by node.
	Leases(ctx context.Context, cluster string) (map[string][]byte, error)
	// RemoveLease removes the lease of a node.
	RemoveLease(ctx context.Context, cluster, id string) error
	// PutLayout stores a layout by name for ttl. It never shortens the time of a layout that is already stored.
	PutLayout(ctx context.Context, name string, record []byte, ttl time.Duration) error
	// Layout returns a stored layout; schema.ErrNotFound if there is none.
	Layout(ctx context.Context, name string) ([]byte, error)
	// ReserveLayout returns the layout of an epoch of a plan: the one claimed first, which is the given one if none
	// was. With name "" it claims nothing, and returns "" if nothing was claimed. A caller may repeat a failed call.
	ReserveLayout(ctx context.Context, cluster, plan string, epoch uint64, name string, ttl time.Duration) (string, error)
}

// lease is what a node publishes about itself, as JSON.
type lease struct {
	Node layout.Node `json:"node"`
	// Process is random. It distinguishes a restarted node, or a second process with the same id, from this process.
	Process string `json:"process"`
	// Since is when the process started, by its own clock. It is only shown.
	Since time.Time `json:"since"`
	// Version is the program's version.
	Version string `json:"version"`
	// Incarnation grows from one process of a node to the next. If two processes run, the lease of the lower
	// incarnation is ignored. 0 is that of older programs.
	Incarnation int64 `json:"incarnation,omitempty"`
	// Draining is the progress of a node that leaves; nil while it stays.
	Draining *Draining `json:"draining,omitempty"`
	// Wants is how many bytes its jobs read, by snapshot.
	Wants map[string]int64 `json:"wants,omitempty"`
}

// Draining is the progress of a node that leaves its cluster. It owns nothing any more.
type Draining struct {
	Since   time.Time `json:"since"`
	Streams int       `json:"streams"` // that have not ended
	Blobs   int64     `json:"blobs"`   // handed over to other nodes
	Bytes   int64     `json:"bytes"`   // size of those blobs
	Held    int64     `json:"held"`    // bytes in its cache
	Done    bool      `json:"done"`    // the process exits
}

// order is an order to a node, as JSON, in a row among the leases: the orders of cluster c are leases of c/orders,
// which is not a valid name of a cluster.
type order struct {
	Process string `json:"process"` // the order is for this process only, not for the node's next one
	Drain   bool   `json:"drain"`
}

// In addition, each process of a node writes a row when it begins. An older process that resumes can overwrite the
// lease of a newer one, but not this row.
const (
	ordersOf = "/orders"
	// beganOf is the prefix of that row's name. The node's name, a slash and the incarnation follow.
	beganOf = "began/"
	// orderTTL is how long an order stays for its node to read it.
	orderTTL = time.Hour
)

// Options configures a Members. A field with a default may be zero.
type Options struct {
	// Cluster is the name of the cluster. It is needed.
	Cluster string
	// Shared is the storage that all nodes share. It is needed.
	Shared Shared
	// Version is the program's version. It is only shown.
	Version string
	// TTL is when a lease expires, in whole seconds. Default 10 s.
	TTL time.Duration
	// RenewEvery is how often the lease is renewed. Default 3 s.
	RenewEvery time.Duration
	// ReadEvery is how often the leases of other nodes are read. Default 6 s, because each read costs one row per
	// node.
	ReadEvery time.Duration
	// Keep is how long a claim is stored. A layout is stored for 12 times as long, because tickets name layouts.
	// Default 30 days.
	Keep time.Duration
	// NewLayout computes a layout. Default layout.New, which takes about 10 ns per slot and node. Members in one
	// process may share a cached function.
	NewLayout func(layout.Record) (*layout.Layout, error)
	// Chance draws a duration below d, so that members that start together do not renew and read together. Default:
	// uniform.
	Chance func(d time.Duration) time.Duration
	// Logger receives messages for operators. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults sets fields that are zero to their defaults.
func (o *Options) EnsureDefaults() {
	o.TTL = cmp.Or(o.TTL, 10*time.Second)
	o.RenewEvery = cmp.Or(o.RenewEvery, 3*time.Second)
	o.ReadEvery = cmp.Or(o.ReadEvery, 6*time.Second)
	o.Keep = cmp.Or(o.Keep, 30*24*time.Hour)
	if o.NewLayout == nil {
		o.NewLayout = layout.New
	}
	if o.Chance == nil {
		o.Chance = func(d time.Duration) time.Duration { return mathrand.N(d) }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first invalid field.
func (o *Options) Validate() error {
	switch {
	case o.Shared == nil:
		return fmt.Errorf("%w: members need a Shared", schema.ErrInvalid)
	case o.TTL < time.Second || o.TTL%time.Second != 0 || o.Keep < o.TTL:
		return fmt.Errorf("%w: TTL is %s and Keep %s; want whole seconds, and Keep no less", schema.ErrInvalid, o.TTL,
			o.Keep)
	case o.RenewEvery <= 0 || 2*o.RenewEvery >= o.TTL || o.ReadEvery <= 0:
		return fmt.Errorf("%w: RenewEvery is %s and ReadEvery %s; want more than 0, and RenewEvery less than half of "+
			"TTL, which is %s", schema.ErrInvalid, o.RenewEvery, o.ReadEvery, o.TTL)
	}
	return schema.CheckName("cluster", o.Cluster)
}

// View is the nodes that a member knows. It is advice: the views of two members may differ for a while.
type View struct {
	// Nodes are in ascending order of id. They include the member itself once it has started.
	Nodes []layout.Node
	// Leaving are the nodes that drain, also in ascending order. They are not in Nodes.
	Leaving []Leaving
	// Wants is how many bytes all jobs together read; 0 if unknown.
	Wants int64
	// At is when the leases were last read; zero if never.
	At time.Time
	// Err is why the last read failed; nil if it succeeded.
	Err error
}

// Leaving is a node that drains.
type Leaving struct {
	layout.Node
	Draining Draining
}

// Members is a node's membership in a cluster. It is safe for concurrent use.
type Members struct {
	opts    Options
	process string
	layouts layouts

	directory atomic.Pointer[directory] // nil before Start
	directing sync.Mutex                // held while directory is computed, so that the last one is of the latest view

	claims   *rate.Limiter
	renewing sync.Mutex // held while the lease is written, so that the last write has the latest state
	fenced   time.Time  // when the row of this process's beginning was last written; guarded by renewing

	mu         sync.Mutex
	self       *lease           // nil before Start
	nodes      map[string]lease // others
	at         time.Time
	failed     error
	recovered  time.Time // since when all reads have succeeded
	others     bool      // another process has the same id
	superseded time.Time // until when a later process counts as this node
	ordered    bool      // this process has an order to drain

	stop context.CancelFunc // nil before Start
	done sync.WaitGroup
}

// New returns a member that has not started. It can read layouts and has an empty view.
func New(opts Options) (*Members, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &Members{opts: opts, process: rand.Text(), nodes: map[string]lease{},
		claims: rate.NewLimiter(claimsPerSecond, claimsAtOnce)}, nil
}

// Start makes the node a member until Close. Before it returns, it writes the first lease and reads those of the
// other nodes; an error says that the store cannot be used. Call it once.
func (m *Members) Start(ctx context.Context, self layout.Node) error {
	if err := self.Check(); err != nil {
		return err
	}
	m.mu.Lock()
	m.self = &lease{Node: self, Process: m.process, Since: time.Now().UTC(), Version: m.opts.Version,
		Incarnation: time.Now().UnixMilli()}
	m.mu.Unlock()
	if err := m.read(ctx); err != nil {
		return err
	}
	if err := m.direct(); err != nil {
		return err
	}
	if err := m.renew(ctx); err != nil {
		return err
	}
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	m.done.Go(func() {
		m.every(own, m.opts.RenewEvery, func(ctx context.Context) error {
			err := m.renew(ctx)
			if err != nil && own.Err() == nil {
				m.opts.Logger.WarnContext(ctx, "the lease of this node could not be renewed: others will "+
					"not know of it", "error", err)
			}
			return err
		})
	})
	m.done.Go(func() {
		m.every(own, m.opts.ReadEvery, func(ctx context.Context) error {
			err := m.read(ctx)
			if err == nil {
				err = m.direct()
			}
			if err != nil && own.Err() == nil {
				m.opts.Logger.WarnContext(ctx, "the members of the cluster could not be read: what is known "+
					"of them stays", "error", err)
			}
			return err
		})
	})
	return nil
}

// Close removes the lease, and waits for the goroutines that Start began.
func (m *Members) Close() error {
	if m.stop == nil {
		return nil
	}
	m.stop()
	m.done.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), m.opts.RenewEvery)
	defer cancel()
	_ = m.read(ctx) // a later process of this node may have started
	m.mu.Lock()
	shared, later, id, incarnation, ordered := m.others, time.Now().Before(m.superseded), m.self.Node.ID,
		m.self.Incarnation, m.ordered
	m.mu.Unlock()
	if ordered {
		_ = m.opts.Shared.RemoveLease(ctx, m.opts.Cluster+ordersOf, id) // it expires by itself
	}
	_ = m.opts.Shared.RemoveLease(ctx, m.opts.Cluster+ordersOf, began(id, incarnation)) // it expires by itself
	if shared || later {
		return nil // the lease belongs to another process
	}
	if err := m.opts.Shared.RemoveLease(ctx, m.opts.Cluster, id); err != nil {
		m.opts.Logger.Debug("the lease of this node lapses by itself", "error", err)
	}
	return nil
}

// every calls f about once per period until ctx ends, with jitter, and after a quarter of the time if f failed. A
// call is cancelled after RenewEvery, so that a lease survives one lost renewal.
func (m *Members) every(ctx context.Context, period time.Duration, f func(context.Context) error) {
	next := period
	for {
		timer := time.NewTimer(next*3/4 + m.opts.Chance(next/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		call, cancel := context.WithTimeout(ctx, m.opts.RenewEvery)
		if next = period; f(call) != nil {
			next = period / 4
		}
		cancel()
	}
}

// renew writes the lease, unless a later process of this node holds it.
func (m *Members) renew(ctx context.Context) error {
	m.renewing.Lock()
	defer m.renewing.Unlock()
	m.mu.Lock()
	self, passed := *m.self, time.Now().Before(m.superseded)
	m.mu.Unlock()
	if passed {
		return nil
	}
	if time.Since(m.fenced) >= 2*m.opts.TTL {
		if err := m.opts.Shared.PutLease(ctx, m.opts.Cluster+ordersOf, began(self.Node.ID, self.Incarnation),
			[]byte("{}"), 6*m.opts.TTL); err != nil {
			return fmt.Errorf("write that node %s has begun: %w", self.Node.ID, err)
		}
		m.fenced = time.Now()
	}
	body, err := json.Marshal(self)
	if err != nil {
		return fmt.Errorf("encode the lease of node %s: %w", self.Node.ID, err)
	}
	if err := m.opts.Shared.PutLease(ctx, m.opts.Cluster, self.Node.ID, body, m.opts.TTL); err != nil {
		return fmt.Errorf("write the lease of node %s: %w", self.Node.ID, err)
	}
	return nil
}

// read reads the leases of the other nodes. A new node counts at once. A missing node counts as gone only after reads
// have succeeded for a whole TTL, because after an outage of the store all leases have expired, including those of
// running nodes.
func (m *Members) read(ctx context.Context) error {
	rows, err := m.opts.Shared.Leases(ctx, m.opts.Cluster)
	var orders map[string][]byte
	if err == nil {
		orders, err = m.opts.Shared.Leases(ctx, m.opts.Cluster+ordersOf)
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.failed, m.recovered = fmt.Errorf("read the members of cluster %s: %w", m.opts.Cluster, err), time.Time{}
		return m.failed
	}
	if m.failed != nil || m.at.IsZero() || now.Sub(m.at) > m.opts.TTL {
		m.recovered = now // the store was unreachable, or this process was stalled
	}
	doubtful := !m.at.IsZero() && now.Sub(m.recovered) < m.opts.TTL
	m.failed, m.at = nil, now
	there, last := map[string]bool{}, lastBegun(orders)
	for id, row := range rows {
		var l lease
		if err := json.Unmarshal(row, &l); err != nil || l.Node.ID != id || l.Node.Check() != nil {
			m.opts.Logger.WarnContext(ctx, "the lease of a node cannot be read: a newer program may have written it",
				"node", id, "error", err)
			continue
		}
		if m.self != nil && id == m.self.Node.ID {
			m.noticeLocked(ctx, l)
			continue
		}
		there[id] = true
		if l.Incarnation < last[id] {
			continue // an older process, which drains or was stalled, has overwritten the lease
		}
		m.nodes[id] = l
	}
	m.obeyLocked(orders, last, now)
	for id := range m.nodes {
		if !there[id] && !doubtful {
			delete(m.nodes, id)
		}
	}
	return nil
}

// noticeLocked checks the lease with this node's own id. The lease of the previous process, if it has not expired, is
// expected once.
func (m *Members) noticeLocked(ctx context.Context, l lease) {
	if l.Process == m.process {
		m.others = false
		return
	}
	if m.stop == nil { // this process is starting, after that one
		m.self.Incarnation = max(m.self.Incarnation, l.Incarnation+1)
		return
	}
	was := m.others
	m.others = true
	if !was {
		m.opts.Logger.ErrorContext(ctx, "another process is the same node of the cluster: give each its own --node",
			"node", l.Node.ID, "address", l.Node.Address, "since", l.Since, "later", l.Incarnation > m.self.Incarnation)
	}
}

// View returns the nodes that the member knows.
func (m *Members) View() View {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := View{At: m.at, Err: m.failed}
	wants := map[string]int64{}
	add := func(l *lease) {
		if l.Draining != nil {
			v.Leaving = append(v.Leaving, Leaving{l.Node, *l.Draining})
		} else {
			v.Nodes = append(v.Nodes, l.Node)
		}
		for name, bytes := range l.Wants {
			wants[name] = max(wants[name], bytes)
		}
	}
	for _, n := range m.nodes {
		add(&n)
	}
	if m.self != nil {
		add(m.self)
	}
	for _, bytes := range wants {
		v.Wants = addBytes(v.Wants, bytes)
	}
	slices.SortFunc(v.Nodes, func(a, b layout.Node) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(v.Leaving, func(a, b Leaving) int { return cmp.Compare(a.ID, b.ID) })
	return v
}

// addBytes returns a + b, or a if b is not positive or the sum overflows: b is from other nodes' leases, which are
// not checked.
func addBytes(a, b int64) int64 {
	if b <= 0 || b > math.MaxInt64-a {
		return a
	}
	return a + b
}

// Refresh reads the leases now. It does not need a membership.
func (m *Members) Refresh(ctx context.Context) (View, error) {
	err := m.read(ctx)
	m.mu.Lock()
	member := m.self != nil
	m.mu.Unlock()
	if err == nil && member {
		err = m.direct()
	}
	return m.View(), err
}

// errNoNodes is returned if no layout can be made.
var errNoNodes = errors.New("no node of the cluster is there")

// SetDraining publishes that this node leaves, with its progress, or with nil that it stays. A change is published at
// once; after an error, the next renewal publishes it.
func (m *Members) SetDraining(ctx context.Context, d *Draining) error {
	m.mu.Lock()
	if m.self == nil {
		m.mu.Unlock()
		return fmt.Errorf("%w: this process is no member", schema.ErrInvalid)
	}
	was := m.self.Draining != nil
	m.self.Draining = d
	m.mu.Unlock()
	if was == (d != nil) {
		return nil // progress is published with the renewals
	}
	err := m.direct()
	if renewErr := m.renew(ctx); renewErr != nil {
		return renewErr
	}
	return err
}

// maxWants is the most snapshots that a lease lists, the largest ones.
const maxWants = 32

// SetWants sets how many bytes this node's jobs read, by snapshot. Route uses it at once, and other nodes get it with
// the next renewal. Nodes that know the jobs from progress messages do not have to wait for leases before they give
// free cache room to second owners.
func (m *Members) SetWants(wants map[string]int64) error {
	if len(wants) > maxWants {
		names := slices.SortedFunc(maps.Keys(wants), func(a, b string) int {
			return int(min(max(wants[b]-wants[a], -1), 1))
		})
		most := make(map[string]int64, maxWants)
		for _, name := range names[:maxWants] {
			most[name] = wants[name]
		}
		wants = most
	}
	m.mu.Lock()
	if m.self == nil {
		m.mu.Unlock()
		return nil
	}
	same := maps.Equal(m.self.Wants, wants)
	m.self.Wants = wants
	m.mu.Unlock()
	if same {
		return nil
	}
	return m.direct()
}

// Ordered reports whether this process has an order to drain that was not withdrawn.
func (m *Members) Ordered() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ordered
}

// began is the name of the row that a process of a node writes when it begins.
func began(id string, incarnation int64) string {
	return beganOf + id + "/" + strconv.FormatInt(incarnation, 10)
}

// lastBegun returns the highest incarnation that has begun, by node.
func lastBegun(rows map[string][]byte) map[string]int64 {
	last := map[string]int64{}
	for name := range rows {
		rest, ok := strings.CutPrefix(name, beganOf)
		id, number, _ := strings.Cut(rest, "/")
		if n, err := strconv.ParseInt(number, 10, 64); ok && err == nil {
			last[id] = max(last[id], n)
		}
	}
	return last
}

// obeyLocked reads the order to this process, and whether a later process of this node has begun. Until that one
// ends, this process does not count as the node.
func (m *Members) obeyLocked(orders map[string][]byte, lastOf map[string]int64, now time.Time) {
	if m.self == nil {
		return
	}
	switch last := lastOf[m.self.Node.ID]; {
	case m.stop == nil:
		m.self.Incarnation = max(m.self.Incarnation, last+1)
	case last > m.self.Incarnation:
		m.superseded = now.Add(m.opts.TTL)
	}
	var o order
	err := json.Unmarshal(orders[m.self.Node.ID], &o)
	m.ordered = err == nil && o.Drain && o.Process == m.process
}

// Order orders a node to drain, or withdraws the order. The node reads it with its next read of the leases. It
// returns schema.ErrNotFound if there is no such node.
func (m *Members) Order(ctx context.Context, node string, drain bool) error {
	if !drain {
		return m.opts.Shared.RemoveLease(ctx, m.opts.Cluster+ordersOf, node)
	}
	if err := m.read(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	n, ok := m.nodes[node]
	names := slices.Sorted(maps.Keys(m.nodes))
	m.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: cluster %s has no node %s; it has %s", schema.ErrNotFound, m.opts.Cluster,
			schema.Quote(node), strings.Join(names, ", "))
	}
	body, err := json.Marshal(order{Process: n.Process, Drain: true})
	if err != nil {
		return fmt.Errorf("encode an order: %w", err)
	}
	return m.opts.Shared.PutLease(ctx, m.opts.Cluster+ordersOf, node, body, orderTTL)
}

// Process returns the current process of a node; "" if there is none.
func (m *Members) Process(node string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes[node].Process
}
