package where

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

func recordOf(t testing.TB, s *arrow.Schema, json string) arrow.Record {
	t.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(s), nil),
		strings.NewReader(json))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rec.Release)
	return rec
}

// listOf is a literal list of n numbers.
func listOf(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("0,", n), ",") + "]" }

// An expression that costs too much for a row is refused when it is compiled. The error
// says which part costs how much.
func TestCostOfRow(t *testing.T) {
	s := testSchema(t)
	for name, text := range map[string]string{
		"lists within lists": fmt.Sprintf("all(%s, all(%s, # >= 0))", listOf(2000), listOf(2000)),
		"beside others":      fmt.Sprintf("label == 1 and none(%s, any(%s, # == width))", listOf(1500), listOf(1500)),
		"mapped":             fmt.Sprintf("len(map(%s, len(map(%s, # + 1)))) > 0", listOf(2000), listOf(2000)),
	} {
		_, err := Compile(t.Context(), text, s, now)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, schema.ErrLimit) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range []string{"steps for a row, at most 1048576 are allowed", "(…) here"} {
			if !strings.Contains(e.Message, want) {
				t.Errorf("%s: %q does not say %q", name, e.Message, want)
			}
		}
	}
	text := fmt.Sprintf("all(%s, all(%s, # >= 0))", listOf(100), listOf(100))
	if _, err := Compile(t.Context(), text, s, now); err != nil {
		t.Errorf("short lists within lists: %v", err)
	}
}

// An expression that costs too much for all rows is refused before the first row is
// evaluated.
func TestCostOfRows(t *testing.T) {
	e, err := Compile(t.Context(), fmt.Sprintf("all(%s, all(%s, # >= 0))", listOf(200), listOf(200)), testSchema(t), now)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.checkRows(1000); err != nil {
		t.Errorf("1,000 rows: %v", err)
	}
	if err := e.checkRows(1_000_000); !errors.Is(err, schema.ErrLimit) ||
		!strings.Contains(err.Error(), "for each of 1000000 rows") {
		t.Errorf("1,000,000 rows: %v", err)
	}
}

// Expressions that people write are allowed over any number of rows.
func TestCostOfHonestExpressions(t *testing.T) {
	s := testSchema(t)
	box := 1 + 4 + 1 + 4 + textSize(10)
	sizes := map[string][]float64{ // typical of cells in large datasets, with the numbers of their items
		"file_name": {textSize(40), 0}, "raw": {textSize(200), 0}, "tags": {1 + 20*textSize(12), 20},
		"boxes": {1 + 30*box, 30}, "box": {box, 0},
	}
	for _, text := range []string{
		"label < 10 and width >= 400",
		"label in " + listOf(2000),
		`split == "train" and file_name contains "cat"`,
		`any(tags, # startsWith "bird") and took > duration("1h")`,
		`any(tags, # in ["cat", "dog", "bird"]) and lower(file_name) endsWith ".jpg"`,
		`file_name matches "^.*/(cat|dog|bird)[0-9]+\\.jpe?g$"`,
		`raw matches "(?i)a photo of (the|a) [a-z]+"`,
		`count(boxes, #.w > 10 and #.tag == "cat") >= 3 and image.size > 1000`,
		`sum(map(boxes, #.w ?? 0)) > 100 and max(vec) > 0.5`,
	} {
		e, err := Compile(t.Context(), text, s, now)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var cells []float64
		for _, name := range e.cost.columns {
			cells = append(cells, sizes[name]...)
		}
		if n := e.rowSteps(cells); n > FreeSteps {
			t.Errorf("%s: %.0f steps a row, which is too many for large snapshots", text, n)
		}
	}
}

