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
	Most   float64 `json:"most"` // requests a second at which the bucket refused one
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

// sum adds up the shares of several nodes in a limit.
type sum struct{ nodes, rate, most float64 }

// Shares returns the rates that this node allows itself under the limits where its
// requests wait, to be sent to the other nodes. The caller calls it about once a second.
// Before, each of these limits becomes the mean of its own rate and those of other nodes.
// So a node that was refused shares its decrease with the others, and takes part in their
// increase. All nodes end with about the same rate without any of them knowing the total.
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
			others[s.key()] = sum{o.nodes + 1, o.rate + s.Rate, o.most + s.Most}
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
					list = append(list, Share{of.url, prefix, key.class, l.rate, l.most})
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

// evenLocked sets the limit to the mean of its own rate and those of other nodes. A node
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
	case l.wantsLocked(now):
		l.rate = (l.rate + others.rate) / (others.nodes + 1)
		l.most = (l.most + others.most) / (others.nodes + 1)
		l.grantLocked(now)
	}
}
