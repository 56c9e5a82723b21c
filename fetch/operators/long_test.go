package operators_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"bowstring/fetch/operators"
	"bowstring/fetch/operators/program"
	"bowstring/schema"
)

// costly is operators whose cells take as many steps as steps says, by their first byte. The runs of those that take long
// wait for the gate; others do not.
type costly struct {
	program.Program
	gate  chan struct{}
	began chan byte
	steps map[byte]int64
}

func (p *costly) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	cost, err := p.Program.Cost(cell, limits)
	cost.Steps = program.Count(p.steps[cell[0]])
	return cost, err
}

func (p *costly) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(int) []byte) (program.Outcome, error) {
	p.began <- cell[0]
	if p.steps[cell[0]] > 1<<28 {
		select {
		case <-p.gate:
		case <-ctx.Done():
			return program.Outcome{}, program.NewMeter(ctx, program.Cost{}).Check()
		}
	}
	return p.Program.Run(ctx, cell, by, alloc)
}

// costlyStage is a stage with that number of workers. The first byte of a cell selects
// its steps.
func costlyStage(t *testing.T, workers int, steps map[byte]int64) (*operators.Stage, *operators.Column, *costly) {
	t.Helper()
	stage, column, p := steppedStage(t, workers)
	close(p.gate)
	c := &costly{Program: p.Program, gate: make(chan struct{}), began: make(chan byte, 1000), steps: steps}
	p.Program = c
	return stage, column, c
}

// TestLongCells holds that cells of one tenant that take long, however many, do not keep those of another one waiting.
func TestLongCells(t *testing.T) {
	for _, workers := range []int{1, 2, 5} {
		stage, column, p := costlyStage(t, workers, map[byte]int64{'l': 1 << 34, 's': 1 << 20})
		long, short := make(ended, 40), make(ended, 40)
		placeOf := func(who byte, n int, done ended) *operators.Place {
			place := stage.Open(string(who), "job")
			for range n {
				place.Put(&operators.Task{Column: column, Cell: cellOf(who, 100), Context: t.Context(),
					Tenant: string(who), To: done})
			}
			return place
		}
		first := placeOf('l', 40, long)
		defer first.Close()
		for range max(workers/2, 1) { // a tenant that is alone has half of them
			if who := <-p.began; who != 'l' {
				t.Fatalf("a cell of %c has begun", who)
			}
		}
		second := placeOf('s', 40, short)
		defer second.Close()
		for range 40 {
			o := <-short // while not one of the long ones has ended
			if o.Err != nil {
				t.Error(o.Err)
			}
			o.Blob.Release()
		}
		select {
		case o := <-long:
			t.Errorf("a long cell has ended: %v", o.Err)
		default:
		}
		for range 40 { // and no other one has begun
			if who := <-p.began; who != 's' {
				t.Errorf("a cell of %c has begun", who)
			}
		}
		close(p.gate)
		for range 40 {
			o := <-long
			o.Blob.Release()
		}
	}
}

// TestLongCellsEnd holds that a cell that is being made ends with its stream, as what ended the stream and not as damage.
func TestLongCellsEnd(t *testing.T) {
	stage, column, p := costlyStage(t, 4, map[byte]int64{'l': 1 << 34})
	place := stage.Open("a", "job")
	defer place.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the stream has reached its deadline")
	done := make(ended, 4)
	for range 4 {
		place.Put(&operators.Task{Column: column, Cell: cellOf('l', 100), Context: ctx, To: done})
	}
	<-p.began
	<-p.began
	cancel(why)
	for range 4 {
		o := <-done
		if !errors.Is(o.Err, why) || errors.Is(o.Err, schema.ErrDataLoss) {
			t.Errorf("%v; want what ended the stream", o.Err)
		}
	}
}

// TestTooManySteps holds that a cell that would take more steps than a sample may is refused before it begins.
func TestTooManySteps(t *testing.T) {
	for name, steps := range map[string]int64{"more": 60_000_000_001, "more than can be counted": math.MaxInt64} {
		stage, column, p := costlyStage(t, 1, map[byte]int64{'x': steps})
		place := stage.Open("a", "job")
		defer place.Close()
		done := make(ended, 1)
		place.Put(&operators.Task{Column: column, Cell: cellOf('x', 100), Context: t.Context(), To: done})
		o := <-done
		if !errors.Is(o.Err, schema.ErrLimit) || !strings.Contains(o.Err.Error(), "steps") ||
			!strings.Contains(o.Err.Error(), "60000000000") || len(p.began) > 0 {
			t.Errorf("%s: %v, begun %d times", name, o.Err, len(p.began))
		}
	}
}

