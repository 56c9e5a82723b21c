package metrics

import (
	"slices"
	"strings"
)

// other is the label of what has none of its own. Names that could be taken for
// it, or are empty, are written in brackets.
const other = "other"

func labelOf(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD") // or the whole scrape would fail
	switch name {
	case other, "":
		return "(" + name + ")"
	}
	return name
}

// capped gives so many names a series of their own, and adds up the others. Who
// has one keeps it as long as it lives, or a counter would jump: the next to come
// gets a place that became free. Of one without, what was counted since it was
// seen last is added to the others', which so never falls.
//
// It is not safe for concurrent use.
type capped struct {
	most  int
	names map[string]*place // of those that live
	own   int               // of them, with a series
	rest  []float64         // counted by those without
}

// place is that of a name.
type place struct {
	own  bool
	seen []float64 // its counters when they were last added to the rest
	live bool
}

// item is a name with its counters, all of the same length, and its gauges.
type item struct {
	name             string
	counters, gauges []float64
	labels           []string // beside the name
}

// split says which items have series of their own, and what the others amount
// to: their gauges are of those that live, which are n.
func (c *capped) split(items []item, counters, gauges int) (own []item, rest item, n int) {
	if c.names == nil {
		c.names, c.rest = map[string]*place{}, make([]float64, counters)
	}
	for _, p := range c.names {
		p.live = false
	}
	for _, it := range items {
		if p := c.names[it.name]; p != nil {
			p.live = true
		}
	}
	for name, p := range c.names {
		if !p.live {
			if p.own {
				c.own--
			}
			delete(c.names, name)
		}
	}
	rest = item{name: other, gauges: make([]float64, gauges)}
	for _, it := range items {
		p := c.names[it.name]
		if p == nil {
			p = &place{own: c.own < c.most}
			if p.own {
				c.own++
			} else {
				p.seen = make([]float64, counters)
			}
			c.names[it.name] = p
		}
		if p.own {
			own = append(own, it)
			continue
		}
		n++
		for i, v := range it.counters {
			if v >= p.seen[i] {
				c.rest[i] += v - p.seen[i]
			} else { // it began anew
				c.rest[i] += v
			}
		}
		p.seen = slices.Clone(it.counters)
		for i, v := range it.gauges {
			rest.gauges[i] += v
		}
	}
	rest.counters = slices.Clone(c.rest)
	return own, rest, n
}
