package flight

import (
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"google.golang.org/grpc/codes"
)

// A dataset that the rule for somebody does not fit does not exist for him, whatever way
// he tries, and is not named where another one is asked for.
func TestMisfitHides(t *testing.T) {
	r := wrongServer(t)
	for _, who := range []string{"mia", "moe", "max"} {
		for _, w := range wrongWays() {
			if w.hidden != "" {
				continue
			}
			t.Run(who+"/"+w.door+"/"+w.name, func(t *testing.T) {
				got, twin := w.do(r.as(who), "shared"), w.do(r.as(who), "sharing")
				if a, b := got.masked("shared"), twin.masked("sharing"); a != b || got.bytes+got.rows != 0 {
					t.Errorf("what is hidden can be told from what there is not:\n%s\n%s", a, b)
				}
			})
		}
	}
	// Of those that are seen whole, one is named that has about that name.
	wantCode(t, r.as("bob").get(`{"dataset": "sharde"}`).err, codes.NotFound, `did you mean "shared"?`)
}

// Whoever writes what is in a dataset that he may not know is told the same as of what
// nobody has.
func TestContentOfOthers(t *testing.T) {
	r := serveRules(t, `
rules:
  - {principals: [root], datasets: ["*"], rights: [admin]}
  - {principals: [walt], datasets: ["walt*"], rights: [read, write]}
`, Options{})
	known, unknown := samples(0, 50), samples(50, 100)
	defer known.Release()
	defer unknown.Release()
	put := func(a as, dataset string, rec arrow.Record) outcome {
		return a.put(command(`{"put": {"dataset": %q, "key": "file_name"}}`, dataset), rec)
	}
	if o := put(r.as("root"), "hidden", known); o.err != nil {
		t.Fatal(o.err)
	}
	walt := r.as("walt")
	got, twin := put(walt, "walt1", known), put(walt, "walt2", unknown)
	if a, b := got.masked("walt1"), twin.masked("walt2"); got.err != nil || a != b {
		t.Errorf("content that others have can be told from what nobody has:\n%s\n%s", a, b)
	}
}
