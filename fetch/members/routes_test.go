package members_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/internal/memshared"
	"bowstring/schema"
)

// zoned starts a cluster with nodes in each zone, all of which see each other.
func zoned(t *testing.T, zones, each int, wants int64) map[string]*members.Members {
	t.Helper()
	s := memshared.New()
	all := map[string]*members.Members{}
	for i := range zones * each {
		n := node(fmt.Sprintf("n%02d", i))
		n.Zone = fmt.Sprint("z", i%zones)
		all[n.ID] = member(t, s)
		if err := all[n.ID].Start(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		if wants > 0 {
			if err := all[n.ID].SetWants(map[string]int64{"d@1": wants}); err != nil {
				t.Fatal(err)
			}
			if err := all[n.ID].SetDraining(t.Context(), &members.Draining{}); err != nil { // published at once
				t.Fatal(err)
			}
			if err := all[n.ID].SetDraining(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, m := range all {
		if _, err := m.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// caches simulates a cluster from routes alone: each node caches whatever its routes allow; it counts reads and
// transfers.
type caches struct {
	t       *testing.T
	members map[string]*members.Members
	held    map[string]map[schema.BlobRef]bool
	zone    map[string]string
	store   int // reads of the store
	moved   int // transfers between nodes
	crossed map[schema.BlobRef]map[string]int
}

// get makes a node get a blob, with hops nodes between it and the store.
func (c *caches) get(rng *rand.Rand, id string, ref schema.BlobRef, forPeer, forward bool, depth int) {
	if depth > 3 {
		c.t.Fatalf("blob %s is asked for in a circle", ref.Key)
	}
	if c.held[id][ref] {
		return
	}
	r := c.members[id].Route(ref)
	if len(r.Ask) == 0 || forPeer && (!r.Keep || !r.Held && !forward) {
		c.store++
	} else {
		who := r.Ask[rng.IntN(max(r.Near, 1))]
		if slices.Contains(r.Ask, id) {
			c.t.Fatalf("node %s asks itself", id)
		}
		c.get(rng, who, ref, true, !r.Keep, depth+1)
		c.moved++
		if c.zone[who] != c.zone[id] {
			if c.crossed[ref] == nil {
				c.crossed[ref] = map[string]int{}
			}
			c.crossed[ref][c.zone[id]]++
		}
	}
	if r.Keep {
		c.held[id][ref] = true
	}
}

// Every node reads every blob several times. Each blob is read from the store once, enters each zone other than its
// owner's once, and is never requested in a circle.
func TestZones(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const blobs, epochs = 2000, 3
	for _, test := range []struct {
		zones, each int
		wants       int64
	}{{1, 4, 0}, {2, 2, 0}, {3, 4, 0}, {4, 4, 0}, {2, 3, 1 << 30}, {1, 6, 1 << 30}} {
		all := zoned(t, test.zones, test.each, test.wants)
		c := &caches{t: t, members: all, held: map[string]map[schema.BlobRef]bool{}, zone: map[string]string{},
			crossed: map[schema.BlobRef]map[string]int{}}
		var ids []string
		for id, m := range all {
			ids = append(ids, id)
			c.held[id] = map[schema.BlobRef]bool{}
			for _, n := range m.View().Nodes {
				c.zone[n.ID] = n.Zone
			}
		}
		slices.Sort(ids)
		refs := make([]schema.BlobRef, blobs)
		for i := range refs {
			refs[i].Sum = 1
			for k := range refs[i].Key {
				refs[i].Key[k] = byte(rng.Uint32())
			}
		}
		for range epochs {
			for _, i := range rng.Perm(blobs) {
				for _, k := range rng.Perm(len(ids)) {
					c.get(rng, ids[k], refs[i], false, false, 0)
				}
			}
		}
		crossings := 0
		for ref, zones := range c.crossed {
			for zone, n := range zones {
				crossings += n
				if n > 1 {
					t.Fatalf("blob %s came into zone %s %d times", ref.Key, zone, n)
				}
			}
		}
		if c.store != blobs || crossings != blobs*(test.zones-1) {
			t.Errorf("%d zones of %d nodes: %d reads of the store of %d blobs, %d crossings, want %d", test.zones,
				test.each, c.store, blobs, crossings, blobs*(test.zones-1))
		}
		copies := 0
		for _, h := range c.held {
			copies += len(h)
		}
		want := float64(test.zones)
		if test.wants > 0 {
			want = max(want, 2)
		}
		if got := float64(copies) / blobs; got > want*1.01 || got < want*.98 {
			t.Errorf("%d zones of %d nodes: %.3f copies of each blob, want %g", test.zones, test.each, got, want)
		}
		t.Logf("%d zones of %d nodes, %d bytes wanted: %d copies of %d blobs, %d moved, %d between zones", test.zones,
			test.each, test.wants, copies, blobs, c.moved, crossings)
	}
}

// Second owners follow from what jobs read as soon as a node knows the jobs, before leases are read.
func TestWantsAtOnce(t *testing.T) {
	all := zoned(t, 1, 2, 0)
	kept := func() (n int) {
		for slot := range layout.Slots {
			if all["n00"].Route(layout.RefIn(uint16(slot))).Keep {
				n++
			}
		}
		return n
	}
	before := kept()
	for _, step := range []struct {
		wants map[string]int64
		least int
	}{{map[string]int64{"d@1": 1 << 30}, layout.Slots * 99 / 100}, {map[string]int64{"d@1": 1 << 31}, before}} {
		if err := all["n00"].SetWants(step.wants); err != nil {
			t.Fatal(err)
		}
		if n := kept(); n < step.least || n > max(step.least, before)*102/100 {
			t.Errorf("the node keeps %d slots of jobs that read %v, %d before; want %d", n, step.wants, before,
				step.least)
		}
	}
	if before > layout.Slots*51/100 {
		t.Errorf("the node keeps %d slots with a job that was not reported", before)
	}
}

// A node caches the slots that it owns by a reserved layout, first or second, also while another job reads more.
func TestOwnersKeep(t *testing.T) {
	for _, wants := range []int64{1 << 30, 3 << 30, 4 << 30} { // with caches of 4 GiB
		all := zoned(t, 1, 4, wants)
		l, err := all["n00"].Reserve(t.Context(), "p", 0, 1<<30, nil)
		if err != nil {
			t.Fatal(err)
		}
		seconds := 0
		for slot := range layout.Slots {
			o := l.Owners(uint16(slot))
			for _, i := range []int16{o.First, o.Second} {
				if i == layout.None {
					continue
				}
				if id := l.Node(int(i)).ID; !all[id].Route(layout.RefIn(uint16(slot))).Keep {
					t.Fatalf("%d bytes wanted: node %s owns slot %d, %+v, and does not keep it", wants, id, slot, o)
				}
			}
			if o.Second != layout.None {
				seconds++
			}
		}
		if (seconds > 0) != (wants < 4<<30) {
			t.Errorf("%d bytes wanted: %d slots have second owners", wants, seconds)
		}
	}
}

// The nodes that cache for a zone have about equal shares. If one leaves, only its share moves.
func TestZoneCachesAreEven(t *testing.T) {
	nodes := func(skip int) layout.Record {
		var list []layout.Node
		for i := range 12 {
			n := node(fmt.Sprintf("n%02d", i))
			n.Zone = fmt.Sprint("z", i%2)
			if i != skip {
				list = append(list, n)
			}
		}
		r, err := layout.NewRecord(int64(len(list))<<30-1<<24, list, nil) // no room for second owners
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	zoneCaches := func(r layout.Record) map[int]string {
		l, err := layout.New(r)
		if err != nil {
			t.Fatal(err)
		}
		found := map[int]string{}
		for slot, k := range l.ZoneCaches(l.Zones()[0]) {
			if l.Zones()[l.Owners(uint16(slot)).First] != l.Zones()[0] {
				found[slot] = l.Node(int(k)).ID
			}
		}
		return found
	}
	all, fewer := zoneCaches(nodes(-1)), zoneCaches(nodes(4))
	counts := map[string]int{}
	moved := 0
	for slot, id := range all {
		counts[id]++
		if now, ok := fewer[slot]; ok && id != "n04" && now != id {
			moved++
		}
	}
	for id, n := range counts {
		if mean := len(all) / 6; n < mean*9/10 || n > mean*11/10 {
			t.Errorf("node %s acts for %d slots of %d", id, n, len(all))
		}
	}
	if moved > len(all)/1000 { // where there was room for second owners, as capacities are whole slots
		t.Errorf("%d slots of %d have another zone cache, among nodes that stay", moved, len(all))
	}
}
