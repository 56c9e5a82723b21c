package flight

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/fetch"
	"bowstring/fetch/admission"
)

// Callers may invent tenants by a header. After their calls the server keeps only a sum of
// them, and tenants that were there before are still counted by name.
func TestMadeUpTenants(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 10)
	terms := func(string) admission.Terms { return admission.Terms{BytesPerSecond: 1 << 40} }
	f.server.paces.SetTerms(terms)
	names := func() (list []string) {
		for _, one := range f.server.Stats().Tenants {
			if !one.Others {
				list = append(list, one.Tenant)
			}
		}
		return list
	}
	once := func(tenant string) {
		ctx, c, err := f.server.calls.begin(t.Context(), "/"+flightService+"/DoGet", "192.0.2.1:1")
		if err != nil {
			t.Fatal(err)
		}
		c.caller.Tenant = tenant
		if err := f.server.calls.beginStream(c, "DoGet", "", admission.Terms{}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.server.paces.Wait(ctx, tenant); err != nil {
			t.Fatal(err)
		}
		f.server.paces.Served(tenant, 1)
		if err := f.server.turn(fetch.WithCaller(ctx, c.caller), func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		f.server.calls.end(c)
	}
	for i := range maxTenants - 1 { // and "", who has filled it
		once(fmt.Sprint("known ", i))
	}
	known := names()
	const madeUp = 100_000
	for i := range madeUp {
		once(fmt.Sprint("made up ", i))
	}
	if now := names(); !slices.Equal(now, known) {
		t.Errorf("tenants are counted by the names %q, before it was %q", now, known)
	}
	f.server.calls.mu.Lock()
	streams, named := len(f.server.calls.tenantStreams), len(f.server.calls.tenants.named)
	others := f.server.calls.tenants.others.Calls
	f.server.calls.mu.Unlock()
	if streams != 0 || named != maxTenants || others != madeUp {
		t.Errorf("%d tenants have streams, %d are counted by name; the others made %d calls", streams, named, others)
	}
	f.server.paces.SetTerms(nil)
	// Over the wire, to the store and back.
	before := f.engine.Stats()
	for i := range 300 {
		ctx := metadata.AppendToOutgoingContext(t.Context(), tenantHeader, fmt.Sprint("wire-", i))
		stream, err := f.client.DoGet(ctx, &flight.Ticket{Ticket: []byte(`{"dataset": "d"}`)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := records(stream); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.server.calls.wait(t.Context(), func(*call) bool { return true }); err != nil {
		t.Fatal(err)
	}
	if after := f.engine.Stats(); len(after.Windows) != len(before.Windows) || len(after.Jobs) > len(before.Jobs)+1 {
		t.Errorf("%d windows and %d jobs, before it was %d and %d", len(after.Windows), len(after.Jobs),
			len(before.Windows), len(before.Jobs))
	}
	// A name that was not used for long makes room for one that is.
	f.server.calls.mu.Lock()
	defer f.server.calls.mu.Unlock()
	list := &f.server.calls.tenants
	list.of("late", time.Now().Add(2*tenantIdle))
	if list.named["late"] == nil || len(list.named) != maxTenants {
		t.Errorf("%d tenants are counted by name, and the one that came late is not", len(list.named))
	}
}
