package cluster

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"bowstring/fetch/peers"
	"bowstring/schema"
)

// refused is the link to a node that is not to be asked: it is never up.
type refused struct{}

// Get implements peers.Link.
func (refused) Get(context.Context, peers.Ask) (schema.Blob, error) {
	return schema.Blob{}, fmt.Errorf("%w: nodes without a certificate are not asked", schema.ErrUnavailable)
}

// Tell implements peers.Link.
func (refused) Tell([]peers.Progress) {}

// Up implements peers.Link.
func (refused) Up() bool { return false }

// Heard implements peers.Link.
func (refused) Heard() time.Time { return time.Time{} }

// Protocol implements peers.Link.
func (refused) Protocol() int { return 0 }

// Secure implements peers.Link.
func (refused) Secure() bool { return false }

// Close implements peers.Link.
func (refused) Close() error { return nil }

// HostOf is the HOST:PORT of a node's address, by which others dial it; "" if it has none.
func HostOf(address string) string {
	where, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return where.Host
}
