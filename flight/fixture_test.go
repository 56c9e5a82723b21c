package flight

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"bowstring/fetch"
	"bowstring/fetch/lineage"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/schema"
)

// fixture is a server over an empty local store, and a client of it.
type fixture struct {
	t      *testing.T
	store  *local.Store
	engine *fetch.Engine
	server *Server
	log    *lockedBuffer
	addr   string
	how    []grpc.DialOption
	client flight.Client
	served chan error // the result of Serve
	mem    *memory.CheckedAllocator
	leaky  bool // the test sends malformed batches, whose buffers the IPC reader leaves to the garbage collector
}

// lockedBuffer is a log that tests may read while the server writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serve starts a server; dial is how its clients connect, where that is not in
// plain.
func serve(t *testing.T, opts Options, dial ...grpc.DialOption) *fixture {
	t.Helper()
	return serveOver(t, opts, func(s *local.Store) store.Store { return s }, dial...)
}

// serveOver starts a server over the store that over returns.
func serveOver(t *testing.T, opts Options, over func(*local.Store) store.Store, dial ...grpc.DialOption) *fixture {
	t.Helper()
	if len(dial) == 0 {
		dial = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	f := &fixture{t: t, how: dial, log: &lockedBuffer{}, served: make(chan error, 1),
		mem: memory.NewCheckedAllocator(memory.DefaultAllocator)}
	opts.PlainTransport = opts.PlainTransport || plainTransport
	opts.Logger = slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if f.store, err = local.Open(t.TempDir(), local.Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	record, err := lineage.Open(lineage.Options{Dir: t.TempDir(), Logger: opts.Logger})
	if err != nil {
		t.Fatal(err)
	}
	if f.engine, err = fetch.NewEngine(over(f.store), fetch.Options{Logger: opts.Logger, Lineage: record}); err != nil {
		t.Fatal(err)
	}
	f.server = New(f.engine, opts)
	f.server.mem = f.mem
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = lis.Addr().String()
	go func() { f.served <- f.server.Serve(lis) }()
	f.client = f.dial()
	t.Cleanup(func() {
		if err := f.server.Shutdown(context.Background()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-f.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := f.engine.Close(); err != nil {
			t.Errorf("closing the engine: %v", err)
		}
		if err := record.Close(); err != nil {
			t.Errorf("closing the record: %v", err)
		}
		if err := f.store.Close(); err != nil {
			t.Errorf("closing the store: %v", err)
		}
		if !f.leaky {
			f.mem.AssertSize(t, 0)
		}
		if t.Failed() {
			t.Logf("the server's log:\n%s", f.log)
		}
	})
	return f
}

// dial opens a connection of its own, which is closed at the end of the test. how has
// options that differ from those of other connections.
func (f *fixture) dial(how ...grpc.DialOption) flight.Client {
	f.t.Helper()
	c, err := flight.NewClientWithMiddleware(f.addr, nil, nil, append(append(slices.Clone(f.how), how...),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c
}

// command makes a CMD descriptor of JSON.
func command(format string, args ...any) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: fmt.Appendf(nil, format, args...)}
}

func path(elements ...string) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: elements}
}

// content is the blob of sample i, of about 1,000 bytes.
func content(i int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "sample %06d. ", i), 70+i%10)
}

var sampleSchema = arrow.NewSchema([]arrow.Field{
	{Name: "file_name", Type: arrow.BinaryTypes.String},
	{Name: "label", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "image", Type: arrow.BinaryTypes.Binary, Nullable: true},
}, nil)

// samples are the rows from lo to hi.
func samples(lo, hi int) arrow.Record {
	b := array.NewRecordBuilder(memory.DefaultAllocator, sampleSchema)
	defer b.Release()
	for i := lo; i < hi; i++ {
		b.Field(0).(*array.StringBuilder).Append(fmt.Sprintf("%06d.jpg", i))
		b.Field(1).(*array.Int64Builder).Append(int64(i % 10))
		b.Field(2).(*array.BinaryBuilder).Append(content(i))
	}
	return b.NewRecord()
}

// fill uploads n samples in batches of 100 as a dataset.
func (f *fixture) fill(dataset string, n int) putAck {
	f.t.Helper()
	var recs []arrow.Record
	for lo := 0; lo < n; lo += 100 {
		recs = append(recs, samples(lo, min(n, lo+100)))
	}
	results, err := f.put(command(`{"put": {"dataset": %q, "key": "file_name", "media": {"image": "image"}}}`, dataset),
		recs...)
	if err != nil {
		f.t.Fatal(err)
	}
	return last[putAck](f.t, results)
}

// put uploads records and returns the JSON of the results.
func (f *fixture) put(d *flight.FlightDescriptor, recs ...arrow.Record) ([][]byte, error) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	stream, err := f.client.DoPut(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	w := flight.NewRecordWriter(stream, ipc.WithSchema(recs[0].Schema()))
	w.SetFlightDescriptor(d)
	for _, rec := range recs {
		// An error comes with the results, too.
		if err := w.Write(rec); err != nil {
			break
		}
	}
	w.Close()
	if err := stream.CloseSend(); err != nil {
		f.t.Fatal(err)
	}
	return resultsOf(stream)
}

