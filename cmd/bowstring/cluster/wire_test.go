package cluster_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"bowstring/schema"
)

// readOver reads a ticket over Flight, with a window of gRPC that holds little, and calls each after each batch.
func readOver(t *testing.T, w *whole, ticket schema.Ticket,
	each func(batches int)) (rows int64, resume schema.Ticket, err error) {
	t.Helper()
	address := ""
	for _, n := range w.members.View().Nodes {
		if n.ID == w.id {
			address = strings.TrimPrefix(n.Address, "grpc://")
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := flight.NewFlightServiceClient(conn).DoGet(t.Context(), &flight.Ticket{Ticket: ticket.Marshal()})
	if err != nil {
		t.Fatal(err)
	}
	for batches := 0; ; {
		data, err := stream.Recv()
		if err != nil {
			return rows, resume, err
		}
		if len(data.GetAppMetadata()) == 0 {
			continue // the schema
		}
		var about struct {
			Rows   int64           `json:"rows"`
			Resume json.RawMessage `json:"resume"`
		}
		if err := json.Unmarshal(data.GetAppMetadata(), &about); err != nil {
			t.Fatal(err)
		}
		rows += about.Rows
		if resume, err = schema.ParseTicket(about.Resume); err != nil {
			t.Fatal(err)
		}
		if batches++; each != nil {
			each(batches)
		}
	}
}
