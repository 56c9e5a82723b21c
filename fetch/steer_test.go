package fetch_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"bowstring/fetch"
	"bowstring/internal/rounds"
	"bowstring/schema"
)

// steeredRun is a run that is read by several ranks over two engines on one store, while its weights are changed.
type steeredRun struct {
	tb        testing.TB
	engines   []*fetch.Engine
	request   schema.Request
	continued atomic.Int64 // streams that ended as weights changed

	mu      sync.Mutex
	steps   map[int64]map[int][]int64 // positions by step of all epochs, and data rank
	tickets []heldTicket              // that were given out
	worlds  map[int64]int64           // the world that read a step
	served  chan struct{}             // gets something, if it is waited for, when a batch was served
}

// heldTicket is a ticket of a rank, and what it has served so far.
type heldTicket struct {
	ticket schema.Ticket
	step   int64 // of all epochs, that it begins with
}

// epochSteps is how many steps an epoch has.
func (r *steeredRun) epochSteps() int64 {
	return (r.request.Mixture.EpochSize + r.request.Batch - 1) / r.request.Batch
}

// read reads as a rank from a ticket on, up to a step of all epochs, on random engines, and calls each with what
// comes.
func (r *steeredRun) read(rng *rand.Rand, t schema.Ticket, until int64, each func(step int64, b *fetch.Batch)) error {
	for {
		e := r.engines[rng.IntN(len(r.engines))]
		next, more, err := r.serve(e, t, until, each)
		if err != nil || !more {
			return err
		}
		t = next
	}
}

// serve serves one stream of a rank.
func (r *steeredRun) serve(e *fetch.Engine, t schema.Ticket, until int64,
	each func(step int64, b *fetch.Batch)) (next schema.Ticket, more bool, err error) {
	j, err := e.Open(r.tb.Context(), t.Request)
	if err != nil {
		return t, false, err
	}
	defer j.Close()
	s, err := e.Stream(r.tb.Context(), j, t)
	if errors.Is(err, fetch.ErrSteered) {
		return t, true, nil
	}
	if err != nil {
		return t, false, err
	}
	defer s.Close()
	for {
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			next, more = s.Continuation()
			if more {
				r.continued.Add(1)
			}
			return next, more, nil
		}
		if err != nil {
			return t, false, err
		}
		step := int64(b.Epoch)*r.epochSteps() + b.Step
		if step >= until {
			b.Release()
			return t, false, nil
		}
		each(step, b)
		b.Release()
	}
}

// note notes what a rank got.
func (r *steeredRun) note(step, world int64, rank int, b *fetch.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.steps[step] == nil {
		r.steps[step] = map[int][]int64{}
	}
	r.steps[step][rank] = append(r.steps[step][rank], b.Positions...)
	r.worlds[step] = world
	next := int64(b.Resume.Shuffle.Epoch)*r.epochSteps() + b.Resume.Step
	r.tickets = append(r.tickets, heldTicket{b.Resume, next})
	select {
	case r.served <- struct{}{}:
	default:
	}
}

// TestSteeredRuns: whatever weights a run gets while it goes on, on however many ranks, and wherever it is stopped,
// each step holds what the last record of the run says, and each sample comes once in each epoch of its source.
func TestSteeredRuns(t *testing.T) {
	st := newStore(t)
	for i, name := range []string{"d", "e", "f"} {
		putColumns(t, st, name, 60+30*i, 16, "label", "image")
	}
	engines := []*fetch.Engine{newEngine(t, st, fetch.Options{}), newEngine(t, st, fetch.Options{Resident: -1})}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	continued, steers := int64(0), 0
	for round := range rounds.Count(12, 200) {
		rng := rand.New(rand.NewPCG(seed, uint64(round)))
		r := &steeredRun{tb: t, engines: engines, steps: map[int64]map[int][]int64{}, worlds: map[int64]int64{},
			served: make(chan struct{})}
		n, made := r.history(t, rng, round)
		continued, steers = continued+n, steers+made
	}
	t.Logf("%d changes, %d streams met one", steers, continued)
	if continued == 0 || steers == 0 {
		t.Errorf("%d changes were made, and %d streams met one", steers, continued)
	}
}

