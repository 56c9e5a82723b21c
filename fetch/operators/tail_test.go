package operators_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"bowstring/fetch/admission"
	"bowstring/fetch/operators"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images"
	"bowstring/fetch/operators/program"
	"bowstring/schema"
	"bowstring/spill"
)

// heavy is a program whose tail works in a given memory, and which notes what there was for that.
type heavy struct {
	program.Splitter
	tail *heavyTail
}

func (h heavy) Split() (head, tail program.Program, ok bool) {
	head, h.tail.Program, ok = h.Splitter.Split()
	return head, h.tail, ok
}

type heavyTail struct {
	program.Program
	ledger *admission.Ledger
	runs   atomic.Int64
	least  atomic.Int64 // bytes that were held while it ran
}

const heavyBytes = 20 << 20

func (h *heavyTail) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	cost, err := h.Program.Cost(cell, limits)
	cost.Working = program.Count(heavyBytes)
	return cost, err
}

func (h *heavyTail) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(int) []byte) (program.Outcome, error) {
	held := h.ledger.Limit(admission.Making) - h.ledger.Free(admission.Making)
	if h.runs.Add(1) == 1 || held < h.least.Load() {
		h.least.Store(held)
	}
	return h.Program.Run(ctx, cell, by, alloc)
}

// TestTailsMemory holds that what a tail works in, and the second result of a trial, are counted; and that where there
// is no memory for them the whole list makes the cell.
func TestTailsMemory(t *testing.T) {
	const side = 500
	for _, room := range []int64{64 << 20, heavyBytes + side*side*3} {
		limits := admission.Limits{Making: room}
		limits.EnsureDefaults()
		ledger := admission.NewLedger(limits)
		tail := &heavyTail{ledger: ledger}
		kinds := kindsOf()
		kind := kinds["image"]
		kind.Compile = func(steps []program.Step) (program.Program, error) {
			p, err := images.Compile(steps)
			if err != nil {
				return nil, err
			}
			return heavy{p.(program.Splitter), tail}, nil
		}
		kinds["image"] = kind
		c := columnOf(t, kinds, "image", `[{"Decode": {}}, {"Resize": {"size": [500, 500]}}, {"RandomHorizontalFlip": {}}]`)
		cache := &results{rng: rand.New(rand.NewPCG(1, 6)), data: map[schema.Key][]byte{},
			refs: map[schema.Key]schema.BlobRef{}, tenants: map[uint16]int{}}
		stage, err := operators.NewStage(operators.Options{Workers: 1, Ledger: ledger, Cache: cache,
			KeepNanosPerByte: 1e-9, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stage.Close)
		place := stage.Open("", "job")
		to := make(ended, 1)
		place.Put(&operators.Task{Column: c, Cell: schema.NewBlob(cellsIn(t, "images/testdata/*.jpg")[0], nil),
			Context: t.Context(), To: to, Draws: c.Draws(draw.Key{}), At: spill.Place{Dataset: 1}})
		o := <-to
		place.Close()
		if o.Err != nil || len(o.Blob.Bytes()) != side*side*3 {
			t.Fatalf("%d bytes, %v", len(o.Blob.Bytes()), o.Err)
		}
		o.Blob.Release()
		small := room < 64<<20
		// The data between the two is an image of the same size, which is counted, too.
		if n, least := tail.runs.Load(), tail.least.Load(); small != (n == 0) ||
			!small && least < heavyBytes+2*side*side*3 {
			t.Errorf("of %d bytes: the tail ran %d times, with %d bytes held", room, n, least)
		}
		if held := ledger.Limit(admission.Making) - ledger.Free(admission.Making); held != 0 {
			t.Errorf("%d bytes are held after all", held)
		}
	}
}
