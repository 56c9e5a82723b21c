package flight

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// condition is an expression, and its meaning for a row of samples.
type condition struct {
	text string
	of   func(row int) bool
	hide string // a column that it names beside label, "" if none
}

var conditions = []condition{
	{"label < 3", func(i int) bool { return i%10 < 3 }, ""},
	{"label in [1, 4, 8]", func(i int) bool { l := i % 10; return l == 1 || l == 4 || l == 8 }, ""},
	{"position % 7 != 2", func(i int) bool { return i%7 != 2 }, ""},
	{"position >= 64 and position < 129", func(i int) bool { return i >= 64 && i < 129 }, ""},
	{"100 % (label - 4) == 0 or label == 5", nil, ""}, // fails where label is 4
	{"file_name endsWith \"7.jpg\"", func(i int) bool { return i%10 == 7 }, "file_name"},
	{"label == 77", func(int) bool { return false }, ""},
	{"true or label == 1", func(int) bool { return true }, ""},
	{"image.size > 1100", func(i int) bool { return len(content(i)) > 1100 }, "image"},
}

// For any rule and any request, the server serves the rows that the rule shows and the
// request selects. The expected rows come from a filter in the test.
func TestServedIsAllowed(t *testing.T) {
	const rows = 300
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r := serveRules(t, "rules:\n  - {principals: [root], datasets: ['*'], rights: [admin]}\n", Options{})
	rec := samples(0, rows)
	defer rec.Release()
	root, ada := r.as("root"), r.as("ada")
	if o := root.put(command(`{"put": {"dataset": "d", "key": "file_name"}}`), rec); o.err != nil {
		t.Fatal(o.err)
	}
	served, refused := 0, 0
	for range 60 {
		rule := conditions[rnd.IntN(len(conditions))]
		for rule.of == nil {
			rule = conditions[rnd.IntN(len(conditions))]
		}
		columns := []string{"label"}
		for _, c := range []string{"id", "file_name", "image"} {
			if rnd.IntN(2) == 0 {
				columns = append(columns, c)
			}
		}
		r.set(t, fmt.Sprintf("rules:\n  - {principals: [root], datasets: ['*'], rights: [admin]}\n"+
			"  - {principals: [ada], datasets: [d], rights: [read], where: '%s', columns: [%s]}\n", rule.text,
			strings.Join(columns, ", ")))
		for range 5 {
			asked := conditions[rnd.IntN(len(conditions))]
			fields := []string{fmt.Sprintf(`"dataset": "d", "columns": ["position"], "batch": %d`, 1+rnd.IntN(40)),
				fmt.Sprintf(`"where": %q`, asked.text)}
			var listed []int64
			if rnd.IntN(2) == 0 {
				for range 1 + rnd.IntN(30) {
					if p := rnd.Int64N(rows + 20); !slices.Contains(listed, p) {
						listed = append(listed, p)
					}
				}
				fields = append(fields, fmt.Sprintf(`"selection": {"positions": %s}`,
					strings.ReplaceAll(fmt.Sprint(listed), " ", ", ")))
			}
			if rnd.IntN(2) == 0 {
				fields = append(fields, fmt.Sprintf(`"shuffle": {"seed": %d}`, rnd.IntN(5)))
			}
			if rnd.IntN(2) == 0 {
				fields = append(fields, `"split": "train"`)
			}
			// There is an error only if a row fails that ada may see.
			fails, visible := false, false
			var want []string
			for i := range rows {
				if !rule.of(i) {
					continue
				}
				visible = true
				if asked.of == nil && i%10 == 4 {
					fails = true
				}
				of := asked.of
				if of == nil {
					of = func(i int) bool { l := i%10 - 4; return l != 0 && (100%l == 0 || l == 1) }
				}
				if of(i) && (listed == nil || slices.Contains(listed, int64(i))) {
					want = append(want, strconv.Itoa(i))
				}
			}
			request := "{" + strings.Join(fields, ", ") + "}"
			o := ada.get("%s", request)
			hidden := asked.hide != "" && !slices.Contains(columns, asked.hide)
			if strings.Contains(request, `"split"`) && !visible {
				fails = true // no row of the split is visible, so it does not exist
			}
			if fails || hidden {
				if refused++; o.err == nil || o.rows != 0 {
					t.Fatalf("rule %q, columns %v: %s: %s", rule.text, columns, request, o)
				}
				continue
			}
			got := []string{}
			if o.err == nil && o.rows > 0 {
				got = o.column(t, "position")
			}
			slices.Sort(got)
			slices.Sort(want)
			if o.err != nil || !slices.Equal(got, want) {
				t.Fatalf("rule %q, columns %v: %s: got %v, want %v; %s", rule.text, columns, request, got, want, o)
			}
			served += len(got)
			if info := ada.info(command("%s", request)); !strings.HasPrefix(info.text,
				fmt.Sprintf("%d records, %d bytes", len(want), 8*len(want))) {
				t.Fatalf("rule %q: %s: %s, want %d records", rule.text, request, info, len(want))
			}
			// One at a time, by position.
			p := rnd.Int64N(rows + 20)
			one := ada.take(`{"take": {"dataset": "d", "columns": ["label"]}}`, ints("position", p))
			if see := p < rows && rule.of(int(p)); (one.err == nil) != see || see && one.rows != 1 {
				t.Fatalf("rule %q: position %d: %s", rule.text, p, one)
			}
		}
	}
	if served < 1000 || refused < 5 {
		t.Errorf("only %d rows were served, and %d requests refused", served, refused)
	}
}
