package where

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// column is what an expression makes of rows, as JSON, by way of a batch that shows it.
func column(t testing.TB, s *arrow.Schema, m whole, text string, positions []int64) (string, arrow.DataType, error) {
	t.Helper()
	maker, err := CompileColumn(t.Context(), "made", "operators.made.expression", text, s, "", now)
	if err != nil {
		return "", nil, err
	}
	at, err := m.At(positions)
	if err != nil {
		t.Fatal(err)
	}
	v, faults, err := maker.Make(t.Context(), m.Form(), positions, at, now)
	if err != nil {
		return "", nil, err
	}
	if len(faults) > 0 {
		return "", nil, fmt.Errorf("row %d: %w", faults[0].Row, faults[0].Err)
	}
	f := maker.Field()
	if v.Nulls > 0 && !f.Nullable {
		t.Errorf("%s: %d nulls in a column that has none", text, v.Nulls)
	}
	b := schema.Batch{Schema: arrow.NewSchema([]arrow.Field{f}, nil), Rows: len(positions), Columns: []schema.Vector{v}}
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	rec, err := b.Record(mem)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	text2, err := rec.Column(0).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(text2), f.Type, nil
}

func TestMakeColumn(t *testing.T) {
	s := testSchema(t)
	m := manifestOf(t, s, recordOf(t, s, rows), recordOf(t, s, rows))
	all := []int64{0, 1, 2, 3, 4, 5}
	for text, want := range map[string]struct {
		dt   string
		json string
	}{
		"width * height":             {"int64", "[1000,4000,9000,null,25000,36000]"},
		"width / height":             {"float64", "[10,10,10,null,10,10]"},
		"score + 1":                  {"float64", "[1.5,2.5,3.5,null,0,7]"},
		"width ?? 0":                 {"int64", "[100,200,300,0,500,600]"},
		"width > 250":                {"bool", "[false,false,true,false,true,true]"},
		"not (width > 250)":          {"bool", "[true,true,false,true,false,false]"},
		"ok":                         {"bool", "[true,false,true,false,false,true]"},
		"width == nil":               {"bool", "[false,false,false,true,false,false]"},
		"lower(file_name)":           {"utf8", `["a/cat1.jpg","b/dog.png","c/cat2.jpg",null,"","dir/zebra.jpg"]`},
		"split":                      {"utf8", `["train","train","train","train","train","train"]`},
		"position * 2":               {"int64", "[0,2,4,6,8,10]"},
		"box.w":                      {"int64", "[5,6,7,null,null,-6]"},
		"len(tags)":                  {"int64", "[2,0,1,null,2,2]"},
		"len(file_name) > 3 ? 1 : 2": {"int64", "[1,1,1,2,2,1]"},
		"width > 250 ? 'big' : 'no'": {"utf8", `["no","no","big","no","big","big"]`},
		"float(label) / 2":           {"float64", "[0,0.5,0.5,null,2.5,-1]"},
		"image.size":                 {"int64", "[null,null,null,null,null,null]"},
		"big":                        {"uint64", "[1,18446744073709551615,3,null,5,6]"},
		"big + 0":                    {"uint64", "[1,18446744073709551615,3,null,5,6]"},
		"tags != nil and len(tags) > 1 ? tags[0] : 'x'": {"utf8", `["red","x","x","x",null,"red"]`},
		"taken < day + duration('1h')":                  {"bool", "[true,false,true,false,false,true]"},
		"$env[\"odd name\"] + 1":                        {"int64", "[2,3,4,null,6,7]"},
		"any(tags, # == 'red')":                         {"bool", "[true,false,false,false,false,true]"},
		"int(max(width, 250)) - 1":                      {"int64", "[249,249,299,null,499,599]"},
		"1":                                             {"int64", "[1,1,1,1,1,1]"},
		"took":                                          {"duration[us]", `["1m0s","1h0m0s","2h0m0s",null,"0s","1s"]`},
		"taken - taken":                                 {"duration[us]", `["0s","0s","0s",null,"0s","0s"]`},
		"file_name contains 'cat'":                      {"bool", "[true,false,true,false,false,false]"},
		"file_name matches 'c[a]t.+g'":                  {"bool", "[true,false,true,false,false,false]"},
	} {
		got, dt, err := column(t, s, m, text, all)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if want.dt == "duration[us]" { // how it is written is Arrow's
			want.json = got
			if !strings.Contains(got, "null") {
				t.Errorf("%s: %s", text, got)
			}
		}
		if got != want.json || dt.String() != want.dt {
			t.Errorf("%s: %s of %s; want %s of %s", text, got, dt, want.json, want.dt)
		}
	}
	// Rows of several pages, in any order and repeated.
	if got, _, err := column(t, s, m, "position * 1000 + (width ?? 0)", []int64{11, 0, 5, 11, 3}); err != nil ||
		got != "[11600,100,5600,11600,3000]" {
		t.Errorf("%s, %v", got, err)
	}
	if got, _, err := column(t, s, m, "split", []int64{0, 11, 8}); err != nil || got != `["train","","val"]` {
		t.Errorf("%s, %v", got, err)
	}
	if got, dt, err := column(t, s, m, "taken", []int64{1, 3}); err != nil || dt.String() != "timestamp[us, tz=UTC]" ||
		got != `["2024-06-01T12:00:00Z",null]` && got != `["2024-06-01 12:00:00Z",null]` {
		t.Errorf("%s of %v, %v", got, dt, err)
	}
	if got, _, err := column(t, s, m, "width", nil); err != nil || got != "[]" {
		t.Errorf("no rows: %s, %v", got, err)
	}
}

