package object

import (
	"slices"
	"strings"
	"time"
)

// Share is what a node allows itself of a limit, as it tells the other nodes that use the bucket.
type Share struct {
	Bucket string  `json:"bucket"`
	Prefix string  `json:"prefix,omitempty"`
	Class  string  `json:"class"`
	Rate   float64 `json:"rate"`
	Most   float64 `json:"most"`
}

// shareKey is which limit a share is of.
type shareKey struct{ bucket, prefix, class string }

func (s *Share) key() shareKey { return shareKey{s.Bucket, s.Prefix, s.Class} }

// heard is the shares that a node sent last, and when they came.
type heard struct {
	at     time.Time
	shares []Share
}

const (
	// wantsFor is how long a node still wants some of a limit after its requests last waited there, and heardFor how long
	// the shares that it sent count.
	wantsFor = 5 * time.Second
	heardFor = 10 * time.Second
	// maxHeard bounds the nodes whose shares are kept, and maxShares the shares of each.
	maxHeard  = 4096
	maxShares = 1024
)

// Hear takes in what another node allows itself, in the place of what it sent before; nil where it is gone.
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

// sum adds up what several nodes allow themselves.
type sum struct{ nodes, rate, most float64 }

// Shares returns what this node allows itself of the limits at which its requests wait, for the other nodes to hear. It is
// called each second or so. Before, each of these limits becomes the mean of it and of those of other nodes: a node that
// is refused goes down, and all take their part of that and of what the others go up.
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
			if !(s.Rate >= leastRate && s.Rate <= mostTold && s.Most >= leastRate && s.Most <= mostTold) {
				continue // no number that a node learns
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

// mostTold bounds the rates of another node that are believed.
const mostTold = 1e7

// wantsLocked reports whether requests wait here, or did of late.
func (l *limit) wantsLocked(now time.Time) bool {
	return l.queue.len > 0 || now.Sub(l.waited) < wantsFor
}

// divideLocked has what lies below paths have limits of their own for which other nodes have some, where this one has one
// limit for more than that.
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

// evenLocked has the limit be the mean of it and of those of other nodes. A node without a limit, which was refused nothing
// yet, has theirs if it would take more.
func (l *limit) evenLocked(others sum, now time.Time) {
	if others.nodes == 0 {
		return
	}
	l.movedLocked(now)
	switch {
	case l.rate == 0 && len(l.of.limits[l.class]) > 1: // this node knows better: what lies below some path is refused
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
