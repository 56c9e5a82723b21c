package admission

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// EgressLimits bound what a node sends to other nodes, in bytes per second. 0 is no limit.
type EgressLimits struct {
	All int64
	// Zones are limits for the nodes of a zone, by its name.
	Zones map[string]int64
}

// Egress counts what a node sends to other nodes, by node and zone, and admits more within its limits, fairly by
// tenant. It has no queue: if a request is refused, the requester reads the store. It is safe for concurrent use.
//
// Each limit is a token bucket that holds what a quarter of a second brings, and one blob may put it into debt. Each
// tenant that asked within the last second has a part of it by weight. While the bucket is more than half full no
// tenant is held to its part, so that unused parts are not lost. Below that, a tenant that has used up its part is
// refused.
type Egress struct {
	now func() time.Time

	mu    sync.Mutex
	all   egressWay
	zones map[string]*egressWay
	nodes map[string]*EgressNode
}

// egressWay is one limit. Egress.mu guards it.
type egressWay struct {
	rate    float64   // bytes per second; 0: no limit
	tokens  float64   // bytes that may be sent now; negative: debt
	at      time.Time // when the tokens were last refilled
	tenants map[string]*egressTenant
	sum     int64     // sum of the tenants' weights
	swept   time.Time // when inactive tenants were last dropped
}

// egressTenant is a tenant's part of one limit. Egress.mu guards it.
type egressTenant struct {
	tokens float64   // bytes that it may be sent while the bucket is less than half full; negative: debt
	weight int64     // as of its last request
	at     time.Time // of its last request
}

const (
	// egressBurst is how much a bucket holds, as a time at its rate.
	egressBurst = 250 * time.Millisecond
	// egressActive is how long a tenant that does not ask keeps its part.
	egressActive = time.Second
	// mostEgressNodes is how many nodes are counted by name; later ones are counted together, as "".
	mostEgressNodes = 4096
)

// EgressNode counts what was sent to a node.
type EgressNode struct {
	Node    string `json:"node"`
	Zone    string `json:"zone,omitempty"`
	Blobs   int64  `json:"blobs"`
	Bytes   int64  `json:"bytes"`
	Refused int64  `json:"refused"` // requests refused by a limit
	Handed  int64  `json:"handed"`  // of Blobs: taken over by the node because this one leaves
	// HandedBytes is the size of the blobs in Handed.
	HandedBytes int64 `json:"handed_bytes"`
}

// NewEgress returns an Egress with these limits.
func NewEgress(limits EgressLimits) *Egress {
	e := &Egress{now: time.Now, zones: map[string]*egressWay{}, nodes: map[string]*EgressNode{}}
	e.all.init(limits.All, e.now())
	for zone, rate := range limits.Zones {
		w := &egressWay{}
		w.init(rate, e.now())
		e.zones[zone] = w
	}
	return e
}

func (w *egressWay) init(rate int64, now time.Time) {
	w.rate, w.at, w.swept, w.tenants = float64(max(rate, 0)), now, now, map[string]*egressTenant{}
	w.tokens = w.burst()
}

func (w *egressWay) burst() float64 { return w.rate * egressBurst.Seconds() }

// Admit reports whether n bytes may be sent to a node on a tenant's account, and if so takes them from the buckets.
func (e *Egress) Admit(node, zone, tenant string, weight, n int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	ways := []*egressWay{&e.all, e.zones[zone]}
	for _, w := range ways {
		if !w.admits(tenant, max(weight, 1), now) {
			e.nodeLocked(node, zone).Refused++
			return false
		}
	}
	for _, w := range ways {
		w.take(tenant, n)
	}
	return true
}

// Sent counts blobs sent to a node. handed says that the node took them over.
func (e *Egress) Sent(node, zone string, blobs, bytes int64, handed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.nodeLocked(node, zone)
	n.Blobs += blobs
	n.Bytes += bytes
	if handed {
		n.Handed += blobs
		n.HandedBytes += bytes
	}
}

