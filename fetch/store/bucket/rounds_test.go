package bucket

import (
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/internal/delay"
	"bowstring/internal/objecttest"
)

// TestOpenRounds: the round trips in sequence until a store is open and prepared, and what many reads at once take
// then. A round that the machine stretches counts as two, so the test tries again with longer rounds.
func TestOpenRounds(t *testing.T) {
	// The store connects, and reads two objects. Then it writes its row, and looks for a collection. Reads find the
	// connections.
	const openRounds, readyRounds, readRounds, connections = 2, 2 + 2, 1, 16
	server := startServer(t, objecttest.Config{})
	server.MakeBucket("b")
	url := at(server, "rounds")
	found(t, url)
	for silence := 50 * time.Millisecond; silence < 2*time.Second; silence *= 2 {
		rounds := &delay.Rounds{Silence: silence}
		opts := testOptions()
		opts.Renew, opts.Connections = 0, connections
		opts.Bucket.Dial = rounds.DialContext
		s := open(t, url, opts)
		opened := rounds.Count()
		if err := s.Prepare(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		ready := rounds.Count()
		var g errgroup.Group
		for range connections {
			g.Go(func() error {
				_, err := s.format(t.Context())
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		read := rounds.Count() - ready
		t.Logf("%d round trips until the store is open, %d until it is prepared, and %d for reads", opened, ready, read)
		if opened <= openRounds && ready <= readyRounds && read <= readRounds {
			return
		}
	}
	t.Errorf("want at most %d, %d and %d round trips", openRounds, readyRounds, readRounds)
}
