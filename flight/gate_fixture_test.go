package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"bowstring/fetch"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// ruled is a server with rules. Its callers name themselves by a header.
type ruled struct {
	*fixture
	rules atomic.Pointer[policy.Rules]
}

func serveRules(t *testing.T, text string, opts Options) *ruled {
	t.Helper()
	r := &ruled{}
	r.set(t, text)
	opts.Rules = &r.rules
	r.fixture = serve(t, opts)
	r.server.identify = func(ctx context.Context, c fetch.Caller) fetch.Caller {
		md, _ := metadata.FromIncomingContext(ctx)
		if v := md.Get("test-principal"); len(v) > 0 {
			c.Principal = v[0]
		}
		c.Groups = md.Get("test-group")
		return c
	}
	return r
}

func (r *ruled) set(t *testing.T, text string) {
	t.Helper()
	rs, err := policy.Parse("rules.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r.rules.Store(rs)
}

// as is a caller.
type as struct {
	*ruled
	principal string
}

func (r *ruled) as(principal string) as { return as{r, principal} }

func (a as) ctx() context.Context {
	if a.principal == "" {
		return a.t.Context()
	}
	return metadata.AppendToOutgoingContext(a.t.Context(), "test-principal", a.principal)
}

// outcome is all that a caller learns.
type outcome struct {
	err   error
	text  string // answers that are no rows
	rows  int64
	bytes int64 // of the blobs in them
	recs  []arrow.Record
}

func (o outcome) String() string {
	return fmt.Sprintf("%s %q; %d rows, %d bytes; %s", status.Code(o.err), status.Convert(o.err).Message(), o.rows,
		o.bytes, o.text)
}

func (o *outcome) say(format string, args ...any) { o.text += fmt.Sprintf(format, args...) + "\n" }

// count reads a stream of rows to its end.
func (o *outcome) count(stream flight.DataStreamReader) {
	recs, err := records(stream)
	if o.err == nil {
		o.err = err
	}
	o.add(recs)
}

func (o *outcome) add(recs []arrow.Record) {
	o.recs = append(o.recs, recs...)
	for _, rec := range recs {
		o.rows += rec.NumRows()
		for _, col := range rec.Columns() {
			if blobs, ok := col.(*array.LargeBinary); ok {
				o.bytes += int64(len(blobs.ValueBytes()))
			}
		}
	}
}

func (a as) info(d *flight.FlightDescriptor) (o outcome) {
	info, err := a.client.GetFlightInfo(a.ctx(), d)
	o.err = err
	if err == nil {
		o.say("%d records, %d bytes, %s", info.TotalRecords, info.TotalBytes, info.Schema)
	}
	return o
}

func (a as) poll(d *flight.FlightDescriptor) (o outcome) {
	_, o.err = a.client.PollFlightInfo(a.ctx(), d)
	return o
}

func (a as) schemaOf(d *flight.FlightDescriptor) (o outcome) {
	res, err := a.client.GetSchema(a.ctx(), d)
	if o.err = err; err == nil {
		o.say("%s", res.Schema)
	}
	return o
}

func (a as) flights(criteria string) (o outcome) {
	stream, err := a.client.ListFlights(a.ctx(), &flight.Criteria{Expression: []byte(criteria)})
	if err != nil {
		a.t.Fatal(err)
	}
	for {
		info, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return o
		}
		if o.err = err; err != nil {
			return o
		}
		o.say("%v %d", info.FlightDescriptor.Path, info.TotalRecords)
	}
}

func (a as) get(format string, args ...any) (o outcome) {
	ctx, cancel := context.WithCancel(a.ctx())
	defer cancel()
	stream, err := a.client.DoGet(ctx, &flight.Ticket{Ticket: fmt.Appendf(nil, format, args...)})
	if err != nil {
		a.t.Fatal(err)
	}
	o.count(stream)
	return o
}

func (a as) act(name, body string) (o outcome) {
	ctx, cancel := context.WithCancel(a.ctx())
	defer cancel()
	stream, err := a.client.DoAction(ctx, &flight.Action{Type: name, Body: []byte(body)})
	if err != nil {
		a.t.Fatal(err)
	}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return o
		}
		if o.err = err; err != nil {
			return o
		}
		o.say("%s", r.Body)
	}
}

func (a as) actProto(name string, m proto.Message) outcome {
	b, err := proto.Marshal(m)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.act(name, string(b))
}

// ints is a record of one column of integers.
func ints(name string, values ...int64) arrow.Record {
	b := array.NewRecordBuilder(memory.DefaultAllocator,
		arrow.NewSchema([]arrow.Field{{Name: name, Type: arrow.PrimitiveTypes.Int64}}, nil))
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues(values, nil)
	return b.NewRecord()
}

// idRecord is a record of ids.
func idRecord(values ...schema.ID) arrow.Record {
	b := array.NewRecordBuilder(memory.DefaultAllocator,
		arrow.NewSchema([]arrow.Field{{Name: "id", Type: &arrow.FixedSizeBinaryType{ByteWidth: 16}}}, nil))
	defer b.Release()
	for _, v := range values {
		b.Field(0).(*array.FixedSizeBinaryBuilder).Append(v[:])
	}
	return b.NewRecord()
}

func (a as) put(d *flight.FlightDescriptor, rec arrow.Record) (o outcome) {
	ctx, cancel := context.WithCancel(a.ctx())
	defer cancel()
	stream, err := a.client.DoPut(ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	w := flight.NewRecordWriter(stream, ipc.WithSchema(rec.Schema()))
	w.SetFlightDescriptor(d)
	_ = w.Write(rec)
	w.Close()
	_ = stream.CloseSend()
	results, err := resultsOf(stream)
	o.err = err
	for _, r := range results {
		o.say("%s", r)
	}
	return o
}

// take requests samples by position or id.
func (a as) take(command string, rec arrow.Record) (o outcome) {
	ctx, cancel := context.WithCancel(a.ctx())
	defer cancel()
	stream, err := a.client.DoExchange(ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	w := flight.NewRecordWriter(stream, ipc.WithSchema(rec.Schema()))
	w.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)})
	_ = w.Write(rec)
	w.Close()
	_ = stream.CloseSend()
	o.count(stream)
	return o
}

// streaming begins a DoGet, reads its first batch, and leaves it running.
func (a as) streaming(ticket string) (plan string, end func()) {
	a.t.Helper()
	ctx, cancel := context.WithCancel(a.ctx())
	stream, err := a.client.DoGet(ctx, &flight.Ticket{Ticket: []byte(ticket)})
	if err != nil {
		a.t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			a.t.Fatal(err)
		}
		var about struct{ Plan string }
		if len(m.AppMetadata) > 0 && json.Unmarshal(m.AppMetadata, &about) == nil {
			return about.Plan, func() {
				cancel()
				for err == nil {
					_, err = stream.Recv()
				}
			}
		}
	}
}

// labels lists a column of what came, one text a row.
func (o outcome) column(t *testing.T, name string) []string { return column(t, o.recs, name) }

// masked is the outcome with a name replaced, so that outcomes can be compared.
func (o outcome) masked(name string) string { return strings.ReplaceAll(o.String(), name, "·") }