// nodeLocked returns the counters of a node, and makes them if needed. Names come from other
// nodes, so their number is bounded.
func (e *Egress) nodeLocked(name, zone string) *EgressNode {
	n := e.nodes[name]
	if n == nil && len(e.nodes) >= mostEgressNodes {
		name, zone = "", ""
		n = e.nodes[name]
	}
	if n == nil {
		n = &EgressNode{Node: name}
		e.nodes[name] = n
	}
	n.Zone = zone
	return n
}

// admits refills the bucket, and reports whether the tenant may take from it.
func (w *egressWay) admits(tenant string, weight int64, now time.Time) bool {
	if w == nil || w.rate == 0 {
		return true
	}
	passed := max(now.Sub(w.at), 0).Seconds()
	w.at = now
	w.tokens = min(w.tokens+passed*w.rate, w.burst())
	for _, t := range w.tenants {
		part := float64(t.weight) / float64(w.sum)
		t.tokens = min(t.tokens+passed*w.rate*part, w.burst()*part)
	}
	if now.Sub(w.swept) >= egressActive {
		w.swept = now
		maps.DeleteFunc(w.tenants, func(_ string, t *egressTenant) bool {
			gone := now.Sub(t.at) >= egressActive
			if gone {
				w.sum -= t.weight
			}
			return gone
		})
	}
	t := w.tenants[tenant]
	if t == nil {
		t = &egressTenant{}
		w.tenants[tenant] = t
	}
	w.sum += weight - t.weight
	t.weight, t.at = weight, now
	return w.tokens > 0 && (t.tokens > 0 || w.tokens > w.burst()/2)
}

// take takes bytes from the bucket and from the tenant's part. The part's debt is at most one burst, so that a tenant
// that used the parts of others does not pay for long.
func (w *egressWay) take(tenant string, n int64) {
	if w == nil || w.rate == 0 {
		return
	}
	w.tokens -= float64(n)
	t := w.tenants[tenant]
	t.tokens = max(t.tokens-float64(n), min(t.tokens, -w.burst()))
}

// Handed is what other nodes have taken over.
func (e *Egress) Handed() (blobs, bytes int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.nodes {
		blobs += n.Handed
		bytes += n.HandedBytes
	}
	return blobs, bytes
}

// EgressStats is what was sent to other nodes.
type EgressStats struct {
	Limit int64        `json:"limit,omitempty"` // bytes per second
	Nodes []EgressNode `json:"nodes"`           // by name
	Zones []EgressZone `json:"zones"`           // by name
}

// EgressZone is what was sent to the nodes of a zone.
type EgressZone struct {
	Zone    string `json:"zone"`
	Limit   int64  `json:"limit,omitempty"`
	Blobs   int64  `json:"blobs"`
	Bytes   int64  `json:"bytes"`
	Refused int64  `json:"refused"`
}

// Stats returns the counters since the Egress was made.
func (e *Egress) Stats() EgressStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := EgressStats{Limit: int64(e.all.rate), Nodes: []EgressNode{}, Zones: []EgressZone{}}
	zones := map[string]*EgressZone{}
	of := func(zone string) *EgressZone {
		z := zones[zone]
		if z == nil {
			z = &EgressZone{Zone: zone}
			zones[zone] = z
		}
		return z
	}
	for name, w := range e.zones {
		of(name).Limit = int64(w.rate)
	}
	for _, n := range e.nodes {
		st.Nodes = append(st.Nodes, *n)
		z := of(n.Zone)
		z.Blobs += n.Blobs
		z.Bytes += n.Bytes
		z.Refused += n.Refused
	}
	for _, z := range zones {
		st.Zones = append(st.Zones, *z)
	}
	slices.SortFunc(st.Nodes, func(a, b EgressNode) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(st.Zones, func(a, b EgressZone) int { return cmp.Compare(a.Zone, b.Zone) })
	return st
}
