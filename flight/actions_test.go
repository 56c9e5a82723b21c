package flight

import (
	"errors"
	"io"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"

	"bowstring/fetch"
	"bowstring/fetch/store"
)

func TestListActions(t *testing.T) {
	f := serve(t, Options{})
	stream, err := f.client.ListActions(t.Context(), &flight.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		a, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if a.Description == "" {
			t.Errorf("%s has no description", a.Type)
		}
		got = append(got, a.Type)
	}
	if want := []string{"list", "describe", "tag", "untag", "tags", "steer", "runs", "alter", "drop", "gc", "warm", "explain",
		"calibrate", "stats", "usage", "shm", "nodes", "lineage", "cancel", "CancelFlightInfo",
		"RenewFlightEndpoint"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestActionList(t *testing.T) {
	f := serve(t, Options{})
	f.fill("b", 20)
	f.fill("a", 30)
	if _, err := f.put(command(`{"put": {"dataset": "a", "mode": "append", "split": "test", "key": "file_name", "media": {"image": "image"}, "source": "more"}}`), samples(40, 45)); err != nil {
		t.Fatal(err)
	}
	type dataset struct {
		Dataset   string
		Snapshots []int64
		Tags      []store.Tag
		Newest    int64
		Rows      int64
		Splits    []splitInfo
		Created   time.Time
		Source    string
	}
	want := []dataset{
		{"a", []int64{1, 2}, []store.Tag{}, 2, 35, []splitInfo{{Name: "train", Rows: 30}, {Name: "test", Rows: 5}},
			time.Time{}, "more"},
		{"b", []int64{1}, []store.Tag{}, 1, 20, []splitInfo{{Name: "train", Rows: 20}}, time.Time{}, ""},
	}
	for body, want := range map[string][]dataset{``: want, `{}`: want, `{"dataset": "a*"}`: want[:1],
		`{"dataset": "c"}`: nil} {
		results, err := f.act("list", body)
		if err != nil {
			t.Fatal(err)
		}
		var got []dataset
		for _, b := range results {
			d := decoded[dataset](t, b)
			if since := time.Since(d.Created); since < 0 || since > time.Minute {
				t.Errorf("%s was created %s ago", d.Dataset, since)
			}
			d.Created = time.Time{}
			got = append(got, d)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", body, got, want)
		}
	}
}

func TestActionDescribe(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 120)
	results, err := f.act("describe", `{"dataset": "d", "snapshot": 1}`)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Dataset          string
		Snapshot, Parent int64
		Rows             int64
		Splits           []splitInfo
		Columns          []columnInfo
		BlobBytes        int64 `json:"blob_bytes"`
		Manifest         struct{ Chunks, Bytes int64 }
		Snapshots        []int64
	}
	mustUnmarshal(t, results[0], &got)
	var size int64
	for i := range 120 {
		size += int64(len(content(i)))
	}
	if got.Dataset != "d" || got.Snapshot != 1 || got.Parent != 0 || got.Rows != 120 || got.BlobBytes != size ||
		got.Manifest.Chunks != 1 || got.Manifest.Bytes == 0 || !slices.Equal(got.Snapshots, []int64{1}) {
		t.Errorf("got %+v", got)
	}
	if len(got.Splits) != 1 || len(got.Splits[0].Ranges) != 1 || got.Splits[0].Ranges[0].End != 120 {
		t.Errorf("got splits %+v", got.Splits)
	}
	want := []columnInfo{
		{Name: "id", Type: "fixed_size_binary[16]", Kind: "id"},
		{Name: "file_name", Type: "utf8", Kind: "metadata"},
		{Name: "label", Type: "int64", Nullable: true, Kind: "metadata"},
		{Name: "image", Type: "large_binary", Nullable: true, Kind: "blob", Media: "image", Bytes: &size},
	}
	if !reflect.DeepEqual(got.Columns, want) {
		t.Errorf("got columns %+v, want %+v", got.Columns, want)
	}
}

func TestActionDropAndGC(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 100)
	results, err := f.put(command(`{"put": {"dataset": "d", "mode": "replace", "key": "file_name", "media": {"image": "image"}}}`), samples(50, 150))
	if err != nil || last[putAck](t, results).Snapshot != 2 {
		t.Fatal(results, err)
	}
	gc := func(body string) (r store.GCReport) {
		t.Helper()
		results, err := f.act("gc", body)
		if err != nil {
			t.Fatal(err)
		}
		mustUnmarshal(t, results[0], &r)
		return r
	}
	const chunks = 2 // one for each snapshot
	if r := gc(``); r.LiveBlobs != 150+chunks || r.DeadBlobs != 0 {
		t.Errorf("got %+v, want 150 images and %d chunks", r, chunks)
	}
	results, err = f.act("drop", `{"dataset": "d", "snapshot": 1}`)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(results[0]); got != `{"dataset":"d","dropped":[1]}` {
		t.Errorf("got %s", got)
	}
	if r := gc(`{"dry_run": true}`); r.LiveBlobs != 101 || r.DeadBlobs != 51 || r.FreedBytes != 0 {
		t.Errorf("got %+v, want 51 dead and nothing freed", r)
	}
	if r := gc(`{"dry_run": false}`); r.LiveBlobs != 101 || r.DeadBlobs != 51 {
		t.Errorf("got %+v, want 51 dead", r)
	}
	recs, err := f.get(&flight.Ticket{Ticket: []byte(`{"dataset": "d"}`)})
	if err != nil || rowsOf(recs) != 100 {
		t.Errorf("after gc: %d rows, %v", rowsOf(recs), err)
	}
	results, err = f.act("drop", `{"dataset": "d"}`)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(results[0]); got != `{"dataset":"d","dropped":[2]}` {
		t.Errorf("got %s", got)
	}
	f.wantDatasets()
}

