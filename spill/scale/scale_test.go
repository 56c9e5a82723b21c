package scale

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

func TestRules(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, w *world) // after the first step
		rule   string
		to     int64 // 0: as it is
		reason string
	}{
		"waits": {func(*testing.T, *world) {}, "grow", 12 * gib,
			"consumers waited 50.0 % of their time for the store"},
		"grows to the limit": {func(_ *testing.T, w *world) {
			w.stats.BudgetBytes, w.stats.HeldBytes = 60*gib, 60*gib
		}, "grow", 64 * gib, "hits would rise"},
		"grows as far as the disk allows": {
			func(_ *testing.T, w *world) {
				w.free = keepFree + 2*reserve + 3*gib
			}, "grow", 11 * gib, "with 11 GiB hits would rise",
		},
		"below the limits": {func(_ *testing.T, w *world) {
			w.stats.BudgetBytes = 1
		}, "limits", minBudget, "outside of its limits"},
		"beyond the limits": {func(_ *testing.T, w *world) {
			w.stats.BudgetBytes = 65 * gib
		}, "limits", maxBudget, "outside of its limits"},
		"disk short": {func(_ *testing.T, w *world) {
			w.free = keepFree - 2*gib
		}, "disk", 8*gib - 2*gib - reserve, "2.0 GiB are free on the disk"},
		"disk much too full": {
			func(_ *testing.T, w *world) {
				w.free = 0
				w.stats.HeldBytes = 2 * gib
			}, "disk", minBudget, "0 B are free on the disk",
		},
		"disk short, at the minimum": {
			func(_ *testing.T, w *world) {
				w.free = 0
				w.stats.BudgetBytes, w.stats.HeldBytes = minBudget, minBudget
			}, "hold", 0, "as low as that can make it",
		},
		"disk short in a period": {
			func(_ *testing.T, w *world) {
				w.fall, w.free = gib, keepFree+gib/2
			}, "disk", 8*gib - gib/2 - reserve, "1.0 GiB less in a period",
		},
		"disk falls": {func(_ *testing.T, w *world) { w.fall = 50 * gib }, "grow", 12 * gib, ""},
		"disk unknown": {func(_ *testing.T, w *world) {
			w.diskError = errors.New("gone")
		}, "hold", 0, "what is free on the disk is not known: gone"},
		"memory short": {func(_ *testing.T, w *world) {
			w.available = 4 * gib
		}, "memory", 8*gib - gib/4, "4.0 GiB of 100 GiB of memory are available"},
		"memory unknown": {func(_ *testing.T, w *world) {
			w.memoryErr = errors.New("gone")
		}, "hold", 0, "what memory is available is not known: gone"},
		"memory scant": {func(_ *testing.T, w *world) { w.available = 8 * gib }, "hold", 0, "too little for more"},
		"memory, minimum": {func(_ *testing.T, w *world) {
			w.available = 0
			w.stats.BudgetBytes = minBudget
		}, "hold", 0, "but the budget is at its minimum"},
		"memory, little held": {
			func(_ *testing.T, w *world) {
				w.available = 0
				w.stats.BudgetBytes, w.stats.HeldBytes = 32*gib, gib/2
			}, "memory", minBudget, "of memory",
		},
		"disk tight, of use": {func(_ *testing.T, w *world) {
			w.free = keepFree + gib/2
		}, "hold", 0, "but with less than 8.0 GiB hits would fall"},
		"disk tight, of no use": {
			func(t *testing.T, w *world) {
				for _, j := range w.future.Jobs() {
					w.future.Remove(j.Job)
				}
				w.free = keepFree + gib/2
			}, "tight", 8*gib - gib/2, "no job runs",
		},
		"disk tight, a job of which nothing is known": {
			func(t *testing.T, w *world) {
				for _, j := range w.future.Jobs() {
					w.future.Remove(j.Job)
				}
				if _, err := w.future.Add(spill.JobOptions{Dataset: 1, Order: newShuffled(testRand(t), span(0, rows),
					2)}, 0); err != nil {
					t.Fatal(err)
				}
				w.free = keepFree
			}, "hold", 0, "but what jobs will use is not known",
		},
		"disk tight, more than all data": {
			func(t *testing.T, w *world) {
				for _, j := range w.future.Jobs() {
					w.future.Remove(j.Job)
				}
				if _, err := w.future.Add(spill.JobOptions{Dataset: 1, Order: newShuffled(testRand(t), span(0, rows),
					2), RowBytes: 100_000}, 0); err != nil {
					t.Fatal(err)
				}
				w.free = keepFree
			}, "tight", 7 * gib, "with less cache hits stay",
		},
		"disk tight, at the minimum": {
			func(_ *testing.T, w *world) {
				w.free, w.stats.BudgetBytes, w.stats.HeldBytes = keepFree, minBudget, minBudget
			}, "hold", 0, "as low as that can make it",
		},
		"disk without room": {func(_ *testing.T, w *world) {
			w.free = keepFree + 2*reserve
		}, "hold", 0, "too little for more"},
		"no streams": {func(_ *testing.T, w *world) {
			w.demand = w.scaler.demand[0].value
		}, "hold", 0, "no consumer streams"},
		"no waits": {func(_ *testing.T, w *world) {
			w.demand.Waited = w.demand.Streamed / 25
		}, "hold", 0, "they would be no faster"},
		"the disk is waited": {func(_ *testing.T, w *world) {
			w.demand.StoreBytes = 0
		}, "hold", 0, "all bytes came from the cache"},
		"at the maximum": {func(_ *testing.T, w *world) {
			w.stats.BudgetBytes, w.stats.HeldBytes = maxBudget, maxBudget
		}, "hold", 0, "at its maximum"},
		"not used up": {func(_ *testing.T, w *world) {
			w.stats.HeldBytes = 6 * gib
		}, "hold", 0, "not used up: 6.0 GiB of 8.0 GiB"},
		"shrunk recently": {func(_ *testing.T, w *world) {
			w.scaler.shrunk = w.now.Add(-49 * time.Second)
		}, "hold", 0, "had to shrink 49s ago"},
		"shrunk long ago": {func(_ *testing.T, w *world) {
			w.scaler.shrunk = w.now.Add(-60 * time.Second)
		}, "grow", 12 * gib, ""},
		"last epoch": {
			func(_ *testing.T, w *world) {
				w.future.Jobs()[0].Job.Advance(5, 0, 1e15)
			}, "hold", 0, "more cache would not pay",
		},
		"jobs of which nothing is known": {
			func(t *testing.T, w *world) {
				for _, j := range w.future.Jobs() {
					w.future.Remove(j.Job)
				}
			}, "hold", 0, "what jobs will use is not known",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.scaler.Step(w.now)
			w.pass(10 * time.Second)
			c.change(t, w)
			w.scaler.space.value = w.free + w.stats.HeldBytes + w.fall
			from := w.stats.BudgetBytes
			d := w.scaler.Step(w.now)
			t.Log(d.Reason)
			if c.to == 0 {
				c.to = from
			}
			if d.Rule != c.rule || d.FromBytes != from || d.ToBytes != c.to || !strings.Contains(d.Reason, c.reason) ||
				!d.At.Equal(w.now) {
				t.Errorf("%+v, want %s from %d to %d", d, c.rule, from, c.to)
			}
			if w.stats.BudgetBytes != c.to || w.scaler.Last() != d {
				t.Errorf("the budget is %d, the last decision %+v", w.stats.BudgetBytes, w.scaler.Last())
			}
			if history := w.scaler.History(); c.to == from && len(history) != 0 || c.to != from &&
				(len(history) != 1 || history[0] != d) {
				t.Errorf("the history is %+v", history)
			}
		})
	}
}