// A column of a bool has true exactly where a selection by the same expression has the sample.
func TestMakeColumnAsWhere(t *testing.T) {
	s := testSchema(t)
	m := manifestOf(t, s, recordOf(t, s, rows))
	for _, text := range []string{"width > 250", "not (width > 250)", "ok", "not ok", "box.w > 5 or label == 5",
		"file_name endsWith 'jpg'", "score < 0 ? ok : width > 100"} {
		e, err := Compile(t.Context(), text, s, now)
		if err != nil {
			t.Fatal(err)
		}
		found, err := e.Eval(t.Context(), m, now)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i := range int64(6) {
			want = append(want, fmt.Sprint(found.Has(i)))
		}
		got, _, err := column(t, s, m, text, []int64{0, 1, 2, 3, 4, 5})
		if err != nil || got != "["+strings.Join(want, ",")+"]" {
			t.Errorf("%s: %s, %v; where has %v", text, got, err, want)
		}
	}
}

func TestMakeColumnErrors(t *testing.T) {
	s := testSchema(t)
	m := manifestOf(t, s, recordOf(t, s, rows))
	for text, want := range map[string]string{
		"":                               "the expression is empty",
		"tags":                           "it gives a list, which no column can have",
		"box":                            "it gives a struct, which no column can have",
		"widht + 1":                      `no column "widht" (did you mean "width"?)`,
		"width + 'a'":                    "operators.made.expression:1:7: invalid operation",
		"nil":                            "it gives a value whose type only each row decides",
		"[1, 'a'][label % 2]":            "int(…), float(…) or string(…) make one",
		"image":                          "is a blob column",
		"let x = 1; x":                   "let has no place in an expression",
		"12 % label":                     "integer divide by zero",
		"file_name[90:] + file_name[99]": "", // whatever it is, it is an error that names the row or the place
		fmt.Sprintf("all(%s, all(%s, # >= 0))", listOf(200), listOf(200)): "at most 16384 are allowed where a column is made",
	} {
		got, _, err := column(t, s, m, text, []int64{0, 1})
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), "operators.made.expression:") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v; want %q", text, got, err, want)
		}
		if !errors.Is(err, schema.ErrInvalid) && !errors.Is(err, schema.ErrLimit) {
			t.Errorf("%s: %v is of no kind", text, err)
		}
	}
	long := recordOf(t, s, fmt.Sprintf(`[{"height":1,"file_name":%q,"date":1},{"height":2,"raw":"/w==","date":1}]`,
		strings.Repeat("x", MaxMadeText)))
	m = manifestOf(t, s, long)
	if _, _, err := column(t, s, m, "file_name", []int64{0}); err != nil {
		t.Errorf("a text as long as may be: %v", err)
	}
	if _, _, err := column(t, s, m, "file_name + 'y'", []int64{1, 0}); err == nil ||
		!strings.Contains(err.Error(), "row 1: operators.made.expression:1:1: it gives a text of 4097 bytes, at most 4096 are allowed") {
		t.Errorf("a longer one: %v", err)
	}
	if _, _, err := column(t, s, m, "raw", []int64{1}); err == nil || !strings.Contains(err.Error(), "no UTF-8") {
		t.Errorf("bytes that are no text: %v", err)
	}
}

