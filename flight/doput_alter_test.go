package flight

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/codes"

	"bowstring/fetch/admission"
	"bowstring/flight/audit"
	"bowstring/schema"
)

// columnsOf makes a record of columns, each of a field and a JSON list.
func columnsOf(t *testing.T, fields []arrow.Field, columns ...string) arrow.Record {
	t.Helper()
	arrays := make([]arrow.Array, len(columns))
	for i, text := range columns {
		var err error
		if arrays[i], _, err = array.FromJSON(memory.DefaultAllocator, fields[i].Type, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	return array.NewRecord(arrow.NewSchema(fields, nil), arrays, int64(arrays[0].Len()))
}

func textField(name string) arrow.Field {
	return arrow.Field{Name: name, Type: arrow.BinaryTypes.String, Nullable: true}
}

// TestPutMerges merges, inserts and deletes rows by plain Flight calls.
func TestPutMerges(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 250)
	score := arrow.Field{Name: "score", Type: arrow.PrimitiveTypes.Float64, Nullable: true}
	rec := columnsOf(t, []arrow.Field{textField("file_name"), score}, `["000003.jpg", "000249.jpg"]`, `[0.5, 2.5]`)
	results, err := f.put(command(`{"put": {"dataset": "d", "mode": "merge", "on": "file_name"}}`), rec)
	if err != nil {
		t.Fatal(err)
	}
	got := last[mergeAck](t, results)
	if got != (mergeAck{putAck{"d", 2, 2, true}, alterCounts{Matched: 2}}) {
		t.Errorf("%+v", got)
	}
	get := func(columns string) []arrow.Record {
		t.Helper()
		recs, err := f.get(&flight.Ticket{Ticket: fmt.Appendf(nil, `{"dataset": "d", "columns": [%s]}`, columns)})
		if err != nil {
			t.Fatal(err)
		}
		return recs
	}
	recs := get(`"score", "image", "file_name"`)
	scores, images := column(t, recs, "score"), column(t, recs, "image")
	for i := range 250 {
		want := "(null)"
		switch i {
		case 3:
			want = "0.5"
		case 249:
			want = "2.5"
		}
		if scores[i] != want || images[i] != string(content(i)) {
			t.Fatalf("row %d has score %s", i, scores[i])
		}
	}

	// A row without a sample is an error, or it is inserted with its blob into its split.
	image := arrow.Field{Name: "image", Type: arrow.BinaryTypes.Binary, Nullable: true}
	rec = columnsOf(t, []arrow.Field{textField("file_name"), image, textField("split"), {Name: "label",
		Type: arrow.PrimitiveTypes.Int32}}, `["x.jpg", "000000.jpg"]`, `["eA==", null]`, `["val", null]`, `[7, 8]`)
	_, err = f.put(command(`{"put": {"dataset": "d", "mode": "merge", "on": "file_name"}}`), rec)
	wantCode(t, err, codes.InvalidArgument, `"x.jpg" (row 0)`)
	results, err = f.put(command(`{"put": {"dataset": "d", "mode": "merge", "on": "file_name", "missing": "insert"}}`), rec)
	if err != nil {
		t.Fatal(err)
	}
	if got := last[mergeAck](t, results); got.Snapshot != 3 || got.Matched != 1 || got.Inserted != 1 {
		t.Errorf("%+v", got)
	}
	recs = get(`"id", "image", "label", "split"`)
	for name, want := range map[string][2]string{"image": {string(content(0)), "x"}, "label": {"8", "7"},
		"split": {"train", "val"},
		"id":    {schema.FormatID(schema.SampleID("d", "000000.jpg")), schema.FormatID(schema.SampleID("d", "x.jpg"))}} {
		if values := column(t, recs, name); len(values) != 251 || values[0] != want[0] || values[250] != want[1] {
			t.Errorf("%s: %q and %q", name, values[0], values[len(values)-1])
		}
	}

	// By ids, in text; twice, as an answer may be lost.
	id := schema.FormatID(schema.SampleID("d", "x.jpg"))
	rec = columnsOf(t, []arrow.Field{textField("id")}, `["`+id+`"]`)
	for i, want := range []mergeAck{{putAck{"d", 4, 1, true}, alterCounts{Matched: 1, Deleted: 1}},
		{putAck{"d", 4, 1, false}, alterCounts{Ignored: 1}}} {
		results, err = f.put(command(`{"put": {"dataset": "d", "mode": "delete"}}`), rec)
		if err != nil {
			t.Fatal(err)
		}
		if got := last[mergeAck](t, results); got != want {
			t.Errorf("delete %d: %+v, want %+v", i, got, want)
		}
	}
	answers, err := f.act("alter", `{"dataset": "d", "drop_columns": ["label"], "rename_columns": {"score": "loss"}, `+
		`"delete_where": "score > 1"}`)
	if err != nil {
		t.Fatal(err)
	}
	if got := decoded[alterAck](t, answers[0]); got != (alterAck{"d", 5, true, 249, 1}) {
		t.Errorf("%+v", got)
	}
	if losses := column(t, get(`"loss"`), "loss"); len(losses) != 249 || losses[3] != "0.5" {
		t.Errorf("%d losses", len(losses))
	}
}

// TestPutReplaceKeepsColumns: the server refuses to drop a column by leaving it out, from whatever client.
func TestPutReplaceKeepsColumns(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 5)
	rec := columnsOf(t, []arrow.Field{textField("file_name")}, `["000003.jpg"]`)
	_, err := f.put(command(`{"put": {"dataset": "d", "mode": "replace", "key": "file_name"}}`), rec)
	wantCode(t, err, codes.InvalidArgument, `would drop "label" (int64`)
	wantCode(t, err, codes.InvalidArgument, `"image" (blob`)
	wantCode(t, err, codes.InvalidArgument, `merge`)
	results, err := f.put(command(`{"put": {"dataset": "d", "mode": "replace", "key": "file_name", "split": "val", `+
		`"drop_columns": ["label", "image"]}}`), rec)
	if err != nil {
		t.Fatal(err)
	}
	if got := last[putAck](t, results); got.Snapshot != 2 || !got.Changed {
		t.Errorf("%+v", got)
	}
	if got := decoded[noteAck](t, results[len(results)-2]); got.Note != "splits that are gone: train (5 rows)" {
		t.Errorf("%+v", got)
	}
}

