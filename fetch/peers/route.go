package peers

import (
	"context"

	"bowstring/schema"
)

// Directory says how a node comes by blobs. It is safe for concurrent use.
type Directory interface {
	// Route says how this node comes by a blob. It must not block or allocate: it is asked
	// for every blob, with a lock held. What it returns is not to be changed, and may be used
	// for as long as one likes.
	Route(key schema.Key) Route
}

// Mine is a Directory that knows without a route whether this node keeps what pays of blobs like one, or asks nobody
// for it. Who looks ahead asks that of all rows of a job.
type Mine interface {
	Mine(key schema.Key) bool
}

// Route says how a node comes by blobs.
type Route struct {
	// Ask are the nodes to ask, the nearest first; none where this node reads from the store.
	Ask []string
	// Near is how many of them, from the first on, are as near as each other: the one that has least to
	// do is asked.
	Near int
	// Keep says that this node keeps what pays of such blobs: it owns them, first or second, or acts for its zone. It
	// asks others for what they have; whoever asks it, it may ask on for.
	Keep bool
	// Spare says that what it keeps of such blobs one near keeps too, who has it from the store.
	Spare bool
	// Held says that those to ask are to answer from their caches alone: they have owned the blob and are leaving.
	Held bool
}

// onward reports whether a node with this route may ask another one for a blob that it was asked for itself. Who is
// asked by a keeper asks nobody but those that are leaving, and they ask nobody: so no blob is asked for in a circle,
// whatever the views.
func (r Route) onward(asked bool) bool { return r.Keep && len(r.Ask) > 0 && (r.Held || asked) }

// loanKey marks the context of a read for another node.
type loanKey struct{}

// WithLoan returns a context for a read that another node has asked for.
func WithLoan(ctx context.Context) context.Context { return context.WithValue(ctx, loanKey{}, true) }

// Onward reports whether another node may be asked for a blob that this one was asked for itself; asked says
// whether who asks takes it for one that acts for others: see [Ask.Onward].
func (t *Tier) Onward(key schema.Key, asked bool) bool {
	return t.opts.Directory.Route(key).onward(asked)
}

// Astray reports whether this node has nothing to do with blobs of a key: who takes it for one that acts for others has
// another view, as happens for some seconds when a job begins.
func (t *Tier) Astray(key schema.Key) bool {
	r := t.opts.Directory.Route(key)
	return !r.Keep && len(r.Ask) > 0
}

// Mine reports whether this node is one that keeps blobs of a key.
func (t *Tier) Mine(key schema.Key) bool {
	if t.mine != nil {
		return t.mine.Mine(key)
	}
	r := t.opts.Directory.Route(key)
	return r.Keep || len(r.Ask) == 0
}

// Spare reports whether what this node keeps of blobs of a key is kept near by, too, by who has it from the store.
func (t *Tier) Spare(key schema.Key) bool { return t.opts.Directory.Route(key).Spare }

// choose returns a node of a route that can be asked for a blob: of the near ones, that with least under way.
func (t *Tier) choose(r Route, ref schema.BlobRef) (*node, error) {
	var best *node
	var least int64
	for i, name := range r.Ask {
		if best != nil && i >= max(r.Near, 1) {
			break
		}
		n, err := t.node(name)
		if err != nil {
			return nil, err
		}
		if !n.usable() || !n.vouches(ref) {
			continue
		}
		if load := n.pending.Load(); best == nil || load < least {
			best, least = n, load
		}
	}
	if best == nil || !best.admit() {
		return nil, errNobody
	}
	return best, nil
}
