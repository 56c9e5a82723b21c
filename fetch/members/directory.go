package members

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"bowstring/fetch/layout"
	"bowstring/schema"
)

// Route is how a node gets blobs; see peers.Route.
type Route struct {
	Ask   []string // nodes to request from, nearest first; none if this node reads the store
	Near  int      // how many of them are equally near
	Keep  bool     // this node caches such blobs if that pays
	Spare bool     // a near node caches the same blobs
	Held  bool     // the nodes are leaving: they answer only from their caches
}

// directory is how this node gets blobs in one view, ready for lookups without allocation.
type directory struct {
	view   View           // the view that it was computed from
	now    *layout.Layout // the owners; nil if there are none
	slots  []uint16       // by slot, the index in routes
	routes []Route        // all distinct routes, some hundred
	owned  []uint64       // one bit per slot: this node caches its blobs, or requests them from no node
	second []int64        // by node of now, how many slots it is the second owner of
}

// newDirectory computes the directory of a view. self is one of the nodes, or is leaving.
//
//   - The first owner of a slot reads from the store. Each node owns as much as its cache can hold, so that the
//     caches together hold each blob once.
//   - If the running jobs read less than all caches hold, slots get second owners, as many as there is room for
//     ([layout.New]). A second owner requests from the first.
//   - In each other zone one node caches for the zone ([layout.Layout.ZoneCaches]). Only this node requests from the
//     first owner, so that a blob crosses into a zone once.
//   - All other nodes request from the owners in their zone, the less busy one first, or from the node that caches
//     for the zone.
//   - The new owner of a slot of a leaving node first requests from that node what it holds.
func newDirectory(v View, self string, compute func(layout.Record) (*layout.Layout, error)) (*directory, error) {
	d := &directory{view: v, slots: make([]uint16, layout.Slots), owned: make([]uint64, layout.Slots/64)}
	now, err := layoutOf(v.Nodes, 0, compute)
	if err != nil || now == nil {
		d.routes = []Route{{Keep: true}} // there is no other node
		for i := range d.owned {
			d.owned[i] = math.MaxUint64
		}
		return d, err
	}
	d.now = now
	spare := now
	if v.Wants > 0 {
		if spare, err = layoutOf(v.Nodes, v.Wants, compute); err != nil {
			return nil, err
		}
	}
	var before *layout.Layout
	if len(v.Leaving) > 0 {
		all := slices.Clone(v.Nodes)
		for _, n := range v.Leaving {
			all = append(all, n.Node)
		}
		if before, err = layoutOf(all, 0, compute); err != nil {
			return nil, err
		}
	}
	d.second = make([]int64, now.Nodes())
	at, member := now.Index(self)
	var zoneCaches []int16
	zone := int32(-1)
	if member {
		zone = now.Zones()[at]
		zoneCaches = now.ZoneCaches(zone)
	} else {
		at = layout.None
	}
	numbers := map[routeOf]uint16{}
	for slot := range layout.Slots {
		r := routeOf{first: now.Owners(uint16(slot)).First, second: layout.None, zoneCache: layout.None,
			previousOwner: layout.None}
		if o := spare.Owners(uint16(slot)); v.Wants > 0 && o.Second != layout.None {
			if r.second = o.Second; o.First != r.first { // they differ if capacities do
				r.second = o.First
			}
			d.second[r.second]++
		}
		if member {
			z := now.Zones()
			if r.zoneCache = zoneCaches[slot]; r.first != layout.None && r.second != layout.None && z[r.second] == zone &&
				z[r.first] != zone {
				r.zoneCache = r.second // one cache per zone is enough
			}
		}
		if before != nil && int(r.first) == at {
			if o := before.Owners(uint16(slot)).First; o != layout.None && before.Node(int(o)).ID != self {
				if _, stays := now.Index(before.Node(int(o)).ID); !stays {
					r.previousOwner = o
				}
			}
		}
		n, ok := numbers[r]
		if !ok {
			n = uint16(len(d.routes))
			numbers[r] = n
			d.routes = append(d.routes, r.route(now, before, at, zone))
		}
		d.slots[slot] = n
		if r := &d.routes[n]; r.Keep || len(r.Ask) == 0 {
			d.owned[slot>>6] |= 1 << (slot & 63)
		}
	}
	return d, nil
}

// layoutOf returns the layout of nodes that hold size bytes, 0 for as much as they can; nil without nodes.
func layoutOf(nodes []layout.Node, size int64, compute func(layout.Record) (*layout.Layout,
	error)) (*layout.Layout, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	if size == 0 {
		for _, n := range nodes {
			size += min(n.Capacity, math.MaxInt64-size) // the capacity in a lease is not checked
		}
		size -= size / layout.Slots * int64(len(nodes)) // slots are whole: each node may have room for almost one less
	}
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b layout.Node) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	record, err := layout.NewRecord(size, nodes, nil)
	if err != nil {
		return nil, err
	}
	return compute(record)
}