func TestPutAlterRefuses(t *testing.T) {
	limits := admission.Limits{Uploads: 4 << 20}
	limits.EnsureDefaults()
	f := serve(t, Options{Ledger: admission.NewLedger(limits)})
	f.fill("d", 5)
	ids := columnsOf(t, []arrow.Field{textField("file_name")}, `["000003.jpg"]`)
	for put, want := range map[string]string{
		`"mode": "mrge"`:                                             `"merge" or "delete"`,
		`"mode": "append", "on": "id"`:                               "put.on",
		`"mode": "create", "missing": "error"`:                       "put.missing",
		`"mode": "append", "drop_columns": ["label"]`:                "put.drop_columns",
		`"mode": "merge", "key": "file_name"`:                        "put.key",
		`"mode": "merge", "missing": "skip"`:                         `"error", "insert" or "ignore"`,
		`"mode": "delete", "missing": "insert"`:                      `"error" or "ignore"`,
		`"mode": "merge", "on": "name"`:                              `on: got "name"`,
		`"mode": "merge"`:                                            `want a column \"id\" in the rows`,
		`"mode": "merge", "on": "file_name", "blobs": ["file_name"]`: "want binary",
		`"mode": "merge", "on": "file_name", "blobs": ["x"]`:         "put.blobs",
	} {
		_, err := f.put(command(`{"put": {"dataset": "d", %s}}`, put), ids)
		wantCode(t, err, codes.InvalidArgument, strings.ReplaceAll(want, `\"`, `"`))
	}
	_, err := f.put(command(`{"put": {"dataset": "e", "mode": "merge", "on": "file_name"}}`), ids)
	wantCode(t, err, codes.NotFound, "e")
	_, err = f.act("alter", `{"dataset": "d"}`)
	wantCode(t, err, codes.InvalidArgument, "nothing is to be altered")
	_, err = f.act("alter", `{"dataset": "d", "delete_where": "label = 3"}`)
	wantCode(t, err, codes.InvalidArgument, "label")
	// Memory that is kept until the commit counts as memory of the client's messages.
	names := make([]string, 6000)
	for i := range names {
		names[i] = fmt.Sprintf("%q", fmt.Sprintf("%0100d", i))
	}
	many := columnsOf(t, []arrow.Field{textField("file_name")}, "["+strings.Join(names, ",")+"]")
	_, err = f.put(command(`{"put": {"dataset": "d", "mode": "merge", "on": "file_name", "missing": "ignore"}}`), many)
	wantCode(t, err, codes.ResourceExhausted, "or in several parts")
}