func TestFirstStepDoesNotGrow(t *testing.T) {
	w := newWorld(t)
	w.pass(time.Hour)
	if d := w.scaler.Step(w.now); d.Rule != "hold" || !strings.Contains(d.Reason, "not observed yet") {
		t.Errorf("%+v", d)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	w := newWorld(t)
	for field, change := range map[string]func(*Options){
		"cache":     func(o *Options) { o.Cache = nil },
		"future":    func(o *Options) { o.Future = nil },
		"demand":    func(o *Options) { o.Demand = nil },
		"dir":       func(o *Options) { o.Disk = nil },
		"min_bytes": func(o *Options) { o.MinBytes = spill.MinBytes - 1 },
		"max_bytes": func(o *Options) { o.MaxBytes = o.MinBytes - 1 },
		"keep_free": func(o *Options) { o.KeepFree = -1 },
		"period":    func(o *Options) { o.Period = -1 },
	} {
		opts := w.options()
		change(&opts)
		_, err := New(opts)
		if bad := (*schema.FieldError)(nil); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	opts := w.options()
	opts.Disk, opts.Memory, opts.Dir, opts.KeepFree = nil, nil, t.TempDir(), 0
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if d := s.Step(w.now); d.Inputs.FreeBytes <= 0 || d.Inputs.AvailableBytes <= 0 ||
		d.Inputs.MemoryBytes < d.Inputs.AvailableBytes {
		t.Errorf("of this machine: %+v", d)
	}
}

// TestDecisionIsLogged at Info if the budget changes, else at Debug, with the reason.
func TestDecisionIsLogged(t *testing.T) {
	w := newWorld(t)
	var out strings.Builder
	opts := w.options()
	opts.Logger = slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if w.scaler, err = New(opts); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct{ level, message, to string }{
		{"DEBUG", "the budget of the spill stays", "8.0 GiB"}, {"INFO", "the budget of the spill changes", "12 GiB"},
	} {
		out.Reset()
		d := w.step()
		var line map[string]any
		if err := json.Unmarshal([]byte(out.String()), &line); err != nil {
			t.Fatalf("%q: %v", out.String(), err)
		}
		if line["level"] != want.level || line["msg"] != want.message || line["to"] != want.to ||
			line["reason"] != d.Reason {
			t.Errorf("%v, want %+v", line, want)
		}
	}
}

// TestStartAndStop in virtual time: a step at once, one each period, and none after Stop.
func TestStartAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		opts := w.options()
		opts.Period = time.Minute
		steps := 0
		opts.Disk = func() (int64, error) { steps++; return w.free, nil }
		s, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		s.Stop() // which was not started
		s.Start()
		time.Sleep(5*time.Minute + time.Second)
		s.Stop()
		if steps != 6 || s.Last().At.IsZero() {
			t.Errorf("%d steps in five minutes", steps)
		}
		time.Sleep(time.Hour)
		if s.Stop(); steps != 6 {
			t.Error("steps after the end")
		}
	})
}

