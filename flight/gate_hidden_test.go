package flight

import (
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"google.golang.org/grpc/codes"
)

// A dataset does not exist for a caller whose rule does not fit it. That holds for every
// way of access, and errors about other datasets do not name it.
func TestMisfitHides(t *testing.T) {
	r := wrongServer(t)
	for _, who := range []string{"mia", "moe", "max"} {
		for _, w := range wrongWays() {
			if w.hidden != "" {
				continue
			}
			t.Run(who+"/"+w.method+"/"+w.name, func(t *testing.T) {
				got, twin := w.do(r.as(who), "shared"), w.do(r.as(who), "sharing")
				if a, b := got.masked("shared"), twin.masked("sharing"); a != b || got.bytes+got.rows != 0 {
					t.Errorf("hidden data is distinguishable from missing data:\n%s\n%s", a, b)
				}
			})
		}
	}
	// Among datasets that the caller sees whole, the error names one with a similar name.
	wantCode(t, r.as("bob").get(`{"dataset": "sharde"}`).err, codes.NotFound, `did you mean "shared"?`)
}

// A caller that uploads content of a dataset hidden from it gets the same answer as for
// new content.
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
		t.Errorf("content of others is distinguishable from new content:\n%s\n%s", a, b)
	}
}
