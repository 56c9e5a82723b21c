package flight

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/flight/audit"
	"bowstring/flight/policy"
	"bowstring/flight/usage"
)

// tenanted is a server with tenants.
type tenanted struct {
	*ruled
	tenants atomic.Pointer[policy.Tenants]
	book    *usage.Book
}

const tenantRules = `
rules:
  - {principals: [root], datasets: ["*"], rights: [admin]}
  - {principals: [ada, adam], datasets: [shared], rights: [read]}
  - {principals: [bob], datasets: [shared, other], rights: [read]}
`

const threeTenants = `
tenants:
  - {name: vision, principals: [ada, adam], weight: 2, ceilings: {streams: 2}}
  - {name: audio, principals: [bob]}
`

func serveTenants(t *testing.T, text string, opts Options) *tenanted {
	t.Helper()
	s := &tenanted{}
	s.set(t, text)
	opts.Tenants = &s.tenants
	today := time.Now()
	book, err := usage.Open(usage.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return today }}) // midnight may fall between two writes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { book.Close() }) // after the server has stopped
	opts.Usage, s.book = book, book
	s.ruled = serveRules(t, tenantRules, opts)
	rec := samples(0, 200)
	defer rec.Release()
	for _, name := range []string{"shared", "other"} {
		if o := s.as("root").put(command(`{"put": {"dataset": %q, "key": "file_name"}}`, name), rec); o.err != nil {
			t.Fatal(o.err)
		}
	}
	return s
}

