package members

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"bowstring/schema"
)

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
