package layout

// Keepers says which node of a zone acts for it, by slot: who owns a slot elsewhere is asked by that one alone, which
// keeps what pays for all of its zone. It is an index in the record; None where the zone has no node with a spill.
//
// An owner in the zone is its own keeper, the first before the second. Of a slot that is owned elsewhere, the
// keeper is the node of the zone that it is cheapest for, by the same weighted rendezvous as owners are found by,
// without quotas: so a node that comes or goes moves its part alone, and all nodes of the zone agree without a word.
func (l *Layout) Keepers(zone int32) []int16 {
	type candidate struct {
		node             int16
		seed, reciprocal uint64
	}
	var in []candidate
	for i, n := range l.record.Nodes {
		if l.zones[i] == zone && n.Capacity > 0 {
			in = append(in, candidate{int16(i), seedOf(n.ID), weightUnit / uint64(max(n.Weight, 1))})
		}
	}
	keepers := make([]int16, Slots)
	for slot := range keepers {
		o := l.owners[slot]
		switch {
		case o.First != None && l.zones[o.First] == zone:
			keepers[slot] = o.First
			continue
		case o.Second != None && l.zones[o.Second] == zone:
			keepers[slot] = o.Second
			continue
		}
		keepers[slot] = None
		seed, cheapest := seedOfSlot(slot), ^uint64(0)
		for _, c := range in {
			if price := cost(draw(seed, c.seed), c.reciprocal); price < cheapest {
				keepers[slot], cheapest = c.node, price
			}
		}
	}
	return keepers
}