// Now returns the owners that Route uses; nil before Start.
func (m *Members) Now() *layout.Layout {
	d := m.directory.Load()
	if d == nil {
		return nil
	}
	return d.now
}

// Share is what a node owns, as a share of all keys.
type Share struct {
	Node   string  `json:"node"`
	Share  float64 `json:"share"`            // as first owner, which reads from the store, if everything fits
	Second float64 `json:"second,omitempty"` // as second owner, as far as there is room
}

// Shares returns what the nodes own, as Route uses it; nil before Start.
func (m *Members) Shares() []Share {
	d := m.directory.Load()
	if d == nil || d.now == nil {
		return nil
	}
	list := make([]Share, d.now.Nodes())
	for i := range list {
		list[i] = Share{d.now.Node(i).ID, float64(d.now.Owned(i)) / layout.Slots, float64(d.second[i]) / layout.Slots}
	}
	return list
}

// routeOf determines the route of a slot. Its fields are indexes of nodes; previousOwner's is of the layout before.
type routeOf struct{ first, second, zoneCache, previousOwner int16 }

// route returns the route of the node with index at (None if it owns nothing) in a zone.
func (r routeOf) route(now, before *layout.Layout, at int, zone int32) Route {
	id := func(i int16) string { return now.Node(int(i)).ID }
	switch {
	case r.first == layout.None:
		return Route{}
	case int(r.first) == at && r.previousOwner != layout.None:
		return Route{Keep: true, Held: true, Ask: []string{before.Node(int(r.previousOwner)).ID}}
	case int(r.first) == at:
		return Route{Keep: true}
	case at != layout.None && (int(r.second) == at || int(r.zoneCache) == at):
		return Route{Keep: true, Ask: []string{id(r.first)}, Spare: now.Zones()[r.first] == zone}
	}
	var list []string
	near := 0
	for _, i := range []int16{r.first, r.second} {
		if i != layout.None && now.Zones()[i] == zone {
			list = append(list, id(i))
			near++
		}
	}
	if len(list) == 0 && r.zoneCache != layout.None {
		list = append(list, id(r.zoneCache))
		near++
	}
	for _, i := range []int16{r.first, r.second} { // fallback if those are gone
		if i != layout.None && !slices.Contains(list, id(i)) {
			list = append(list, id(i))
		}
	}
	if near == 0 {
		near = len(list)
	}
	return Route{Ask: list, Near: near}
}

// Route implements peers.Directory. It uses the latest view, and neither blocks nor allocates.
func (m *Members) Route(ref schema.BlobRef) Route {
	d := m.directory.Load()
	if d == nil {
		return Route{Keep: true}
	}
	return d.routes[d.slots[layout.SlotOf(ref)]]
}

// Owns implements peers.Owner. It is cheaper than Route: it reads a bitmap of 8 KiB.
func (m *Members) Owns(ref schema.BlobRef) bool {
	d, slot := m.directory.Load(), layout.SlotOf(ref)
	return d == nil || d.owned[slot>>6]>>(slot&63)&1 != 0
}

// direct updates Route to the current view. The first use of a view takes some milliseconds.
func (m *Members) direct() error {
	m.directing.Lock()
	defer m.directing.Unlock()
	v := m.View()
	v.Wants = roundWants(v.Wants)
	if d := m.directory.Load(); d != nil && d.view.Wants == v.Wants && slices.Equal(d.view.Nodes, v.Nodes) &&
		slices.EqualFunc(d.view.Leaving, v.Leaving, func(a, b Leaving) bool { return a.Node == b.Node }) {
		return nil
	}
	d, err := newDirectory(v, m.Self().ID, m.opts.NewLayout)
	if err == nil {
		m.directory.Store(d)
	}
	return err
}

// Self returns this node as other nodes know it; the zero Node before Start.
func (m *Members) Self() layout.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.self == nil {
		return layout.Node{}
	}
	return m.self.Node
}

// roundWants rounds up to a power of two or 1.5 times one, so that owners do not change with every job.
func roundWants(n int64) int64 {
	if n <= 0 {
		return 0
	}
	r := int64(1)
	for r < n && r < 1<<61 {
		if r+r/2 >= n && r > 1 {
			return r + r/2
		}
		r *= 2
	}
	return max(r, 1)
}

