package flight

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"

	"bowstring/schema"
)

func TestOptions(t *testing.T) {
	var o Options
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	for name, spoil := range map[string]func(*Options){
		"MaxStreams":            func(o *Options) { o.MaxStreams = -1 },
		"MaxStreamsPerPeer":     func(o *Options) { o.MaxStreamsPerPeer = -1 },
		"MaxConnections":        func(o *Options) { o.MaxConnections = -1 },
		"MaxConnectionsPerPeer": func(o *Options) { o.MaxConnectionsPerPeer = -1 },
		"MaxCallsPerConnection": func(o *Options) { o.MaxCallsPerConnection = -1 },
		"MaxRequestBytes":       func(o *Options) { o.MaxRequestBytes = 1 << 40 },
		"MaxMessageBytes":       func(o *Options) { o.MaxMessageBytes = 1 << 40 },
		"MaxBatchRows":          func(o *Options) { o.MaxBatchRows = -1 },
		"MaxEndpoints":          func(o *Options) { o.MaxEndpoints = -1 },
		"ExchangeDepth":         func(o *Options) { o.ExchangeDepth = -1 },
		"RequestTimeout":        func(o *Options) { o.RequestTimeout = -1 },
		"MessageTimeout":        func(o *Options) { o.MessageTimeout = -1 },
		"EndpointTTL":           func(o *Options) { o.EndpointTTL = -1 },
		"DrainTimeout":          func(o *Options) { o.DrainTimeout = -1 },
		"Keepalive":             func(o *Options) { o.Keepalive = time.Millisecond },
	} {
		bad := o
		spoil(&bad)
		err := bad.Validate()
		if field, ok := errors.AsType[*schema.FieldError](err); !ok || field.Field != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// One address cannot take all streams. A call that sends nothing takes none.
func TestMaxStreamsPerPeer(t *testing.T) {
	f := serve(t, Options{MaxStreams: 3, MaxStreamsPerPeer: 1})
	f.fillLarge("big")
	const ticket = `{"dataset": "big", "batch": 4}`
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 4 {
		if _, err := f.client.DoPut(ctx); err != nil { // and no more
			t.Fatal(err)
		}
	}
	one := f.stalled(t.Context(), ticket)
	_, err := f.get(&flight.Ticket{Ticket: []byte(ticket)})
	wantCode(t, err, codes.ResourceExhausted, "MaxStreamsPerPeer is 1")
	if err := drainStream(one); err != nil {
		t.Fatal(err)
	}
}

// A connection that is one too many is closed, and a place that becomes free used.
func TestMaxConnections(t *testing.T) {
	for _, opts := range []Options{{MaxConnections: 1}, {MaxConnectionsPerPeer: 1}} {
		f := serve(t, opts)
		if _, err := f.infos(""); err != nil { // takes the place
			t.Fatal(err)
		}
		second, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := second.Read(make([]byte, 100)); err == nil {
			t.Errorf("one connection too many got %d bytes", n)
		}
		_ = second.Close()
		waitFor(t, "the log to say so", func() bool {
			return strings.Contains(f.log.String(), "connections were refused")
		})
		f.client.Close()
		waitFor(t, "a place to become free", func() bool {
			c, err := net.Dial("tcp", f.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
				return false
			}
			n, _ := c.Read(make([]byte, 9)) // the header of the server's first frame
			return n == 9
		})
	}
}

// FuzzRequests sends broken messages to each method, through the parsers and the code
// behind them. They are refused or answered, and nothing panics.
func FuzzRequests(f *testing.F) {
	for method, seeds := range [][]string{
		{`{"dataset": "d", "where": "label > 3", "selection": {"positions": [1, 2]}, "world": {"size": 2}}`},
		{`{"dataset": "d", "columns": ["image", "image.size"], "layout": "huggingface"}`},
		{`{"dataset": "d", "columns": ["image", "position"], "batch": 3, "order": "free", "served": "AgE=", "world": {"size": 2}, "rank": 1, "epochs": 2}`},
		{`{"put": {"dataset": "e", "key": "file_name", "media": {"image": "image"}}}`,
			`{"selection": {"dataset": "d"}}`},
		{`{"take": {"dataset": "d", "columns": ["label"], "layout": "binary"}}`},
		{`{"dataset": "d*"}`},
		{`{"dataset": "d", "snapshot": 1}`, "\x0a\x02\x0a\x00"},
	} {
		for _, seed := range seeds {
			f.Add(byte(method), []byte(seed))
		}
	}
	for action := range byte(8) {
		f.Add(6+7*action, []byte(`{"dataset": "d"}`))
	}
	f.Fuzz(func(t *testing.T, method byte, body []byte) {
		x := serve(t, Options{})
		x.fill("d", 20)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		d := &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: body}
		var err error
		switch method % 7 {
		case 0:
			_, err = x.client.GetFlightInfo(ctx, d)
		case 1:
			_, err = x.client.GetSchema(ctx, d)
		case 2:
			_, err = x.get(&flight.Ticket{Ticket: body})
		case 3:
			_, err = x.put(d, samples(0, 3))
		case 4:
			e := x.exchange(ctx, d, positionSchema)
			if err = e.ask(positions(1)); err == nil {
				_, _, err = e.answer()
			}
		case 5:
			_, err = x.infos(string(body))
		default:
			list := []string{"list", "describe", "cancel", "stats", "CancelFlightInfo", "RenewFlightEndpoint", "drop",
				"gc"}
			_, err = x.act(list[int(method/7)%len(list)], string(body))
		}
		if log := x.log.String(); strings.Contains(log, "panic in a call") {
			t.Errorf("a panic, and %v:\n%s", err, log)
		}
	})
}
