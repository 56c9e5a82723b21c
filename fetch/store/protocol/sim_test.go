package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// drawFaults draws what goes wrong: each kind in some runs and not in others.
func (w *world) drawFaults() {
	pick := func(values ...int) int { return values[w.rng.IntN(len(values))] }
	w.faults = faults{
		lose: pick(0, 0, 200, 30), silence: pick(0, 0, 150, 20), slow: pick(0, 20, 5), delay: pick(0, 0, 100, 20),
		double: pick(0, 0, 30),
		accept: pick(0, 0, 40, 8), lag: pick(0, 5), suspends: pick(0, 1, 2, 3), kills: pick(0, 0, 1),
		clocks: w.chance(2), raise: w.chance(3),
	}
	// In some runs less goes wrong anywhere, and more where a mistake would show.
	if w.rng.IntN(5) > 1 {
		return
	}
	w.faults.lose, w.faults.silence, w.faults.delay, w.faults.accept = 0, 0, 0, 0
	w.faults.few = true
	switch w.rng.IntN(3) {
	case 0:
		w.faults.deletions, w.faults.bytes = pick(1, 2, 4), pick(0, 3)
	case 1:
		w.faults.patient = true
		w.faults.touches, w.faults.states, w.faults.scans = pick(0, 2, 4), pick(0, 3, 8), pick(0, 2)
	case 2:
		w.faults.suspends, w.faults.kills, w.faults.double = 0, 0, 0
		w.faults.stall, w.faults.deletions, w.faults.bytes = "unsize", 2, 2
	}
}

// simulate runs a seed. It returns the violated guarantees, and a hash of all events.
func simulate(idle *coroutines, seed uint64, bugs bug, trace *strings.Builder) (hash uint64, err error) {
	w := newWorld(seed, idle)
	w.trace = trace
	w.db, w.oracle = newReplicas(w), newOracle(w)
	if w.packed = seed&packedSeeds != 0; w.packed {
		w.drawBucketFaults()
	} else {
		w.drawFaults()
	}
	w.say(nil, "seed %d: %+v", seed, w.faults)
	w.launch("importer", bugs, (*actor).imports, (*actor).imports)
	w.launch("dropper", bugs, (*actor).imports, (*actor).drops)
	w.launch("reader", bugs, (*actor).reads, (*actor).drops)
	w.launch("collector", bugs, (*actor).collects)
	w.launch("other", bugs, (*actor).collects, (*actor).imports)
	if w.faults.raise {
		for range 3 {
			w.after(w.between(0, lasts), w.db.raise)
		}
	}
	w.run(lasts)
	// Messages in flight arrive, and suspended processes go on, undisturbed.
	w.faults = faults{}
	for _, p := range w.procs {
		p.hurtAt = nil
	}
	w.run(2*lasts + time.Minute)
	for _, p := range w.procs {
		p.kill()
	}
	w.run(w.now + 2*rowLapses)
	w.finish(bugs)
	for _, p := range w.procs {
		p.kill()
	}
	w.note("end", w.steps)
	if w.fault != nil {
		w.fault = fmt.Errorf("at %v: %w", w.now, w.fault)
	}
	return w.hash, w.fault
}

// finish collects in quiet: then all that is live is there, and nothing else.
func (w *world) finish(bugs bug) {
	if w.fault != nil {
		return
	}
	done := false
	p := &process{w: w, name: "finisher"}
	w.procs = append(w.procs, p)
	p.Go(func() {
		s := New(w.database(p), p, Options{Holder: p.name, Parallel: 3, References: simReferences})
		s.bugs, s.memo = bugs, &w.memo
		ctx := context.Background()
		// One collection is enough, except for blobs that not every quorum knows of;
		// there are none once the replicas are repaired.
		for _, after := range []string{"the first collection", "the repair and a second one"} {
			_, err := s.GC(ctx, store.GCOptions{}, nil)
			if errors.Is(err, schema.ErrUnavailable) { // a row of the dead that was on its way for minutes lapses first
				if err = p.Wait(ctx, nil, rowLapses); err == nil {
					_, err = s.GC(ctx, store.GCOptions{}, nil)
				}
			}
			if err != nil {
				w.wrong("collect in quiet: %v", err)
				return
			}
			if leaks := w.oracle.leaks(); len(leaks) > 0 {
				w.wrong("blobs %v are left over after %s", leaks, after)
				return
			}
			w.db.repair()
		}
		list, err := s.Datasets(ctx)
		if err != nil {
			w.wrong("list in quiet: %v", err)
		}
		for _, d := range list {
			if live := w.oracle.datasets[d.Name].live(); !slices.Equal(live, d.Snapshots) {
				w.wrong("%q is listed with %d and has %d", d.Name, d.Snapshots, live)
			}
			for _, number := range d.Snapshots {
				if _, err := s.Snapshot(ctx, d.Name, number); err != nil {
					w.wrong("read in quiet: %v", err)
				}
			}
		}
		if err := s.Close(); err != nil {
			w.wrong("close: %v", err)
		}
		done = true
	})
	w.run(w.now + 10*time.Minute)
	if !done {
		w.wrong("a collection in quiet does not end")
	}
}