func TestActionsRefuse(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 10)
	for _, tt := range []struct {
		name, body string
		code       codes.Code
		want       string
	}{
		{"lst", ``, codes.NotFound, `did you mean "list"?`},
		{"list", `{"name": "x"}`, codes.InvalidArgument, "name"},
		{"describe", ``, codes.InvalidArgument, "dataset"},
		{"describe", `{"dataset": "e"}`, codes.NotFound, "e"},
		{"describe", `{"dataset": "d", "snapshot": 7}`, codes.NotFound, "7"},
		{"describe", `{"dataset": "d", "snapshot": -1}`, codes.InvalidArgument, "snapshot"},
		{"drop", `{"dataset": "e"}`, codes.NotFound, "e"},
		{"drop", `{"dataset": "d", "snapshot": 7}`, codes.NotFound, "7"},
		{"drop", `{"datasets": "d"}`, codes.InvalidArgument, `did you mean "dataset"?`},
		{"gc", `{"dry_run": 1}`, codes.InvalidArgument, "true or false"},
		{"stats", `{"x": 1}`, codes.InvalidArgument, "no fields"},
		{"warm", `{"dataset": "d"}`, codes.NotFound, "no spill"},
		{"warm", `{"dataset": "d", "shuffle": {"sed": 3}}`, codes.InvalidArgument, `did you mean "seed"?`},
		{"warm", `{"dataset": "d", "rank": 0}`, codes.InvalidArgument, "rank"},
		{"warm", ``, codes.InvalidArgument, "got nothing"},
		{"cancel", `{}`, codes.InvalidArgument, "plan"},
		{"CancelFlightInfo", `{}`, codes.InvalidArgument, "CancelFlightInfoRequest"},
		{"CancelFlightInfo", ``, codes.InvalidArgument, "endpoint"},
		{"RenewFlightEndpoint", `{}`, codes.InvalidArgument, "RenewFlightEndpointRequest"},
		{"RenewFlightEndpoint", ``, codes.InvalidArgument, "ticket"},
	} {
		_, err := f.act(tt.name, tt.body)
		wantCode(t, err, tt.code, tt.want)
	}
}

func TestActionStats(t *testing.T) {
	f := serve(t, Options{MaxStreams: 7, Node: testNode{scale: map[string]int{"budget_bytes": 12}}})
	f.fillLarge("big")
	stream := f.stalled(t.Context(), `{"dataset": "big", "batch": 4}`)
	type stats struct {
		Server struct {
			Started  time.Time
			Draining bool
			totals
		}
		Store   store.Stats
		Engine  fetch.Stats
		Limits  map[string]int64
		Streams []StreamInfo
		Scale   struct {
			Budget int64 `json:"budget_bytes"`
		} `json:"spill_scale"`
	}
	read := func() (s stats) {
		t.Helper()
		results, err := f.act("stats", ``)
		if err != nil {
			t.Fatal(err)
		}
		mustUnmarshal(t, results[0], &s)
		return s
	}
	got := read()
	if len(got.Streams) != 1 || got.Streams[0].Kind != "DoGet" || len(got.Streams[0].Plan) != 16 ||
		got.Streams[0].Peer == "" {
		t.Errorf("got streams %+v", got.Streams)
	}
	if got.Server.Streams != 2 || got.Server.Draining || got.Limits["max_streams"] != 7 ||
		got.Store.BlobWrites < largeRows || got.Engine.LiveStreams != 1 {
		t.Errorf("got %+v", got)
	}
	if got.Server.Rows < largeRows || got.Server.Bytes < largeRows<<20 {
		t.Errorf("got %d rows of %d bytes, more were put", got.Server.Rows, got.Server.Bytes)
	}
	if got.Scale.Budget != 12 {
		t.Errorf("got the decision %+v", got.Scale)
	}
	// The windows identify the stream. A stream's window is published after it has
	// planned.
	for len(got.Engine.Windows) == 1 && got.Engine.Windows[0].WindowUsed == 0 {
		time.Sleep(time.Millisecond)
		got = read()
	}
	if w := got.Engine.Windows; len(w) != 1 || w[0].Job != got.Streams[0].Plan || w[0].Dataset != "big@1" ||
		w[0].Order != "strict" || w[0].WindowUsed == 0 {
		t.Errorf("got windows %+v of streams %+v", w, got.Streams)
	}
	if err := drainStream(stream); err != nil {
		t.Fatal(err)
	}
	f.untilIdle()
	if got := read(); len(got.Streams) != 0 || len(got.Engine.Windows) != 0 {
		t.Errorf("got streams %+v and windows %+v", got.Streams, got.Engine.Windows)
	}
	// The names are documented.
	results, err := f.act("stats", ``)
	if err != nil {
		t.Fatal(err)
	}
	var raw struct{ Engine map[string]any }
	mustUnmarshal(t, results[0], &raw)
	for _, name := range []string{
		"reads_in_flight", "bytes_in_flight", "in_flight_limit", "shared_reads", "retries", "hedges", "hedges_won",
		"latency", "path", "windows",
	} {
		if raw.Engine[name] == nil {
			t.Errorf("the engine's statistics lack %s: %v", name, raw.Engine)
		}
	}
}
