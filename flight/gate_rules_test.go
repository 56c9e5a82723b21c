package flight

import (
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/codes"
)

// All data that alice may see is there, and counts are those of that data.
func TestRestricted(t *testing.T) {
	r := wrongServer(t)
	alice, nora, carol, mia, anonymous := r.as("alice"), r.as("nora"), r.as("carol"), r.as("mia"), r.as("")
	o := alice.get(`{"dataset": "shared"}`)
	if o.err != nil || o.rows != 100 || !slices.Equal(fieldNames(o), []string{"id", "label", "image"}) {
		t.Fatal(o, fieldNames(o))
	}
	for _, label := range o.column(t, "label") {
		if label >= "5" {
			t.Fatalf("a row with label %s", label)
		}
	}
	if o := alice.flights(""); o.err != nil || o.text != "[shared train] 100\n" {
		t.Error(o)
	}
	if o := nora.flights(""); o.err != nil || o.text != "[shared test] 5\n[shared train] 200\n" &&
		o.text != "[shared train] 200\n[shared test] 5\n" {
		t.Error(o)
	}
	for _, nothing := range []as{anonymous, mia, r.as("dave")} {
		if o := nothing.flights(""); o.err != nil || o.text != "" {
			t.Error(nothing.principal, o)
		}
		wantCode(t, nothing.get(`{"dataset": "shared"}`).err, codes.NotFound, "there is no dataset")
	}
	if o := alice.act("list", ""); !strings.Contains(o.text, `"rows":100,"splits":[{"name":"train","rows":100}]`) {
		t.Error(o)
	}
	o = alice.act("describe", `{"dataset": "shared"}`)
	for _, hidden := range []string{"file_name", `"test"`, "205", "ranges"} {
		if o.err != nil || strings.Contains(o.text, hidden) {
			t.Errorf("describe says %s: %s", hidden, o)
		}
	}
	if o := carol.act("describe", `{"dataset": "shared"}`); o.err != nil || !strings.Contains(o.text, `"rows":205`) {
		t.Error(o)
	}
	wantCode(t, carol.get(`{"dataset": "shared"}`).err, codes.PermissionDenied, "this takes read")
	wantCode(t, carol.info(path("shared")).err, codes.PermissionDenied, "this takes read")
	wantCode(t, alice.act("drop", `{"dataset": "shared"}`).err, codes.PermissionDenied, "this takes drop")
	wantCode(t, alice.act("gc", "").err, codes.PermissionDenied, "admin")
	// A caller that may not see ids cannot request rows by id.
	wantCode(t, nora.take(`{"take": {"dataset": "shared"}}`, idRecord(idOf(3))).err, codes.InvalidArgument,
		`want one column, "position"`)
	if o := nora.take(`{"take": {"dataset": "shared"}}`, ints("position", 7)); o.err != nil || o.rows != 1 {
		t.Error(o)
	}
	// The Hugging Face layout has a path, out of a column that is hidden.
	if o := alice.get(`{"dataset": "shared", "layout": "huggingface", "selection": {"positions": [0]}}`); o.err != nil || strings.Contains(o.recs[0].Column(2).String(), "000000.jpg") {
		t.Error(o)
	}
	hf, all := r.as("root").info(command(`{"dataset": "shared", "layout": "huggingface", "columns": ["image"], "selection": {"positions": [0]}}`)),
		alice.info(command(`{"dataset": "shared", "layout": "huggingface", "columns": ["image"], "selection": {"positions": [0]}}`))
	if !strings.Contains(hf.text, "1 records, 1130 bytes") && hf.text == all.text {
		t.Errorf("the length of a hidden path is counted: %s", all)
	}
}

func fieldNames(o outcome) (names []string) {
	if len(o.recs) == 0 {
		return nil
	}
	for _, f := range o.recs[0].Schema().Fields() {
		names = append(names, f.Name)
	}
	return names
}