// If on_error allows faults, rows that cannot be evaluated are faults and null, whatever
// the column's type. The other rows have their values.
func TestMakeColumnFaults(t *testing.T) {
	s := testSchema(t)
	m := manifestOf(t, s, recordOf(t, s, rows), recordOf(t, s, rows))
	positions := []int64{1, 0, 5, 0, 2}
	at, err := m.At(positions)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"12 % position":              "[0,(null),2,(null),0]",
		"12 % position == 0":         "[true,(null),false,(null),true]",
		"string(12 % position)":      `["0",(null),"2",(null),"0"]`,
		"float(12 % position) + 0.5": "[0.5,(null),2.5,(null),0.5]",
	} {
		for _, onError := range []string{schema.OnErrorNull, schema.OnErrorSkip, schema.OnErrorFail} {
			maker, err := CompileColumn(t.Context(), "made", "operators.made.expression", text, s, onError, now)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if f := maker.Field(); f.Nullable != (f.Type.ID() != arrow.BOOL || onError == schema.OnErrorNull) {
				t.Errorf("%s: with on_error %s the column is %v", text, onError, f)
			}
			v, faults, err := maker.Make(t.Context(), m.Form(), positions, at, now)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if onError == schema.OnErrorFail {
				if len(faults) != 1 || faults[0].Row != 1 {
					t.Errorf("%s: the faults are %v", text, faults)
				}
				continue
			}
			if len(faults) != 2 || faults[0].Row != 1 || faults[1].Row != 3 || v.Nulls != 2 || v.Len != 5 {
				t.Errorf("%s: %d nulls of %d, the faults are %v", text, v.Nulls, v.Len, faults)
			}
			var e *Error
			if !errors.As(faults[0].Err, &e) || e.Field != "operators.made.expression" {
				t.Errorf("%s: the fault is %v", text, faults[0].Err)
			}
			b := schema.Batch{Schema: arrow.NewSchema([]arrow.Field{maker.Field()}, nil), Rows: 5, Columns: []schema.Vector{v}}
			rec, err := b.Record(memory.DefaultAllocator)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(rec.Column(0)); strings.ReplaceAll(got, " ", ",") != want {
				t.Errorf("%s: %s, want %s", text, got, want)
			}
			rec.Release()
		}
	}
}

// A column is made in several turns, and its making ends with its context.
func TestMakeColumnTurns(t *testing.T) {
	s := testSchema(t)
	m := manifestOf(t, s, recordOf(t, s, rows))
	maker, err := CompileColumn(t.Context(), "made", "x", fmt.Sprintf("count(%s, # >= (width ?? 0))", listOf(500)), s, "",
		now)
	if err != nil {
		t.Fatal(err)
	}
	positions := make([]int64, 1000)
	at, err := m.At(positions)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	turns, cause := 0, errors.New("enough")
	_, _, err = maker.Make(ctx, m.Form(), positions, at, func(_ context.Context, piece func() error) error {
		if turns++; turns == 2 {
			cancel(cause)
		}
		return piece()
	})
	if !errors.Is(err, cause) || turns != 2 {
		t.Errorf("%d turns, %v", turns, err)
	}
}

