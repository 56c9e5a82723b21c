package scale

import (
	"encoding/binary"
	"log/slog"
	"strings"
	"testing"
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

// TestOfCache shrinks and grows a cache that others leave more or less of a disk.
func TestOfCache(t *testing.T) {
	const (
		disk, blob      = 200 << 20, 100 << 10
		samples         = 600 // 60 MB
		least, most     = 20 << 20, 56 << 20
		keep, aside     = 8 << 20, 2 << 20 // aside is the reserve
		ample, scarce   = 0, disk - keep - 48<<20
		period          = 10 * time.Second
		waited, streams = 3 * time.Second, 1
	)
	r := testRand(t)
	future := &spill.Future{}
	cache, err := spill.Open(spill.Options{
		Dir: t.TempDir(), Bytes: most, KeepFree: 1, Oracle: future, Logger: slog.New(slog.DiscardHandler),
		Clock: func() spill.Time { return 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cache.Close(); err != nil {
			t.Error(err)
		}
	}()
	number := cache.Dataset("d@1")
	if _, err := future.Add(spill.JobOptions{
		Dataset: number, Order: newShuffled(r, span(0, samples), 8), Epochs: 8, RowBytes: blob,
	}, 0); err != nil {
		t.Fatal(err)
	}
	var data [samples][]byte
	var refs [samples]schema.BlobRef
	for i := range data {
		data[i] = make([]byte, blob)
		for at := 0; at < blob; at += 8 {
			binary.LittleEndian.PutUint64(data[i][at:], r.Uint64())
		}
		refs[i] = schema.RefOf(data[i])
	}
	fill := func() {
		for i := range data {
			if !cache.Has(refs[i]) {
				cache.Put(refs[i], spill.Place{Dataset: number, Position: int64(i)}, time.Millisecond, data[i])
			}
		}
	}
	// requireRight requires that what is there is right, and returns how many samples are.
	requireRight := func() (there int) {
		t.Helper()
		for i := range data {
			if b, ok := cache.Get(refs[i], spill.Place{Dataset: number, Position: int64(i)}); ok {
				if string(b.Bytes()) != string(data[i]) {
					t.Errorf("sample %d has wrong bytes", i)
				}
				b.Release()
				there++
			}
		}
		if st := cache.Stats(); st.HeldBytes > st.BudgetBytes {
			t.Errorf("%d bytes are held, the budget is %d", st.HeldBytes, st.BudgetBytes)
		}
		return there
	}

	var others int64 = ample
	var demand spill.Demand
	s, err := New(Options{
		Cache: cache, Future: future, MinBytes: least, MaxBytes: most, KeepFree: keep, Period: period,
		Demand: func() spill.Demand { return demand },
		Disk:   func() (int64, error) { return disk - others - cache.Stats().HeldBytes, nil },
		Memory: func() (int64, int64, error) { return 1 << 30, 1 << 30, nil },
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1e9, 0)
	step := func() Decision {
		now = now.Add(period)
		demand.Streamed += streams * period
		demand.Waited += waited
		demand.StoreBytes += 1 << 20
		d := s.Step(now)
		t.Logf("%s → %s: %s", bytes(d.FromBytes), bytes(d.ToBytes), d.Reason)
		return d
	}
	fill()
	all := requireRight()
	if d := step(); d.Rule != "hold" || cache.Stats().BudgetBytes != most {
		t.Errorf("with room: %+v", d)
	}

	others = scarce // it leaves 48 MiB for the cache, including the reserve
	if d := step(); d.Rule != "disk" || d.ToBytes > 48<<20-aside {
		t.Errorf("with the disk short: %+v", d)
	}
	few := requireRight()

	if few == 0 || few >= all {
		t.Errorf("%d samples are left of %d", few, all)
	}
	if free := disk - others - cache.Stats().HeldBytes; free < keep {
		t.Errorf("%d bytes are free", free)
	}

	// It takes some steps until it is believed that the disk does not fall any more.
	for range 3 {
		step()
	}
	if got, left := cache.Stats().BudgetBytes, requireRight(); got <= least || left != few {
		t.Errorf("the budget is %d, %d samples are left of %d, where nothing has changed", got, left, few)
	}

	others = ample
	fill()
	if d := step(); !strings.Contains(d.Reason, "had to shrink") {
		t.Errorf("soon after: %+v", d)
	}
	for range 2 * pause {
		step()
		fill()
	}
	if got := cache.Stats().BudgetBytes; got != most {
		t.Errorf("the budget is %d again, of %d", got, most)
	}
	if again := requireRight(); again < all*9/10 {
		t.Errorf("%d samples are there again, of %d", again, all)
	}
	if changes := s.History(); len(changes) < 3 || changes[1].Rule != "grow" {
		t.Errorf("%+v", changes)
	}
}
