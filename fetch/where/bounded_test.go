package where

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// The limits of compiling that the package comment states, in allocated bytes.
const (
	compileBytes = 256 << 10
	nodeBytes    = 2 << 10 // for each byte of the text, or node
)

// opsPerNode is how many instructions a node comes to at most, where it is compiled once.
const opsPerNode = 8

// compileWithin compiles an expression, and fails the test if that takes more than the
// limits, whether it succeeds or not.
func compileWithin(t *testing.T, text string, s *arrow.Schema) (*Expr, error) {
	t.Helper()
	shown := text
	if len(shown) > 300 {
		shown = shown[:300] + "…"
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	turns := 0
	e, err := Compile(t.Context(), text, s, func(ctx context.Context, piece func() error) error {
		turns++
		return piece()
	})
	runtime.ReadMemStats(&after)
	nodes := 0
	if err == nil {
		nodes = e.nodes
	}
	made, most := after.TotalAlloc-before.TotalAlloc, uint64(compileBytes+nodeBytes*max(len(text), nodes))
	if len(text) <= schema.MaxWhereBytes && made > most {
		t.Errorf("%s: compiling %d bytes, %d nodes, allocated %d bytes, at most %d are allowed (%v)", shown, len(text),
			nodes, made, most, err)
	}
	if turns > 2 {
		t.Errorf("%s: compiled in %d turns", shown, turns)
	}
	if err != nil {
		return nil, err
	}
	if nodes > maxNodes {
		t.Errorf("%s: %d nodes", shown, nodes)
	}
	for _, p := range []int{len(e.plain.Bytecode), len(e.guarded.Bytecode)} {
		if p > opsPerNode*nodes+8 {
			t.Errorf("%s: %d instructions for %d nodes", shown, p, nodes)
		}
	}
	if e.cost.termSteps > maxTermSteps {
		t.Errorf("%s: %d terms were gone through", shown, e.cost.termSteps)
	}
	return e, nil
}

// nested puts a text into the place E of a form, n times.
func nested(n int, text, form string) string {
	for range n {
		text = strings.Replace(form, "E", text, 1)
	}
	return text
}

// repeated joins n copies of a form, with their number in the place N.
func repeated(n int, sep, form string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = strings.ReplaceAll(form, "N", fmt.Sprint(i))
	}
	return strings.Join(list, sep)
}

