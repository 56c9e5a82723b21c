package members

import (
	"context"
	"time"

	"bowstring/fetch/layout"
)

// Shared is what the nodes of clusters share. It is safe for concurrent use. Errors wrap the
// sentinels of package schema.
type Shared interface {
	// PutLease writes the lease of a node. It lapses after ttl, unless it is written again.
	PutLease(ctx context.Context, cluster, id string, lease []byte, ttl time.Duration) error
	// Leases returns the leases that have not lapsed, by node.
	Leases(ctx context.Context, cluster string) (map[string][]byte, error)
	// RemoveLease removes the lease of a node.
	RemoveLease(ctx context.Context, cluster, id string) error
	// PutLayout keeps a layout by name for a time: what is kept for longer stays so.
	PutLayout(ctx context.Context, name string, record []byte, ttl time.Duration) error
	// Layout returns what was kept; schema.ErrNotFound if there is nothing.
	Layout(ctx context.Context, name string) ([]byte, error)
	// ClaimLayout returns which layout an epoch of a plan has: that which was claimed first,
	// and now the given one if none was. With name "" nothing is claimed, and "" is returned if
	// nothing was. It may be repeated where it has failed.
	ClaimLayout(ctx context.Context, cluster, plan string, epoch uint64, name string, ttl time.Duration) (string, error)
}

// lease is what a node says of itself, as JSON.
type lease struct {
	Node layout.Node `json:"node"`
	// Process tells a node that was started again, or a second one of the same id, from this one.
	Process string `json:"process"`
	// Since is when the process started, by its own clock; for people.
	Since time.Time `json:"since"`
	// Version is that of the program.
	Version string `json:"version"`
}