// TestAnyWorld draws what happens at random, and what goes on as it is then. The cache fills up as it can, on a disk
// that others use as well.
func TestAnyWorld(t *testing.T) {
	r := testRand(t)
	for range 25 {
		w := newWorld(t)
		if r.IntN(2) == 0 {
			w.addJob(t, r.Int64N(7), r.Int64N(6))
		}
		disk := 10*gib + r.Int64N(200*gib)
		others := r.Int64N(disk)
		w.stats.BudgetBytes = minBudget + r.Int64N(maxBudget-minBudget)
		w.stats.HeldBytes = 0
		settle := func() {
			fill := min(w.stats.BudgetBytes, disk-others-keepFree, w.stats.HeldBytes+r.Int64N(8*gib))
			w.stats.HeldBytes = max(fill, min(w.stats.HeldBytes, disk-others, w.stats.BudgetBytes), 0)
			w.free = max(disk-others-w.stats.HeldBytes, 0)
		}
		step := func() Decision {
			settle()
			d := w.step()
			in := d.Inputs
			if d.ToBytes < minBudget || d.ToBytes > maxBudget || w.stats.BudgetBytes != d.ToBytes {
				t.Fatalf("outside of the limits: %+v", d)
			}
			if d.ToBytes > d.FromBytes && (in.FreeBytes-in.FallBytes-(d.ToBytes-in.HeldBytes) < keepFree ||
				in.Waited < waits || in.AvailableBytes < 10*gib) {
				t.Fatalf("grown where it must not: %+v", d)
			}
			if d.ToBytes > d.FromBytes+d.FromBytes/2 {
				t.Fatalf("grown too fast: %+v", d)
			}
			if w.free-in.FallBytes < keepFree && d.ToBytes > minBudget &&
				d.ToBytes+keepFree > w.free-in.FallBytes+in.HeldBytes {
				t.Fatalf("the disk is short, and that is not enough: %+v", d)
			}
			return d
		}
		for range 60 {
			if r.IntN(3) == 0 {
				others = min(max(others+r.Int64N(40*gib)-20*gib, 0), disk)
				w.waited, w.fromSpill = r.Float64(), r.Float64()
				w.available = r.Int64N(100 * gib)
			}
			step()
		}
		// From here on everything stays the same: the budget comes to rest, and turns around once at most.
		var decisions []Decision
		for range 400 {
			decisions = append(decisions, step())
		}
		turns, direction := 0, 0
		for i, d := range decisions {
			way := 0
			if d.ToBytes > d.FromBytes {
				way = 1
			} else if d.ToBytes < d.FromBytes {
				way = -1
			}
			if way != 0 && way != direction {
				turns++
				direction = way
			}
			if way != 0 && i > 300 {
				t.Fatalf("step %d, where nothing has changed: %+v", i, d)
			}
		}
		if turns > 2 {
			t.Fatalf("%d turns where nothing changes: %+v", turns, w.scaler.History())
		}
	}
}

// TestHistoryIsBounded makes more changes than are kept.
func TestHistoryIsBounded(t *testing.T) {
	w := newWorld(t)
	w.stats.BudgetBytes, w.stats.HeldBytes, w.available = maxBudget, maxBudget, 0
	for range 2 * maxChanges {
		w.stats.HeldBytes = w.stats.BudgetBytes
		w.step()
	}
	history := w.scaler.History()
	if len(history) != maxChanges || history[maxChanges-1] != w.scaler.Last() {
		t.Errorf("%d decisions are kept, %d changes were made", len(history), 2*maxChanges)
	}
}