// resultsOf reads all results.
func resultsOf(stream flight.FlightService_DoPutClient) ([][]byte, error) {
	var out [][]byte
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, r.AppMetadata)
	}
}

// last decodes the last result.
func last[T any](t *testing.T, results [][]byte) T {
	t.Helper()
	if len(results) == 0 {
		t.Fatal("no result")
	}
	return decoded[T](t, results[len(results)-1])
}

func decoded[T any](t *testing.T, b []byte) T {
	t.Helper()
	var v T
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return v
}

// get reads a ticket to its end.
func (f *fixture) get(ticket *flight.Ticket) ([]arrow.Record, error) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	stream, err := f.client.DoGet(ctx, ticket)
	if err != nil {
		f.t.Fatal(err)
	}
	return records(stream)
}

// records reads a stream to its end.
func records(stream flight.DataStreamReader) ([]arrow.Record, error) {
	rdr, err := flight.NewRecordReader(stream)
	if err != nil {
		return nil, err
	}
	defer rdr.Release()
	var out []arrow.Record
	for rdr.Next() {
		rec := rdr.Record()
		rec.Retain()
		out = append(out, rec)
	}
	return out, rdr.Err()
}

// column returns the values of a column over records, as text.
func column(t *testing.T, recs []arrow.Record, name string) []string {
	t.Helper()
	var out []string
	for _, rec := range recs {
		at := rec.Schema().FieldIndices(name)
		if len(at) != 1 {
			t.Fatalf("no column %q in %s", name, rec.Schema())
		}
		col := rec.Column(at[0])
		for i := range col.Len() {
			switch c := col.(type) {
			case *array.LargeBinary:
				if c.IsNull(i) {
					out = append(out, "(null)")
				} else {
					out = append(out, string(c.Value(i)))
				}
			case *array.FixedSizeBinary:
				out = append(out, schema.FormatID(schema.ID(c.Value(i))))
			default:
				out = append(out, col.ValueStr(i))
			}
		}
	}
	return out
}

// rowsOf counts the rows of records.
func rowsOf(recs []arrow.Record) (n int64) {
	for _, r := range recs {
		n += r.NumRows()
	}
	return n
}

// wantCode checks an error's code, and that its message contains what.
func wantCode(t *testing.T, err error, code codes.Code, what string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("got %v, want %s", err, code)
		return
	}
	if msg := status.Convert(err).Message(); !bytes.Contains([]byte(msg), []byte(what)) {
		t.Errorf("the message %q does not say %q", msg, what)
	}
}

// act runs an action with a JSON body.
func (f *fixture) act(name, body string) ([][]byte, error) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	stream, err := f.client.DoAction(ctx, &flight.Action{Type: name, Body: []byte(body)})
	if err != nil {
		f.t.Fatal(err)
	}
	var out [][]byte
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, r.Body)
	}
}

// infos lists flights.
func (f *fixture) infos(criteria string) ([]*flight.FlightInfo, error) {
	f.t.Helper()
	stream, err := f.client.ListFlights(f.t.Context(), &flight.Criteria{Expression: []byte(criteria)})
	if err != nil {
		f.t.Fatal(err)
	}
	var out []*flight.FlightInfo
	for {
		info, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, info)
	}
}

func mustUnmarshal(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
}

// waitFor yields until cond holds. It is for events of other goroutines that give no
// signal.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

// testNode is a Node that returns its fields.
type testNode struct {
	others []string
	scale  any
}

func (n testNode) SpillScale() any  { return n.scale }
func (n testNode) Members() any     { return nil }
func (n testNode) Others() []string { return n.others }

// batchAck is JSON that a DoPut answers with.
type batchAck struct {
	Batch int64 `json:"batch"`
	Rows  int64 `json:"rows"`
	Bytes int64 `json:"bytes"`
}

// putAck is JSON that a DoPut answers with.
type putAck struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	Rows     int64  `json:"rows"`
	Changed  bool   `json:"changed"`
}

// noteAck is JSON that a DoPut answers with.
type noteAck struct {
	Note string `json:"note"`
}

// selectionAck is JSON that a DoPut answers with.
type selectionAck struct {
	Dataset   string `json:"dataset"`
	Snapshot  int64  `json:"snapshot"`
	Selection string `json:"selection"`
	Rows      int64  `json:"rows"`
}

// mergeAck is JSON that a DoPut answers with.
type mergeAck struct {
	putAck
	alterCounts
}

// alterCounts is JSON that a DoPut answers with.
type alterCounts struct {
	Matched  int64 `json:"matched"`
	Inserted int64 `json:"inserted"`
	Ignored  int64 `json:"ignored"`
	Deleted  int64 `json:"deleted"`
}
