package command

import (
	"sync"

	"bowstring/cmd/bowstring/metrics"
	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/fetch/peers"
	"bowstring/flight"
)

// clusterFigures count what goes on between a node and others, by class. It is safe for concurrent use.
type clusterFigures struct {
	cluster, node string
	view          func() members.View
	layout        func() *layout.Layout
	tier          *peers.Tier // nil if no blobs are read from others
	lent          func() []flight.LentStats

	mu    sync.Mutex
	zones map[string]string // of all nodes that were ever there, or what they sent and got would jump between classes
}

// maxZones is of how many nodes the zone is known; of others it counts as another one.
const maxZones = 1 << 14

// clusterNow is what the node is in its cluster, nil if it is in none.
func (n *node) clusterNow() *metrics.Cluster {
	if n.figures == nil {
		return nil
	}
	return n.figures.now()
}

// now is what there is now.
func (f *clusterFigures) now() *metrics.Cluster {
	v, l := f.view(), f.layout()
	c := &metrics.Cluster{
		Name: f.cluster, Node: f.node, Members: len(v.Nodes), Read: v.At, Failed: v.Err != nil,
		Peers: map[string]metrics.Peers{}, Lent: map[string]metrics.Lent{},
	}
	if l != nil {
		c.View = l.Name()[:16]
		if at, ok := l.Index(f.node); ok {
			c.Share = float64(l.Owned(at)) / layout.Slots
		}
	}
	classOf, zone := f.classes(v.Nodes)
	c.Zone = zone
	if f.tier != nil {
		for _, p := range f.tier.Stats() {
			switch {
			case !p.Up:
				c.Down++
			case p.Silent:
				c.Silent++
			default:
				c.Up++
			}
			c.InFlight += int64(p.InFlight)
		}
		for name, p := range f.tier.Totals() {
			class := classOf(name)
			sum := c.Peers[class]
			c.Peers[class] = metrics.Peers{Asked: sum.Asked + p.Asked, Answered: sum.Answered + p.Answered,
				Bytes: sum.Bytes + p.Bytes, Refused: sum.Refused + p.Refused}
		}
	}
	for _, s := range f.lent() {
		class := classOf(s.Node)
		sum := c.Lent[class]
		c.Lent[class] = metrics.Lent{Blobs: sum.Blobs + s.Blobs, Bytes: sum.Bytes + s.Bytes,
			Refused: sum.Refused + s.Refused}
	}
	return c
}

// classes tells the class of a node. One that is in another zone than before keeps its class.
func (f *clusterFigures) classes(nodes []layout.Node) (classOf func(node string) string, own string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	zones := make(map[string]string, len(f.zones)+len(nodes))
	for name, zone := range f.zones {
		zones[name] = zone
	}
	for _, n := range nodes {
		if _, known := zones[n.ID]; !known && len(zones) < maxZones {
			zones[n.ID] = n.Zone
		}
	}
	f.zones = zones // replaced, never changed: it is read without the mutex
	own = zones[f.node]
	return func(node string) string {
		if zone, known := zones[node]; known && zone == own {
			return metrics.SameZone
		}
		return metrics.OtherZone
	}, own
}
