package peers_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"bowstring/fetch/peers"
	"bowstring/schema"
	"bowstring/spill"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mute is a link to a node that answers nothing.
type mute struct{ there atomic.Bool } // it says at least that it is there

var errMute = errors.New("the link is closed")

func (*mute) Get(ctx context.Context, _ peers.Ask) (schema.Blob, error) {
	<-ctx.Done()
	return schema.Blob{}, errMute
}

func (*mute) Tell([]peers.Progress) {}
func (*mute) Up() bool              { return true }
func (*mute) Protocol() int         { return 1 }
func (*mute) Close() error          { return nil }

func (l *mute) Heard() time.Time {
	if l.there.Load() {
		return time.Now()
	}
	return time.Time{}
}

// one has all blobs belong to node "b".
type one struct{}

func (one) Route(schema.Key) peers.Route { return peers.Route{Ask: []string{"b"}, Near: 1} }

// A node that says nothing at all is given up soon; one that says that it is there has time to read from the store.
func TestGivenUp(t *testing.T) {
	for _, there := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			link := &mute{}
			link.there.Store(there)
			tier, err := peers.New(peers.Options{
				Directory: one{}, Dial: func(string) (peers.Link, error) { return link, nil },
				SnapshotName: func(uint32) string { return "" }, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer tier.Close()
			began := time.Now()
			if _, err := tier.Get(t.Context(), schema.BlobRef{Size: 1}, spill.Place{}); err == nil {
				t.Fatal("a node that answers nothing has brought a blob")
			}
			least, most := 500*time.Millisecond, 700*time.Millisecond
			if there {
				least, most = 2*time.Second, 2200*time.Millisecond
			}
			if took := time.Since(began); took < least || took > most {
				t.Errorf("a node that says that it is there (%v) was given up after %v, want %v to %v", there, took, least, most)
			}
			if st := tier.Stats(); !st[0].Silent || st[0].Refused != 1 {
				t.Errorf("after it was given up: %+v", st[0])
			}
		})
	}
}
