package peers_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
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

// liar is a link to a node that says the same to everybody.
type liar struct {
	mute
	says error // nil for a wrong byte
}

func (l *liar) Get(context.Context, peers.Ask) (schema.Blob, error) {
	if l.says != nil {
		return schema.Blob{}, l.says
	}
	return schema.NewBlob([]byte{1}, nil), nil
}

// What was counted of a node goes on when its link is another one, and when it has left; of however many that come and go.
func TestTotals(t *testing.T) {
	says := map[string]error{"absent": peers.ErrNotHeld, "full": peers.ErrFull, "wrong": nil}
	ask := &named{}
	tier, err := peers.New(peers.Options{
		Directory: ask, Dial: func(name string) (peers.Link, error) { return &liar{says: says[name]}, nil },
		SnapshotName: func(uint32) string { return "" }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tier.Close()
	for range 2 { // links
		for name := range says {
			ask.name = name
			if _, err := tier.Get(t.Context(), schema.BlobRef{Size: 1}, spill.Place{}); err == nil {
				t.Fatalf("node %s has brought a blob", name)
			}
		}
		if err := tier.SetNodes(nil); err != nil {
			t.Fatal(err)
		}
	}
	all := tier.Totals()
	for name, want := range map[string]peers.NodeStats{
		"absent": {Node: "absent", Asked: 2, Absent: 2}, "full": {Node: "full", Asked: 2, Refused: 2, Full: 2},
		"wrong": {Node: "wrong", Asked: 2, Refused: 2, Wrong: 2},
	} {
		if all[name] != want {
			t.Errorf("of node %s %+v is known, want %+v", name, all[name], want)
		}
	}
	for i := range 5000 {
		if err := tier.SetNodes([]string{strconv.Itoa(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(tier.Totals()); n > 4096+2 {
		t.Errorf("%d nodes that have left are counted by name", n)
	}
}

// named has all blobs belong to one node.
type named struct{ name string }

func (n *named) Route(schema.Key) peers.Route { return peers.Route{Ask: []string{n.name}, Near: 1} }

// asked is a link to a node that takes note of what it is asked for.
type asked struct {
	mute
	what []peers.Ask
}

func (a *asked) Get(_ context.Context, what peers.Ask) (schema.Blob, error) {
	a.what = append(a.what, what)
	return schema.NewBlob(nil, nil), nil
}

// owners has all blobs belong to two nodes, neither of which is this one.
type owners struct{}

func (owners) Route(schema.Key) peers.Route { return peers.Route{Ask: []string{"first", "second"}, Near: 2} }

// Who is taken for a keeper by a node of another view asks the first owner, and that one is to ask nobody else.
func TestAskedOn(t *testing.T) {
	links := map[string]*asked{"first": {}, "second": {}}
	tier, err := peers.New(peers.Options{
		Directory: owners{}, Dial: func(name string) (peers.Link, error) { return links[name], nil },
		SnapshotName: func(uint32) string { return "" }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tier.Close()
	ref := schema.BlobRef{Sum: schema.Checksum(nil)}
	if !tier.Onward(ref.Key, true) || tier.Onward(ref.Key, false) {
		t.Fatal("it may ask on where who asks lets it, and there alone")
	}
	for range 3 {
		b, err := tier.Get(peers.WithLoan(t.Context()), ref, spill.Place{})
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	if n := len(links["first"].what); n != 3 {
		t.Errorf("the first owner was asked %d times of 3", n)
	}
	for _, what := range links["first"].what {
		if what.Onward {
			t.Errorf("the first owner is let ask on: %+v", what)
		}
	}
}
