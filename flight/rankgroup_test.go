package flight

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"

	"bowstring/schema"
)

// Each rank of a mesh has an endpoint with its figures. Ranks that get the same data get
// the same rows and digests, from one read of the store.
func TestRankGroups(t *testing.T) {
	const rows = 400
	f := serve(t, Options{})
	f.fill("d", rows)
	info, err := f.client.GetFlightInfo(t.Context(), command(
		`{"dataset":"d","columns":["position","image"],"batch":50,"shuffle":{"seed":3},"world":{"mesh":"pp=2,dp=2,tp=2"},"digest":true}`))
	if err != nil {
		t.Fatal(err)
	}
	about := decoded[planInfo](t, info.AppMetadata)
	if about.Ranks != 8 || about.DataRanks != 2 || about.Rows != rows || info.TotalRecords != 4*rows || len(info.Endpoint) != 8 {
		t.Errorf("8 ranks of which 4 get the same are %+v with %d records and %d endpoints", about, info.TotalRecords,
			len(info.Endpoint))
	}
	before := f.engine.Stats()
	got := make([][]delivery, 8)
	var running sync.WaitGroup
	for rank, endpoint := range info.Endpoint {
		share := decoded[rankInfo](t, endpoint.AppMetadata)
		if share.Rank != int64(rank) || share.Rows != rows/2 {
			t.Errorf("the endpoint of rank %d says %+v", rank, share)
		}
		running.Go(func() {
			var err error
			if got[rank], err = f.deliveries(endpoint.Ticket.Ticket); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	var all []int64
	for rank, list := range got {
		first := rank &^ 5 // the rank with the same dp and pp and tp 0
		positions, digests := steps(list)
		wantPositions, wantDigests := steps(got[first])
		if !slices.Equal(positions, wantPositions) || !maps.Equal(digests, wantDigests) || len(digests) != rows/50 {
			t.Errorf("ranks %d and %d got other samples, or digests %v and %v", first, rank, wantDigests, digests)
		}
		if rank == first {
			all = append(all, positions...)
		}
		for _, d := range list {
			if d.about.Rank != rank {
				t.Errorf("a batch of rank %d says that it is of rank %d", rank, d.about.Rank)
			}
		}
	}
	if slices.Sort(all); len(slices.Compact(all)) != rows {
		t.Errorf("%d different samples came", len(all))
	}
	after := f.engine.Stats()
	// On a busy machine a read may take so long that it is attempted again.
	if n, again := after.Reads-before.Reads, after.Retries+after.Hedges-before.Retries-before.Hedges; n != rows && again == 0 {
		t.Errorf("%d blobs were read for %d", n, rows)
	}
}

// steps are the positions that a stream gave, and the digest of each step.
func steps(list []delivery) (positions []int64, digests map[int64]string) {
	digests = map[int64]string{}
	for _, d := range list {
		positions = append(positions, d.positions...)
		if d.about.Digest != "" {
			digests[d.about.Step] = d.about.Digest
		}
	}
	return positions, digests
}

// A ticket within a step continues with its digest. Ranks that a mesh does not have are
// refused.
func TestRankGroupTickets(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 60)
	const request = `{"dataset":"d","columns":["position","image"],"batch":60,"batch_bytes":9000,"world":{"mesh":"dp=1,tp=2"},"digest":true,"rank":%d}`
	whole, err := f.deliveries(fmt.Appendf(nil, request, 1))
	if err != nil {
		t.Fatal(err)
	}
	want := whole[len(whole)-1].about.Digest
	if want == "" || len(whole) < 3 {
		t.Fatalf("%d batches end with the digest %q", len(whole), want)
	}
	for _, d := range whole[:len(whole)-1] {
		var resume schema.Ticket
		if err := json.Unmarshal(d.about.Resume, &resume); err != nil || resume.Digested == "" || d.about.Digest != "" {
			t.Errorf("a batch within the step says %+v, %v", d.about, err)
		}
		rest, err := f.deliveries(d.about.Resume)
		if err != nil {
			t.Fatal(err)
		}
		if got := rest[len(rest)-1].about.Digest; got != want {
			t.Errorf("the digest is %s after going on by %s, and %s", got, d.about.Resume, want)
		}
	}
	_, err = f.get(&flight.Ticket{Ticket: fmt.Appendf(nil, request, 2)})
	wantCode(t, err, codes.InvalidArgument, `rank: got 2, want an integer from 0 to 1, as world.mesh is "dp=1,tp=2"`)
	_, err = f.get(&flight.Ticket{Ticket: []byte(`{"dataset":"d","world":{"size":4,"replicate":3}}`)})
	wantCode(t, err, codes.InvalidArgument, "world.replicate: got 3, want a divisor of world.size, which is 4")
}
