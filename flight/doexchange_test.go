package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/codes"

	"bowstring/schema"
)

// exchange is the client's side of a DoExchange.
type exchange struct {
	t      *testing.T
	stream flight.FlightService_DoExchangeClient
	w      *flight.Writer
	rdr    *flight.Reader // nil before the schema has arrived
}

var positionSchema = arrow.NewSchema([]arrow.Field{{Name: "position", Type: arrow.PrimitiveTypes.Int64}}, nil)

func (f *fixture) exchange(ctx context.Context, d *flight.FlightDescriptor, s *arrow.Schema) *exchange {
	f.t.Helper()
	stream, err := f.client.DoExchange(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	x := &exchange{t: f.t, stream: stream}
	if err := stream.Send(&flight.FlightData{FlightDescriptor: d}); err != nil {
		f.t.Fatal(err)
	}
	x.w = flight.NewRecordWriter(stream, ipc.WithSchema(s))
	return x
}

// ask sends a request.
func (x *exchange) ask(rec arrow.Record) error { return x.w.Write(rec) }

func positions(list ...int64) arrow.Record {
	b := array.NewInt64Builder(memory.DefaultAllocator)
	defer b.Release()
	b.AppendValues(list, nil)
	return array.NewRecord(positionSchema, []arrow.Array{b.NewArray()}, int64(len(list)))
}

// answer reads the next part.
func (x *exchange) answer() (arrow.Record, partInfo, error) {
	x.t.Helper()
	if x.rdr == nil {
		var err error
		if x.rdr, err = flight.NewRecordReader(x.stream); err != nil {
			return nil, partInfo{}, err
		}
	}
	if !x.rdr.Next() {
		if err := x.rdr.Err(); err != nil {
			return nil, partInfo{}, err
		}
		return nil, partInfo{}, io.EOF
	}
	rec := x.rdr.Record()
	rec.Retain()
	return rec, decoded[partInfo](x.t, x.rdr.LatestAppMetadata()), nil
}

func TestExchange(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 300)
	for _, tt := range []struct {
		name string
		s    *arrow.Schema
		rec  func(list ...int64) arrow.Record
	}{
		{"by position", positionSchema, positions},
		{"by position of 32 bits", arrow.NewSchema([]arrow.Field{{Name: "position", Type: arrow.PrimitiveTypes.Uint32}},
			nil), func(list ...int64) arrow.Record {
			b, _ := json.Marshal(list)
			return oneColumn(t, arrow.Field{Name: "position", Type: arrow.PrimitiveTypes.Uint32}, string(b))
		}},
		{"by id", arrow.NewSchema([]arrow.Field{schema.IDField()}, nil), func(list ...int64) arrow.Record {
			b := array.NewFixedSizeBinaryBuilder(memory.DefaultAllocator, &arrow.FixedSizeBinaryType{ByteWidth: 16})
			defer b.Release()
			for _, i := range list {
				id := schema.SampleID("d", fmt.Sprintf("%06d.jpg", i))
				b.Append(id[:])
			}
			return array.NewRecord(arrow.NewSchema([]arrow.Field{schema.IDField()}, nil), []arrow.Array{b.NewArray()},
				int64(len(list)))
		}},
		{"by id as text", arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.BinaryTypes.LargeString}}, nil),
			func(list ...int64) arrow.Record {
				b := array.NewLargeStringBuilder(memory.DefaultAllocator)
				defer b.Release()
				for _, i := range list {
					b.Append(schema.FormatID(schema.SampleID("d", fmt.Sprintf("%06d.jpg", i))))
				}
				return array.NewRecord(arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.BinaryTypes.LargeString}},
					nil), []arrow.Array{b.NewArray()}, int64(len(list)))
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := f.exchange(t.Context(), command(`{"take": {"dataset": "d", "columns": ["image", "position"]}}`), tt.s)
			// The schema comes before the first request is sent.
			var err error
			if x.rdr, err = flight.NewRecordReader(x.stream); err != nil {
				t.Fatal(err)
			}
			if got := x.rdr.Schema().Field(0).Name; got != "image" {
				t.Errorf("the first column is %q, want image", got)
			}
			for request, list := range [][]int64{{7}, {299, 0, 3, 3, 299}, {}, {1, 2}} {
				if err := x.ask(tt.rec(list...)); err != nil {
					t.Fatal(err)
				}
				rec, info, err := x.answer()
				if err != nil {
					t.Fatal(err)
				}
				info.Wait = waitMetadata{}
				if want := (partInfo{Request: int64(request), Last: true, Rows: len(list)}); info != want {
					t.Errorf("got %+v, want %+v", info, want)
				}
				images, at := column(t, []arrow.Record{rec}, "image"), column(t, []arrow.Record{rec}, "position")
				if len(images) != len(list) {
					t.Fatalf("got %d rows for %v", len(images), list)
				}
				for i, p := range list {
					if images[i] != string(content(int(p))) || at[i] != fmt.Sprint(p) {
						t.Errorf("request %d, row %d: got position %s and %.20q, want %d", request, i, at[i], images[i],
							p)
					}
				}
			}
			if err := x.stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if _, _, err := x.answer(); !errors.Is(err, io.EOF) {
				t.Errorf("got %v, want the end", err)
			}
		})
	}
}

