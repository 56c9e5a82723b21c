package operators_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/admission"
	"bowstring/fetch/operators"
	"bowstring/fetch/operators/audio"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images"
	"bowstring/fetch/operators/program"
	"bowstring/schema"
	"bowstring/spill"
)

// results is a cache that keeps all, and loses some at random.
type results struct {
	mu      sync.Mutex
	rng     *rand.Rand
	data    map[schema.Key][]byte
	refs    map[schema.Key]schema.BlobRef
	tenants map[uint16]int // whose results were offered
}

func (c *results) Ref(key schema.Key) (schema.BlobRef, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ref, ok := c.refs[key]
	return ref, ok
}

func (c *results) Get(ref schema.BlobRef, _ spill.Place) (schema.Blob, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rng.IntN(8) == 0 {
		delete(c.refs, ref.Key)
		return schema.Blob{}, false
	}
	return schema.NewBlob(c.data[ref.Key], nil), true
}

func (c *results) Wants(spill.Place, int64, bool) bool { return true }

func (c *results) Offer(ref schema.BlobRef, at spill.Place, _ time.Duration, blob schema.Blob) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer blob.Release()
	c.refs[ref.Key], c.data[ref.Key] = ref, bytes.Clone(blob.Bytes())
	c.tenants[at.Tenant]++
	return true
}

func kindsOf() operators.Kinds {
	return operators.Kinds{
		"image": {Contract: operators.Always(images.ContractVersion), Operators: images.Names(), Compile: images.Compile,
			Follow: images.CompileMask},
		"audio": {Contract: audio.Contract, Operators: audio.Names(), Compile: audio.Compile},
	}
}

// ended is a receiver that has room for everything.
type ended chan operators.Outcome

func (ended) Room(*operators.Task, int64) bool              { return true }
func (e ended) Made(_ *operators.Task, o operators.Outcome) { e <- o }
func cellsIn(tb testing.TB, pattern string) (cells [][]byte) {
	tb.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		tb.Fatal(pattern, err)
	}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			tb.Fatal(err)
		}
		cells = append(cells, b)
	}
	return cells
}

func columnOf(tb testing.TB, kinds operators.Kinds, kind, list string) *operators.Column {
	tb.Helper()
	sch, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("cell", kind, true)})
	if err != nil {
		tb.Fatal(err)
	}
	var named []map[string]json.RawMessage
	if err := json.Unmarshal([]byte(list), &named); err != nil {
		tb.Fatal(err)
	}
	var steps []schema.Step
	for _, s := range named {
		for name, params := range s {
			steps = append(steps, schema.Step{Name: name, Params: params})
		}
	}
	set, err := operators.CompileSet(kinds, sch, nil, schema.Operators{"cell": {Steps: steps}})
	if err != nil {
		tb.Fatal(err)
	}
	return set.Column("cell")
}

