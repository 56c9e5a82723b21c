package cluster

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"bowstring/fetch/members"
)

const (
	usualSettle = 10 * time.Second
	usualQuiet  = 3 * time.Second
	// LeastHandover is how long it takes to hand over, however little: until all know that the node leaves, and nobody
	// wants more.
	LeastHandover = usualSettle + usualQuiet
)

// Server is what serves the streams of a node that drains: see flight.Server.
type Server interface {
	Leave(locations func() []string)
	Return()
	WaitStreams(ctx context.Context) (left int)
}

// Drain is how a node leaves its cluster.
type Drain struct {
	Node    string
	Members *members.Members
	Server  Server
	// Handed is what others have taken over of this node's cache; nil if it has none that they know of.
	Handed func() (blobs, bytes int64)
	// Held is how many bytes the cache has, Jobs whether one runs that has a use for them.
	Held func() int64
	Jobs func() bool
	// Most is how many bytes are handed over at most; 0 for all.
	Most int64
	// Settle is after how long all others know that the node leaves. Default 10 s: they read the members every 6.
	Settle time.Duration
	// Quiet is after how long without a blob that was taken over nobody is taken to want more. Default 3 s.
	Quiet time.Duration
	// Every is how often that is looked at. Default 250 ms.
	Every  time.Duration
	Logger *slog.Logger
}

// ErrStays is the cause of a context that ends as the node is to stay.
var ErrStays = errors.New("the node stays")

// Run has the node leave: it owns nothing from now on, its streams move to other nodes, and the new owners of what it
// holds take over, soonest used first, what their jobs want. It returns when nothing runs and nobody wants more, or
// with ctx's cause; the caller ends the node, unless that is ErrStays: then all is as before. A node that is alone
// keeps its streams, which have nowhere to go.
func (d Drain) Run(ctx context.Context) error {
	d.Settle, d.Quiet, d.Every = cmp.Or(d.Settle, usualSettle), cmp.Or(d.Quiet, usualQuiet),
		cmp.Or(d.Every, 250*time.Millisecond)
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	began := time.Now()
	state := members.Draining{Since: began.UTC()}
	d.look(&state)
	said := state // the members keep it
	if err := d.Members.SetDraining(ctx, &said); err != nil {
		d.Logger.WarnContext(ctx, "other nodes are not told yet that this one leaves", "error", err)
	}
	if len(d.locations()) == 0 {
		return nil
	}
	d.Server.Leave(d.locations)
	d.Logger.InfoContext(ctx, "this node leaves its cluster: streams move, and others take over what it holds", "held",
		state.Held)
	tick := time.NewTicker(d.Every)
	defer tick.Stop()
	last, lastBytes := began, state.Bytes
	for {
		d.look(&state)
		now := time.Now()
		if state.Bytes != lastBytes {
			last, lastBytes = now, state.Bytes
		}
		pays := d.Handed != nil && d.Jobs() && state.Held > 0 && (d.Most == 0 || state.Bytes < d.Most)
		if state.Streams == 0 && (!pays || now.Sub(began) >= d.Settle && now.Sub(last) >= d.Quiet) {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			cause := context.Cause(ctx)
			if errors.Is(cause, ErrStays) {
				d.stay(context.WithoutCancel(ctx))
			}
			return cause
		}
		copied := state
		if err := d.Members.SetDraining(ctx, &copied); err != nil && ctx.Err() == nil {
			d.Logger.DebugContext(ctx, "how far the node is, is told later", "error", err)
		}
	}
	state.Done = true
	_ = d.Members.SetDraining(ctx, &state)
	d.Logger.InfoContext(ctx, "this node has left its cluster", "handed_blobs", state.Blobs, "handed_bytes",
		state.Bytes, "seconds", time.Since(began).Seconds())
	return nil
}

// look sees how far the node is.
func (d Drain) look(state *members.Draining) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	state.Streams = d.Server.WaitStreams(over)
	if d.Handed != nil {
		state.Blobs, state.Bytes = d.Handed()
		state.Held = d.Held()
	}
}

// stay undoes it.
func (d Drain) stay(ctx context.Context) {
	d.Server.Return()
	if err := d.Members.SetDraining(ctx, nil); err != nil {
		d.Logger.WarnContext(ctx, "other nodes are not told yet that this one stays", "error", err)
	}
	d.Logger.InfoContext(ctx, "this node stays in its cluster")
}

// locations are where streams can go on.
func (d Drain) locations() []string {
	var list []string
	for _, n := range d.Members.View().Nodes {
		if n.ID != d.Node && n.Address != "" {
			list = append(list, n.Address)
		}
	}
	return list
}