// If a long expression fails for every row of a batch, the faults share one copy of its
// text.
func TestFaultsAreSmall(t *testing.T) {
	s := testSchema(t)
	m := manifestOf(t, s, recordOf(t, s, rows))
	text := `tags[99] == "` + strings.Repeat("x", 15_000) + `"`
	maker, err := CompileColumn(t.Context(), "made", "x", text, s, schema.OnErrorNull, now)
	if err != nil {
		t.Fatal(err)
	}
	const n = 2000
	positions := make([]int64, n)
	at, err := m.At(positions)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, faults, err := maker.Make(t.Context(), m.Form(), positions, at, now)
	runtime.ReadMemStats(&after)
	if err != nil || len(faults) != n {
		t.Fatalf("%d faults: %v", len(faults), err)
	}
	if made := after.TotalAlloc - before.TotalAlloc; made > n*4096 {
		t.Errorf("%d faults took %d bytes", n, made)
	}
	if shown := faults[n-1].Err.Error(); !strings.Contains(shown, "x:1:5: ") || !strings.Contains(shown, "\n | "+text[:20]) {
		t.Errorf("the error does not show the place: %.200s", shown)
	}
}

// The memory of a compiled expression is bounded, and it keeps nothing of its syntax
// tree.
func TestMakerIsSmall(t *testing.T) {
	s := testSchema(t)
	for name, text := range map[string]string{
		"sum": repeated(400, " + ", "(height == N ? label : width)"), "table": "label in [" + repeated(3000, ",", "N") + "]",
		"texts": `file_name in [` + repeated(1500, ",", `"N"`) + "]", "or": repeated(1200, " or ", "ok"),
	} {
		const n = 8
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var kept []*Maker
		for range n {
			m, err := CompileColumn(t.Context(), "made", "x", text, s, schema.OnErrorNull, now)
			if err != nil {
				t.Fatal(name, err)
			}
			kept = append(kept, m)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		took := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n
		if took > kept[0].Bytes() {
			t.Errorf("%s: a maker takes %d bytes, and says %d", name, took, kept[0].Bytes())
		}
	}
}

// Rows that were gathered into one page keep their own positions.
func TestMakeColumnOfGatheredRows(t *testing.T) {
	s := testSchema(t)
	m := manifestOf(t, s, recordOf(t, s, rows), recordOf(t, s, rows))
	positions := []int64{11, 0, 5, 11, 3}
	found, err := m.At(positions)
	if err != nil {
		t.Fatal(err)
	}
	gathered := m.Form().NewGathering()
	for _, row := range found {
		if err := gathered.Append(row.Page, row.At, 1); err != nil {
			t.Fatal(err)
		}
	}
	page := gathered.Page()
	for i := range found {
		found[i] = schema.Row{Page: page, At: i}
	}
	maker, err := CompileColumn(t.Context(), "made", "operators.made.expression", "position * 1000 + (width ?? 0)", s, "", now)
	if err != nil {
		t.Fatal(err)
	}
	v, faults, err := maker.Make(t.Context(), m.Form(), positions, found, now)
	if err != nil || len(faults) > 0 {
		t.Fatal(faults, err)
	}
	b := schema.Batch{Schema: arrow.NewSchema([]arrow.Field{maker.Field()}, nil), Rows: len(positions),
		Columns: []schema.Vector{v}}
	rec, err := b.Record(memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	if got, err := rec.Column(0).MarshalJSON(); err != nil || string(got) != "[11600,100,5600,11600,3000]" {
		t.Errorf("%s, %v", got, err)
	}
}
