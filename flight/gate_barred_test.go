package flight

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

// A caller has admin on "*", and an earlier rule bars it from one dataset. It neither sees
// nor ends the calls of others on that dataset, because it has no right on the server as a
// whole.
func TestAdminOfAllButOne(t *testing.T) {
	r := wrongServer(t)
	r.set(t, "rules:\n  - {principals: [ada], datasets: ["+hiddenDataset+"], rights: []}\n"+
		"  - {principals: [root, ada, bob], datasets: ['*'], rights: [admin]}\n")
	ada, bob, root := r.as("ada"), r.as("bob"), r.as("root")
	plan, end := bob.streaming(`{"dataset": "` + hiddenDataset +
		`", "batch": 1, "batch_bytes": 1, "rank": 0, "epochs": 1000}`)
	if o := root.act("stats", ""); !strings.Contains(o.text, plan) {
		t.Errorf("root does not see the stream: %s", o)
	}
	if o := ada.act("stats", ""); o.err != nil || strings.Contains(o.text, plan) ||
		strings.Contains(o.text, hiddenDataset) {
		t.Errorf("ada sees a stream of a dataset that she is barred from: %s", o)
	}
	if o := ada.act("cancel", `{"plan": "`+plan+`"}`); !strings.Contains(o.text, `"cancelled":0`) {
		t.Errorf("ada ends it: %s", o)
	}
	if o := ada.act("usage", ""); o.err != nil || strings.Contains(o.text, hiddenDataset) {
		t.Errorf("ada sees what was used of it: %s", o)
	}
	wantCode(t, ada.act("gc", "").err, codes.PermissionDenied, "all datasets")
	if o := ada.get(`{"dataset": "shared", "columns": ["position"]}`); o.err != nil || o.rows != 205 {
		t.Errorf("the other datasets: %s", o)
	}
	end()
	if o := root.act("usage", ""); !strings.Contains(o.text, hiddenDataset) {
		t.Errorf("root does not see what was used: %s", o)
	}
}
