// Package sharedtest is the suite that every members.Shared passes: the stores that
// clusters use, and the one in memory.
package sharedtest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"bowstring/fetch/members"
	"bowstring/schema"
)

// Run runs the suite. Names are random, so that it tolerates entries of others in a
// shared store.
func Run(t *testing.T, s members.Shared) {
	ctx, cluster, plan := t.Context(), rand.Text(), rand.Text()
	// A lease is replaced by the next one of the same node. Leases of another cluster are
	// not returned, and the removal of a missing lease is no error.
	t.Run("leases", func(t *testing.T) {
		for _, id := range []string{"a", "b", "b", "c"} {
			if err := s.PutLease(ctx, cluster, id, []byte("of "+id), time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		// A cluster whose name begins with the other's name.
		if err := s.PutLease(ctx, cluster+"2", "d", []byte{}, time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := s.RemoveLease(ctx, cluster, "a"); err != nil {
			t.Fatal(err)
		}
		if err := s.RemoveLease(ctx, cluster, "never"); err != nil {
			t.Error(err)
		}
		found, err := s.Leases(ctx, cluster)
		if got := slices.Sorted(maps.Keys(found)); err != nil || !slices.Equal(got, []string{"b", "c"}) ||
			string(found["b"]) != "of b" {
			t.Errorf("leases %q, %v", found, err)
		}
	})
	// A layout is immutable: a second Put of the same record is no error.
	t.Run("layouts", func(t *testing.T) {
		name := rand.Text()
		if _, err := s.Layout(ctx, name); !errors.Is(err, schema.ErrNotFound) {
			t.Errorf("a layout that is not there: %v", err)
		}
		for range 2 {
			if err := s.PutLayout(ctx, name, []byte("record"), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		if b, err := s.Layout(ctx, name); err != nil || string(b) != "record" {
			t.Errorf("layout %q, %v", b, err)
		}
	})
	// A claim is a compare and set. Several claimants at once all get the same winner,
	// and the winner stays. Epochs use all 64 bits.
	t.Run("claims", func(t *testing.T) {
		for _, epoch := range []uint64{0, 1, 1 << 63, 1<<64 - 1} {
			if got, err := s.ReserveLayout(ctx, cluster, plan, epoch, "", time.Hour); got != "" || err != nil {
				t.Errorf("epoch %d has %q before it was claimed, %v", epoch, got, err)
			}
			winners := make([]string, 8)
			var wg sync.WaitGroup
			for i := range winners {
				wg.Go(func() {
					// A store may not know the outcome of a conditional write. The caller
					// then asks again.
					for range 20 {
						var err error
						if winners[i], err = s.ReserveLayout(ctx, cluster, plan, epoch, fmt.Sprint("layout ", i),
							time.Hour); err == nil {
							return
						}
					}
				})
			}
			wg.Wait()
			if got := slices.Compact(winners); len(got) != 1 || got[0] == "" {
				t.Errorf("epoch %d was claimed for %q", epoch, got)
			}
			if got, err := s.ReserveLayout(ctx, cluster, plan, epoch, "another", time.Hour); got != winners[0] ||
				err != nil {
				t.Errorf("epoch %d has %q later, %v; want %q", epoch, got, err, winners[0])
			}
		}
		if got, err := s.ReserveLayout(ctx, cluster+"2", plan, 1, "", time.Hour); got != "" || err != nil {
			t.Errorf("another cluster has %q, %v", got, err)
		}
	})
}
