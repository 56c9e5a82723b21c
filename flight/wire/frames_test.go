package wire

import (
	"context"
	"fmt"
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

// What arrow's own reader makes of our frames is what went in, whatever the
// layout and the sizes, and every blob comes back.
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
				var enc *Encoder
				for i := range batches {
					b, w := encodable(t, layout, size.rows, size.most, seed+uint64(i), &out)
					if enc == nil {
						enc = NewEncoder(b.Schema)
					}
					f, err := enc.Batch(b, NoneAside, fmt.Appendf(nil, `{"batch":%d}`, i), time.Time{})
					if err != nil {
						t.Fatal(err)
					}
					frames, want = append(frames, f), append(want, w)
				}
				first, err := enc.Schema()
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
		enc := NewEncoder(b.Schema)
		f, err := enc.Batch(b, NoneAside, []byte(strings.Repeat("x", rows)), time.Time{})
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