func (s *tenanted) set(t *testing.T, text string) {
	t.Helper()
	ts, err := policy.ParseTenants("tenants.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s.tenants.Store(ts)
	if s.ruled != nil {
		s.server.EnforceTenants()
	}
}

const endless = `{"dataset": "shared", "batch": 1, "batch_bytes": 1, "columns": ["label"], "rank": 0, "epochs": 100000}`

// A tenant has as many streams as it may, over all of its principals. A further one is
// refused with the limit's name and the time after which it may retry. Other tenants
// continue.
func TestTenantStreams(t *testing.T) {
	s := serveTenants(t, threeTenants, Options{})
	_, end1 := s.as("ada").streaming(endless)
	_, end2 := s.as("adam").streaming(endless)
	defer end2()
	o := s.as("ada").get(`{"dataset": "shared"}`)
	wantCode(t, o.err, codes.ResourceExhausted, `tenant.streams: tenant "vision" may have 2 streams at once`)
	wantCode(t, o.err, codes.ResourceExhausted, "(try again in ")
	details := status.Convert(o.err).Details()
	if len(details) != 1 {
		t.Fatalf("details: %v", details)
	}
	if retry, ok := details[0].(*errdetails.RetryInfo); !ok || retry.RetryDelay.AsDuration() <= 0 ||
		retry.RetryDelay.AsDuration() > 3*time.Second {
		t.Errorf("it is to come again after %v", details[0])
	}
	// The delay grows with the number of refusals.
	for range 200 {
		o = s.as("ada").get(`{"dataset": "shared"}`)
	}
	retry, _ := status.Convert(o.err).Details()[0].(*errdetails.RetryInfo)
	if after := retry.RetryDelay.AsDuration(); after < 10*time.Second || after > 40*time.Second {
		t.Errorf("in a storm they are to come again after %s", after)
	}
	if o := s.as("bob").get(`{"dataset": "shared"}`); o.err != nil || o.rows != 200 {
		t.Error(o)
	}
	end1()
	if _, err := s.server.calls.wait(t.Context(), func(c *call) bool {
		return c.streaming && c.caller.Principal == "ada"
	}); err != nil {
		t.Fatal(err)
	}
	if o := s.as("ada").get(`{"dataset": "shared"}`); o.err != nil {
		t.Error(o)
	}
	// Names change while streams run: they go on, and new ones are on the new account.
	s.set(t, strings.Replace(threeTenants, "name: vision", "name: sight", 1))
	_, end3 := s.as("ada").streaming(endless)
	end3()
	var tenants []string
	running, _, _, _ := s.server.calls.snapshot(func(*call) bool { return true }, true)
	for _, one := range running {
		tenants = append(tenants, one.Tenant)
	}
	if len(tenants) == 0 || tenants[0] != "vision" {
		t.Errorf("the stream that ran is on the account of %q", tenants)
	}
}

// A tenant with a rate limit waits, reports the wait with its batches, and continues
// without waits when the limit is gone.
func TestTenantPace(t *testing.T) {
	s := serveTenants(t, "tenants: [{name: vision, principals: [ada], ceilings: {bytes_per_second: 1000}}]", Options{})
	ctx, cancel := context.WithCancel(s.as("ada").ctx())
	defer cancel()
	stream, err := s.client.DoGet(ctx, &flight.Ticket{Ticket: []byte(`{"dataset": "shared", "batch": 20, "rank": 0}`)})
	if err != nil {
		t.Fatal(err)
	}
	batches := 0
	for err == nil {
		var m *flight.FlightData
		if m, err = stream.Recv(); err == nil && len(m.AppMetadata) > 0 {
			if batches++; batches == 1 { // some 20 KB, paid for in 20 s
				for waits := false; !waits; {
					soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					_, err := s.server.paces.Wait(soon, "vision")
					waits = err != nil
					cancel()
				}
				s.set(t, "tenants: [{name: vision, principals: [ada], ceilings: {bytes_per_second: 1TB}}]")
			}
		}
	}
	if !errors.Is(err, io.EOF) || batches != 10 {
		t.Errorf("%d batches: %v", batches, err)
	}
}

// Usage is counted once: while streams run, and when they end.
func TestUsage(t *testing.T) {
	s := serveTenants(t, threeTenants, Options{})
	ada, bob, root := s.as("ada"), s.as("bob"), s.as("root")
	sums := func(who as, body string) map[string]usage.Entry {
		t.Helper()
		o := who.act("usage", body)
		if o.err != nil {
			t.Fatal(o)
		}
		sums := map[string]usage.Entry{}
		for line := range strings.Lines(o.text) {
			var e usage.Entry
			mustUnmarshal(t, []byte(line), &e)
			sums[e.Tenant+"/"+e.Dataset] = e
		}
		return sums
	}
	for range 3 {
		if o := ada.get(`{"dataset": "shared"}`); o.err != nil {
			t.Fatal(o)
		}
		s.server.CountUsage()
	}
	if o := bob.get(`{"dataset": "other"}`); o.err != nil {
		t.Fatal(o)
	}
	_, end := bob.streaming(`{"dataset": "shared", "batch": 1, "batch_bytes": 1, "columns": ["label"], "rank": 0, "epochs": 1000}`)
	defer end()
	if _, err := s.server.calls.wait(t.Context(), func(c *call) bool {
		return c.streaming && c.caller.Principal == "ada"
	}); err != nil {
		t.Fatal(err)
	}
	all := sums(root, "")
	e := all["vision/shared"]
	if e.Rows != 600 || e.Streams != 3 || e.Bytes < 600*1000 || e.StoreBytes < 200*1000 || e.Seconds <= 0 ||
		e.Seconds > 600 || e.RowsIn != 0 {
		t.Errorf("%+v", e)
	}
	if e := all["audio/shared"]; e.Streams != 1 || e.Rows == 0 {
		t.Errorf("of a stream that runs: %+v", e)
	}
	if e := all["default/shared"]; e.RowsIn != 200 || e.BytesIn == 0 || e.Rows != 0 {
		t.Errorf("of an upload: %+v", e)
	}
	if own := sums(ada, ""); len(own) != 1 || own["vision/shared"].Rows != 600 {
		t.Errorf("ada sees %v", own)
	}
	if own := sums(bob, `{"dataset": "other", "since": "2020-01-01"}`); len(own) != 1 ||
		own["audio/other"].Rows != 200 {
		t.Errorf("bob sees %v", own)
	}
	if none := sums(root, `{"until": "2020-01-01"}`); len(none) != 0 {
		t.Errorf("long ago: %v", none)
	}
	wantCode(t, ada.act("usage", `{"tenant": "audio"}`).err, codes.PermissionDenied, "other tenants")
	wantCode(t, ada.act("usage", `{"since": "monday"}`).err, codes.InvalidArgument, "a day in UTC")
	wantCode(t, ada.act("usage", `{"dataset": "other"}`).err, codes.NotFound, "no dataset")
}

// Cancelled streams are recorded with the caller, plan by plan; if none was cancelled,
// there is no record.
func TestCancelIsAudited(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(audit.Options{Path: file, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s := serveTenants(t, threeTenants, Options{Audit: log})
	plan, end := s.as("bob").streaming(endless)
	defer end()
	before := len(lines(t, file))
	if o := s.as("ada").act("cancel", `{"plan": "`+plan+`"}`); o.err != nil ||
		!strings.Contains(o.text, `"cancelled":0`) {
		t.Error(o)
	}
	if o := s.as("root").act("cancel", `{"plan": "`+plan+`"}`); o.err != nil ||
		!strings.Contains(o.text, `"cancelled":1`) {
		t.Error(o)
	}
	var got []audit.Event
	for _, e := range lines(t, file)[before:] {
		if e.Event == audit.Cancel {
			got = append(got, e)
		}
	}
	if len(got) != 2 || got[0].Phase != audit.Begin || got[1].Phase != audit.Done || got[1].Principal != "root" ||
		got[1].Plan != plan ||
		got[1].Count != 1 || got[1].Dataset != "shared" || got[1].Snapshot != 1 || got[1].Method != "DoAction/cancel" {
		b, _ := json.Marshal(got)
		t.Errorf("recorded: %s", b)
	}
}
