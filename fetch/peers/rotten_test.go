package peers_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"bowstring/fetch/peers"
	"bowstring/schema"
	"bowstring/spill"
)

// rotten is a link to a node whose cache has other bytes: it sends them where it is not to compare them.
type rotten struct {
	mute
	blob []byte
	asks []peers.Ask
}

func (r *rotten) Get(_ context.Context, ask peers.Ask) (schema.Blob, error) {
	r.asks = append(r.asks, ask)
	if ask.Unchecked {
		return schema.NewBlob(make([]byte, len(r.blob)), nil), nil
	}
	return schema.NewBlob(r.blob, nil), nil
}

// A node is spared comparing what it sends, and asked anew to do so where that was wrong: so it learns that its cache is
// damaged, and is trusted as before.
func TestRottenCacheIsToldOf(t *testing.T) {
	blob := []byte("what the manifest says")
	link := &rotten{blob: blob}
	tier, err := peers.New(peers.Options{
		Directory: one{}, Dial: func(string) (peers.Link, error) { return link, nil },
		SnapshotName: func(uint32) string { return "" }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tier.Close()
	b, err := tier.Get(t.Context(), schema.RefOf(blob), spill.Place{})
	if err != nil || string(b.Bytes()) != string(blob) {
		t.Fatalf("%q came, %v", b.Bytes(), err)
	}
	b.Release()
	if len(link.asks) != 2 || !link.asks[0].Unchecked || link.asks[1].Unchecked {
		t.Errorf("the asks are %+v, want one that need not be checked and one that has to", link.asks)
	}
	if st := tier.Stats()[0]; st.Wrong != 0 || st.Silent || st.Answered != 1 {
		t.Errorf("after it has mended its cache: %+v", st)
	}
}

// quitter is a link to a node that says nothing, until it is given up.
type quitter struct {
	mute
	gone chan error
}

func (q *quitter) Get(context.Context, peers.Ask) (schema.Blob, error) {
	return schema.Blob{}, <-q.gone
}

func (q *quitter) GiveUp(cause error) { q.gone <- cause }

// A link that gives up all at once is told to when the node has said nothing for long, and when it has left.
func TestQuitter(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			link := &quitter{gone: make(chan error, 1)}
			tier, err := peers.New(peers.Options{
				Directory: one{}, Dial: func(string) (peers.Link, error) { return link, nil },
				SnapshotName: func(uint32) string { return "" }, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan error)
			go func() {
				_, err := tier.Get(t.Context(), schema.BlobRef{Size: 1}, spill.Place{})
				got <- err
			}()
			synctest.Wait()
			if st := tier.Stats(); len(st) != 1 || st[0].InFlight != 1 {
				t.Fatalf("under way: %+v", st)
			}
			if leaves {
				if err := tier.SetNodes(nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-got; err == nil || leaves && !errors.Is(err, schema.ErrUnavailable) {
				t.Errorf("it was given up with %v", err)
			}
			if st := tier.Stats(); !leaves && (!st[0].Silent || st[0].InFlight != 0) {
				t.Errorf("after it was given up: %+v", st[0])
			}
			if err := tier.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