// TestExchangePipelined sends many requests from one goroutine while another one reads. The
// answers arrive in order, and large ones in parts.
func TestExchangePipelined(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 500)
	const requests = 200
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	src := rand.New(rand.NewPCG(seed, 0))
	asked := make([][]int64, requests)
	for i := range asked {
		asked[i] = make([]int64, src.IntN(40))
		for k := range asked[i] {
			asked[i][k] = src.Int64N(500)
		}
	}
	x := f.exchange(t.Context(), command(`{"take": {"dataset": "d", "columns": ["image"], "batch_bytes": 5000}}`),
		positionSchema)
	sent := make(chan error, 1)
	go func() {
		for _, list := range asked {
			if err := x.ask(positions(list...)); err != nil {
				sent <- err
				return
			}
		}
		sent <- x.stream.CloseSend()
	}()
	for request, list := range asked {
		var got []string
		for part := int64(0); ; part++ {
			rec, info, err := x.answer()
			if err != nil {
				t.Fatal(err)
			}
			if info.Request != int64(request) || info.Part != part || info.Row != int64(len(got)) {
				t.Fatalf("got %+v, want request %d, part %d, row %d", info, request, part, len(got))
			}
			if rec.NumRows() > 5 {
				t.Errorf("a part has %d rows of about 1 KB, batch_bytes is 5,000", rec.NumRows())
			}
			got = append(got, column(t, []arrow.Record{rec}, "image")...)
			if info.Last {
				break
			}
		}
		var want []string
		for _, p := range list {
			want = append(want, string(content(int(p))))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("request %d for %v: the images differ", request, list)
		}
	}
	if _, _, err := x.answer(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func TestExchangeRefuses(t *testing.T) {
	f := serve(t, Options{})
	f.leaky = true
	f.fill("d", 50)
	good := command(`{"take": {"dataset": "d"}}`)
	text := func(name, json string) arrow.Record {
		return oneColumn(t, arrow.Field{Name: name, Type: arrow.BinaryTypes.String, Nullable: true}, json)
	}
	two := array.NewRecord(arrow.NewSchema([]arrow.Field{positionSchema.Field(0),
		{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil),
		[]arrow.Array{fromJSON(t, arrow.PrimitiveTypes.Int64, `[1]`), fromJSON(t, arrow.PrimitiveTypes.Int64, `[1]`)},
		1)
	for _, tt := range []struct {
		name string
		d    *flight.FlightDescriptor
		rec  arrow.Record
		code codes.Code
		want string
	}{
		{"path", path("d"), positions(1), codes.InvalidArgument, "CMD"},
		{"no take", command(`{}`), positions(1), codes.InvalidArgument, "take"},
		{"unknown field", command(`{"take": {"dataset": "d", "where": "x"}}`), positions(1), codes.InvalidArgument,
			"take.where"},
		{"layout", command(`{"take": {"dataset": "d", "layout": "x"}}`), positions(1), codes.InvalidArgument, "layout"},
		{"no dataset", command(`{"take": {"dataset": "e"}}`), positions(1), codes.NotFound, "e"},
		{"no column", command(`{"take": {"dataset": "d", "columns": ["img"]}}`), positions(1), codes.InvalidArgument,
			"img"},
		{"out of range", good, positions(3, 50), codes.InvalidArgument,
			"request 0: position, row 1: got 50, want 0 to 49"},
		{"negative", good, positions(-1), codes.InvalidArgument, "got -1"},
		{"unknown id", good, text("id", `["6ba7b811-9dad-51d1-80b4-00c04fd430c8"]`), codes.NotFound,
			"no sample of d@1 has id 6ba7b811-9dad-51d1-80b4-00c04fd430c8"},
		{"bad id", good, text("id", `["x"]`), codes.InvalidArgument, `got "x"`},
		{"null", good, text("id", `[null]`), codes.InvalidArgument, "null"},
		{"unknown column", good, text("key", `["x"]`), codes.InvalidArgument, `"position" or "id"`},
		{"two columns", good, two, codes.InvalidArgument, "one column"},
		{"float positions", good, oneColumn(t, arrow.Field{Name: "position", Type: arrow.PrimitiveTypes.Float64},
			`[1]`), codes.InvalidArgument, "integers"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			x := f.exchange(ctx, tt.d, tt.rec.Schema())
			// The server may have refused the descriptor already.
			if err := x.ask(tt.rec); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			_, _, err := x.answer()
			wantCode(t, err, tt.code, tt.want)
		})
	}
	t.Run("after good requests", func(t *testing.T) {
		x := f.exchange(t.Context(), good, positionSchema)
		for _, p := range []int64{1, 2, 99} {
			if err := x.ask(positions(p)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if _, _, err := x.answer(); err != nil {
				t.Fatal(err)
			}
		}
		_, _, err := x.answer()
		wantCode(t, err, codes.InvalidArgument, "request 2")
	})
	t.Run("broken request", func(t *testing.T) {
		x := f.exchange(t.Context(), good, positionSchema)
		if err := x.ask(positions(1)); err != nil {
			t.Fatal(err)
		}
		fd := recordMessage(t, positions(1, 2, 3))
		fd.DataBody = fd.DataBody[:4]
		if err := x.stream.Send(fd); err != nil {
			t.Fatal(err)
		}
		if _, _, err := x.answer(); err != nil {
			t.Fatal(err)
		}
		_, _, err := x.answer()
		wantCode(t, err, codes.InvalidArgument, "")
	})
}

// TestExchangeAbandoned: a client that goes away during requests leaves nothing behind. The
// fixture's end checks that.
func TestExchangeAbandoned(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 500)
	ctx, cancel := context.WithCancel(t.Context())
	x := f.exchange(ctx, command(`{"take": {"dataset": "d"}}`), positionSchema)
	list := make([]int64, 500)
	for i := range list {
		list[i] = int64(i)
	}
	for range 20 {
		if err := x.ask(positions(list...)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := x.answer(); err != nil {
		t.Fatal(err)
	}
	cancel()
	f.untilIdle()
	if !strings.Contains(f.log.String(), "code=Canceled") {
		t.Error("the log does not say that the call was cancelled")
	}
}
