package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/where"
	"bowstring/schema"
)

func now(_ context.Context, piece func() error) error { return piece() }

// texts are rows of columns a and b of lists of one type, and of c, of int64 that may be null.
type texts struct {
	m     *schema.Manifest
	s     *arrow.Schema
	lists map[string][][]int64 // by column; nil is null
}

// makeTexts makes pages of rows of lists.
func makeTexts(t *testing.T, dtype arrow.DataType, lists map[string][][]int64, pages ...int) texts {
	t.Helper()
	names := []string{"a", "b", "c"}
	types := []arrow.DataType{dtype, dtype, arrow.PrimitiveTypes.Int64}
	meta := []arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}
	for i, name := range names {
		meta = append(meta, arrow.Field{Name: name, Type: arrow.ListOf(types[i]), Nullable: true})
	}
	s, err := schema.NewSchema(meta, nil)
	if err != nil {
		t.Fatal(err)
	}
	snap := schema.Snapshot{Dataset: "text", Number: 1, Schema: s}
	b := schema.NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(s), nil))
	defer rb.Release()
	var blobs []schema.Blob
	at := 0
	for _, n := range pages {
		ids := make([]schema.ID, n)
		for i := range ids {
			ids[i] = schema.SampleID("text", fmt.Sprint(at))
			rb.Field(0).(*array.Int64Builder).Append(int64(at))
			for k, name := range names {
				list := rb.Field(k + 1).(*array.ListBuilder)
				if list.Append(lists[name][at] != nil); lists[name][at] == nil {
					continue
				}
				text, err := json.Marshal(lists[name][at])
				if err == nil {
					err = list.ValueBuilder().UnmarshalJSON(text)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			at++
		}
		rec := rb.NewRecord()
		if err := b.AppendBatch(ids, rec, nil); err != nil {
			t.Fatal(err)
		}
		rec.Release()
		data, c, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		c.BlobRef = schema.RefOf(data)
		snap.Chunks, blobs = append(snap.Chunks, c), append(blobs, schema.NewBlob(data, nil))
	}
	m, err := schema.OpenManifest(&snap, blobs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return texts{m, s, lists}
}

// column makes a column of rows, as JSON.
func (x texts) column(t *testing.T, p schema.Pipeline, onError string, positions []int64) (string, arrow.Field,
	[]where.RowFault, error) {
	t.Helper()
	m, err := Compile("made", "operators.made", p, x.s, onError)
	if err != nil {
		return "", arrow.Field{}, nil, err
	}
	rows, err := x.m.At(positions)
	if err != nil {
		t.Fatal(err)
	}
	v, faults, err := m.Make(t.Context(), x.m.Form(), positions, rows, now)
	if err != nil || len(faults) > 0 && m.fails {
		return "", m.Field(), faults, err
	}
	if v.Nulls > 0 && !m.Field().Nullable {
		t.Errorf("%d nulls in a column that has none", v.Nulls)
	}
	b := schema.Batch{Schema: arrow.NewSchema([]arrow.Field{m.Field()}, nil), Rows: len(positions),
		Columns: []schema.Vector{v}}
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	rec, err := b.Record(mem)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	text, err := json.Marshal(rec.Column(0))
	if err != nil {
		t.Fatal(err)
	}
	return string(text), m.Field(), faults, nil
}

func pipeline(t *testing.T, text string) schema.Pipeline {
	t.Helper()
	o, err := schema.ParseOperators([]byte(`{"made": ` + text + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return o["made"]
}

func TestMake(t *testing.T) {
	x := makeTexts(t, arrow.PrimitiveTypes.Uint16, map[string][][]int64{
		"a": {{1, 2, 3}, {}, nil, {4}},
		"b": {{7}, {}, {8}, {9, 9}},
		"c": {{-1}, nil, {}, {1 << 40}},
	}, 3, 1)
	for text, want := range map[string]struct{ dt, json string }{
		`{"tokens": ["a"], "steps": [{"Concat": {}}]}`: {"list<item: uint16>", `[[1,2,3],[],null,[4]]`},
		`{"tokens": ["a"], "steps": [{"Concat": {"bos": 60000, "eos": 5}}]}`: {"list<item: uint16>",
			`[[60000,1,2,3,5],[60000,5],null,[60000,4,5]]`},
		`{"tokens": ["a", "b", "a"], "steps": [{"Concat": {"separator": 0}}]}`: {"list<item: uint16>",
			`[[1,2,3,0,7,0,1,2,3],[0,0],null,[4,0,9,9,0,4]]`},
		`{"tokens": ["a"], "steps": [{"Shift": {"by": 1}}]}`:  {"list<item: uint16>", `[[2,3],[],null,[]]`},
		`{"tokens": ["a"], "steps": [{"Shift": {"by": -1}}]}`: {"list<item: uint16>", `[[1,2],[],null,[]]`},
		`{"tokens": ["a"], "steps": [{"ToDtype": {"dtype": "int64"}}, {"Shift": {"by": 1, "fill": -100}}]}`: {
			"list<item: int64>", `[[2,3,-100],[],null,[-100]]`},
		`{"tokens": ["a"], "steps": [{"Shift": {"by": -2, "fill": 0}}]}`: {"list<item: uint16>", `[[0,0,1],[],null,[0]]`},
		`{"tokens": ["a"], "steps": [{"Split": {"length": 2}}]}`: {"list<item: list<item: uint16>>",
			`[[[1,2],[3]],[],null,[[4]]]`},
		`{"tokens": ["a"], "steps": [{"Split": {"length": 2, "pieces": 2}}]}`: {
			"fixed_size_list<item: list<item: uint16>>[2]", `[[[1,2],[3]],[[],[]],null,[[4],[]]]`},
		`{"tokens": ["a"], "steps": [{"Split": {"length": 2, "pieces": 1, "long": "cut"}}, {"Pad": {"length": 2, "value": 9}}]}`: {
			"fixed_size_list<item: fixed_size_list<item: uint16>[2]>[1]", `[[[1,2]],[[9,9]],null,[[4,9]]]`},
		`{"tokens": ["a"], "steps": [{"Split": {"length": 2}}, {"Pad": {"length": 2, "value": 9}}]}`: {
			"list<item: fixed_size_list<item: uint16>[2]>", `[[[1,2],[3,9]],[],null,[[4,9]]]`},
		`{"tokens": ["a"], "steps": [{"Pad": {"length": 4, "value": 9, "side": "left"}}]}`: {
			"fixed_size_list<item: uint16>[4]", `[[9,1,2,3],[9,9,9,9],null,[9,9,9,4]]`},
		`{"tokens": ["a"], "steps": [{"Pad": {"length": 2, "value": 9, "long": "cut"}}]}`: {
			"fixed_size_list<item: uint16>[2]", `[[1,2],[9,9],null,[4,9]]`},
		`{"tokens": ["a"], "steps": [{"Pad": {"multiple": 2, "value": 9}}]}`: {"list<item: uint16>",
			`[[1,2,3,9],[],null,[4,9]]`},
		`{"tokens": ["a"], "steps": [{"Pad": {"length": 4, "value": 9, "side": "left"}}, {"Mask": {}}]}`: {
			"fixed_size_list<item: uint8>[4]", `[[0,1,1,1],[0,0,0,0],null,[0,0,0,1]]`},
		`{"tokens": ["a"], "steps": [{"Mask": {}}, {"ToDtype": {"dtype": "int64"}}]}`: {"list<item: int64>",
			`[[1,1,1],[],null,[1]]`},
		`{"tokens": ["c"], "steps": [{"Shift": {"by": 5, "fill": -7}}]}`: {"list<item: int64>", `[[-7],null,[],[-7]]`},
	} {
		got, f, faults, err := x.column(t, pipeline(t, text), "", []int64{0, 1, 2, 3})
		// Arrow's own words say of each item that it is never null.
		if dt := strings.ReplaceAll(f.Type.String(), ", nullable", ""); err != nil || len(faults) > 0 || got != want.json ||
			dt != want.dt {
			t.Errorf("%s: %s of %s, %v, %v; want %s of %s", text, got, dt, faults, err, want.json, want.dt)
		}
	}
	// Rows are in any order, and as often as they are asked for.
	got, _, _, err := x.column(t, pipeline(t, `{"tokens": ["a"], "steps": [{"Pad": {"multiple": 2, "value": 9}}]}`), "",
		[]int64{3, 0, 3, 2})
	if want := `[[4,9],[1,2,3,9],[4,9],null]`; err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

// A row that cannot be made is a fault that says where, what, and what would be right.
func TestFaults(t *testing.T) {
	long := make([]int64, MaxCell+1)
	x := makeTexts(t, arrow.PrimitiveTypes.Uint32, map[string][][]int64{
		"a": {{1}, {1, 70000, 3}, long}, "b": {{}, {}, {}}, "c": {{}, {}, {-5}},
	}, 3)
	for text, want := range map[string]struct {
		fault string
		rows  string // where faults are null
	}{
		`{"tokens": ["a"], "steps": [{"Pad": {"length": 2, "value": 0}}]}`: {
			`operators.made.steps[0].Pad.length: got 3 tokens, want at most 2, or long "cut"`, `[[1,0],null,null]`},
		`{"tokens": ["a"], "steps": [{"Split": {"length": 1, "pieces": 2}}]}`: {
			`operators.made.steps[0].Split.pieces: got 3 tokens, want at most 2, or long "cut"`, `[[[1],[]],null,null]`},
		`{"tokens": ["a"], "steps": [{"ToDtype": {"dtype": "uint16"}}]}`: {
			`operators.made.steps[0].ToDtype.dtype: got the token 70000, want uint16, from 0 to 65535`, `[[1],null,null]`},
		`{"tokens": ["a", "b"], "steps": [{"Concat": {"eos": 0}}, {"Split": {"length": 4}}]}`: {
			`operators.made: a row has 2097153 tokens, at most 2097152 are allowed`, `[[[1,0]],[[1,70000,3,0]],null]`},
	} {
		_, _, faults, err := x.column(t, pipeline(t, text), "", []int64{0, 1, 2})
		if err != nil || len(faults) != 1 || !strings.Contains(faults[0].Err.Error(), want.fault) ||
			!errors.Is(faults[0].Err, schema.ErrInvalid) && !errors.Is(faults[0].Err, schema.ErrLimit) {
			t.Errorf("%s: %v, %v; want %s", text, faults, err, want.fault)
		}
		got, f, faults, err := x.column(t, pipeline(t, text), schema.OnErrorNull, []int64{0, 1, 2})
		if err != nil || got != want.rows || len(faults) == 0 || !f.Nullable {
			t.Errorf("%s: %s, %v, %v; want %s", text, got, faults, err, want.rows)
		}
	}
}

// An error for a request names the field, the value, and what would be right.
func TestCompileErrors(t *testing.T) {
	x := makeTexts(t, arrow.PrimitiveTypes.Uint16, map[string][][]int64{"a": {{}}, "b": {{}}, "c": {{}}}, 1)
	for text, want := range map[string]string{
		`{"tokens": ["d"], "steps": [{"Mask": {}}]}`:                                                                    `operators.made.tokens[0]: got "d", want a column of lists of integers`,
		`{"tokens": ["n"], "steps": [{"Mask": {}}]}`:                                                                    `got "n", want a column of lists of integers`,
		`{"tokens": ["a", "c"], "steps": [{"Mask": {}}]}`:                                                               `operators.made.tokens[1]: got "c" of int64, want lists of uint16`,
		`{"tokens": ["a", "b"], "steps": [{"Mask": {}}]}`:                                                               `operators.made.steps[0]: got "Mask", want Concat`,
		`{"tokens": ["a"], "steps": [{"Padd": {}}]}`:                                                                    `did you mean "Pad"?`,
		`{"tokens": ["a"], "steps": [{"Mask": {}}, {"Concat": {}}]}`:                                                    `want it first`,
		`{"tokens": ["a"], "steps": [{"Concat": {"bos": -1}}]}`:                                                         `steps[0].Concat.bos: got -1, want an integer from 0 to 65535`,
		`{"tokens": ["a"], "steps": [{"Concat": {"boss": 1}}]}`:                                                         `steps[0].Concat.boss: got a parameter that there is not, want one of bos, eos, separator`,
		`{"tokens": ["a"], "steps": [{"Concat": {"bos": "x"}}]}`:                                                        `steps[0].Concat.bos: got a string`,
		`{"tokens": ["a"], "steps": [{"Concat": {"bos": 1.5}}]}`:                                                        `steps[0].Concat.bos: got a number`,
		`{"tokens": ["a"], "steps": [{"Shift": {}}]}`:                                                                   `steps[0].Shift.by: got nothing, or 0`,
		`{"tokens": ["a"], "steps": [{"Shift": {"by": 9999999}}]}`:                                                      `from -1048576 to 1048576`,
		`{"tokens": ["a"], "steps": [{"Shift": {"by": 1, "fill": -100}}]}`:                                              `ToDtype before it`,
		`{"tokens": ["a"], "steps": [{"Split": {}}]}`:                                                                   `steps[0].Split.length: got 0, want an integer from 1 to 1048576`,
		`{"tokens": ["a"], "steps": [{"Split": {"length": 4, "long": "cut"}}]}`:                                         `steps[0].Split.long: got it without pieces`,
		`{"tokens": ["a"], "steps": [{"Split": {"length": 4, "pieces": 0}}]}`:                                           `want an integer from 1 to 4096`,
		`{"tokens": ["a"], "steps": [{"Split": {"length": 65536, "pieces": 17}}]}`:                                      `want an integer from 1 to 16`,
		`{"tokens": ["a"], "steps": [{"Split": {"length": 4}}, {"Shift": {"by": 1}}]}`:                                  `want this order: Concat, Shift, Split`,
		`{"tokens": ["a"], "steps": [{"Split": {"length": 4}}, {"Split": {"length": 4}}]}`:                              `want this order`,
		`{"tokens": ["a"], "steps": [{"Pad": {"value": 1}}]}`:                                                           `got both length and multiple, or neither`,
		`{"tokens": ["a"], "steps": [{"Pad": {"length": 4}}]}`:                                                          `steps[0].Pad.value: got nothing`,
		`{"tokens": ["a"], "steps": [{"Pad": {"length": 4, "value": 70000}}]}`:                                          `from 0 to 65535`,
		`{"tokens": ["a"], "steps": [{"Pad": {"length": 4, "value": 0, "side": "top"}}]}`:                               `want "left" or "right"`,
		`{"tokens": ["a"], "steps": [{"Pad": {"length": 4, "value": 0, "long": "x"}}]}`:                                 `want "error" or "cut"`,
		`{"tokens": ["a"], "steps": [{"Pad": {"multiple": 4, "value": 0, "long": "cut"}}]}`:                             `got it with multiple`,
		`{"tokens": ["a"], "steps": [{"Pad": {"length": 1048577, "value": 0}}]}`:                                        `from 1 to 1048576`,
		`{"tokens": ["a"], "steps": [{"Mask": {"of": 1}}]}`:                                                             `want no parameters`,
		`{"tokens": ["a"], "steps": [{"ToDtype": {"dtype": "float32"}}]}`:                                               `want one of`,
		`{"tokens": ["a"], "steps": [{"Split": {"length": 1}}, {"Pad": {"length": 1048576, "value": 0}}]}`:              `from 1 to 1`,
		`{"tokens": ["a"], "steps": [{"Split": {"length": 4, "pieces": 1024}}, {"Pad": {"length": 1025, "value": 0}}]}`: `from 1 to 1024`,
	} {
		_, _, _, err := x.column(t, pipeline(t, text), "", []int64{0})
		if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
}

// random is a list of steps for lists of uint16, and what it makes of a row, by other means than steps are made by.
func random(r *rand.Rand, columns int) (steps []string, make func(lists [][]int64) any) {
	ptr := func(chance int) *int64 {
		if r.IntN(chance) > 0 {
			return nil
		}
		v := int64(r.IntN(100))
		return &v
	}
	text := func(v *int64) string { b, _ := json.Marshal(v); return string(b) } //nolint:errchkjson // a number
	bos, sep, eos := ptr(2), ptr(2), ptr(2)
	steps = append(steps, fmt.Sprintf(`{"Concat": {"bos": %s, "separator": %s, "eos": %s}}`, text(bos), text(sep), text(eos)))
	by, fill := int64(r.IntN(9)-4), ptr(2)
	if by != 0 {
		steps = append(steps, fmt.Sprintf(`{"Shift": {"by": %d, "fill": %s}}`, by, text(fill)))
	}
	length, pieces := int64(r.IntN(6)), int64(r.IntN(5))
	if length > 0 && pieces > 0 {
		steps = append(steps, fmt.Sprintf(`{"Split": {"length": %d, "pieces": %d, "long": "cut"}}`, length, pieces))
	} else if length > 0 {
		steps = append(steps, fmt.Sprintf(`{"Split": {"length": %d}}`, length))
	}
	most := 20
	if length > 0 && pieces == 0 {
		most = int(length)
	}
	padTo, multiple, value, left := int64(0), int64(0), int64(r.IntN(9)), r.IntN(2) == 0
	side := map[bool]string{true: "left", false: "right"}[left]
	switch r.IntN(3) {
	case 0:
		padTo = 1 + int64(r.IntN(most))
		steps = append(steps, fmt.Sprintf(`{"Pad": {"length": %d, "value": %d, "side": %q, "long": "cut"}}`, padTo, value, side))
	case 1:
		if most > 1 {
			multiple = 2 + int64(r.IntN(most-1))
			steps = append(steps, fmt.Sprintf(`{"Pad": {"multiple": %d, "value": %d, "side": %q}}`, multiple, value, side))
		}
	}
	masks := r.IntN(3) == 0
	if masks {
		steps = append(steps, `{"Mask": {}}`)
	}
	if r.IntN(2) == 0 {
		steps = append(steps, `{"ToDtype": {"dtype": "int32"}}`)
	}
	one := func(tokens []int64) []int64 {
		real := slices.Clone(tokens)
		n := int64(len(real))
		if padTo > 0 {
			n = padTo
		}
		for multiple > 0 && n%multiple != 0 {
			n++
		}
		if int64(len(real)) > n {
			real = real[:n]
		}
		out := []int64{}
		for i := range n {
			at := i
			if left {
				at = i - (n - int64(len(real)))
			}
			is := at >= 0 && at < int64(len(real))
			switch {
			case masks && is:
				out = append(out, 1)
			case masks:
				out = append(out, 0)
			case is:
				out = append(out, real[at])
			default:
				out = append(out, value)
			}
		}
		return out
	}
	return steps, func(lists [][]int64) any {
		var all []int64
		if bos != nil {
			all = append(all, *bos)
		}
		for i, l := range lists[:columns] {
			if l == nil {
				return nil
			}
			if i > 0 && sep != nil {
				all = append(all, *sep)
			}
			all = append(all, l...)
		}
		if eos != nil {
			all = append(all, *eos)
		}
		moved := []int64{}
		for i := range all {
			if at := i + int(by); at >= 0 && at < len(all) {
				moved = append(moved, all[at])
			} else if fill != nil {
				moved = append(moved, *fill)
			}
		}
		if by < 0 && fill == nil { // the last are left out, not the first
			moved = all[:max(len(all)+int(by), 0)]
		}
		if length == 0 {
			return one(moved)
		}
		out := [][]int64{}
		for piece := range slices.Chunk(moved, int(length)) {
			if pieces == 0 || int64(len(out)) < pieces {
				out = append(out, one(piece))
			}
		}
		for int64(len(out)) < pieces {
			out = append(out, one(nil))
		}
		return out
	}
}

// Columns are what the steps say, whatever lists, pages, orders of rows and steps there are.
func TestMakeRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	lists := func(n int) (out [][]int64) {
		for range n {
			var l []int64
			if r.IntN(8) > 0 {
				l = make([]int64, r.IntN(12))
				for i := range l {
					l[i] = int64(r.IntN(100))
				}
			}
			out = append(out, l)
		}
		return out
	}
	for _, dtype := range []arrow.DataType{arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Int8,
		arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Uint8} {
		x := makeTexts(t, dtype, map[string][][]int64{"a": lists(40), "b": lists(40), "c": lists(40)}, 17, 3, 20)
		for range 60 {
			columns := 1 + r.IntN(2)
			steps, want := random(r, columns)
			positions := make([]int64, r.IntN(30))
			wanted := []any{}
			for i := range positions {
				positions[i] = int64(r.IntN(40))
				wanted = append(wanted, want([][]int64{x.lists["a"][positions[i]], x.lists["b"][positions[i]]}))
			}
			text := fmt.Sprintf(`{"tokens": %s, "steps": [%s]}`, []string{`["a"]`, `["a", "b"]`}[columns-1],
				strings.Join(steps, ", "))
			p := pipeline(t, text)
			got, _, faults, err := x.column(t, p, "", positions)
			expected, _ := json.Marshal(wanted) //nolint:errchkjson // lists of numbers
			if err != nil || len(faults) > 0 || !sameJSON(t, got, string(expected)) {
				t.Fatalf("%s, of %s: %v, %v\n got %s\nwant %s", text, dtype, faults, err, got, expected)
			}
			// Written in full the steps mean the same.
			m, err := Compile("made", "operators.made", p, x.s, "")
			if err != nil {
				t.Fatal(err)
			}
			p.Steps = m.Steps()
			if again, _, _, err := x.column(t, p, "", positions); err != nil || again != got {
				t.Fatalf("%s, in full: %s, %v; want %s", text, again, err, got)
			}
		}
	}
}

// sameJSON compares values. Arrow writes lists of uint8 as text.
func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal([]byte(a), &x), json.Unmarshal([]byte(b), &y)); err != nil {
		t.Fatalf("%v of %s and %s", err, a, b)
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

// RowBytes is at least what rows take on average, whatever the steps.
func TestRowBytes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	full := make([][]int64, 20)
	for i := range full {
		full[i] = make([]int64, 50)
	}
	x := makeTexts(t, arrow.PrimitiveTypes.Uint16, map[string][][]int64{"a": full, "b": full, "c": full}, 20)
	positions := make([]int64, 20)
	rows, err := x.m.At(positions)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		columns := 1 + r.IntN(2)
		steps, _ := random(r, columns)
		text := fmt.Sprintf(`{"tokens": %s, "steps": [%s]}`, []string{`["a"]`, `["a", "b"]`}[columns-1], strings.Join(steps, ", "))
		m, err := Compile("made", "operators.made", pipeline(t, text), x.s, "")
		if err != nil {
			t.Fatal(err)
		}
		v, faults, err := m.Make(t.Context(), x.m.Form(), positions, rows, now)
		if err != nil || len(faults) > 0 {
			t.Fatal(faults, err)
		}
		if took, most := v.Bytes(), m.RowBytes(100)*20+64; took > most {
			t.Errorf("%s: %d bytes, said were at most %d", text, took, most)
		}
	}
}

// docs/operators.md has each operator with its parameters and their defaults.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operators.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Lists of tokens\n")
	for _, name := range Names() {
		var values map[string]any
		text, err := json.Marshal(steps[name]())
		if err == nil {
			err = json.Unmarshal(text, &values)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, after, ok := strings.Cut(section, "\n| `"+name+"` | ")
		row, _, _ := strings.Cut(after, "\n")
		if !ok {
			t.Errorf("docs/operators.md has no line of %s", name)
		}
		for parameter := range values {
			if !strings.Contains(row, "`"+parameter+"`") {
				t.Errorf("the line of %s does not have its parameter %s: %s", name, parameter, row)
			}
		}
	}
}