// stageOf returns a stage that caches results that save perByte nanoseconds for each
// byte.
func stageOf(tb testing.TB, cache operators.Cache, perByte float64) *operators.Stage {
	tb.Helper()
	var limits admission.Limits
	limits.EnsureDefaults()
	st, err := operators.NewStage(operators.Options{Workers: 2, Ledger: admission.NewLedger(limits), Cache: cache,
		KeepNanosPerByte: perByte,
		Logger:           slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(st.Close)
	return st
}

// slow is a program whose whole list claims to take an hour, so that its prefix is cached
// whatever the measured times are.
type slow struct{ program.Splitter }

func (d slow) Run(ctx context.Context, cell []byte, by program.Draws, alloc func(int) []byte) (program.Outcome, error) {
	o, err := d.Splitter.Run(ctx, cell, by, alloc)
	o.Elsewhere += time.Hour
	return o, err
}

// TestPrefixes holds that results are the same, whether what the first steps make is kept, lost, or made again: of
// cells whole and damaged, in any epoch.
func TestPrefixes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 5))
	kinds := kindsOf()
	for name, kind := range kinds {
		compile := kind.Compile
		kind.Compile = func(steps []program.Step) (program.Program, error) {
			p, err := compile(steps)
			if s, ok := p.(program.Splitter); ok {
				return slow{s}, err
			}
			return p, err
		}
		kinds[name] = kind
	}
	for _, of := range []struct{ kind, cells, list string }{
		{"image", "images/testdata/*.jpg",
			`[{"Decode": {}}, {"Resize": {"size": 90}}, {"RandomCrop": {"size": 80, "pad_if_needed": true}}, {"RandomHorizontalFlip": {}}, {"ToImage": {}}]`},
		{"image", "images/testdata/*.*",
			`[{"Decode": {"mode": "UNCHANGED"}}, {"RandomResizedCrop": {"size": [20, 30]}}]`},
		{"image", "images/testdata/*.png",
			`[{"Decode": {}}, {"Resize": {"size": [40, 50]}}, {"ToDtype": {"dtype": "float32", "scale": true}}, {"RandomHorizontalFlip": {}}, {"RandomErasing": {}}]`},
		{"audio", "audio/codec/testdata/*.flac",
			`[{"Decode": {}}, {"Resample": {}}, {"Mono": {}}, {"RandomCrop": {"length": 3000}}]`},
		{"audio", "audio/codec/testdata/*.flac",
			`[{"Decode": {}}, {"Resample": {}}, {"Mono": {}}, {"MelSpectrogram": {"n_mels": 40}}, {"Log": {}},
			{"SpecAugment": {"n_time_masks": 2, "time_mask_param": 3, "n_freq_masks": 2, "freq_mask_param": 5}}, {"ToDtype": {"dtype": "float16"}}]`},
	} {
		c := columnOf(t, kinds, of.kind, of.list)
		cells := cellsIn(t, of.cells)
		for i := range cells {
			if i >= 4 && rng.IntN(5) == 0 { // the first four decide
				cells[i] = bytes.Clone(cells[i])
				cells[i][rng.IntN(len(cells[i]))] ^= 0x10
			}
		}
		cache := &results{rng: rand.New(rand.NewPCG(seed, 6)), data: map[schema.Key][]byte{},
			refs: map[schema.Key]schema.BlobRef{}, tenants: map[uint16]int{}}
		keeping, plain := stageOf(t, cache, 1e-9), stageOf(t, nil, 0)
		one := func(st *operators.Stage, tenant string, i int, epoch uint64) operators.Outcome {
			place := st.Open(tenant, "job")
			defer place.Close()
			to := make(ended, 1)
			place.Put(&operators.Task{Column: c, Cell: schema.NewBlob(cells[i], nil), Context: context.Background(),
				To: to, Tenant: tenant,
				Draws: c.Draws(draw.Key{Seed: 1, Epoch: epoch, Position: uint64(i)}),
				At:    spill.Place{Dataset: 1, Tenant: uint16(1 + i%2), Position: int64(i)},
				Ref:   schema.BlobRef{Key: schema.Key{byte(i), byte(i >> 8), 1}}})
			return <-to
		}
		for epoch := range uint64(4) {
			for i := range cells {
				tenant := []string{"a", "b"}[i%2]
				got, want := one(keeping, tenant, i, epoch), one(plain, tenant, i, epoch)
				if (got.Err == nil) != (want.Err == nil) || got.Err != nil && got.Err.Error() != want.Err.Error() {
					t.Fatalf("%s cell %d: %v, want %v", of.list, i, got.Err, want.Err)
				}
				if got.Err == nil && (!bytes.Equal(got.Blob.Bytes(), want.Blob.Bytes()) ||
					!bytes.Equal(got.Blob.Made().Params, want.Blob.Made().Params)) {
					t.Fatalf("%s cell %d of epoch %d: %d bytes %s, want %d bytes %s", of.list, i, epoch,
						len(got.Blob.Bytes()), got.Blob.Made().Params, len(want.Blob.Bytes()), want.Blob.Made().Params)
				}
				got.Blob.Release()
				want.Blob.Release()
			}
		}
		st := keeping.Stats()
		t.Logf("%s %d cells: trials %d, kept %d, found %d", of.list, len(cells), st.PrefixTrials, st.PrefixesKept,
			st.PrefixesFound)
		if st.PrefixTrials < 4 || st.PrefixesKept == 0 || st.PrefixesFound == 0 || st.Panics > 0 ||
			plain.Stats().PrefixTrials > 0 {
			t.Errorf("%s: %+v", of.list, st)
		}
		if n := cache.tenants[1] + cache.tenants[2]; int64(n) != st.PrefixesKept {
			t.Errorf("%d were offered on the account of the reader; %d were kept", n, st.PrefixesKept)
		}
	}
}

// lying is a program whose tail makes other bytes.
type lying struct{ program.Splitter }

func (l lying) Split() (head, tail program.Program, ok bool) {
	head, tail, ok = l.Splitter.Split()
	return head, wrongTail{tail}, ok
}

type wrongTail struct{ program.Program }

func (w wrongTail) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(int) []byte) (program.Outcome, error) {
	var out []byte
	o, err := w.Program.Run(ctx, cell, by, func(n int) []byte {
		out = alloc(n)
		return out
	})
	if len(out) > 0 {
		out[0]++
	}
	return o, err
}

// TestPrefixThatDiffers holds that a prefix which makes other bytes is found out before any of these is served.
func TestPrefixThatDiffers(t *testing.T) {
	kinds := kindsOf()
	kind := kinds["image"]
	kind.Compile = func(steps []program.Step) (program.Program, error) {
		p, err := images.Compile(steps)
		if err != nil {
			return nil, err
		}
		return lying{p.(program.Splitter)}, nil
	}
	kinds["image"] = kind
	sch, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("cell", "image", true)})
	if err != nil {
		t.Fatal(err)
	}
	set, err := operators.CompileSet(kinds, sch, nil, schema.Operators{"cell": {Steps: []schema.Step{
		{Name: "Decode"}, {Name: "Resize", Params: json.RawMessage(`{"size": 90}`)}, {Name: "RandomHorizontalFlip"}}}})
	if err != nil {
		t.Fatal(err)
	}
	cache := &results{rng: rand.New(rand.NewPCG(1, 6)), data: map[schema.Key][]byte{},
		refs: map[schema.Key]schema.BlobRef{}, tenants: map[uint16]int{}}
	st := stageOf(t, cache, 1e-9)
	cells := cellsIn(t, "images/testdata/*.jpg")
	var seen []byte
	for range 12 {
		place := st.Open("", "job")
		to := make(ended, 1)
		place.Put(&operators.Task{Column: set.Column("cell"), Cell: schema.NewBlob(cells[0], nil), Context: t.Context(),
			To:    to,
			Draws: set.Column("cell").Draws(draw.Key{}), At: spill.Place{Dataset: 1}})
		o := <-to
		place.Close()
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		if seen != nil && !bytes.Equal(o.Blob.Bytes(), seen) {
			t.Fatal("other bytes were served")
		}
		seen = bytes.Clone(o.Blob.Bytes())
		o.Blob.Release()
	}
	if s := st.Stats(); s.PrefixTrials != 1 || s.PrefixesKept != 0 {
		t.Errorf("%+v", s)
	}
}
