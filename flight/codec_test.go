package flight

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/stats"
)

// encodings counts answers that are marked as compressed.
type encodings struct {
	stats.Handler
	answers, compressed atomic.Int64
}

func (*encodings) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*encodings) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*encodings) HandleConn(context.Context, stats.ConnStats)                       {}
func (e *encodings) HandleRPC(_ context.Context, s stats.RPCStats) {
	if h, ok := s.(*stats.InHeader); ok {
		e.answers.Add(1)
		if h.Compression != "" && h.Compression != "identity" {
			e.compressed.Add(1)
		}
	}
}

// Answers are not compressed, whatever the request's headers allow: grpc would read blobs
// without a guard.
func TestAnswersAreNotCompressed(t *testing.T) {
	f := serve(t, Options{})
	f.fill("few", 10)
	seen := &encodings{}
	stream, err := f.dial(grpc.WithStatsHandler(seen)).ListFlights(t.Context(), &flight.Criteria{},
		grpc.UseCompressor(gzip.Name))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if seen.answers.Load() == 0 || seen.compressed.Load() > 0 {
		t.Errorf("%d of %d answers are compressed", seen.compressed.Load(), seen.answers.Load())
	}
}
