package flight

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"bowstring/schema"
)

// TestWhereToGoOnIsADetail: a node that leaves names the next addresses in the details of the status, and hands them to
// pyarrow only if the client asks for that.
func TestWhereToGoOnIsADetail(t *testing.T) {
	t.Parallel()
	f := serve(t, Options{Node: testNode{others: []string{"grpc://a:1", "grpc://b:1"}}})
	f.fill("d", 10)
	f.server.Leave(f.server.opts.Node.Others)
	for _, asks := range []bool{false, true} {
		ctx := t.Context()
		if asks {
			ctx = metadata.AppendToOutgoingContext(ctx, detailsHeader, "1")
		}
		var header, trailer metadata.MD
		stream, err := f.client.DoGet(ctx, &flight.Ticket{Ticket: []byte(`{"dataset": "d"}`)}, grpc.Header(&header),
			grpc.Trailer(&trailer))
		if err == nil {
			_, err = stream.Recv()
		}
		st := status.Convert(err)
		if st.Code() != codes.Unavailable || len(st.Details()) != 1 {
			t.Fatalf("got %v with %v", err, st.Details())
		}
		info, ok := st.Details()[0].(*errdetails.ErrorInfo)
		if !ok || info.GetReason() != "MOVED" || info.GetDomain() != "bowstring" {
			t.Fatalf("the detail is %v", st.Details()[0])
		}
		to := strings.Fields(info.GetMetadata()["locations"])
		slices.Sort(to)
		if !slices.Equal(to, []string{"grpc://a:1", "grpc://b:1"}) {
			t.Errorf("streams go on at %q", to)
		}
		if got := header.Get(nodesHeader); !slices.Equal(got, []string{"grpc://a:1 grpc://b:1"}) {
			t.Errorf("ahead of the stream the nodes are %q", got)
		}
		if got := len(trailer.Get("x-arrow-status")); got != map[bool]int{false: 0, true: 1}[asks] {
			t.Errorf("asked for details: %v; %d trailers of Arrow came", asks, got)
		}
	}
	got, err := f.act("nodes", "")
	if err != nil || len(got) != 1 || string(got[0]) != `{"locations":["grpc://a:1","grpc://b:1"]}` {
		t.Errorf("the nodes are %s, %v", got, err)
	}
}

// TestDetailsFit: a status with details travels in a header, too, however long the names in its message are.
func TestDetailsFit(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("%s: %w", strings.Repeat("\u1000", 3000), &schema.LimitError{Limit: "l", Message: "m", After: 1})
	st := statusOf(err)
	if len(st.Details()) != 1 || len(st.Message()) > maxDetailed {
		t.Errorf("%d details, a message of %d bytes", len(st.Details()), len(st.Message()))
	}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(detailsHeader, "1"))
	if got := detailTrailers(ctx, st).Get("x-arrow-status-message-bin"); len(got) != 1 || got[0] != st.Message() {
		t.Errorf("the trailer is %q", got)
	}
	if got := detailTrailers(ctx, statusOf(schema.ErrInvalid)); got != nil {
		t.Errorf("a status without details has %v", got)
	}
}
