package members

import (
	"math"

	"bowstring/fetch/layout"
	"bowstring/schema"
)

// directory is who owns what in a view: what peers.Directory asks, ready to be looked up.
type directory struct {
	layout *layout.Layout
	ask    map[layout.Owners][]string // nodes to ask, the first one first; none where this node is an owner
}

// newDirectory makes the directory of nodes, one of which is self. Each keeps as much as it can, and no blob is kept twice:
// nobody knows how much there is to keep.
func newDirectory(nodes []layout.Node, self string, compute func(layout.Record) (*layout.Layout, error)) (*directory, error) {
	var all int64
	for _, n := range nodes {
		all += min(n.Capacity, math.MaxInt64-all) // what a lease says may be anything
	}
	record, err := layout.NewRecord(all, nodes, nil)
	if err != nil {
		return nil, err
	}
	l, err := compute(record)
	if err != nil {
		return nil, err
	}
	d := &directory{layout: l, ask: map[layout.Owners][]string{}}
	at, _ := l.Index(self)
	zone := l.Zones()[at]
	for slot := range layout.Slots {
		o := l.Owners(uint16(slot))
		if _, ok := d.ask[o]; ok || o.First == layout.None || int(o.First) == at || int(o.Second) == at {
			continue
		}
		list := []string{l.Node(int(o.First)).ID}
		if o.Second != layout.None {
			list = append(list, l.Node(int(o.Second)).ID)
			if z := l.Zones(); z[o.First] != zone && z[o.Second] == zone { // the nearer one first
				list[0], list[1] = list[1], list[0]
			}
		}
		d.ask[o] = list
	}
	return d, nil
}

// Owners returns the nodes to ask for a blob, by their ids, as peers.Directory wants it: none if this node owns it, or
// nobody does. It goes by the view, neither blocks nor allocates.
func (m *Members) Owners(key schema.Key) []string {
	d := m.directory.Load()
	if d == nil {
		return nil
	}
	return d.ask[d.layout.Owners(layout.SlotOf(key))]
}

// Now is who owns what, as Owners goes by it; nil before Start.
func (m *Members) Now() *layout.Layout {
	d := m.directory.Load()
	if d == nil {
		return nil
	}
	return d.layout
}

// direct has Owners go by the view as it is now. The first use of a view takes some milliseconds.
func (m *Members) direct() error {
	v := m.View()
	if d := m.directory.Load(); d != nil && sameNodes(d.layout, v.Nodes) {
		return nil
	}
	d, err := newDirectory(v.Nodes, m.self.ID, m.opts.NewLayout)
	if err == nil {
		m.directory.Store(d)
	}
	return err
}

func sameNodes(l *layout.Layout, nodes []layout.Node) bool {
	if l.Nodes() != len(nodes) {
		return false
	}
	for i, n := range nodes {
		if l.Node(i) != n {
			return false
		}
	}
	return true
}
