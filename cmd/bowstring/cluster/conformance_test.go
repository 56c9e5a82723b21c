package cluster_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"

	"bowstring/fetch"
	"bowstring/fetch/peers"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/flight"
	"bowstring/flight/peer"
	"bowstring/internal/readtest"
	"bowstring/schema"
	"bowstring/spill"
)

// gated is a store whose answers can be held up.
type gated struct {
	store.Store
	mu   sync.Mutex
	hold chan struct{} // nil if they are not
}

func (g *gated) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return schema.Blob{}, context.Cause(ctx)
		}
	}
	return g.Store.Get(ctx, ref)
}

func (g *gated) stop() (release func()) {
	hold := make(chan struct{})
	g.mu.Lock()
	g.hold = hold
	g.mu.Unlock()
	return sync.OnceFunc(func() {
		g.mu.Lock()
		g.hold = nil
		g.mu.Unlock()
		close(hold)
	})
}

// everything is a directory by which one other node owns all there is.
type everything []string

func (e everything) Route(schema.BlobRef) peers.Route { return peers.Route{Ask: e} }

// Another node, reached by a connection, is a tier as any other.
func TestPeerConformance(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	readtest.Run(t, func(t testing.TB) readtest.Opener {
		return func() (readtest.Subject, error) {
			ctx := context.WithoutCancel(t.Context())
			s, err := local.Open(t.TempDir(), local.Options{Logger: quiet})
			if err != nil {
				return readtest.Subject{}, err
			}
			in, err := s.Begin(ctx, "d")
			if err != nil {
				return readtest.Subject{}, errors.Join(err, s.Close())
			}
			g := &gated{Store: s}
			e, err := fetch.NewEngine(g, fetch.Options{Logger: quiet})
			if err != nil {
				return readtest.Subject{}, err
			}
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return readtest.Subject{}, err
			}
			server := flight.New(e, flight.Options{Cluster: &flight.Cluster{Node: "b"}, Logger: quiet})
			served := make(chan error, 1)
			go func() { served <- server.Serve(lis) }()
			link, err := peer.Dial(lis.Addr().String(), peer.Options{Node: "a", Logger: quiet})
			if err != nil {
				return readtest.Subject{}, err
			}
			tier, err := peers.New(peers.Options{
				Directory: everything{"b"}, SnapshotName: func(uint32) string { return "d@1" }, Logger: quiet,
				Dial: func(string) (peers.Link, error) { return link, nil },
			})
			if err != nil {
				return readtest.Subject{}, err
			}
			if err := tier.SetNodes([]string{"b"}); err != nil {
				return readtest.Subject{}, err
			}
			for !link.Up() { // it is on its way
				if err := t.Context().Err(); err != nil {
					return readtest.Subject{}, err
				}
			}
			return readtest.Subject{
				Tier: tier, At: spill.Place{Dataset: 1, Position: 3}, Hang: g.stop,
				Put: func(ctx context.Context, data []byte) (schema.BlobRef, error) { return in.Put(ctx, data) },
				Close: func() error {
					gone, cancel := context.WithCancel(ctx)
					cancel()
					_ = server.Shutdown(gone)
					return errors.Join(tier.Close(), <-served, e.Close(), in.Close(), s.Close())
				},
			}, nil
		}
	})
}