// TestStageSharesSteps holds that a tenant whose cells take much work for their bytes has as much less often a turn.
func TestStageSharesSteps(t *testing.T) {
	const bytes, rounds = 100, 400
	// Both have cells of 100 bytes. One of 'e' takes 20 times the steps that 200 bytes count for.
	stage, column, p := costlyStage(t, 1, map[byte]int64{'0': 1, 'e': 16 * 20 * 2 * bytes, 'c': 1})
	done := make(ended, 2*rounds+1)
	hold := make(chan struct{})
	head := stage.Open("first", "job")
	defer head.Close()
	head.Put(&operators.Task{Column: column, Cell: cellOf('0', 1), Context: t.Context(), To: held{done, hold}})
	for _, who := range []byte("ec") {
		place := stage.Open(string(who), "job")
		defer place.Close()
		for range rounds {
			place.Put(&operators.Task{Column: column, Cell: cellOf(who, bytes), Guess: bytes, Context: t.Context(),
				Tenant: string(who), To: done})
		}
	}
	close(hold) // all wait now
	for range 2*rounds + 1 {
		o := <-done
		o.Blob.Release()
	}
	made := map[byte]int{}
	for range rounds + 1 {
		made[<-p.began]++
	}
	if n := made['e']; n < 12 || n > 28 {
		t.Errorf("while %d cheap cells were made, %d were that cost 20 times as much; want 20", made['c'], n)
	}
}

// held is a receiver that blocks the worker until hold is closed.
type held struct {
	ended
	hold chan struct{}
}

func (h held) Made(t *operators.Task, o operators.Outcome) {
	<-h.hold
	h.ended.Made(t, o)
}

// greedy is operators that make more than they said.
type greedy struct{ program.Program }

func (g greedy) Run(_ context.Context, cell []byte, _ program.Draws, alloc func(int) []byte) (program.Outcome, error) {
	if alloc(1<<30) != nil {
		return program.Outcome{}, errors.New("a gigabyte was given")
	}
	return program.Outcome{}, errors.New("no memory was given")
}

// TestMoreThanGranted holds that no result becomes larger than it was said to.
func TestMoreThanGranted(t *testing.T) {
	stage, column, p := steppedStage(t, 1)
	close(p.gate)
	p.Program = greedy{p.Program}
	place := stage.Open("a", "job")
	defer place.Close()
	done := make(ended, 1)
	place.Put(&operators.Task{Column: column, Cell: cellOf('x', 100), Context: t.Context(), To: done})
	o := <-done
	if !errors.Is(o.Err, schema.ErrLimit) || !strings.Contains(o.Err.Error(), "1073741824") {
		t.Errorf("%v; want the limit, and what the program asked for", o.Err)
	}
	if n := stage.Stats().Panics; n != 0 {
		t.Errorf("%d panics", n)
	}
}

// TestLongCellsClose holds that each cell is reported or returned exactly once if its
// place closes while it moves to the class of long cells.
func TestLongCellsClose(t *testing.T) {
	const cells = 8
	stage, column, p := costlyStage(t, 2, map[byte]int64{'l': 1 << 34})
	close(p.gate)
	p.began = make(chan byte, 1<<20)
	for round := range 1000 {
		place := stage.Open("a", "job")
		made := make(ended, cells)
		for range cells {
			place.Put(&operators.Task{Column: column, Cell: cellOf('l', 1), Context: t.Context(), To: made})
		}
		for range round % 200 {
			runtime.Gosched()
		}
		back := len(place.Close())
		for range cells - back {
			select {
			case o := <-made:
				o.Blob.Release()
			case <-time.After(time.Minute):
				t.Fatalf("round %d: %d cells were given back, %d were made; want %d together", round, back, len(made), cells)
			}
		}
	}
}
