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

// Route says how a node comes by blobs, as peers.Route does.
type Route struct {
	Ask   []string // the nodes to ask, the nearest first; none where this node reads from the store
	Near  int      // how many of them are as near as each other
	Keep  bool     // this node keeps what pays of such blobs
	Spare bool     // of these blobs one near keeps what there is, too
	Held  bool     // those to ask are leaving: they answer from their caches alone
}

// directory is how this node comes by blobs, in a view: what the tier of the other nodes asks, ready to be looked up.
type directory struct {
	view   View           // that it was made of
	now    *layout.Layout // who owns what; nil where nobody does
	slots  []uint16       // by slot, its index in routes
	routes []Route        // all that there are: some hundred
	mine   []uint64       // a bit for each slot of whose blobs this node keeps what pays, or for which nobody is asked
	second []int64        // by node of now, of how many slots it is the second owner
}

// newDirectory makes the directory of a view in which self is one of the nodes, or leaves.
//
//   - The first owner of a slot reads from the store. Each node keeps as much as it can, so that the whole of the
//     caches is owned once.
//   - Where the jobs that run read less than all caches hold, slots have second owners, in as many as there is room for
//     ([layout.New]). They ask the first.
//   - In each other zone one node acts for the zone ([layout.Layout.Keepers]): it alone asks the first owner, and keeps
//     what pays, so that a blob comes into a zone once.
//   - All others ask the owners in their zone, whichever has less to do, or who acts for it.
//   - Of what a node that leaves has owned, the owner that follows asks it first, for what it holds.
func newDirectory(v View, self string, compute func(layout.Record) (*layout.Layout, error)) (*directory, error) {
	d := &directory{view: v, slots: make([]uint16, layout.Slots), mine: make([]uint64, layout.Slots/64)}
	now, err := layoutOf(v.Nodes, 0, compute)
	if err != nil || now == nil {
		d.routes = []Route{{Keep: true}} // nobody to ask
		for i := range d.mine {
			d.mine[i] = math.MaxUint64
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
	var keepers []int16
	zone := int32(-1)
	if member {
		zone = now.Zones()[at]
		keepers = now.Keepers(zone)
	} else {
		at = layout.None
	}
	numbers := map[routeOf]uint16{}
	for slot := range layout.Slots {
		r := routeOf{first: now.Owners(uint16(slot)).First, second: layout.None, keeper: layout.None,
			donor: layout.None}
		if o := spare.Owners(uint16(slot)); v.Wants > 0 && o.Second != layout.None {
			if r.second = o.Second; o.First != r.first { // where capacities differ
				r.second = o.First
			}
			d.second[r.second]++
		}
		if member {
			z := now.Zones()
			if r.keeper = keepers[slot]; r.first != layout.None && r.second != layout.None && z[r.second] == zone &&
				z[r.first] != zone {
				r.keeper = r.second // one is enough
			}
		}
		if before != nil && int(r.first) == at {
			if o := before.Owners(uint16(slot)).First; o != layout.None && before.Node(int(o)).ID != self {
				if _, stays := now.Index(before.Node(int(o)).ID); !stays {
					r.donor = o
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
			d.mine[slot>>6] |= 1 << (slot & 63)
		}
	}
	return d, nil
}

// layoutOf is the layout of nodes that keep so many bytes, 0 for as much as they can; nil of none.
func layoutOf(nodes []layout.Node, size int64, compute func(layout.Record) (*layout.Layout,
	error)) (*layout.Layout, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	if size == 0 {
		for _, n := range nodes {
			size += min(n.Capacity, math.MaxInt64-size) // what a lease says may be anything
		}
		size -= size / layout.Slots * int64(len(nodes)) // slots are whole: each node has room for up to one less
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

// Now is who owns what, as Route goes by it; nil before Start.
func (m *Members) Now() *layout.Layout {
	d := m.directory.Load()
	if d == nil {
		return nil
	}
	return d.now
}

// Share is what a node owns, as parts of all keys.
type Share struct {
	Node   string  `json:"node"`
	Share  float64 `json:"share"`            // that it reads from the store for all, where everything fits
	Second float64 `json:"second,omitempty"` // that it keeps beside their first owner, as there is room
}

// Shares are what the nodes own, as Route goes by it; none before Start.
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

// routeOf is what the route of a slot follows from: nodes by their indexes, the donor's among those before.
type routeOf struct{ first, second, keeper, donor int16 }

// route is that of the node at an index, None if it owns nothing, in a zone.
func (r routeOf) route(now, before *layout.Layout, at int, zone int32) Route {
	id := func(i int16) string { return now.Node(int(i)).ID }
	switch {
	case r.first == layout.None:
		return Route{}
	case int(r.first) == at && r.donor != layout.None:
		return Route{Keep: true, Held: true, Ask: []string{before.Node(int(r.donor)).ID}}
	case int(r.first) == at:
		return Route{Keep: true}
	case at != layout.None && (int(r.second) == at || int(r.keeper) == at):
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
	if len(list) == 0 && r.keeper != layout.None {
		list = append(list, id(r.keeper))
		near++
	}
	for _, i := range []int16{r.first, r.second} { // when those are gone
		if i != layout.None && !slices.Contains(list, id(i)) {
			list = append(list, id(i))
		}
	}
	if near == 0 {
		near = len(list)
	}
	return Route{Ask: list, Near: near}
}

// Route implements peers.Directory. It goes by the view, neither blocks nor allocates.
func (m *Members) Route(ref schema.BlobRef) Route {
	d := m.directory.Load()
	if d == nil {
		return Route{Keep: true}
	}
	return d.routes[d.slots[layout.SlotOf(ref)]]
}

// Mine implements peers.Mine: it is Route where only that matters, and reads eight kilobytes.
func (m *Members) Mine(ref schema.BlobRef) bool {
	d, slot := m.directory.Load(), layout.SlotOf(ref)
	return d == nil || d.mine[slot>>6]>>(slot&63)&1 != 0
}

// direct has Route go by the view as it is now. The first use of a view takes some milliseconds.
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

// Self is this node as the others are to know it; the zero Node before Start.
func (m *Members) Self() layout.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.self == nil {
		return layout.Node{}
	}
	return m.self.Node
}

// roundWants rounds up to a power of two or one and a half times that, so that owners do not change with every job.
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
	// keptLayouts is how many layouts are kept in memory, of 256 KiB each, and keptClaims how many claims.
	keptLayouts = 16
	keptClaims  = 4096
	// A claim is a write that a reader makes: a row of some 150 bytes, kept for Options.Keep. A node makes so many at
	// once, and so many a second in the long run: 2.6 million in 30 days.
	claimsAtOnce    = 1000
	claimsPerSecond = 1
)

// layouts are those that were used of late, and claims that are known: neither ever changes.
type layouts struct {
	mu     sync.Mutex
	byName map[string]*layout.Layout
	names  []string // of byName, the oldest first
	claims map[claim]string
}

// claim is an epoch of a plan.
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
		l.claims = map[claim]string{} // they are in the store
	}
	l.claims[c] = name
}

// Layout implements resolve.Layouts: a layout by its name.
func (m *Members) Layout(ctx context.Context, name string) (*layout.Layout, error) {
	if l := m.layouts.get(name); l != nil {
		return l, nil
	}
	if l := layout.Lone(); l.Name() == name {
		return l, nil // of a ticket that a server gave out before it was in a cluster
	}
	b, err := m.opts.Shared.Layout(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("layout %s: %w", name, err)
	}
	record, err := layout.Parse(b)
	if err == nil && record.Name() != name {
		err = fmt.Errorf("its content has the name %s", record.Name())
	}
	if err != nil { // no mistake of the caller's
		return nil, fmt.Errorf("%w: layout %s: %s", schema.ErrDataLoss, name, err.Error())
	}
	l, err := m.opts.NewLayout(record)
	if err != nil {
		return nil, err
	}
	m.layouts.keep(l)
	return l, nil
}

// Reserve implements resolve.Layouts: the layout of an epoch of a plan. Where none was claimed, it is made of the
// view. Where the store is out of reach, there is no answer but an error: two nodes could give two.
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
	name, err := m.opts.Shared.ClaimLayout(ctx, m.opts.Cluster, c.plan, c.epoch, "", m.opts.Keep)
	if err != nil || name != "" {
		return name, err
	}
	v := m.View()
	if len(v.Nodes) == 0 {
		return "", fmt.Errorf("%w: %w", schema.ErrUnavailable, errNoNodes)
	}
	// Where other jobs read more, nodes keep fewer blobs twice than there is room for beside this one: what a node does
	// not keep, its ranks are not given. See Route.
	record, err := layout.NewRecord(max(roundWants(size), roundWants(v.Wants)), v.Nodes, ranks)
	if err != nil {
		return "", err
	}
	// Whoever may read makes a row by it: so there are not more of them than this.
	if r := m.claims.Reserve(); r.Delay() > 0 {
		after := r.Delay()
		r.Cancel()
		return "", &schema.LimitError{
			Limit: "cluster.claims", After: after,
			Message: fmt.Sprintf("this node has claimed layouts for %d epochs at once, and may for %d a second",
				claimsAtOnce, claimsPerSecond),
		}
	}
	// The layout first: a claim never names one that is not there.
	if err := m.opts.Shared.PutLayout(ctx, record.Name(), record.Marshal(), 12*m.opts.Keep); err != nil {
		return "", err
	}
	return m.opts.Shared.ClaimLayout(ctx, m.opts.Cluster, c.plan, c.epoch, record.Name(), m.opts.Keep)
}