// A selection that another caller has uploaded brings the rows that both it and the rules
// select.
func TestSelectionOfAnother(t *testing.T) {
	r := wrongServer(t)
	o := r.as("bob").put(command(`{"selection": {"dataset": "shared"}}`), ints("position", 1, 2, 7, 8, 204))
	if o.err != nil {
		t.Fatal(o.err)
	}
	name := decoded[selectionAck](t, []byte(strings.TrimSpace(o.text))).Selection
	o = r.as("alice").get(`{"dataset": "shared", "columns": ["position"], "selection": {"name": %q}}`, name)
	if got := o.column(t, "position"); o.err != nil || !slices.Equal(got, []string{"1", "2"}) {
		t.Error(got, o)
	}
	if o := r.as("bob").get(`{"dataset": "shared", "columns": ["position"], "selection": {"name": %q}}`,
		name); o.rows != 5 {
		t.Error(o)
	}
}

// A caller without the right admin sees its own streams, and no counter of others'.
func TestStatsAreOnesOwn(t *testing.T) {
	r := wrongServer(t)
	alice, bob, root := r.as("alice"), r.as("bob"), r.as("root")
	quiet := alice.act("stats", "")
	plan, end := bob.streaming(`{"dataset": "` + hiddenDataset +
		`", "batch": 1, "batch_bytes": 1, "rank": 0, "epochs": 1000}`)
	if busy := alice.act("stats", ""); busy.err != nil || busy.text != quiet.text {
		t.Errorf("what bob does shows:\n%s\n%s", quiet, busy)
	}
	for _, who := range []as{bob, root} {
		if o := who.act("stats", ""); !strings.Contains(o.text, plan) {
			t.Errorf("%s does not see the stream of plan %s: %s", who.principal, plan, o)
		}
	}
	if o := alice.act("cancel", `{"plan": "`+plan+`"}`); !strings.Contains(o.text, `"cancelled":0`) {
		t.Error(o)
	}
	if o := root.act("cancel", `{"plan": "`+plan+`"}`); !strings.Contains(o.text, `"cancelled":1`) {
		t.Error(o)
	}
	end()
}

// Where the rules change, streams that they do not grant any more as they did end.
func TestRulesChange(t *testing.T) {
	r := wrongServer(t)
	alice, bob := r.as("alice"), r.as("bob")
	_, end := alice.streaming(`{"dataset": "shared", "batch": 1, "batch_bytes": 1, "columns": ["label"], "rank": 0, "epochs": 1000}`)
	defer end()
	plan, endBob := bob.streaming(`{"dataset": "shared", "batch": 1, "batch_bytes": 1, "columns": ["label"], "rank": 0, "epochs": 1000}`)
	defer endBob()
	r.set(t, strings.Replace(wrongRules, "label < 5", "label < 4", 1))
	r.server.EnforceRules()
	if _, err := r.server.calls.wait(t.Context(), func(c *call) bool {
		return c.streaming && c.caller.Principal == "alice"
	}); err != nil {
		t.Fatal(err)
	}
	if o := bob.act("stats", ""); !strings.Contains(o.text, plan) {
		t.Errorf("bob's stream, to whom nothing has changed, has ended: %s", o)
	}
	if o := alice.info(path("shared")); !strings.Contains(o.text, "80 records") {
		t.Error(o)
	}
}

// A column that has the name of a part of a blob column does not reveal that part.
func TestColumnNamedAsPart(t *testing.T) {
	r := serveRules(t, `
rules:
  - {principals: [root], datasets: ["*"], rights: [admin]}
  - {principals: [alice], datasets: [d], rights: [read], columns: [image]}
`, Options{})
	s := arrow.NewSchema([]arrow.Field{{Name: "image.size", Type: arrow.PrimitiveTypes.Int64},
		{Name: "image", Type: arrow.BinaryTypes.Binary}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).Append(4711)
	b.Field(1).(*array.BinaryBuilder).Append([]byte("x"))
	rec := b.NewRecord()
	defer rec.Release()
	if o := r.as("root").put(command(`{"put": {"dataset": "d", "blobs": ["image"]}}`), rec); o.err != nil {
		t.Fatal(o.err)
	}
	alice := r.as("alice")
	wantCode(t, alice.get(`{"dataset": "d", "columns": ["image.size"]}`).err, codes.InvalidArgument, "image.size")
	wantCode(t, alice.info(command(`{"dataset": "d", "where": "$env['image.size'] == 4711"}`)).err,
		codes.InvalidArgument, "no column")
	if o := alice.get(`{"dataset": "d"}`); o.err != nil || o.rows != 1 ||
		!slices.Equal(fieldNames(o), []string{"image"}) {
		t.Error(o)
	}
}
