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
	// Incarnation grows from one process of a node to the next: of two that are there at a time, the lease of the
	// lesser is passed over. 0 is that of older programs.
	Incarnation int64 `json:"incarnation,omitempty"`
	// Draining says how far a node is that leaves; nil while it stays.
	Draining *Draining `json:"draining,omitempty"`
	// Wants is what its jobs read: bytes by snapshot.
	Wants map[string]int64 `json:"wants,omitempty"`
}

// Draining is how far a node is that leaves its cluster. It owns nothing any more.
type Draining struct {
	Since   time.Time `json:"since"`
	Streams int       `json:"streams"` // that have not ended yet
	Blobs   int64     `json:"blobs"`   // that others have taken over
	Bytes   int64     `json:"bytes"`   // of those
	Held    int64     `json:"held"`    // bytes in its cache
	Done    bool      `json:"done"`    // it ends
}

// order is what a node is told to do, as JSON, in a row beside the leases: orders of cluster c are the leases of
// c/orders, which is the name of no cluster.
type order struct {
	Process string `json:"process"` // the one that is told: the next one of the node is not
	Drain   bool   `json:"drain"`
}

// Beside the orders each process of a node has a row that says that it has begun: an earlier one that goes on writes
// over the lease of a later one, but not over this.
const (
	ordersOf = "/orders"
	// beganOf comes before the node's name in that row's, and a slash and the incarnation after it.
	beganOf = "began/"
	// orderTTL is for how long an order waits for its node.
	orderTTL = time.Hour
)
