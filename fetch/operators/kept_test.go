package operators_test

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/admission"
	"bowstring/fetch/operators"
	"bowstring/fetch/operators/program"
	"bowstring/internal/operatorstest"
	"bowstring/schema"
	"bowstring/spill"
)

// oneResult is a cache of one result, which is used by one worker alone.
type oneResult struct {
	ref  schema.BlobRef
	data []byte
}

func (c *oneResult) Ref(key schema.Key) (schema.BlobRef, bool) {
	return c.ref, c.data != nil && key == c.ref.Key
}

func (c *oneResult) Get(schema.BlobRef, spill.Place) (schema.Blob, bool) {
	return schema.NewBlob(c.data, nil), c.data != nil
}

func (c *oneResult) Wants(spill.Place, int64, bool) bool { return true }

func (c *oneResult) Offer(ref schema.BlobRef, _ spill.Place, _ time.Duration, blob schema.Blob) bool {
	c.ref, c.data = ref, bytes.Clone(blob.Bytes())
	blob.Release()
	return true
}

// counted notes what its runs may work in.
type counted struct {
	program.Program
	ledger *admission.Ledger
	worked []int64
}

// Cost says that results may be longer than they are.
func (c *counted) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	cost, err := c.Program.Cost(cell, limits)
	cost.Result = cost.Result.Times(2)
	return cost, err
}

func (c *counted) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(int) []byte) (program.Outcome, error) {
	c.worked = append(c.worked, c.ledger.Limit(admission.Making)-c.ledger.Free(admission.Making))
	return c.Program.Run(ctx, cell, by, alloc)
}

// refusing has no room at first, and has the cache lose what it has.
type refusing struct {
	cache *oneResult
	again chan *operators.Task
	done  chan operators.Outcome
	asked []int64
}

func (r *refusing) Room(t *operators.Task, bytes int64) bool {
	r.asked = append(r.asked, bytes)
	if r.cache.data == nil {
		return true
	}
	r.cache.data = nil
	r.again <- t
	return false
}

func (r *refusing) Made(_ *operators.Task, o operators.Outcome) { r.done <- o }

// TestKeptResultGoes holds that a result which was found, and has gone when there is room for it, is made within
// the memory that its making takes, and once there is room for what that may make.
func TestKeptResultGoes(t *testing.T) {
	var limits admission.Limits
	limits.EnsureDefaults()
	ledger := admission.NewLedger(limits)
	cache := &oneResult{}
	stage, err := operators.NewStage(operators.Options{Workers: 1, Ledger: ledger, Cache: cache,
		KeepNanosPerByte: 1e-9})
	if err != nil {
		t.Fatal(err)
	}
	defer stage.Close()
	sch, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("image", "", true)})
	if err != nil {
		t.Fatal(err)
	}
	p := &counted{ledger: ledger}
	kind := operatorstest.Kinds()["bytes"]
	kind.Compile = func(list []program.Step) (program.Program, error) {
		var err error
		p.Program, err = operatorstest.Compile(list)
		return p, err
	}
	set, err := operators.CompileSet(operators.Kinds{"bytes": kind}, sch, nil,
		schema.Operators{"image": {Kind: "bytes", Steps: []schema.Step{{Name: "Decode",
			Params: json.RawMessage("{}")}}}})
	if err != nil {
		t.Fatal(err)
	}
	place := stage.Open("", "job")
	defer place.Close()
	to := &refusing{cache: cache, again: make(chan *operators.Task, 1), done: make(chan operators.Outcome, 1)}
	for i := range 2 {
		place.Put(&operators.Task{Column: set.Column("image"), Cell: schema.NewBlob(bytes.Repeat([]byte{7}, 5000), nil),
			Context: t.Context(), To: to, At: spill.Place{Dataset: 1}})
		if i == 1 {
			place.Again(<-to.again)
		}
		o := <-to.done
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		o.Blob.Release()
	}
	if len(p.worked) != 2 || p.worked[0] == 0 || p.worked[1] != p.worked[0] {
		t.Errorf("runs had %v bytes to work in", p.worked)
	}
	if want := []int64{10_000, 5000, 10_000}; !slices.Equal(to.asked, want) {
		t.Errorf("there was to be room for %v, want %v", to.asked, want)
	}
}