// TestAlterTakesReading: a caller that may write and not read learns nothing of keys and
// values by changing them. Its changes are recorded.
func TestAlterTakesReading(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(audit.Options{Path: file, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r := serveRules(t, "rules:\n  - {principals: [ada], datasets: ['*'], rights: [write]}\n"+
		"  - {principals: [bob], datasets: ['*'], rights: [read]}\n"+
		"  - {principals: [cleo], datasets: ['*'], rights: [read, write]}\n", Options{Audit: log})
	rec := samples(0, 10)
	defer rec.Release()
	if o := r.as("ada").put(command(`{"put": {"dataset": "shared", "key": "file_name"}}`), rec); o.err != nil {
		t.Fatal(o.err)
	}
	label := arrow.Field{Name: "label", Type: arrow.PrimitiveTypes.Int64}
	change := columnsOf(t, []arrow.Field{textField("file_name"), label}, `["000003.jpg"]`, `[77]`)
	merge := command(`{"put": {"dataset": "shared", "mode": "merge", "on": "file_name"}}`)
	for _, name := range []string{"ada", "bob"} {
		a := r.as(name)
		wantCode(t, a.put(merge, change).err, codes.PermissionDenied, "this takes read, write")
		wantCode(t, a.put(command(`{"put": {"dataset": "shared", "mode": "delete", "on": "file_name"}}`), change).err,
			codes.PermissionDenied, "this takes read, write")
		wantCode(t, a.act("alter", `{"dataset": "shared", "delete_where": "label == 3"}`).err, codes.PermissionDenied,
			"this takes read, write")
	}
	cleo := r.as("cleo")
	if o := cleo.put(merge, change); o.err != nil {
		t.Fatal(o.err)
	}
	if o := cleo.act("alter", `{"dataset": "shared", "delete_where": "label == 77"}`); o.err != nil {
		t.Fatal(o.err)
	}
	events := slices.DeleteFunc(lines(t, file), func(e audit.Event) bool {
		return e.Event != audit.Alter || e.Phase != audit.Done
	})
	if len(events) != 2 || events[0].Method != "DoPut" || events[0].Principal != "cleo" || events[0].Rows != 1 ||
		events[0].Snapshot != 2 || events[1].Method != "DoAction/alter" || events[1].Rows != 1 || events[1].Snapshot != 3 {
		t.Errorf("%+v", events)
	}
}

// TestAlterRevealsNothingHidden: a caller from whom rows and columns are hidden gets the
// same error whether or not the key, value or column that it names exists.
func TestAlterRevealsNothingHidden(t *testing.T) {
	r := serveRules(t, "rules:\n  - {principals: [ada], datasets: ['*'], rights: [read, write]}\n"+
		"  - {principals: [eve], datasets: ['*'], rights: [read], where: 'label < 3', columns: [id, file_name]}\n"+
		"  - {principals: [eve], datasets: ['*'], rights: [write]}\n", Options{})
	rec := samples(0, 10)
	defer rec.Release()
	if o := r.as("ada").put(command(`{"put": {"dataset": "shared", "key": "file_name"}}`), rec); o.err != nil {
		t.Fatal(o.err)
	}
	eve := r.as("eve")
	said := map[string]bool{}
	for _, name := range []string{"000007.jpg", "000001.jpg", "none.jpg"} {
		keys := columnsOf(t, []arrow.Field{textField("file_name")}, `["`+name+`"]`)
		for _, mode := range []string{"merge", "delete"} {
			err := eve.put(command(`{"put": {"dataset": "shared", "mode": "%s", "on": "file_name"}}`, mode), keys).err
			wantCode(t, err, codes.PermissionDenied, "")
			said[err.Error()] = true
		}
	}
	for _, body := range []string{`"drop_columns": ["label"]`, `"drop_columns": ["nothing"]`,
		`"delete_where": "label == 7"`, `"delete_where": "nothing == 7"`} {
		err := eve.act("alter", `{"dataset": "shared", `+body+`}`).err
		wantCode(t, err, codes.PermissionDenied, "")
		said[err.Error()] = true
	}
	if len(said) != 1 {
		t.Errorf("refusals differ: %v", said)
	}
}
