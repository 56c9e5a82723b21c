package flight

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

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
	if want := []string{"list", "describe", "tag", "untag", "tags", "drop", "gc", "warm", "explain", "calibrate",
		"stats", "usage", "samenode", "lineage", "cancel", "CancelFlightInfo",
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

// stalled begins a DoGet of large batches whose client reads one and no more,
// so that the handler hangs in the transport.
func (f *fixture) stalled(ctx context.Context, ticket string) flight.FlightService_DoGetClient {
	f.t.Helper()
	stream, err := f.client.DoGet(ctx, &flight.Ticket{Ticket: []byte(ticket)})
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		f.t.Fatal(err)
	}
	return stream
}

// largeRows is how many images of 1 MiB fillLarge puts.
const largeRows = 48

// fillLarge makes a dataset whose epoch no transport buffers.
func (f *fixture) fillLarge(dataset string) {
	f.t.Helper()
	blob := make([]byte, 1<<20)
	b := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
	defer b.Release()
	for i := range largeRows {
		binary.LittleEndian.PutUint64(blob, uint64(i))
		b.Append(blob)
	}
	rec := array.NewRecord(arrow.NewSchema([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.Binary}}, nil),
		[]arrow.Array{b.NewArray()}, largeRows)
	defer rec.Release()
	if _, err := f.put(path(dataset), rec); err != nil {
		f.t.Fatal(err)
	}
}

// drainStream reads a stream to its end.
func drainStream(stream flight.DataStreamReader) error {
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestActionCancel(t *testing.T) {
	f := serve(t, Options{})
	f.fillLarge("big")
	const ticket = `{"dataset": "big", "batch": 4}`
	info, err := f.client.GetFlightInfo(t.Context(), command(ticket))
	if err != nil {
		t.Fatal(err)
	}
	plan := decoded[planInfo](t, info.AppMetadata).Plan

	// By its plan, with two streams running and one of another plan.
	one, two := f.stalled(t.Context(), ticket), f.stalled(t.Context(), string(info.Endpoint[0].Ticket.Ticket))
	other := f.stalled(t.Context(), `{"dataset": "big", "batch": 5}`)
	results, err := f.act("cancel", `{"plan": "`+plan+`"}`)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"plan":"` + plan + `","cancelled":2}`; string(results[0]) != want {
		t.Errorf("got %s, want %s", results[0], want)
	}
	for _, s := range []flight.FlightService_DoGetClient{one, two} {
		wantCode(t, drainStream(s), codes.Canceled, "cancelled")
	}
	if err := drainStream(other); err != nil {
		t.Errorf("another plan's stream ended with %v", err)
	}

	// As Flight says it.
	three := f.stalled(t.Context(), ticket)
	result, err := f.client.CancelFlightInfo(t.Context(), &flight.CancelFlightInfoRequest{Info: info})
	if err != nil {
		t.Fatal(err)
	}
	if result.Status != flight.CancelStatusCancelled {
		t.Errorf("got %s", result.Status)
	}
	wantCode(t, drainStream(three), codes.Canceled, "cancelled")
	// Again: nothing runs, which is what was wanted.
	if result, err = f.client.CancelFlightInfo(t.Context(), &flight.CancelFlightInfoRequest{Info: info}); err != nil ||
		result.Status != flight.CancelStatusCancelled {
		t.Errorf("got %v, %v", result, err)
	}
	// Also when the snapshot is gone, and without its rows, which an expression
	// would need.
	whole, err := f.client.GetFlightInfo(t.Context(),
		command(`{"dataset": "big", "batch": 5, "where": "position >= 0"}`))
	if err != nil {
		t.Fatal(err)
	}
	four := f.stalled(t.Context(), string(whole.Endpoint[0].Ticket.Ticket))
	defer func() {
		if _, err := f.act("drop", `{"dataset": "big"}`); err != nil {
			t.Fatal(err)
		}
		if result, err := f.client.CancelFlightInfo(t.Context(),
			&flight.CancelFlightInfoRequest{Info: whole}); err != nil || result.Status != flight.CancelStatusCancelled {
			t.Errorf("after the snapshot was dropped: %v, %v", result, err)
		}
		wantCode(t, drainStream(four), codes.Canceled, "cancelled")
	}()
	// A cancelled plan can be served again.
	recs, err := f.get(info.Endpoint[0].Ticket)
	if err != nil || rowsOf(recs) != largeRows {
		t.Errorf("after the cancellation: %d rows, %v", rowsOf(recs), err)
	}
}

func TestRenewFlightEndpoint(t *testing.T) {
	f := serve(t, Options{EndpointTTL: time.Hour})
	f.fill("d", 10)
	info, err := f.client.GetFlightInfo(t.Context(), path("d"))
	if err != nil {
		t.Fatal(err)
	}
	e := info.Endpoint[0]
	renewed, err := f.client.RenewFlightEndpoint(t.Context(), &flight.RenewFlightEndpointRequest{Endpoint: e})
	if err != nil {
		t.Fatal(err)
	}
	if !renewed.ExpirationTime.AsTime().After(e.ExpirationTime.AsTime()) {
		t.Errorf("it expired %s, and now %s", e.ExpirationTime.AsTime(), renewed.ExpirationTime.AsTime())
	}
	if renewed.ExpirationTime.Nanos%1000 != 0 {
		t.Errorf("%d ns are no whole microseconds", renewed.ExpirationTime.Nanos)
	}
	renewed.ExpirationTime = e.ExpirationTime
	if !proto.Equal(renewed, e) {
		t.Errorf("got %v, want %v", renewed, e)
	}
	if _, err := f.act("drop", `{"dataset": "d"}`); err != nil {
		t.Fatal(err)
	}
	_, err = f.client.RenewFlightEndpoint(t.Context(), &flight.RenewFlightEndpointRequest{Endpoint: e})
	wantCode(t, err, codes.NotFound, "d")
}

func TestActionStats(t *testing.T) {
	f := serve(t, Options{MaxStreams: 7, SpillScale: func() any { return map[string]int{"budget_bytes": 12} }})
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
	// The windows tell which stream it is.
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
