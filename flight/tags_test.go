package flight

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"

	"bowstring/schema"
)

// TestTagsPinNumbers: a tag can replace the number of a snapshot everywhere. Tickets and
// plans keep their meaning when the tag moves.
func TestTagsPinNumbers(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 20)
	if _, err := f.put(command(`{"put": {"dataset": "d", "mode": "append", "key": "file_name", "media": {"image": "image"}}}`), samples(100, 105)); err != nil {
		t.Fatal(err)
	}
	act := func(name, body, want string) {
		t.Helper()
		got, err := f.act(name, body)
		if err != nil || len(got) != 1 || string(got[0]) != want {
			t.Fatalf("%s %s: %s, %v, want %s", name, body, got, err, want)
		}
	}
	act("tag", `{"dataset": "d", "snapshot": 1, "name": "prod"}`, `{"dataset":"d","tag":"prod","snapshot":1}`)
	act("tag", `{"dataset": "d", "snapshot": "prod", "name": "old"}`, `{"dataset":"d","tag":"old","snapshot":1}`)
	act("tag", `{"dataset": "d", "name": "latest"}`, `{"dataset":"d","tag":"latest","snapshot":2}`)
	act("tags", `{"dataset": "d@prod"}`, `{"dataset":"d","tag":"prod","snapshot":1}`)
	infos := map[string]*flight.FlightInfo{}
	for name, d := range map[string]*flight.FlightDescriptor{
		"path": path("d@prod", "train"), "snapshot": command(`{"dataset": "d", "snapshot": "prod"}`),
		"tag": command(`{"dataset": "d", "tag": "prod"}`),
	} {
		info, err := f.client.GetFlightInfo(t.Context(), d)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ticket := string(info.Endpoint[0].Ticket.Ticket)
		if info.TotalRecords != 20 || strings.Contains(ticket, "prod") || !strings.Contains(ticket, `"snapshot":1`) {
			t.Errorf("%s: %d rows, ticket %s", name, info.TotalRecords, ticket)
		}
		if _, err := f.client.GetSchema(t.Context(), d); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		infos[name] = info
	}
	act("tag", `{"dataset": "d", "snapshot": 2, "name": "prod"}`, `{"dataset":"d","tag":"prod","snapshot":2}`)
	rows := func(ticket *flight.Ticket) (n int64) {
		t.Helper()
		recs, err := f.get(ticket)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range recs {
			n += rec.NumRows()
			rec.Release()
		}
		return n
	}
	for name, info := range infos {
		if n := rows(info.Endpoint[0].Ticket); n != 20 {
			t.Errorf("%s: after the tag has moved, the ticket serves %d rows, want 20", name, n)
		}
	}
	if n := rows(&flight.Ticket{Ticket: []byte(`{"dataset": "d", "snapshot": "prod"}`)}); n != 25 {
		t.Errorf("a ticket by hand serves %d rows, want 25", n)
	}
	var tagged struct{ Snapshot int64 }
	got, err := f.act("describe", `{"dataset": "d", "snapshot": "old"}`)
	if err != nil || json.Unmarshal(got[0], &tagged) != nil || tagged.Snapshot != 1 {
		t.Errorf("describe: %s, %v", got, err)
	}
	listed, err := f.infos(`{"dataset": "d@old"}`)
	if err != nil || len(listed) != 1 || listed[0].TotalRecords != 20 ||
		!strings.Contains(string(listed[0].AppMetadata),
			`"tags":[{"tag":"latest","snapshot":2},{"tag":"old","snapshot":1},{"tag":"prod","snapshot":2}]`) {
		t.Errorf("listed: %v, %v", listed, err)
	}
	for _, tt := range []struct {
		name, body string
		code       codes.Code
		want       string
	}{
		{"describe", `{"dataset": "d", "snapshot": "prd"}`, codes.NotFound, `did you mean "prod"?`},
		{"describe", `{"dataset": "d", "snapshot": 1, "tag": "prod"}`, codes.InvalidArgument, "one of the two"},
		{"tag", `{"dataset": "d", "snapshot": 9, "name": "x"}`, codes.NotFound, "9"},
		{"tag", `{"dataset": "d", "name": "12"}`, codes.InvalidArgument, "digits"},
		{"tag", `{"dataset": "d"}`, codes.InvalidArgument, "name"},
		{"untag", `{"dataset": "d", "name": "prd"}`, codes.NotFound, `did you mean "prod"?`},
		{"drop", `{"dataset": "d", "snapshot": 1}`, codes.InvalidArgument, "bowstring untag d@old"},
		{"drop", `{"dataset": "d", "snapshot": "old"}`, codes.InvalidArgument, "bowstring untag d@old"},
		{"drop", `{"dataset": "d"}`, codes.InvalidArgument, "bowstring untag d@latest"},
	} {
		_, err := f.act(tt.name, tt.body)
		wantCode(t, err, tt.code, tt.want)
	}
	act("untag", `{"dataset": "d", "name": "old"}`, `{"dataset":"d","tag":"old","snapshot":1}`)
	act("drop", `{"dataset": "d", "snapshot": 1}`, `{"dataset":"d","dropped":[1]}`)
	_, err = f.client.GetFlightInfo(t.Context(), path("d@old"))
	wantCode(t, err, codes.NotFound, "old")
	if _, err := schema.RequestFromPath([]string{"d@old"}); err != nil {
		t.Error(err)
	}
}
