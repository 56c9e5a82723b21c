package scale

import (
	"log/slog"
	"testing"
	"time"

	"bowstring/spill"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// world is a node in which everything can be set.
type world struct {
	stats                spill.Stats
	demand               spill.Demand
	free, available      int64
	diskError, memoryErr error
	future               spill.Future
	now                  time.Time
	scaler               *Scaler
	waited, fromSpill    float64 // shares, from now on
	fall                 int64   // of free space, in the last period, by what others take
}

func (w *world) Resize(bytes int64) { w.stats.BudgetBytes = bytes }

func (w *world) Stats() spill.Stats { return w.stats }

const (
	minBudget, maxBudget = 1 * gib, 64 * gib
	keepFree             = 4 * gib
	reserve              = 1 * gib // of these
	rows                 = 20_000
	rowBytes             = 5 << 20 // so the dataset has about 100 GB
)

// newWorld is a node on which the budget of 8 GiB would grow: one job in its third epoch of six waits for half of its
// time.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{free: 100 * gib, available: 50 * gib, now: time.Unix(1e9, 0), waited: 0.5, fromSpill: 0.1}
	w.stats.BudgetBytes, w.stats.HeldBytes = 8*gib, 8*gib
	w.addJob(t, 6, 2)
	opts := w.options()
	var err error
	if w.scaler, err = New(opts); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) options() Options {
	return Options{
		Cache: w, Future: &w.future, MinBytes: minBudget, MaxBytes: maxBudget, KeepFree: keepFree,
		Demand: func() spill.Demand { return w.demand },
		Disk:   func() (int64, error) { return w.free, w.diskError },
		Memory: func() (int64, int64, error) { return w.available, 100 * gib, w.memoryErr },
		Logger: slog.New(slog.DiscardHandler),
	}
}

func (w *world) addJob(t testing.TB, epochs, served int64) *spill.Job {
	t.Helper()
	j, err := w.future.Add(spill.JobOptions{
		Dataset: 1, Order: newShuffled(testRand(t), span(0, rows), 6), Epochs: epochs, RowBytes: rowBytes,
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	j.Advance(served, 0, spill.Time(served*rows*1e6))
	return j
}

// pass lets some time pass, in which two streams are open.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.demand.Streamed += 2 * d
	w.demand.Waited += time.Duration(w.waited * 2 * float64(d))
	const rate = 100e6
	w.demand.SpillBytes += int64(w.fromSpill * rate * d.Seconds())
	w.demand.StoreBytes += int64((1 - w.fromSpill) * rate * d.Seconds())
}

// step lets a period pass, and decides.
func (w *world) step() Decision {
	w.pass(10 * time.Second)
	return w.scaler.Step(w.now)
}