// Expressions that are built to take long compile in proportion to their length, or are
// refused for the limit that they exceed.
func TestCompileIsBounded(t *testing.T) {
	s := testSchema(t)
	for name, test := range map[string]struct{ text, refused string }{
		"ranges within ranges":      {nested(120, "label", `len(string(E in 1..9))`) + " == 1", ""},
		"chains within chains":      {nested(200, "file_name", `string("a" < E < "z")`) + ` == "true"`, ""},
		"a long chain":              {repeated(1400, " < ", "len(raw)"), ""},
		"short conditionals":        {nested(4, "ok", "(E ?: ok)"), ""},
		"values that may be null":   {repeated(450, " + ", "(height == N ? label : width)") + " > 3", ""},
		"conditions for conditions": {repeated(60, " or ", "("+nested(4, "label", "((E)==1?label:width)")+" == 1)"), ""},
		"conditions in many maps": {repeated(60, " or ", "len(map(tags, "+
			nested(4, "label", "((E)==1?label:width)")+")) > 1"), ""},
		"or":               {repeated(2700, " or ", "ok"), ""},
		"not":              {strings.Repeat("!", 16000) + "ok", ""},
		"powers":           {strings.Repeat("1**", 5000) + "1 > 0", ""},
		"list of literals": {"label in " + listOf(8000), ""},
		"joined texts":     {repeated(1100, " + ", "file_name") + ` == ""`, ""},
		"maps":             {repeated(300, " or ", "len(map(tags, # + file_name + raw)) > N"), ""},
		"a path of an unknown value": {`any([1, "x"], #` + strings.Repeat(".a", 8000) + " == 1)",
			"a path of more than 32 steps"},
		"many paths": {repeated(190, " or ", `any([1, "x"], #`+strings.Repeat(".a", 30)+" == 1)"),
			"nodes with its tests for nulls, at most 32768 are allowed"},
		"indexes":  {"tags" + strings.Repeat("[0]", 5000) + " == 0", "a path of more than 32 steps"},
		"brackets": {strings.Repeat("(", 8000) + "ok" + strings.Repeat(")", 8000), "nested more than 256 deep"},
		"brackets, and a slip": {strings.Repeat("(", 8000) + "ok" + strings.Repeat(")", 7000) + "\x01",
			"nested more than 256 deep"},
		"else":    {strings.Repeat("ok ? ok : ", 1600) + "ok", "conditionals are nested more than 4 deep"},
		"classes": {"file_name matches `" + strings.Repeat(`\pL`, 4000) + "`", "4000 classes such as"},
		"folded classes": {"file_name matches `(?i)" + strings.Repeat("[B-\U0001e942]", 1800) + "`",
			"1800 classes such as"},
		"escaped classes": {"file_name matches `(?i)" + strings.Repeat(`[B-\x{1e942}]`, 900) + "`",
			"900 classes such as"},
		"joined literals": {`file_name == "` + strings.Repeat("x", 8000) + `"` + strings.Repeat(`+"a"`, 2000),
			"nodes with its tests for nulls, at most 32768 are allowed"},
		"joined with nothing": {`file_name == "` + strings.Repeat("x", 8000) + `"` + strings.Repeat(`+""`, 2000),
			"nodes with its tests for nulls, at most 32768 are allowed"},
		"a long name": {strings.Repeat("x", 16000), "no column"},
	} {
		if len(test.text) > schema.MaxWhereBytes {
			t.Errorf("%s: %d bytes", name, len(test.text))
		}
		_, err := compileWithin(t, test.text, s)
		var e *Error
		switch {
		case err == nil && test.refused != "":
			t.Errorf("%s: it is not refused", name)
		case err != nil && test.refused == "":
			t.Errorf("%s: %.300s", name, err)
		case err != nil && (!errors.As(err, &e) || !errors.Is(err, schema.ErrInvalid) ||
			!strings.Contains(e.Message, test.refused)):
			t.Errorf("%s: %.300s; want %q", name, err, test.refused)
		}
		if err := CheckSyntax(test.text); err != nil && !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The number of dates with a time zone, which is read from a file, is limited.
func TestZonesAreBounded(t *testing.T) {
	s, err := schema.NewSchema([]arrow.Field{{Name: "taken", Type: &arrow.TimestampType{Unit: arrow.Second}}},
		[]arrow.Field{schema.BlobField("image", schema.MediaImage, true)})
	if err != nil {
		t.Fatal(err)
	}
	const date = `taken > date("2024", "2006", "Europe/Paris")`
	if _, err := compileWithin(t, repeated(200, " or ", date), s); err != nil {
		t.Error(err)
	}
	_, err = compileWithin(t, repeated(320, " or ", `taken>date("2024","2006","Europe/Rome")`), s)
	if err != nil {
		t.Error(err)
	}
	_, err = compileWithin(t, "taken in ["+repeated(500, ",", `date("1","1","Europe/Rome")`)+"]", s)
	if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "at most 32768 are allowed") {
		t.Error(err)
	}
}

// A value that is compared twice is evaluated once, and is null, or an error, as if it were written twice.
func TestOnce(t *testing.T) {
	m := testManifest(t, 2, 4)
	for text, same := range map[string]string{
		"width + 1 in 150..400":                       "width + 1 >= 150 and width + 1 <= 400",
		"not (width + 1 in 150..400)":                 "not (width + 1 >= 150 and width + 1 <= 400)",
		"(ok ? width : height) in 15..150":            "(ok ? width : height) >= 15 and (ok ? width : height) <= 150",
		"box.w in 5..6":                               "box.w >= 5 and box.w <= 6",
		"box.w in 5..label + 5":                       "box.w >= 5 and box.w <= label + 5",
		"any(boxes, #.w * 2 in 2..6)":                 "any(boxes, #.w * 2 >= 2 and #.w * 2 <= 6)",
		`string(width + 0 in 1..200) == "true"`:       "width in 1..200",
		"10 < height + 1 < width / 2 <= 300":          "10 < height + 1 and height + 1 < width / 2 and width / 2 <= 300",
		`"a" < lower(file_name) < "c"`:                `"a" < lower(file_name) and lower(file_name) < "c"`,
		"(label ?? 7) + 0 in 5..9":                    "(label ?? 7) + 0 >= 5 and (label ?? 7) + 0 <= 9",
		"(label ?? 7) in 5..9":                        "(label ?? 7) >= 5 and (label ?? 7) <= 9",
		"1 < len(tags) <= len(tags[0])":               "1 < len(tags) and len(tags) <= len(tags[0])",
		"position + 0 in 1..4":                        "position in 1..4",
		"ok ?: width > 400":                           "ok ? true : width > 400",
		"none(tags, len(#) in 1..3 or # == \"blue\")": "none(tags, len(#) >= 1 and len(#) <= 3 or # == \"blue\")",
	} {
		var found []string
		for _, expr := range []string{text, same} {
			e, err := Compile(t.Context(), expr, m.Snapshot().Schema, now)
			if err != nil {
				t.Fatal(expr, err)
			}
			b, err := e.Eval(t.Context(), m, now)
			if err != nil {
				t.Fatal(expr, err)
			}
			rows := ""
			for i := range m.Rows() {
				if b.Has(i) {
					rows += fmt.Sprint(i)
				}
			}
			found = append(found, rows)
		}
		if found[0] != found[1] {
			t.Errorf("%s: rows %s, want those of %s: %s", text, found[0], same, found[1])
		}
	}
	once, err := Compile(t.Context(), "len(lower(file_name)) in 1..9", m.Snapshot().Schema, now)
	if err != nil {
		t.Fatal(err)
	}
	half, err := Compile(t.Context(), "len(lower(file_name)) >= 1", m.Snapshot().Schema, now)
	if err != nil {
		t.Fatal(err)
	}
	sizes := []float64{1000, 0}
	if one, two := half.rowSteps(sizes), once.rowSteps(sizes); two > one+20 {
		t.Errorf("a range costs %.0f steps, one of its tests %.0f", two, one)
	}
}

// A compilation ends with its context, also between the passes of a turn.
func TestCompileEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	turns := 0
	_, err := Compile(ctx, "width > 3", testSchema(t), func(ctx context.Context, piece func() error) error {
		turns++
		cancel(schema.ErrUnavailable)
		return piece()
	})
	if !errors.Is(err, schema.ErrUnavailable) || turns != 1 {
		t.Errorf("%v after %d turns", err, turns)
	}
}

