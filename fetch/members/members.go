// Package members says which nodes a cluster has, and which layout an epoch uses.
//
// A node holds a lease in the store that all nodes share anyway ([Shared]): a row that
// lapses unless it is renewed. There is no gossip, no consensus and no port beside. What a
// node last saw stays its view while the store is out of reach: peers that are gone show where
// bytes are asked of them, and the store stands in.
//
// Layouts are kept in the store by their names. The layout of an epoch of a plan is claimed
// once, by a transaction of the store, so that ranks which ask different nodes get one answer.
//
// What follows from a layout is the business of fetch/layout. How the store keeps rows, only the store
// knows: see fetch/store/cql.
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

// Shared is what the nodes of clusters share. It is safe for concurrent use. Errors wrap the
// sentinels of package schema.
type Shared interface {
	// PutLease writes the lease of a node. It lapses after ttl, unless it is written again.
	PutLease(ctx context.Context, cluster, id string, lease []byte, ttl time.Duration) error
	// Leases returns the leases that have not lapsed, by node.
	Leases(ctx context.Context, cluster string) (map[string][]byte, error)
	// RemoveLease removes the lease of a node.
	RemoveLease(ctx context.Context, cluster, id string) error
	// PutLayout keeps a layout by name for a time: what is kept for longer stays so.
	PutLayout(ctx context.Context, name string, record []byte, ttl time.Duration) error
	// Layout returns what was kept; schema.ErrNotFound if there is nothing.
	Layout(ctx context.Context, name string) ([]byte, error)
	// ClaimLayout returns which layout an epoch of a plan has: that which was claimed first,
	// and now the given one if none was. With name "" nothing is claimed, and "" is returned if
	// nothing was. It may be repeated where it has failed.
	ClaimLayout(ctx context.Context, cluster, plan string, epoch uint64, name string, ttl time.Duration) (string, error)
}

// lease is what a node says of itself, as JSON.
type lease struct {
	Node layout.Node `json:"node"`
	// Process tells a node that was started again, or a second one of the same id, from this one.
	Process string `json:"process"`
	// Since is when the process started, by its own clock; for people.
	Since time.Time `json:"since"`
	// Version is that of the program.
	Version string `json:"version"`
	// Incarnation grows from one process of a node to the next: of two that are there at a time, the lease of the
	// lesser is passed over. 0 is that of older programs.
	Incarnation int64 `json:"incarnation,omitempty"`
	// Draining says how far a node is that leaves; nil while it stays.
	Draining *Draining `json:"draining,omitempty"`
	// Wants is what its jobs read: bytes by snapshot.
	Wants map[string]int64 `json:"wants,omitempty"`
}

// Draining is how far a node is that leaves its cluster. It owns nothing any more.
type Draining struct {
	Since   time.Time `json:"since"`
	Streams int       `json:"streams"` // that have not ended yet
	Blobs   int64     `json:"blobs"`   // that others have taken over
	Bytes   int64     `json:"bytes"`   // of those
	Held    int64     `json:"held"`    // bytes in its cache
	Done    bool      `json:"done"`    // it ends
}

// order is what a node is told to do, as JSON, in a row beside the leases: orders of cluster c are the leases of
// c/orders, which is the name of no cluster.
type order struct {
	Process string `json:"process"` // the one that is told: the next one of the node is not
	Drain   bool   `json:"drain"`
}

// Beside the orders each process of a node has a row that says that it has begun: an earlier one that goes on writes
// over the lease of a later one, but not over this.
const (
	ordersOf = "/orders"
	// beganOf comes before the node's name in that row's, and a slash and the incarnation after it.
	beganOf = "began/"
	// orderTTL is for how long an order waits for its node.
	orderTTL = time.Hour
)

