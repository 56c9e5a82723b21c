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

	"bowstring/fetch/peers"
	"bowstring/internal/leaktest"
	"bowstring/schema"
	"bowstring/spill"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// mute is a link to a node that answers nothing.
type mute struct{ there atomic.Bool } // it sends heartbeats

var errMute = errors.New("the link is closed")

func (*mute) Get(ctx context.Context, _ peers.Ask) (schema.Blob, error) {
	<-ctx.Done()
	return schema.Blob{}, errMute
}

func (*mute) SendProgress([]peers.Progress) {}
func (*mute) Up() bool                      { return true }
func (*mute) Protocol() int                 { return 1 }
func (*mute) Secure() bool                  { return false }
func (*mute) Close() error                  { return nil }

func (l *mute) Heard() time.Time {
	if l.there.Load() {
		return time.Now()
	}
	return time.Time{}
}

// one is a Directory in which all blobs belong to node "b".
type one struct{}

func (one) Route(schema.BlobRef) peers.Route { return peers.Route{Ask: []string{"b"}, Near: 1} }

// Requests to a node that sends nothing soon fail. A node that sends heartbeats has time to read from the store.
func TestSilentNode(t *testing.T) {
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
			if _, err := tier.Get(t.Context(), schema.RefOf([]byte{0}), spill.Place{}); err == nil {
				t.Fatal("a node that answers nothing has brought a blob")
			}
			least, most := 500*time.Millisecond, 700*time.Millisecond
			if there {
				least, most = 5*time.Second, 5200*time.Millisecond
			}
			if took := time.Since(began); took < least || took > most {
				t.Errorf("the requests to a node that sends heartbeats (%v) were cancelled after %v, want %v to %v", there, took,
					least, most)
			}
			if st := tier.Stats(); !st[0].Silent || st[0].Refused != 1 {
				t.Errorf("after its requests were cancelled: %+v", st[0])
			}
		})
	}
}

// liar is a link to a node that answers every request alike.
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

// The counters of a node continue over a new link and after the node has left, for any number of nodes that come and
// go.
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
			if _, err := tier.Get(t.Context(), schema.RefOf([]byte{0}), spill.Place{}); err == nil {
				t.Fatalf("node %s has brought a blob", name)
			}
		}
		if err := tier.SetNodes(nil); err != nil {
			t.Fatal(err)
		}
	}
	all := tier.Totals()
	for name, want := range map[string]peers.NodeStats{
		"absent": {Node: "absent", Asked: 4, Absent: 4}, "full": {Node: "full", Asked: 2, Refused: 2, Full: 2},
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

// named is a Directory in which all blobs belong to one node.
type named struct{ name string }

func (n *named) Route(schema.BlobRef) peers.Route { return peers.Route{Ask: []string{n.name}, Near: 1} }

// asked is a link to a node that records requests. It answers with a blob if it must not forward.
type asked struct {
	mute
	what []peers.Ask
}

func (a *asked) Get(_ context.Context, what peers.Ask) (schema.Blob, error) {
	a.what = append(a.what, what)
	if what.Forward {
		return schema.Blob{}, peers.ErrNotHeld
	}
	return schema.NewBlob(nil, nil), nil
}

// others is a Directory in which all blobs belong to the listed nodes.
type others []string

func (o others) Route(schema.BlobRef) peers.Route { return peers.Route{Ask: o, Near: len(o)} }

// If a node with another view has nothing to do with a blob, the other owner is asked, or the same node again, to
// read the blob itself. So not every requester reads the store.
func TestAskedElsewhere(t *testing.T) {
	for _, list := range []others{{"one", "other"}, {"one"}} {
		links := map[string]*asked{"one": {}, "other": {}}
		tier, err := peers.New(peers.Options{
			Directory: list, Dial: func(name string) (peers.Link, error) { return links[name], nil },
			SnapshotName: func(uint32) string { return "" }, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ref := schema.RefOf(nil)
		b, err := tier.Get(t.Context(), ref, spill.Place{})
		if err != nil {
			t.Fatalf("of %v: %v", list, err)
		}
		b.Release()
		last := links[list[len(list)-1]].what
		if n := len(links["one"].what) + len(links["other"].what); n != 2 || last[len(last)-1].Forward {
			t.Errorf("of %v, %d were asked, the last one %+v; want two, and that the last may not forward", list, n,
				last)
		}
		if err := tier.Close(); err != nil {
			t.Error(err)
		}
	}
}