// forms are the building blocks of random expressions, by the kind of their value: B is a
// condition, I a number, T a text, L a list of texts.
var forms = map[byte][]string{
	'B': {"ok", "(I < I)", "(I < I < I)", "(I in I..I)", `("a" < T < T)`, "(B and B)", "(B or B)", "not B", "(B ? B : B)",
		"(B ?: B)", "any(L, B)", "none(L, B)", "(T contains T)", "T matches `a+[b-d]`", "(I in [1, 2, I])", "(T == nil)",
		"(B ?? B)", "(T in L)", "(box.w > I)"},
	'I': {"label", "width", "3", "(I + I)", "(I * I)", "(B ? I : I)", "(I ?? I)", "len(T)", "box.w", "len(L)",
		"count(L, B)", "len(map(boxes, #.w + I))", "position"},
	'T': {"file_name", `"ab"`, "(T + T)", "string(B)", "string(I)", "lower(T)", "box.tag", "(B ? T : T)", "(T ?? T)"},
	'L': {"tags", "map(L, T)", "filter(L, B)", `["a", T]`},
}

// random is an expression of about that number of parts.
func random(rng *rand.Rand, kind byte, parts int) string {
	list := forms[kind]
	if parts <= 1 {
		return list[0]
	}
	form := list[rng.IntN(len(list))]
	holes := 0
	for _, c := range []byte(form) {
		if forms[c] != nil {
			holes++
		}
	}
	var b strings.Builder
	for _, c := range []byte(form) {
		if forms[c] == nil {
			b.WriteByte(c)
			continue
		}
		b.WriteString(random(rng, c, 1+rng.IntN(2*parts/holes)))
	}
	return b.String()
}

// For any expression, compiling takes time and memory in proportion to its nodes, and a
// row in proportion to its measured cost.
func TestRandomExpressionsAreBounded(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	m := testManifest(t, 2, 4)
	compiled := 0
	for range 150 {
		text := random(rng, 'B', 1+rng.IntN(1+rng.IntN(1200)))
		if len(text) > schema.MaxWhereBytes {
			continue
		}
		e, err := compileWithin(t, text, m.Snapshot().Schema)
		if err != nil {
			if at := (*Error)(nil); !errors.As(err, &at) {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		compiled++
		evaluateWithin(t, e, m)
		if t.Failed() {
			t.FailNow()
		}
	}
	if compiled < 15 {
		t.Errorf("only %d expressions were compiled", compiled)
	}
}