// Options says who a member is. The zero value of a field that has a default stands for it.
type Options struct {
	// Cluster is the name of the cluster.
	Cluster string
	// Shared is what all nodes share.
	Shared Shared
	// Version is that of the program, for people.
	Version string
	// TTL is after how long a lease lapses, in whole seconds. Default 10 s.
	TTL time.Duration
	// RenewEvery is how often it is renewed. Default 3 s.
	RenewEvery time.Duration
	// ReadEvery is how often the leases of the others are read. Default 6 s: a read costs as many
	// rows as there are nodes.
	ReadEvery time.Duration
	// Keep is for how long a claim is kept after it was made, and a twelfth of that for which a layout is, which
	// tickets name. Default 30 days.
	Keep time.Duration
	// NewLayout computes a layout. Default layout.New, which takes some 10 ns a slot and node: members in one process
	// may share what they compute.
	NewLayout func(layout.Record) (*layout.Layout, error)
	// Chance draws a time below d, by which renewals and reads of members that start together drift apart. Default:
	// evenly.
	Chance func(d time.Duration) time.Duration
	// Logger receives what operators should know. Default slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in the fields that are zero.
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

// Validate returns an error that names the first field without a sensible value.
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

// View is which nodes a member knows of. It is advice: those of two members may differ for a while.
type View struct {
	// Nodes are in ascending order of id, the member itself among them once it has started.
	Nodes []layout.Node
	// Leaving are nodes that drain, likewise; they are not among Nodes.
	Leaving []Leaving
	// Wants is how many bytes all jobs together read; 0 if nobody has said.
	Wants int64
	// At is when the leases were last read; zero if they never were.
	At time.Time
	// Err is why they could not be read since; nil if they could.
	Err error
}

// Leaving is a node that drains.
type Leaving struct {
	layout.Node
	Draining Draining
}

// Members is a node of a cluster. It is safe for concurrent use.
type Members struct {
	opts    Options
	process string
	layouts layouts

	directory atomic.Pointer[directory] // nil before Start
	directing sync.Mutex                // held while it is made: the last one goes by the latest view

	claims   *rate.Limiter
	renewing sync.Mutex // held while the lease is written: the last word is the last that was said
	fenced   time.Time  // when it was last written that this process is the last of its node; guarded by renewing

	mu         sync.Mutex
	self       *lease           // nil before Start
	nodes      map[string]lease // others
	at         time.Time
	failed     error
	recovered  time.Time // since when all reads have succeeded
	others     bool      // somebody else has the same id
	superseded time.Time // until when a later process is taken to be this node
	ordered    bool      // this process is to drain

	stop context.CancelFunc // nil before Start
	done sync.WaitGroup
}

// New returns a member that has not started: it can read layouts and knows of no node.
func New(opts Options) (*Members, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &Members{opts: opts, process: rand.Text(), nodes: map[string]lease{},
		claims: rate.NewLimiter(claimsPerSecond, claimsAtOnce)}, nil
}

// Start has the node be a member, until Close. The first lease is written, and those of the
// others are read, before it returns: an error says that the store cannot be used. It is called once.
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

// Close gives the lease up, and waits for what Start began.
func (m *Members) Close() error {
	if m.stop == nil {
		return nil
	}
	m.stop()
	m.done.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), m.opts.RenewEvery)
	defer cancel()
	_ = m.read(ctx) // the node may have been started again meanwhile
	m.mu.Lock()
	shared, later, id, incarnation, ordered := m.others, time.Now().Before(m.superseded), m.self.Node.ID,
		m.self.Incarnation, m.ordered
	m.mu.Unlock()
	if ordered {
		_ = m.opts.Shared.RemoveLease(ctx, m.opts.Cluster+ordersOf, id) // it lapses by itself
	}
	_ = m.opts.Shared.RemoveLease(ctx, m.opts.Cluster+ordersOf, began(id, incarnation)) // it lapses by itself
	if shared || later {
		return nil // it is somebody else's
	}
	if err := m.opts.Shared.RemoveLease(ctx, m.opts.Cluster, id); err != nil {
		m.opts.Logger.Debug("the lease of this node lapses by itself", "error", err)
	}
	return nil
}

// every calls f about so often, not when others do, until ctx ends; a quarter as long after one that failed. A call
// that takes longer than a lease is renewed is ended: so a lease lasts where one renewal is lost.
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

// renew writes the lease, unless a later process of this node has one.
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

// read takes in the leases of the others. A node that is new counts at once. One that is missing
// counts until reads have shown for a whole TTL that it is gone: after a time in which the store was out of
// reach, all leases have lapsed, also of those who live.
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
		m.recovered = now // or this process stood still
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
			continue // a process before the last one, which drains or stood still, has written over it
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

// noticeLocked looks at the lease of this very node. That of the process before it, which has not lapsed, shows once.
func (m *Members) noticeLocked(ctx context.Context, l lease) {
	if l.Process == m.process {
		m.others = false
		return
	}
	if m.stop == nil { // this process begins: it comes after that one
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

// View returns which nodes the member knows of.
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

// addBytes adds what others have said, which may be anything.
func addBytes(a, b int64) int64 {
	if b <= 0 || b > math.MaxInt64-a {
		return a
	}
	return a + b
}

// Look reads the members now. It takes no membership.
func (m *Members) Look(ctx context.Context) (View, error) {
	err := m.read(ctx)
	m.mu.Lock()
	member := m.self != nil
	m.mu.Unlock()
	if err == nil && member {
		err = m.direct()
	}
	return m.View(), err
}

// errNoNodes says that no layout can be made.
var errNoNodes = errors.New("no node of the cluster is there")

// SetDraining says that this node leaves, and how far it is, or with nil that it stays. Others are told at
// once: an error says that they will be later, with the next renewal.
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
		return nil // how far it is, is told with the renewals
	}
	err := m.direct()
	if told := m.renew(ctx); told != nil {
		return told
	}
	return err
}

// maxWants is how many snapshots a node says that its jobs read: the largest.
const maxWants = 32

// SetWants says what the jobs of this node read: bytes by snapshot. Route goes by it at once, and others are told with
// the next renewal: where they know of the jobs themselves, as nodes tell each other, nobody waits for leases to be read
// before the caches' room beyond what jobs read gets second owners.
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

// Ordered reports whether somebody has ordered this process to drain, and not taken it back.
func (m *Members) Ordered() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ordered
}

// began names the row that says that a process of a node has begun.
func began(id string, incarnation int64) string {
	return beganOf + id + "/" + strconv.FormatInt(incarnation, 10)
}

// lastBegun is the incarnation of the last process that has begun, by node.
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

// obeyLocked takes in the orders, by node, and whether a later process of this node has begun: this one is then the
// node no more, until that has ended.
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

// Order has a node drain, or not. It is told when it reads the members next. schema.ErrNotFound if it is not there.
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

// Process returns which process a node is now; "" if it is not there.
func (m *Members) Process(node string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes[node].Process
}