func (r *steeredRun) history(t *testing.T, rng *rand.Rand, round int) (continued int64, steers int) {
	names := []string{"d", "e", "f"}
	m := &schema.Mixture{Run: fmt.Sprint("run", round), EpochSize: 120 + rng.Int64N(200),
		Pick: []string{"", schema.PickExact, schema.PickOneSource}[rng.IntN(3)]}
	for _, name := range names {
		s := schema.MixtureSource{Dataset: name, Snapshot: 1, Weight: weigh(float64(1+rng.IntN(9)) / 10)}
		if name == "f" && rng.IntN(3) == 0 {
			s.End = schema.EndDrop
		}
		m.Sources = append(m.Sources, s)
	}
	if rng.IntN(2) == 0 {
		m.Schedule = []schema.MixtureChange{{Step: 5 + rng.Int64N(60), Over: rng.Int64N(20),
			Weights: map[string]float64{"d": 0.2}}}
	}
	batch := int64(4 + rng.IntN(9))
	if m.Pick == schema.PickOneSource {
		m.EpochSize -= m.EpochSize % batch
	}
	columns := []string{"label", "image"}
	if rng.IntN(3) == 0 {
		columns = []string{"label"} // nothing is read from the store
	}
	r.request = schema.Request{Mixture: m, Columns: columns, Batch: batch, Shuffle: &schema.Shuffle{Seed: rng.Uint64()}}
	total := 3 * r.epochSteps()
	stop := make(chan struct{})
	var steering sync.WaitGroup
	for client := range 2 { // two clients change weights as long as it goes on
		rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
		steering.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-r.served:
				}
				if rng.IntN(3) > 0 {
					continue
				}
				c := schema.MixtureChange{Weights: map[string]float64{names[rng.IntN(3)]: float64(1 + rng.IntN(99))}}
				if rng.IntN(4) == 0 {
					c.Over = 1 + rng.Int64N(12)
				}
				var from *int64
				if rng.IntN(3) == 0 {
					step := rng.Int64N(2 * total)
					from = &step
				}
				_, _, err := r.engines[client].Steer(t.Context(), "d", m.Run, c, from)
				if err != nil && !errors.Is(err, schema.ErrNotFound) && !errors.Is(err, schema.ErrInvalid) {
					t.Error(err)
					return
				}
			}
		})
	}
	for from := int64(0); from < total; { // it is stopped, and goes on with other ranks
		world := int64(1 + rng.IntN(4))
		until := min(total, from+1+rng.Int64N(total/2))
		var ranks sync.WaitGroup
		for rank := range world {
			rng := rand.New(rand.NewPCG(rng.Uint64(), 1))
			ticket := schema.Ticket{Request: r.request, Rank: int(rank), Step: from % r.epochSteps(), Epochs: 3}
			ticket.World = &schema.World{Size: world}
			ticket.Shuffle = &schema.Shuffle{Seed: r.request.Shuffle.Seed, Epoch: uint64(from / r.epochSteps())}
			ranks.Go(func() {
				err := r.read(rng, ticket, until, func(step int64, b *fetch.Batch) { r.note(step, world, int(rank), b) })
				if err != nil {
					t.Errorf("rank %d of %d from step %d: %v", rank, world, from, err)
				}
			})
		}
		ranks.Wait()
		from = until
	}
	close(stop)
	steering.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return r.continued.Load(), r.check(t, rng, total)
}

// check compares what was served with what the record of the run says now.
func (r *steeredRun) check(t *testing.T, rng *rand.Rand, total int64) (steers int) {
	record := must(r.engines[0].Store().Run(t.Context(), "d", r.request.Mixture.Run))
	j := must(r.engines[0].Open(t.Context(), r.request))
	defer j.Close()
	if got := len(j.Request().Mixture.Steered); got != len(record.Steered) {
		t.Fatalf("a job knows %d changes of %d", got, len(record.Steered))
	}
	// The positions seen, by source and epoch.
	seen := map[[2]uint64]map[int64]bool{}
	for step := range total {
		p := j.PlanOf(step / r.epochSteps())
		start, rows := p.Batch(step % r.epochSteps())
		want := []int64{}
		for i := start; i < start+rows; i++ {
			want = append(want, p.Position(i))
			source, _ := j.Locate(p.Position(i))
			epoch := [2]uint64{uint64(source), j.SourceEpoch(p, i)}
			if seen[epoch] == nil {
				seen[epoch] = map[int64]bool{}
			}
			if seen[epoch][p.Position(i)] {
				t.Fatalf("position %d comes twice in epoch %d of source %d", p.Position(i), epoch[1], source)
			}
			seen[epoch][p.Position(i)] = true
		}
		var got []int64
		for _, rank := range slices.Sorted(maps.Keys(r.steps[step])) {
			got = append(got, r.steps[step][rank]...)
		}
		if !slices.Equal(got, want) && len(got)+len(want) > 0 {
			t.Fatalf("step %d of %d ranks held %v, want %v (settled %d, changes %+v)", step, r.worlds[step], got, want,
				record.Settled, record.Steered)
		}
	}
	for epoch, positions := range seen { // one that is followed by another is whole
		if seen[[2]uint64{epoch[0], epoch[1] + 1}] != nil && int64(len(positions)) != j.Samples(int(epoch[0])) {
			t.Fatalf("epoch %d of source %d had %d of %d samples", epoch[1], epoch[0], len(positions), j.Samples(int(epoch[0])))
		}
	}
	// Old checkpoints mean what they did.
	for range 8 {
		old := r.tickets[rng.IntN(len(r.tickets))]
		if old.step >= total || old.ticket.Row > 0 {
			continue
		}
		until := min(total, old.step+10)
		again := map[int64][]int64{}
		if err := r.read(rng, old.ticket, until, func(step int64, b *fetch.Batch) {
			again[step] = append(again[step], b.Positions...)
		}); err != nil {
			t.Fatal(err)
		}
		for step, got := range again {
			if r.worlds[step] != old.ticket.WorldSize() {
				continue // it was read by others
			}
			if want := r.steps[step][old.ticket.Rank]; !slices.Equal(got, want) {
				t.Fatalf("step %d by a ticket of step %d holds %v, want %v", step, old.step, got, want)
			}
		}
	}
	return len(record.Steered)
}
