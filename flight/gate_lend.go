package flight

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"

	"bowstring/fetch"
	"bowstring/schema"
)

// The door for other nodes of the cluster: it is opened by the cluster's key, and leads
// to blobs by their keys. Rules are kept by the node that the caller has called, which
// has asked them before it asks others.

// letInNode checks the key of a node that wants to read. Without a key of the cluster all
// are let in where all callers may do everything, and nobody where they may not: blobs by
// their keys are beyond the rules.
func (s *Server) letInNode(ctx context.Context) error {
	refuse := func(why string) error {
		err := fmt.Errorf("%w: %s", schema.ErrUnauthenticated, why)
		// whoever guesses keys is told no more than who guesses tokens, and no more often
		if s.opts.Door.Authenticates() {
			return s.opts.Door.Refuse(ctx, err)
		}
		return err
	}
	key := s.opts.Cluster.Key
	if len(key) == 0 {
		if s.opts.Door.Authenticates() || s.rules() != nil {
			return refuse("the cluster has no key")
		}
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	sent := md.Get("authorization")
	if len(sent) != 1 {
		return refuse("a node of the cluster sends its key")
	}
	got, isBearer := strings.CutPrefix(sent[0], "Bearer ")
	want, have := sha256.Sum256(key), sha256.Sum256([]byte(got))
	if !isBearer || subtle.ConstantTimeCompare(want[:], have[:]) != 1 {
		return refuse("this is not the key of the cluster")
	}
	return nil
}

// borrow has the engine read for a node that was let in.
func (s *Server) borrow(answer func(fetch.Answer)) *fetch.Borrower { return s.engine.Borrow(answer) }

// followed has the engine follow the streams of a node that was let in.
func (s *Server) followed() *fetch.Follower { return s.engine.Follow() }

// lendJob opens a job for a node that was let in: it has asked the rules for whoever called it.
func (s *Server) lendJob(ctx context.Context, req schema.Request) (*fetch.Job, error) {
	return s.engine.Open(ctx, req)
}
