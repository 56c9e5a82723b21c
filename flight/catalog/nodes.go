package catalog

import (
	"context"

	"bowstring/fetch"
	"bowstring/schema"
)

// Nodes is what other nodes of the cluster get, which have proven what they are: blobs by their keys, beyond the rules. A
// node keeps the rules for its own callers before it asks others.
type Nodes struct{ engine *fetch.Engine }

// Nodes returns what other nodes get.
func (s *Source) Nodes() Nodes { return Nodes{s.engine} }

// NewRequester reads blobs for a node.
func (n Nodes) NewRequester(answer func(fetch.Answer)) *fetch.Requester {
	return n.engine.NewRequester(answer)
}

// Follow follows the streams of a node.
func (n Nodes) Follow() *fetch.Follower { return n.engine.Follow() }

// Open opens a job for a node: it has asked the rules for its caller.
func (n Nodes) Open(ctx context.Context, req schema.Request) (*fetch.Job, error) {
	return n.engine.Open(ctx, req)
}

// Warm fills the spill with this node's part of a job.
func (n Nodes) Warm(ctx context.Context, job *fetch.Job, progress func(fetch.WarmProgress)) error {
	return n.engine.Warm(ctx, job, progress)
}
