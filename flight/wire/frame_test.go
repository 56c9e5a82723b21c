package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"bowstring/schema"
)

// counted counts the blobs that are out.
type counted struct{ out *atomic.Int64 }

func (c counted) Unpin() { c.out.Add(-1) }

// encodable makes a batch of n rows with metadata of many types and blobs of
// 0 to most bytes, and the record that a client should get of it.
func encodable(tb testing.TB, layout schema.Layout, n, most int, seed uint64,
	out *atomic.Int64) (*schema.Batch, arrow.Record) {
	tb.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	meta := []arrow.Field{
		{Name: "label", Type: arrow.PrimitiveTypes.Int64},
		{Name: "small", Type: arrow.PrimitiveTypes.Int8, Nullable: true},
		{Name: "flag", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "box", Type: arrow.FixedSizeListOf(4, arrow.PrimitiveTypes.Float32), Nullable: true},
		{Name: "tags", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
	}
	sch, err := schema.NewSchema(meta, []arrow.Field{schema.BlobField("image", "image", true)})
	if err != nil {
		tb.Fatal(err)
	}
	mb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(meta, nil))
	defer mb.Release()
	cb := schema.NewChunkBuilder(memory.DefaultAllocator, sch)
	defer cb.Release()
	ids := make([]schema.ID, n)
	refs := make([]*schema.BlobRef, n)
	blobs := make([]schema.Blob, n)
	positions := make([]int64, n)
	for i := range n {
		ids[i] = schema.SampleID("d", fmt.Sprint(i))
		positions[i] = int64(i)
		mb.Field(0).(*array.Int64Builder).Append(rng.Int64())
		box := mb.Field(4).(*array.FixedSizeListBuilder)
		tags := mb.Field(5).(*array.ListBuilder)
		if rng.IntN(4) == 0 {
			for c := 1; c < 4; c++ {
				mb.Field(c).AppendNull()
			}
			box.AppendNull()
			tags.AppendNull()
		} else {
			mb.Field(1).(*array.Int8Builder).Append(int8(rng.Int()))
			mb.Field(2).(*array.BooleanBuilder).Append(rng.IntN(2) == 0)
			mb.Field(3).(*array.StringBuilder).Append(strings.Repeat("n", rng.IntN(40)))
			box.Append(true)
			for range 4 {
				box.ValueBuilder().(*array.Float32Builder).Append(rng.Float32())
			}
			tags.Append(true)
			for range rng.IntN(3) {
				tags.ValueBuilder().(*array.StringBuilder).Append("tag")
			}
		}
		if rng.IntN(10) == 0 {
			continue // a null blob
		}
		data := make([]byte, rng.IntN(most+1))
		for k := range data {
			data[k] = byte(rng.Uint32())
		}
		ref := schema.RefOf(data)
		refs[i] = &ref
		out.Add(1)
		blobs[i] = schema.NewBlob(data, counted{out})
	}
	rec := mb.NewRecord()
	defer rec.Release()
	if err := cb.AppendBatch(ids, rec, [][]*schema.BlobRef{refs}); err != nil {
		tb.Fatal(err)
	}
	data, chunk, err := cb.Finish()
	if err != nil {
		tb.Fatal(err)
	}
	chunk.BlobRef = schema.RefOf(data)
	snap := &schema.Snapshot{Dataset: "d", Number: 1, Schema: sch, Chunks: []schema.Chunk{chunk},
		Splits: []schema.Split{{Name: "train", Ranges: []schema.Range{{Start: 0, End: int64(n)}}}}}
	m, err := schema.OpenManifest(snap, []schema.Blob{schema.NewBlob(data, nil)})
	if err != nil {
		tb.Fatal(err)
	}
	p, err := schema.NewProjection(snap, nil, layout)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := p.Assemble(m, positions, [][]schema.Blob{blobs})
	if err != nil {
		tb.Fatal(err)
	}
	want, err := b.Record(memory.DefaultAllocator)
	if err != nil {
		tb.Fatal(err)
	}
	return b, want
}

// waitFor yields until cond holds; what it waits for needs other goroutines
// that give no signal.
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

