package fetch_test

import (
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch"
	"bowstring/schema"
)

// The memory is for those who read: streams whose consumers stand still for seconds take no part of it but what they
// have, and give that back where it is short. One that reads beside twenty of them is a third as fast as alone at least, and each of
// them goes on when its consumer does.
func TestStandingStillTakesNoShare(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 1000)
	far(t, newRemote(st, 20*time.Millisecond, 0), fetch.Options{WindowBytes: 400_000}, func(t *testing.T, e *fetch.Engine) {
		begin := func(seed uint64) (*fetch.Job, *fetch.Stream) {
			req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 64, Shuffle: &schema.Shuffle{Seed: seed}}
			j := resolve(t, e, req)
			tk := ticket(req, 0)
			tk.Epochs = 1000
			return j, start(t, e, j, tk)
		}
		rate := func(seed uint64) float64 {
			j, s := begin(seed)
			defer j.Close()
			defer s.Close()
			bytes, took := pull(t, s, time.Second, 3*time.Second)
			return float64(bytes) / took.Seconds()
		}
		alone := rate(0)
		var still []*fetch.Stream
		var held []*fetch.Batch
		for i := range uint64(20) {
			j, s := begin(1 + i)
			defer j.Close()
			still = append(still, s)
			held = append(held, must(s.Next()), must(s.Next()))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if beside := rate(0); beside < alone/3 {
			t.Errorf("%.0f bytes a second beside streams that stand still, %.0f alone", beside, alone)
		}
		for _, b := range held {
			b.Release()
		}
		for i, s := range still {
			for range 3 {
				b, err := s.Next()
				if err != nil {
					t.Fatalf("stream %d: %v", i, err)
				}
				b.Release()
			}
			s.Close()
		}
	})
}
