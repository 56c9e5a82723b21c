package object

import (
	"slices"
	"strings"
	"time"
)

// Share is the rate that a node allows itself under a limit. Nodes that use the same
// bucket send their shares to each other.
type Share struct {
	Bucket string  `json:"bucket"`
	Prefix string  `json:"prefix,omitempty"`
	Class  string  `json:"class"`
	Rate   float64 `json:"rate"` // requests a second
	Most   float64 `json:"most"` // requests a second at the last decrease
	// Fell is how many milliseconds ago the limit fell because more was refused than is
	// tolerated. 0: it did not in the last 10 s.
	Fell int64 `json:"fell_ms,omitzero"`
}

// shareKey names the limit that a share belongs to.
type shareKey struct{ bucket, prefix, class string }

func (s *Share) key() shareKey { return shareKey{s.Bucket, s.Prefix, s.Class} }

// heard is the last message with shares of a node, and the time of its arrival.
type heard struct {
	at     time.Time
	shares []Share
}

const (
	// wantsFor is how long a node counts as using a limit after its requests last waited
	// there. heardFor is how long the shares of a node are valid. Nodes send them each
	// second, so several may be lost.
	wantsFor = 5 * time.Second
	heardFor = 10 * time.Second
	// followed is how much later than a node's own decrease another node's must be for the
	// node to follow it. Nodes that fall because of the same refusals fall once.
	followed = 2 * time.Second
	// maxHeard bounds the nodes whose shares are stored, and maxShares the shares of
	// each.
	maxHeard  = 4096
	maxShares = 1024
)

// Hear stores the shares of another node, in place of those that it sent before. No
// shares means that the node has gone.
func (b *Budget) Hear(node any, shares []Share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(shares) == 0 {
		delete(b.heard, node)
		return
	}
	if _, known := b.heard[node]; !known && len(b.heard) >= maxHeard {
		return
	}
	b.heard[node] = heard{time.Now(), slices.Clone(shares[:min(len(shares), maxShares)])}
}

// sum adds up the shares of several nodes in a limit, and has the last time at which one
// of them fell.
type sum struct {
	nodes, rate, most float64
	fell              time.Time
}

func (o *sum) add(s *Share, heard time.Time) {
	o.nodes++
	o.rate += s.Rate
	o.most += s.Most
	if s.Fell <= 0 || s.Fell > heardFor.Milliseconds() {
		return
	}
	if fell := heard.Add(-time.Duration(s.Fell) * time.Millisecond); fell.After(o.fell) {
		o.fell = fell
	}
}

// Shares returns the rates that this node allows itself under the limits where its
// requests wait, to be sent to the other nodes. The caller calls it about once a second.
// Before, each of these limits becomes the mean of its own rate and those of other nodes.
// So a node that was refused shares its decrease with the others, and takes part in their
// increase. All nodes end with about the same rate without any of them knowing the total.
//
// If a node's limit falls because more was refused than is tolerated, those of the others
// fall too. If each node fell by itself, the rest would keep the bucket at its limit, no
// node would see it refuse less, and as much as is tolerated would be refused all the time.
func (b *Budget) Shares() []Share {
	now := time.Now()
	others := map[shareKey]sum{}
	b.mu.Lock()
	for node, h := range b.heard {
		if now.Sub(h.at) > heardFor {
			delete(b.heard, node)
			continue
		}
		for i := range h.shares {
			s := &h.shares[i]
			if !(s.Rate >= leastRate && s.Rate <= mostShared && s.Most >= leastRate && s.Most <= mostShared) {
				continue // no rate that a node can have learned
			}
			o := others[s.key()]
			o.add(s, h.at)
			others[s.key()] = o
		}
	}
	buckets := make([]*budgeted, 0, len(b.buckets))
	for _, of := range b.buckets {
		buckets = append(buckets, of)
	}
	b.mu.Unlock()
	var list []Share
	for _, of := range buckets {
		of.mu.Lock()
		of.divideLocked(others, now)
		for class := range of.limits {
			for prefix, l := range of.limits[class] {
				key := shareKey{of.url, prefix, l.class.String()}
				if l.evenLocked(others[key], now); l.rate > 0 && l.wantsLocked(now) {
					share := Share{of.url, prefix, key.class, l.rate, l.most, 0}
					if past := now.Sub(l.fell); past < heardFor {
						share.Fell = max(past.Milliseconds(), 1)
					}
					list = append(list, share)
				}
			}
		}
		of.mu.Unlock()
	}
	return list
}

// mostShared bounds the rates of another node that are accepted.
const mostShared = 1e7

// wantsLocked reports whether requests wait here, or have waited within wantsFor.
func (l *limit) wantsLocked(now time.Time) bool {
	return l.queue.len > 0 || now.Sub(l.waited) < wantsFor
}

// divideLocked gives a path below a limit of this node a limit of its own if other nodes
// have one for that path. Otherwise this node would keep slowing down keys that the
// bucket does not limit.
func (b *budgeted) divideLocked(others map[shareKey]sum, now time.Time) {
	for key, o := range others {
		if key.bucket != b.url || key.prefix == "" || strings.Count(key.prefix, "/") > mostDepth {
			continue
		}
		for class, limits := range b.limits {
			if key.class != Class(class).String() || limits[key.prefix] != nil || len(limits) >= mostLimits {
				continue
			}
			if l := b.findLocked(Class(class), key.prefix); l.rate > 0 {
				l.divideLocked(key.prefix, o.rate/o.nodes, o.most/o.nodes, now)
			}
		}
	}
}

// evenLocked sets the limit to the mean of its own rate and those of other nodes, or lets
// it fall as that of another node fell. A node
// without a limit, which nothing was refused to yet, takes over theirs if it sends more
// than they do.
func (l *limit) evenLocked(others sum, now time.Time) {
	if others.nodes == 0 {
		return
	}
	l.movedLocked(now)
	switch {
	case l.rate == 0 && len(l.of.limits[l.class]) > 1: // only paths below it are limited here
	case l.rate == 0:
		if mean := others.rate / others.nodes; l.served.rate(now) > mean {
			l.rate, l.most, l.guessed = mean, others.most/others.nodes, false
			l.cut, l.grown, l.down, l.refused = leastCut, period, now, now
		}
	case !l.wantsLocked(now):
	case others.fell.After(l.down.Add(followed)):
		// The mean comes in the next second, when the shares of all are those after the fall.
		l.downLocked(mostCut, now)
	default:
		l.rate = (l.rate + others.rate) / (others.nodes + 1)
		l.most = (l.most + others.most) / (others.nodes + 1)
		l.grantLocked(now)
	}
}
