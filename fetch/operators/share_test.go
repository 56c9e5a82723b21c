package operators_test

import (
	"bytes"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"bowstring/fetch/admission"
	"bowstring/fetch/operators"
	"bowstring/fetch/operators/program"
	"bowstring/internal/operatorstest"
	"bowstring/schema"

	"github.com/apache/arrow/go/v17/arrow"
)

// stepped is operators whose runs block until gate is closed. It records whose cells are
// made, and how many at once.
type stepped struct {
	program.Program
	gate chan struct{}

	mu   sync.Mutex
	now  map[byte]int // by the first byte of cells, which says whose they are
	most map[byte]int
	made map[byte]int // bytes
	each []byte       // whose cells, in the order in which they began
}

func (p *stepped) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(int) []byte) (program.Outcome, error) {
	who := cell[0]
	p.mu.Lock()
	p.now[who]++
	p.most[who] = max(p.most[who], p.now[who])
	p.each = append(p.each, who)
	p.made[who] += len(cell)
	p.mu.Unlock()
	<-p.gate
	p.mu.Lock()
	p.now[who]--
	p.mu.Unlock()
	return p.Program.Run(ctx, cell, by, alloc)
}

// steppedStage is a stage with that number of workers, and the column of its cells.
func steppedStage(t *testing.T, workers int) (*operators.Stage, *operators.Column, *stepped) {
	t.Helper()
	p := &stepped{gate: make(chan struct{}), now: map[byte]int{}, most: map[byte]int{}, made: map[byte]int{}}
	kind := operatorstest.Kinds()["bytes"]
	kind.Compile = func(list []program.Step) (program.Program, error) {
		var err error
		p.Program, err = operatorstest.Compile(list)
		return p, err
	}
	sch, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("cell", "", true)})
	if err != nil {
		t.Fatal(err)
	}
	set, err := operators.CompileSet(operators.Kinds{"bytes": kind}, sch, nil,
		schema.Operators{"cell": {Kind: "bytes", Steps: []schema.Step{{Name: "Decode", Params: []byte("{}")}}}})
	if err != nil {
		t.Fatal(err)
	}
	var limits admission.Limits
	limits.EnsureDefaults()
	stage, err := operators.NewStage(operators.Options{Workers: workers, Ledger: admission.NewLedger(limits)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stage.Close)
	return stage, set.Column("cell"), p
}

func cellOf(who byte, n int) schema.Blob { return schema.NewBlob(bytes.Repeat([]byte{who}, n), nil) }

// TestTenantsWorkers holds that a tenant has no more cells made at once than its share of the workers, and that others
// have the rest.
func TestTenantsWorkers(t *testing.T) {
	stage, column, p := steppedStage(t, 8)
	stage.SetTerms(func(tenant string) admission.Terms {
		return map[string]admission.Terms{"a": {Workers: 0.25}, "c": {Workers: 0.01}}[tenant]
	})
	done := make(ended, 90)
	for _, who := range "abc" {
		place := stage.Open(string(who), "job")
		defer place.Close()
		for range 30 {
			place.Put(&operators.Task{Column: column, Cell: cellOf(byte(who), 100), Context: t.Context(),
				Tenant: string(who), To: done})
		}
	}
	for range 90 {
		p.gate <- struct{}{}
	}
	for range 90 {
		o := <-done
		o.Blob.Release()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.most['a'] > 2 || p.most['c'] > 1 || p.most['b'] > 8 || p.most['a'] == 0 || p.most['c'] == 0 {
		t.Errorf("at once were made %v; a may have 2, c 1, b 8", p.most)
	}
}

// TestStageSharesBytes holds that tenants get turns by bytes, with their weights: of those that go in and those that
// come out.
func TestStageSharesBytes(t *testing.T) {
	stage, column, p := steppedStage(t, 1)
	stage.SetTerms(func(tenant string) admission.Terms {
		return admission.Terms{Weight: map[string]int64{"w": 3}[tenant]}
	})
	const rounds = 600
	done := make(ended, 3*rounds+1)
	// A first cell holds the worker until all others wait.
	head := stage.Open("first", "job")
	defer head.Close()
	head.Put(&operators.Task{Column: column, Cell: cellOf('0', 1), Context: t.Context(), To: done})
	for _, of := range []struct {
		who  byte
		size int
	}{{'s', 100}, {'l', 1000}, {'w', 500}} {
		place := stage.Open(string(of.who), "job")
		defer place.Close()
		for range rounds {
			place.Put(&operators.Task{Column: column, Cell: cellOf(of.who, of.size), Guess: int64(3 * of.size),
				Context: t.Context(), Tenant: string(of.who), To: done})
		}
	}
	p.gate <- struct{}{}
	for range 300 {
		p.gate <- struct{}{}
	}
	p.mu.Lock()
	made := map[byte]float64{}
	for who, n := range p.made {
		made[who] = float64(n)
	}
	p.mu.Unlock()
	close(p.gate)
	for range 3*rounds + 1 {
		o := <-done
		o.Blob.Release()
	}
	if ratio := made['l'] / made['s']; math.Abs(ratio-1) > 0.15 {
		t.Errorf("small cells have had %.0f bytes, large ones %.0f", made['s'], made['l'])
	}
	if ratio := made['w'] / made['s']; math.Abs(ratio-3) > 0.4 {
		t.Errorf("of weight 1 are %.0f bytes, of weight 3 %.0f", made['s'], made['w'])
	}
}

// TestStageTraced holds that the first cells of a sampled stream have spans, later ones
// only if they fail, and cells of other streams none.
func TestStageTraced(t *testing.T) {
	stage, column, p := steppedStage(t, 1)
	close(p.gate)
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	ctx, span := provider.Tracer("test").Start(context.Background(), "DoGet")
	place := stage.Open("", "job")
	defer place.Close()
	if operators.NewTrace(t.Context()) != nil {
		t.Error("there is a trace without a recorded span")
	}
	trace := operators.NewTrace(ctx)
	for i := range 30 {
		cell := cellOf('a', 100+i)
		if i == 20 {
			cell = schema.NewBlob([]byte("bad"), nil)
		}
		for _, traced := range []*operators.Trace{trace, nil} {
			done := make(ended, 1)
			place.Put(&operators.Task{Column: column, Cell: cell, Context: t.Context(), To: done, Trace: traced})
			o := <-done
			o.Blob.Release()
		}
	}
	span.End()
	var drawn tracetest.SpanStubs
	for _, s := range spans.GetSpans() {
		if strings.HasPrefix(s.Name, "make ") {
			drawn = append(drawn, s)
		}
	}
	sized := func(s tracetest.SpanStub, n int) bool {
		return slices.Contains(s.Attributes, attribute.Int("bowstring.bytes", n))
	}
	failed := 0
	for i, s := range drawn {
		if s.Name != "make cell" || s.Parent.SpanID() != span.SpanContext().SpanID() || i < 8 && !sized(s, 100+i) {
			t.Errorf("span %d: %+v", i, s)
		}
		if s.Status.Description != "" {
			failed++
			if !sized(s, 3) {
				t.Errorf("of what failed: %+v", s)
			}
		}
	}
	// On a machine that stalls for a second, other cells are slow too.
	if len(drawn) < 9 || len(drawn) == 30 || failed != 1 {
		t.Errorf("%d spans, %d of them of what failed", len(drawn), failed)
	}
}