const (
	// keptLayouts is how many layouts stay in memory, of 256 KiB each, and keptClaims how many claims.
	keptLayouts = 16
	keptClaims  = 4096
	// A claim is a write that a reader causes: a row of some 150 bytes, stored for Options.Keep. A node may write
	// claimsAtOnce of them in a burst, and claimsPerSecond in the long run: 2.6 million in 30 days.
	claimsAtOnce    = 1000
	claimsPerSecond = 1
)

// layouts caches recently used layouts, and known claims. Neither ever changes.
type layouts struct {
	mu     sync.Mutex
	byName map[string]*layout.Layout
	names  []string // of byName, oldest first
	claims map[claim]string
}

// claim identifies an epoch of a plan.
type claim struct {
	plan  string
	epoch uint64
}

func (l *layouts) get(name string) *layout.Layout {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byName[name]
}

func (l *layouts) keep(x *layout.Layout) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byName == nil {
		l.byName = map[string]*layout.Layout{}
	}
	if l.byName[x.Name()] != nil {
		return
	}
	if len(l.names) == keptLayouts {
		delete(l.byName, l.names[0])
		l.names = l.names[1:]
	}
	l.byName[x.Name()], l.names = x, append(l.names, x.Name())
}

func (l *layouts) claimed(c claim) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.claims[c]
}

func (l *layouts) claim(c claim, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.claims == nil || len(l.claims) >= keptClaims {
		l.claims = map[claim]string{} // the store has them
	}
	l.claims[c] = name
}

// Layout implements resolve.Layouts: it returns a layout by name.
func (m *Members) Layout(ctx context.Context, name string) (*layout.Layout, error) {
	if l := m.layouts.get(name); l != nil {
		return l, nil
	}
	if l := layout.Lone(); l.Name() == name {
		return l, nil // in a ticket that a server issued before it joined a cluster
	}
	b, err := m.opts.Shared.Layout(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("layout %s: %w", name, err)
	}
	record, err := layout.Parse(b)
	if err == nil && record.Name() != name {
		err = fmt.Errorf("its content has the name %s", record.Name())
	}
	if err != nil { // not the caller's mistake
		return nil, fmt.Errorf("%w: layout %s: %s", schema.ErrDataLoss, name, err.Error())
	}
	l, err := m.opts.NewLayout(record)
	if err != nil {
		return nil, err
	}
	m.layouts.keep(l)
	return l, nil
}

// Reserve implements resolve.Layouts: it returns the layout of an epoch of a plan. If none was claimed, it computes
// one from the view and claims it. If the store cannot be reached it returns an error, because two nodes might
// otherwise return different layouts.
func (m *Members) Reserve(ctx context.Context, plan string, epoch uint64, size int64,
	ranks []string) (*layout.Layout, error) {
	c := claim{plan, epoch}
	name := m.layouts.claimed(c)
	if name == "" {
		var err error
		if name, err = m.claim(ctx, c, size, ranks); err != nil {
			return nil, fmt.Errorf("the layout of epoch %d of plan %s: %w", epoch, plan, err)
		}
	}
	l, err := m.Layout(ctx, name)
	if err == nil {
		m.layouts.claim(c, name)
	}
	return l, err
}

func (m *Members) claim(ctx context.Context, c claim, size int64, ranks []string) (string, error) {
	name, err := m.opts.Shared.ReserveLayout(ctx, m.opts.Cluster, c.plan, c.epoch, "", m.opts.Keep)
	if err != nil || name != "" {
		return name, err
	}
	v := m.View()
	if len(v.Nodes) == 0 {
		return "", fmt.Errorf("%w: %w", schema.ErrUnavailable, errNoNodes)
	}
	// If other jobs read more than this one, nodes have less room for second owners than this job alone would leave.
	// The layout uses the larger size, because a rank gets only blobs that its node caches. See Route.
	record, err := layout.NewRecord(max(roundWants(size), roundWants(v.Wants)), v.Nodes, ranks)
	if err != nil {
		return "", err
	}
	// Any reader can cause such a write, so the rate is limited.
	if r := m.claims.Reserve(); r.Delay() > 0 {
		after := r.Delay()
		r.Cancel()
		return "", &schema.LimitError{
			Limit: "cluster.claims", After: after,
			Message: fmt.Sprintf("this node has reserved layouts for %d epochs at once, and may for %d a second",
				claimsAtOnce, claimsPerSecond),
		}
	}
	// The layout is stored first, so that a claim never names a missing one.
	if err := m.opts.Shared.PutLayout(ctx, record.Name(), record.Marshal(), 12*m.opts.Keep); err != nil {
		return "", err
	}
	return m.opts.Shared.ReserveLayout(ctx, m.opts.Cluster, c.plan, c.epoch, record.Name(), m.opts.Keep)
}
