package flight

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"
)

// delivery is a record batch of positions with its metadata.
type delivery struct {
	about     batchMetadata
	positions []int64
}

// deliveries reads a ticket whose request has the column position.
func (f *fixture) deliveries(ticket []byte) (out []delivery, err error) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	stream, err := f.client.DoGet(ctx, &flight.Ticket{Ticket: ticket})
	if err != nil {
		f.t.Fatal(err)
	}
	rdr, err := flight.NewRecordReader(stream)
	if err != nil {
		return nil, err
	}
	defer rdr.Release()
	for rdr.Next() {
		at := rdr.Schema().FieldIndices("position")[0]
		out = append(out, delivery{
			about:     decoded[batchMetadata](f.t, rdr.LatestAppMetadata()),
			positions: slices.Clone(rdr.Record().Column(at).(*array.Int64).Int64Values()),
		})
	}
	return out, rdr.Err()
}

// TestEpochs: one stream serves several epochs. Each batch names its epoch, and a client
// can continue from any batch, in every order.
func TestEpochs(t *testing.T) {
	const rows = 100
	f := serve(t, Options{})
	f.fill("d", rows)
	for _, order := range []string{"strict", "window:2", "free"} {
		for _, columns := range []string{`["position"]`, `["position","image"]`} {
			ticket := fmt.Sprintf(`{"dataset":"d","columns":%s,"shuffle":{"seed":5,"epoch":7},"batch":16,"order":%q,"epochs":3}`, columns, order)
			all, err := f.deliveries([]byte(ticket))
			if err != nil {
				t.Fatal(err)
			}
			served := func(ps []delivery) map[uint64][]int64 {
				out := map[uint64][]int64{}
				for _, p := range ps {
					out[p.about.Epoch] = append(out[p.about.Epoch], p.positions...)
				}
				return out
			}
			var last uint64
			for _, p := range all {
				if p.about.Epoch < last {
					t.Errorf("%s: epoch %d after %d", ticket, p.about.Epoch, last)
				}
				last = p.about.Epoch
			}
			whole := served(all)
			for epoch := uint64(7); epoch < 10; epoch++ {
				if got := slices.Sorted(slices.Values(whole[epoch])); len(got) != rows ||
					len(slices.Compact(got)) != rows {
					t.Errorf("%s: epoch %d has %d rows, want %d different ones", ticket, epoch, len(got), rows)
				}
			}
			if len(whole) != 3 {
				t.Errorf("%s: %d epochs, want 3", ticket, len(whole))
			}
			for i := range all {
				rest, err := f.deliveries(all[i].about.Resume)
				if err != nil {
					t.Fatalf("%s: %v", all[i].about.Resume, err)
				}
				for epoch, positions := range served(append(slices.Clone(all[:i+1]), rest...)) {
					if got := slices.Sorted(slices.Values(positions)); len(got) != rows ||
						len(slices.Compact(got)) != rows {
						t.Errorf("after batch %d, by %s: epoch %d has %d rows, want %d different ones", i,
							all[i].about.Resume, epoch, len(got), rows)
					}
				}
			}
		}
	}
	_, err := f.deliveries([]byte(`{"dataset":"d","columns":["position"],"batch":16,"order":"free","step":6,"row":3,"served":"Aw=="}`))
	wantCode(t, err, codes.InvalidArgument, "served: got 1 bytes of bits, want no bit for a row after the epoch's end")
}
