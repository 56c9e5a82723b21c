package catalog

import (
	"context"

	"bowstring/fetch"
	"bowstring/schema"
)

// Nodes is the data for authenticated nodes of the cluster: blobs by their keys, without a
// check of rules. The requesting node has checked the rules for its own caller.
type Nodes struct{ engine *fetch.Engine }

// Nodes returns the data for other nodes.
func (s *Source) Nodes() Nodes { return Nodes{s.engine} }

// NewRequester returns a reader of blobs for one node. It passes each result to answer,
// from any goroutine. The caller closes it.
func (n Nodes) NewRequester(answer func(fetch.Answer)) *fetch.Requester {
	return n.engine.NewRequester(answer)
}

// Follow returns a receiver for the progress of a node's streams. The caller closes it.
func (n Nodes) Follow() *fetch.Follower { return n.engine.Follow() }

// Open opens a job for a node, which has checked the rules for its caller.
func (n Nodes) Open(ctx context.Context, req schema.Request) (*fetch.Job, error) {
	return n.engine.Open(ctx, req)
}

// Warm reads this node's part of a job into the spill.
func (n Nodes) Warm(ctx context.Context, job *fetch.Job, progress func(fetch.WarmProgress)) error {
	return n.engine.Warm(ctx, job, progress)
}