// A client that goes away in the middle leaves no blob out, whether it says so
// or its connection breaks.
func TestVanishedClientReleasesBlobs(t *testing.T) {
	for _, how := range []string{"cancel", "cut"} {
		t.Run(how, func(t *testing.T) {
			var out atomic.Int64
			ended := make(chan error, 1)
			client, conns := frameClient(t, func(s grpc.ServerStream) error {
				l, err := NewLane(s.Context())
				if err != nil {
					return err
				}
				var enc *encoder
				for i := 0; ; i++ {
					b, want := encodable(t, schema.LayoutLargeBinary, 64, 20_000, 3, &out)
					want.Release()
					if enc == nil {
						enc = newEncoder(b.Schema)
						first, err := enc.schemaFrame()
						if err != nil {
							return err
						}
						if err := s.SendMsg(first); err != nil {
							return err
						}
					}
					f, err := enc.batchFrame(b, math.MaxInt64, nil, time.Time{})
					if err != nil {
						return err
					}
					if err := l.Send(s.Context(), s, f); err != nil {
						ended <- err
						return err
					}
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream, err := client.DoGet(ctx, &flight.Ticket{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			if how == "cancel" {
				cancel()
			} else if err := (<-conns).Close(); err != nil {
				t.Fatal(err)
			}
			for err == nil {
				_, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				t.Fatal("the stream ended well")
			}
			<-ended
			waitFor(t, "every blob to be released", func() bool { return out.Load() == 0 })
		})
	}
}

// A batch that cannot be sent is released, and the error says why.
func TestBatchTooLarge(t *testing.T) {
	var out atomic.Int64
	out.Store(1)
	big := make([]byte, 1<<20)
	pieces := make([][]byte, 2100)
	for i := range pieces {
		pieces[i] = big
	}
	s := arrow.NewSchema([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.LargeBinary}}, nil)
	b := &schema.Batch{Schema: s, Rows: 1, Columns: []schema.Vector{{
		Type: s.Field(0).Type, Len: 1,
		Buffers: []schema.Buffer{{}, {Pieces: [][]byte{make([]byte, 16)}, Len: 16},
			{Pieces: pieces, Len: int64(len(pieces)) << 20}},
	}}, Blobs: [][]schema.Blob{{schema.NewBlob(big, counted{&out})}}}
	_, err := newEncoder(s).batchFrame(b, math.MaxInt64, nil, time.Time{})
	if !errors.Is(err, schema.ErrLimit) || !strings.Contains(err.Error(), "batch_bytes") {
		t.Errorf("a body of 2.1 GB: %v, want a limit that names batch_bytes", err)
	}
	if out.Load() != 0 {
		t.Error("the batch was not released")
	}
}

// The cost of encoding a batch of 64 samples of 110 KB, without a transport.
func BenchmarkBatchFrame(b *testing.B) {
	var out atomic.Int64
	batch, want := encodable(b, schema.LayoutLargeBinary, 64, 110_000, 1, &out)
	want.Release()
	blobs, columns := batch.Blobs, batch.Columns
	batch.Blobs = nil
	enc := newEncoder(batch.Schema)
	b.ReportAllocs()
	for b.Loop() {
		batch.Columns = columns
		f, err := enc.batchFrame(batch, math.MaxInt64, nil, time.Time{})
		if err != nil {
			b.Fatal(err)
		}
		f.buffers().Free()
	}
	batch.Blobs = blobs
	batch.Release()
}

// frameServer sends what send sends.
type frameServer struct {
	flight.BaseFlightServer
	send func(grpc.ServerStream) error
}

func (s *frameServer) DoGet(_ *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	return s.send(stream)
}

// frameClient serves send and returns a client of it, and the client's connections.
func frameClient(t *testing.T, send func(grpc.ServerStream) error, opts ...grpc.ServerOption) (flight.Client,
	chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(append(ServerOptions(false, Limits{}), opts...)...)
	flight.RegisterFlightServiceServer(srv, &frameServer{send: send})
	done := make(chan struct{})
	var writers sync.WaitGroup
	go func() {
		defer close(done)
		_ = srv.Serve(testListener(l, writers.Go))
	}()
	conns := make(chan net.Conn, 1)
	client, err := flight.NewClientWithMiddleware(l.Addr().String(), nil, nil,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err == nil {
				c = &silentConn{Conn: c}
				conns <- c
			}
			return c, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		srv.Stop()
		<-done
		writers.Wait()
	})
	return client, conns
}

// arrow's own reader reads from our frames what went in, in every layout and size, and
// every blob is released.
func TestFramesRoundTrip(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, layout := range []schema.Layout{schema.LayoutLargeBinary, schema.LayoutBinary, schema.LayoutHuggingFace} {
		for _, size := range []struct{ rows, most int }{{1, 0}, {1, 1 << 20}, {7, 100}, {64, 3000}, {300, 20_000},
			{3000, 30}} {
			t.Run(fmt.Sprintf("%s/%dx%d", layout, size.rows, size.most), func(t *testing.T) {
				var out atomic.Int64
				const batches = 3
				var frames []*Frame
				var want []arrow.Record
				var enc *encoder
				for i := range batches {
					b, w := encodable(t, layout, size.rows, size.most, seed+uint64(i), &out)
					if enc == nil {
						enc = newEncoder(b.Schema)
					}
					f, err := enc.batchFrame(b, math.MaxInt64, fmt.Appendf(nil, `{"batch":%d}`, i), time.Time{})
					if err != nil {
						t.Fatal(err)
					}
					frames, want = append(frames, f), append(want, w)
				}
				first, err := enc.schemaFrame()
				if err != nil {
					t.Fatal(err)
				}
				client, _ := frameClient(t, func(s grpc.ServerStream) error {
					l, err := NewLane(s.Context())
					for _, f := range append([]*Frame{first}, frames...) {
						if err == nil {
							err = l.Send(s.Context(), s, f)
						}
					}
					return err
				})
				stream, err := client.DoGet(t.Context(), &flight.Ticket{})
				if err != nil {
					t.Fatal(err)
				}
				mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
				defer mem.AssertSize(t, 0)
				r, err := flight.NewRecordReader(stream)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Release()
				if !r.Schema().Equal(enc.schema) || !r.Schema().Metadata().Equal(enc.schema.Metadata()) {
					t.Errorf("schema\n%s\nwant\n%s", r.Schema(), enc.schema)
				}
				for i := range batches {
					if !r.Next() {
						t.Fatalf("the stream ended after %d batches: %v", i, r.Err())
					}
					if got := r.Record(); !array.RecordEqual(got, want[i]) {
						t.Errorf("batch %d:\n%v\nwant\n%v", i, got, want[i])
					}
					if got := string(r.LatestAppMetadata()); got != fmt.Sprintf(`{"batch":%d}`, i) {
						t.Errorf("app_metadata %s", got)
					}
					want[i].Release()
				}
				if r.Next() || r.Err() != nil {
					t.Errorf("after the last batch: %v", r.Err())
				}
				waitFor(t, "every blob to be released", func() bool { return out.Load() == 0 })
			})
		}
	}
}

// The body begins at a multiple of 64 in the message, and so does each buffer
// in the body, so that a client that keeps the message in one piece need not
// copy to align.
func TestFrameAlignment(t *testing.T) {
	var out atomic.Int64
	for rows := 1; rows < 120; rows += 7 {
		b, want := encodable(t, schema.LayoutLargeBinary, rows, 3000, uint64(rows), &out)
		want.Release()
		enc := newEncoder(b.Schema)
		f, err := enc.batchFrame(b, math.MaxInt64, []byte(strings.Repeat("x", rows)), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		var message []byte
		for _, p := range f.pieces {
			message = append(message, p.Bytes...)
		}
		if int64(len(message)) != f.Size() {
			t.Errorf("Size() is %d, the pieces have %d bytes", f.Size(), len(message))
		}
		for rest := message; len(rest) > 0; {
			num, typ, n := protowire.ConsumeTag(rest)
			if n < 0 || typ != protowire.BytesType {
				t.Fatalf("rows %d: bad tag", rows)
			}
			value, m := protowire.ConsumeBytes(rest[n:])
			if m < 0 {
				t.Fatalf("rows %d: field %d is cut short", rows, num)
			}
			if start := len(message) - len(rest) + n + m - len(value); num == 1000 && start%64 != 0 {
				t.Errorf("rows %d: the body begins at %d, %d past a multiple of 64", rows, start, start%64)
			}
			rest = rest[n+m:]
		}
		for _, buf := range enc.buffers {
			if buf[0]%64 != 0 {
				t.Errorf("rows %d: a buffer begins at %d of the body", rows, buf[0])
			}
		}
		f.discard()
		if n := out.Load(); n != 0 {
			t.Fatalf("%d blobs are out after discard", n)
		}
	}
}
