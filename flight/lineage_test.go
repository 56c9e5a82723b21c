package flight

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"bowstring/schema"
)

// answered is the action's answer without its header.
func answered[T any](t *testing.T, o outcome) (list []T) {
	t.Helper()
	if o.err != nil {
		t.Fatal(o.err)
	}
	dec := json.NewDecoder(strings.NewReader(o.text))
	var header map[string]any
	if err := dec.Decode(&header); err != nil || header["since"] == nil || header["others"] == nil {
		t.Fatalf("%v: %s", err, o.text)
	}
	for dec.More() {
		var one T
		if err := dec.Decode(&one); err != nil {
			t.Fatalf("%v: %s", err, o.text)
		}
		list = append(list, one)
	}
	return list
}

// The current rights decide which streams, rows and columns an answer about a step has.
func TestLineageIsRuled(t *testing.T) {
	r := wrongServer(t)
	alice, bob, nora, root := r.as("alice"), r.as("bob"), r.as("nora"), r.as("root")
	const ticket = `{"dataset": "shared", "columns": ["label", "image"], "batch": 20, "shuffle": {"seed": 3}, "rank": 1, "world": {"size": 2}}`
	if o := alice.get(ticket); o.err != nil || o.rows != 50 { // half of the rows with labels below 5
		t.Fatal(o)
	}
	if o := nora.get(ticket); o.err != nil || o.rows != 100 { // of 205, and 5 of the last step
		t.Log(o)
	}
	jobs := answered[lineageJob](t, alice.act("lineage", ""))
	if len(jobs) != 1 || jobs[0].Dataset != "shared" || jobs[0].Streams != 1 || jobs[0].Rows != 0 ||
		jobs[0].World != 2 {
		t.Fatalf("%+v", jobs)
	}
	step := func(job string) string { return `{"job": "` + job + `", "step": 2}` }
	shares := answered[lineageShare](t, alice.act("lineage", step(jobs[0].Job)))
	if len(shares) != 1 || len(shares[0].Positions) != 10 || len(shares[0].IDs) != 10 || shares[0].Row != nil ||
		!shares[0].Stands || shares[0].Rank != 1 {
		t.Fatalf("%+v", shares)
	}
	for i, pos := range shares[0].Positions {
		if pos%10 >= 5 || shares[0].IDs[i] != schema.FormatID(idOf(int(pos))) {
			t.Errorf("position %d has id %s", pos, shares[0].IDs[i])
		}
	}
	// By the plan's name, and by that of the job in all epochs.
	if byPlan := answered[lineageShare](t, alice.act("lineage", step(jobs[0].Plan))); !slices.Equal(byPlan[0].Positions,
		shares[0].Positions) {
		t.Errorf("%+v", byPlan)
	}
	// A caller with the right admin sees everything, with the positions in the share.
	all := answered[lineageShare](t, root.act("lineage", step(jobs[0].Job)))
	if len(all) != 1 || !slices.Equal(all[0].Positions, shares[0].Positions) || *all[0].Row != 0 || *all[0].Of != 10 {
		t.Errorf("%+v", all)
	}
	if n := len(answered[lineageJob](t, root.act("lineage", ""))); n != 2 {
		t.Errorf("%d jobs", n)
	}
	wantCode(t, bob.act("lineage", step(jobs[0].Job)).err, codes.NotFound, "is not on record here")
	// Nora may not see ids.
	noras := answered[lineageJob](t, nora.act("lineage", ""))
	if s := answered[lineageShare](t, nora.act("lineage", step(noras[0].Job))); len(noras) != 1 || s[0].IDs != nil ||
		len(s[0].Positions) != 10 {
		t.Errorf("%+v %+v", noras, s)
	}
	// The rules change. The record is the same, and the caller sees less of it.
	r.set(t, strings.Replace(wrongRules, "label < 5", "label < 3", 1))
	fewer := answered[lineageShare](t, alice.act("lineage", step(jobs[0].Job)))
	var want []int64
	for _, pos := range shares[0].Positions {
		if pos%10 < 3 {
			want = append(want, pos)
		}
	}
	if len(fewer) != 1 || !slices.Equal(fewer[0].Positions, want) {
		t.Errorf("%+v, want %v", fewer, want)
	}
	r.set(t, strings.Replace(wrongRules, "principals: [alice]", "principals: [eve]", 1))
	wantCode(t, alice.act("lineage", step(jobs[0].Job)).err, codes.NotFound, "is not on record here")
}

// Errors name the mistake of a request, or the missing thing.
func TestLineageSaysWhatIsMissing(t *testing.T) {
	r := wrongServer(t)
	root := r.as("root")
	if o := root.get(`{"dataset": "shared", "columns": ["label"], "batch": 50, "shuffle": {"seed": 3, "epoch": 4}, "epochs": 2, "rank": 0}`); o.err != nil {
		t.Fatal(o)
	}
	job := answered[lineageJob](t, root.act("lineage", ""))[0]
	if s := answered[lineageShare](t, root.act("lineage", `{"job": "`+job.Job+`", "step": 4}`)); s[0].Epoch != 5 ||
		*s[0].Of != 5 || len(s[0].Positions) != 5 {
		t.Errorf("without an epoch it is not the last one: %+v", s)
	}
	if s := answered[lineageShare](t, root.act("lineage",
		`{"job": "`+job.Job+`", "epoch": 4, "step": 0}`)); s[0].Epoch != 4 || len(s[0].Positions) != 50 {
		t.Errorf("%+v", s)
	}
	for body, want := range map[string]string{
		`{"step": 1}`:                                           "job: got nothing",
		`{"job": "` + job.Job + `", "rank": 1}`:                 "step: got nothing",
		`{"job": "` + job.Job + `", "step": -1}`:                "step: got -1",
		`{"job": "` + job.Job + `", "step": 1, "rank": -1}`:     "rank: got -1",
		`{"job": "` + job.Job + `", "stop": 1}`:                 "unknown field",
		`{"job": "` + job.Job + `", "step": 1, "epoch": "six"}`: "epoch",
	} {
		wantCode(t, root.act("lineage", body).err, codes.InvalidArgument, want)
	}
	for _, rest := range []string{`"step": 5`, `"step": 9223372036854775807`, `"epoch": 6, "step": 0`,
		`"epoch": 3, "step": 0`, `"step": 0, "rank": 1`} {
		wantCode(t, root.act("lineage", `{"job": "`+job.Job+`", `+rest+`}`).err, codes.NotFound,
			"is not on record here")
	}
	if o := root.act("drop", `{"dataset": "shared"}`); o.err != nil {
		t.Fatal(o)
	}
	wantCode(t, root.act("lineage", `{"job": "`+job.Job+`", "step": 1}`).err, codes.NotFound, "shared")
	if left := answered[lineageJob](t, root.act("lineage", "")); len(left) != 0 {
		t.Errorf("of a dataset that is gone: %+v", left)
	}
}

// A caller that claims to be the console is recorded like all others.
func TestLineageKnowsTheConsole(t *testing.T) {
	r := wrongServer(t)
	r.client = r.dial(grpc.WithUserAgent(ConsoleAgent))
	alice := r.as("alice")
	if o := alice.get(`{"dataset": "shared", "columns": ["label"], "batch": 20}`); o.err != nil {
		t.Fatal(o)
	}
	if jobs := answered[lineageJob](t, alice.act("lineage", "")); len(jobs) != 1 {
		t.Errorf("%+v", jobs)
	}
}