// If the cost depends on cells, each row is checked.
func TestCostOfCells(t *testing.T) {
	s := testSchema(t)
	tags := `"` + strings.Repeat(`x","`, 3000) + `x"`
	long := strings.Repeat("y", 1<<20)
	m := manifestOf(t, s, recordOf(t, s, rows),
		recordOf(t, s, fmt.Sprintf(`[{"height":1,"tags":[%s],"file_name":"short"}]`, tags)),
		recordOf(t, s, fmt.Sprintf(`[{"height":1,"tags":["x"],"file_name":%q}]`, long)))
	defer m.Close()
	for text, position := range map[string]string{
		`any(tags, any(tags, # == "z"))`:                                      "position 6",
		strings.TrimSuffix(strings.Repeat("file_name+", 100), "+") + ` == ""`: "position 7",
		`any(tags, len(file_name + file_name + #) < 0)`:                       "",
	} {
		e, err := Compile(t.Context(), text, s, now)
		if err != nil {
			t.Fatal(err)
		}
		_, err = e.Eval(t.Context(), m, now)
		if position == "" {
			if err != nil {
				t.Errorf("%s: %v", text, err)
			}
		} else if !errors.Is(err, schema.ErrLimit) || !strings.Contains(err.Error(), position) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Rows are evaluated in pieces, and no piece begins after the context has ended.
func TestEvalInPieces(t *testing.T) {
	s := testSchema(t)
	m := manifestOf(t, s, recordOf(t, s, rows))
	defer m.Close()
	e, err := Compile(t.Context(), fmt.Sprintf("all(%s, all(%s, # >= 0))", listOf(200), listOf(200)), s, now)
	if err != nil {
		t.Fatal(err)
	}
	pieces := 0
	if _, err := e.Eval(t.Context(), m, func(_ context.Context, piece func() error) error {
		pieces++
		return piece()
	}); err != nil {
		t.Fatal(err)
	}
	if pieces < 3 {
		t.Errorf("six rows of %.0f steps were evaluated in %d pieces", e.rowSteps(nil), pieces)
	}
	ctx, cancel := context.WithCancel(t.Context())
	pieces = 0
	_, err = e.Eval(ctx, m, func(_ context.Context, piece func() error) error { pieces++; cancel(); return piece() })
	if !errors.Is(err, context.Canceled) || pieces != 1 {
		t.Errorf("%d pieces after the context ended: %v", pieces, err)
	}
}

// Patterns are measured before they are compiled, and compiled once.
func TestPatterns(t *testing.T) {
	s := testSchema(t)
	for _, text := range []string{
		`((a{10}){10}){10}b{1000}(c{100}){10}`, `(\\pL{30}){30}`, strings.Repeat("a?", 1500),
		`(?:` + strings.Repeat("longer", 300) + `){1000}`,
	} {
		_, err := Compile(t.Context(), `file_name matches "`+text+`"`, s, now)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Message, "at most 2048 are allowed") || e.Column < 19 {
			t.Errorf("%s: %v", text, err)
		}
	}
	e, err := Compile(t.Context(), `file_name matches "(ab){20}" or (file_name matches "(ab){20}" and raw matches "c+")`, s,
		now)
	if err != nil {
		t.Fatal(err)
	}
	if len(e.patterns.byName) != 2 {
		t.Errorf("%d patterns, want 2", len(e.patterns.byName))
	}
	if _, err := Compile(t.Context(), `width matches "a"`, s, now); err == nil ||
		!strings.Contains(err.Error(), "mismatched types int and string") {
		t.Errorf("a number: %v", err)
	}
}

// FuzzEval evaluates expressions over a small manifest. It checks the measured cost
// against the allocated memory, which can be counted exactly.
func FuzzEval(f *testing.F) {
	for _, text := range []string{
		"label < 10", `any(tags, # startsWith "b")`, `sum(map(boxes, #.w ?? 0)) > 3`, `file_name matches "(a|b)*c"`,
		`len(map(tags, # + # + file_name)) > 1`, `2 ** 3 ** 4 > width`, `x in 1..9`, `width in 1..1000000000`,
		`string(map(boxes, string(#))) contains upper(file_name ?? "")`, `date(file_name) > taken`,
		`trim(file_name, "äöü") == ""`,
		`filter(map(filter(tags, # != "a"), # + "b"), len(#) > 1) == ["x"]`, `tags[0] == "red" ? ok : not ok`,
		`tags[1:3] == [] or vec[-1] > 1`,
		`any(boxes, any(tags, # == "red") and #.tag in tags)`, `median(vec) + mean(1, 2, [3]) > max(vec, 7)`,
	} {
		f.Add(text)
	}
	s := testSchema(f)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(s), nil),
		strings.NewReader(rows))
	if err != nil {
		f.Fatal(err)
	}
	defer rec.Release()
	m := manifestOf(f, s, rec)
	defer m.Close()
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Compile(t.Context(), text, s, now)
		if err != nil {
			if e := (*Error)(nil); !errors.As(err, &e) {
				t.Errorf("%q: an error without a place: %v", text, err)
			}
			return
		}
		evaluateWithin(t, e, m)
	})
}

// evaluateWithin evaluates an expression for each row, and fails the test if that
// allocates more than its measured cost allows.
func evaluateWithin(t *testing.T, e *Expr, m whole) {
	t.Helper()
	r, err := newRunner(e, m.Form())
	if err != nil {
		t.Fatal(err)
	}
	for c := range m.Chunks() {
		page := m.Page(c)
		o := r.open(page, m.ChunkStart(c))
		for i := range page.Rows() {
			steps := r.measure(o, i)
			for k, get := range o.gets {
				r.env[e.columns[k]] = get(i)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _ = r.vm.Run(e.guarded, r.env)
			runtime.ReadMemStats(&after)
			if made := float64(after.TotalAlloc - before.TotalAlloc); made > 1<<16+128*steps {
				t.Fatalf("%q made %.0f bytes for row %d, which was measured to take %.0f steps", e.text, made, i, steps)
			}
		}
	}
}
