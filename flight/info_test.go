package flight

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/codes"

	"bowstring/fetch/admission"
	"bowstring/fetch/store"
	"bowstring/schema"
)

func TestListFlights(t *testing.T) {
	f := serve(t, Options{})
	if infos, err := f.infos(""); err != nil || len(infos) != 0 {
		t.Errorf("an empty store lists %v, %v", infos, err)
	}
	f.fill("birds", 120)
	f.fill("bees", 30)
	if _, err := f.put(command(`{"put": {"dataset": "birds", "mode": "append", "split": "test", "key": "file_name", "media": {"image": "image"}}}`), samples(200, 207)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		criteria string
		want     []string
	}{
		{"", []string{"bees/train 30", "birds/train 120", "birds/test 7"}},
		{"{}", []string{"bees/train 30", "birds/train 120", "birds/test 7"}},
		{`{"dataset": "bees"}`, []string{"bees/train 30"}},
		{`{"dataset": "bi*"}`, []string{"birds/train 120", "birds/test 7"}},
		{`{"dataset": "*"}`, []string{"bees/train 30", "birds/train 120", "birds/test 7"}},
		{`{"dataset": "b"}`, nil},
	} {
		infos, err := f.infos(tt.criteria)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, info := range infos {
			p := info.FlightDescriptor.Path
			got = append(got, fmt.Sprintf("%s/%s %d", p[0], p[1], info.TotalRecords))
			again, err := f.client.GetFlightInfo(t.Context(), info.FlightDescriptor)
			if err != nil {
				t.Fatal(err)
			}
			if string(again.Endpoint[0].Ticket.Ticket) != string(info.Endpoint[0].Ticket.Ticket) {
				t.Errorf("the listed ticket is %s, asked for it is %s", info.Endpoint[0].Ticket.Ticket,
					again.Endpoint[0].Ticket.Ticket)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s lists %q, want %q", tt.criteria, got, tt.want)
		}
	}
	// Listing opens no manifest, and returns bytes that are known already.
	if _, err := f.engine.GC(t.Context(), store.GCOptions{DryRun: true}); err != nil { // closes idle files
		t.Fatal(err)
	}
	reads := f.store.Stats().BlobReads
	infos, err := f.infos("")
	if err != nil {
		t.Fatal(err)
	}
	if n := f.store.Stats().BlobReads - reads; n != 0 || f.engine.Stats().Snapshots != 0 {
		t.Errorf("listing read %d blobs, and %d snapshots are open", n, f.engine.Stats().Snapshots)
	}
	for _, info := range infos {
		again, err := f.client.GetFlightInfo(t.Context(), info.FlightDescriptor)
		if err != nil {
			t.Fatal(err)
		}
		if info.TotalBytes != again.TotalBytes {
			t.Errorf("%s has %d bytes as listed after it was asked for, and %d", info.FlightDescriptor.Path,
				info.TotalBytes, again.TotalBytes)
		}
	}
	f.fill("ants", 10)
	if infos, err = f.infos(`{"dataset": "ants"}`); err != nil || infos[0].TotalBytes != -1 ||
		infos[0].TotalRecords != 10 {
		t.Errorf("an unknown size is listed as %v, %v", infos, err)
	}
	_, err = f.infos(`{"name": "x"}`)
	wantCode(t, err, codes.InvalidArgument, "name: got an unknown field, want dataset")
	_, err = f.infos(`{"dataset": "a*b"}`)
	wantCode(t, err, codes.InvalidArgument, "dataset")
}

func TestGetFlightInfo(t *testing.T) {
	f := serve(t, Options{EndpointTTL: time.Hour})
	f.fill("d", 250)
	size := int64(0)
	for i := range 250 {
		size += int64(len(content(i)))
	}
	for _, tt := range []struct {
		name    string
		d       *flight.FlightDescriptor
		about   planInfo // without plan
		bytes   int64
		ranks   []rankInfo
		ordered bool
	}{
		{"path", path("d", "train"), planInfo{"", "d", 1, 1, 4, 250, 0, 0, "", 0, nil}, -1, []rankInfo{{0, 250, 4, ""}}, true},
		{"pinned path", path("d@1"), planInfo{"", "d", 1, 1, 4, 250, 0, 0, "", 0, nil}, -1, []rankInfo{{0, 250, 4, ""}}, true},
		{"ranks", command(`{"dataset": "d", "columns": ["image"], "batch": 100, "world": {"size": 3}}`),
			planInfo{"", "d", 1, 3, 3, 250, 0, 0, "", 0, nil}, size, []rankInfo{{0, 83, 3, ""}, {1, 83, 3, ""}, {2, 84, 3, ""}},
			false},
		{"drop", command(`{"dataset": "d", "columns": ["label"], "batch": 100, "remainder": "drop"}`),
			planInfo{"", "d", 1, 1, 2, 200, 50, 0, "", 0, nil}, 8 * 200, []rankInfo{{0, 200, 2, ""}}, true},
		{"pad",
			command(`{"dataset": "d", "columns": ["position"], "batch": 100, "remainder": "pad", "order": "free", "shuffle": {"seed": 5}}`), planInfo{"", "d", 1, 1, 3, 300, 0, 50, "", 0, nil}, 8 * 300, []rankInfo{{0, 300, 3, ""}}, false},
		{"nothing selected", command(`{"dataset": "d", "selection": {"positions": [4]}, "columns": ["id"]}`),
			planInfo{"", "d", 1, 1, 1, 1, 0, 0, "", 0, nil}, 16, []rankInfo{{0, 1, 1, ""}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := time.Now()
			info, err := f.client.GetFlightInfo(t.Context(), tt.d)
			if err != nil {
				t.Fatal(err)
			}
			about := decoded[planInfo](t, info.AppMetadata)
			if len(about.Plan) != 16 {
				t.Errorf("plan is %q, want 16 digits", about.Plan)
			}
			about.Plan = ""
			if about != tt.about {
				t.Errorf("got %+v, want %+v", about, tt.about)
			}
			if info.TotalRecords != tt.about.Rows || tt.bytes >= 0 && info.TotalBytes != tt.bytes ||
				info.Ordered != tt.ordered {
				t.Errorf("got %d records, %d bytes, ordered %t; want %d, %d, %t", info.TotalRecords, info.TotalBytes,
					info.Ordered, tt.about.Rows, tt.bytes, tt.ordered)
			}
			if len(info.Endpoint) != len(tt.ranks) {
				t.Fatalf("got %d endpoints, want %d", len(info.Endpoint), len(tt.ranks))
			}
			var rows int64
			for rank, e := range info.Endpoint {
				got := decoded[rankInfo](t, e.AppMetadata)
				rows += got.Rows
				if got.Rank != int64(rank) || got.Steps != tt.about.Steps {
					t.Errorf("rank %d: got %+v", rank, got)
				}
				at := e.ExpirationTime.AsTime()
				if at.Nanosecond()%1000 != 0 || at.Before(before.Add(time.Hour-time.Millisecond)) ||
					at.After(time.Now().Add(time.Hour)) {
					t.Errorf("rank %d expires %s", rank, at)
				}
				if len(e.Location) != 0 {
					t.Errorf("rank %d has locations %v", rank, e.Location)
				}
				ticket, err := schema.ParseTicket(e.Ticket.Ticket)
				if err != nil || ticket.Rank != rank || ticket.Snapshot != 1 {
					t.Errorf("rank %d has ticket %s, %v", rank, e.Ticket.Ticket, err)
				}
				recs, err := f.get(e.Ticket)
				if err != nil {
					t.Fatal(err)
				}
				if n := rowsOf(recs); n != got.Rows {
					t.Errorf("rank %d got %d rows, was announced %d", rank, n, got.Rows)
				}
				s, err := flight.DeserializeSchema(info.Schema, memory.DefaultAllocator)
				if err != nil {
					t.Fatal(err)
				}
				if len(recs) > 0 && !s.Equal(recs[0].Schema()) {
					t.Errorf("the info says %s, DoGet sends %s", s, recs[0].Schema())
				}
			}
			if rows != tt.about.Rows {
				t.Errorf("the ranks have %d rows together, want %d", rows, tt.about.Rows)
			}
			poll, err := f.client.PollFlightInfo(t.Context(), tt.d)
			if err != nil {
				t.Fatal(err)
			}
			if poll.FlightDescriptor != nil || poll.Info.TotalRecords != info.TotalRecords {
				t.Errorf("polling: got %v", poll)
			}
		})
	}
}

func TestGetFlightInfoRefuses(t *testing.T) {
	f := serve(t, Options{MaxEndpoints: 100})
	f.fill("d", 20)
	for _, tt := range []struct {
		d    *flight.FlightDescriptor
		code codes.Code
		want string
	}{
		{&flight.FlightDescriptor{}, codes.InvalidArgument, "PATH or CMD"},
		{path(), codes.InvalidArgument, "path"},
		{path("d@x y"), codes.InvalidArgument, "snapshot"},
		{path("e"), codes.NotFound, "e"},
		{path("d@2"), codes.NotFound, "2"},
		{path("d", "test"), codes.NotFound, "train"},
		{command(`{"dataset": "d", "colums": ["id"]}`), codes.InvalidArgument, `did you mean "columns"?`},
		{command(`{"dataset": "d", "columns": ["img"]}`), codes.InvalidArgument, "img"},
		{command(`{"dataset": "d", "world": {"size": 101}}`), codes.ResourceExhausted, "MaxEndpoints is 100"},
		{command(`{"dataset": "d", "selection": {"positions": [20]}}`), codes.InvalidArgument, "20"},
	} {
		_, err := f.client.GetFlightInfo(t.Context(), tt.d)
		wantCode(t, err, tt.code, tt.want)
	}
	for _, tt := range []struct {
		d    *flight.FlightDescriptor
		code codes.Code
		want string
	}{
		{&flight.FlightDescriptor{}, codes.InvalidArgument, "PATH or CMD"},
		{path("e"), codes.NotFound, "e"},
		{path("d", "test"), codes.NotFound, "train"},
		{command(`{"dataset": "d", "columns": ["img"]}`), codes.InvalidArgument, "img"},
	} {
		_, err := f.client.GetSchema(t.Context(), tt.d)
		wantCode(t, err, tt.code, tt.want)
	}
}

// TestGetSchema: for both kinds of descriptor the schema is the one that DoGet sends. It
// costs no read.
func TestGetSchema(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 20)
	before := f.store.Stats().BlobReads
	for _, d := range []*flight.FlightDescriptor{
		path("d", "train"),
		command(`{"dataset": "d"}`),
		command(`{"dataset": "d", "columns": ["image", "position"], "layout": "huggingface"}`),
		command(`{"dataset": "d", "columns": ["label"]}`),
	} {
		result, err := f.client.GetSchema(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		if n := f.store.Stats().BlobReads - before; n != 0 {
			t.Errorf("GetSchema read %d blobs", n)
		}
		s, err := flight.DeserializeSchema(result.Schema, memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.client.GetFlightInfo(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		recs, err := f.get(info.Endpoint[0].Ticket)
		if err != nil {
			t.Fatal(err)
		}
		before = f.store.Stats().BlobReads
		if !s.Equal(recs[0].Schema()) || !s.Metadata().Equal(recs[0].Schema().Metadata()) {
			t.Errorf("GetSchema says %s, DoGet sends %s", s, recs[0].Schema())
		}
	}
}

// TestGetFlightInfoIsBounded: the size of an answer is estimated before it is built or
// anything is evaluated for it. It counts until the answer was sent.
func TestGetFlightInfoIsBounded(t *testing.T) {
	limits := admission.Limits{Results: 4 << 20}
	limits.EnsureDefaults()
	ledger := admission.NewLedger(limits)
	f := serve(t, Options{Ledger: ledger})
	f.fill("d", 20)
	long := strings.Repeat(" ", 16000) + "label >= 0"
	_, err := f.client.GetFlightInfo(t.Context(), command(`{"dataset": "d", "where": "%s", "world": {"size": 65536}}`,
		long))
	wantCode(t, err, codes.ResourceExhausted, "65536 tickets of 16")
	// The dataset was not looked up either.
	_, err = f.client.GetFlightInfo(t.Context(), command(`{"dataset": "none", "where": "%s", "world": {"size": 65536}}`,
		long))
	wantCode(t, err, codes.ResourceExhausted, "tickets of")
	_, err = f.client.GetFlightInfo(t.Context(), command(`{"dataset": "d", "world": {"size": 65536}}`))
	wantCode(t, err, codes.ResourceExhausted, "65536 endpoints")
	info, err := f.client.GetFlightInfo(t.Context(), command(`{"dataset": "d", "where": "%s", "world": {"size": 16}}`,
		long))
	if err != nil || len(info.Endpoint) != 16 {
		t.Fatalf("%v, %v", info, err)
	}
	if a := ledger.Accounts()[admission.Results]; a.Most < 16*16000 {
		t.Errorf("%+v", a)
	}
	// Give-backs come right after the answers.
	h, err := ledger.Reserve(t.Context(), admission.Results, limits.Results)
	if err != nil {
		t.Fatal(err)
	}
	h.Release()
}
