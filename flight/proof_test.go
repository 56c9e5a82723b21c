package flight

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"

	"bowstring/fetch/ingest"
	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/fetch/store/extent"
	"bowstring/fetch/store/local"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// An epoch computes the checksums of a dataset that was attached without being read.
// describe reports how many blobs have one. From then on a wrong byte from the bucket is
// data loss and is never served.
func TestEpochProves(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server, err := objecttest.Start(objecttest.Config{Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	server.MakeBucket("photos")
	var attached *extent.Store
	t.Cleanup(func() { // behind the server's
		if err := attached.Close(); err != nil {
			t.Error(err)
		}
	})
	f := serveOver(t, Options{}, func(s *local.Store) store.Store {
		attached = extent.New(s, extent.Options{
			Logger: slog.New(slog.DiscardHandler),
			Buckets: func(ctx context.Context, url string) (object.Bucket, error) {
				return object.Open(ctx, url, object.Options{Keys: &object.Keys{ID: "id", Secret: "secret"}})
			}})
		return attached
	})
	const n = 200
	var bytes int64
	set := &schema.ObjectSet{Bucket: server.URL("photos"), Unproven: true}
	for i := range n {
		key := fmt.Sprintf("%04d.jpg", i)
		version := server.PutObject("photos", key, content(i))
		set.Objects = append(set.Objects, schema.Object{Key: key, Size: int64(len(content(i))), Version: version})
		bytes += int64(len(content(i)))
	}
	sc, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("image", "image", false)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := ingest.New(t.Context(), attached, ingest.Options{Dataset: "lazy", Schema: sc})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ids, refs := make([]schema.ID, n), make([]*schema.BlobRef, n)
	for i := range n {
		ids[i] = schema.SampleID("lazy", fmt.Sprint(i))
		ref := schema.UnprovenRef(schema.ObjectAddress{Prefix: set.Prefix(), Object: uint32(i)}, set.Objects[i].Size)
		refs[i] = &ref
	}
	if err := w.WriteRefs(t.Context(), "train", ids, nil, [][]*schema.BlobRef{refs}); err != nil {
		t.Fatal(err)
	}
	if err := w.PutSet(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	proven := func(want store.Proof) {
		t.Helper()
		results, err := f.act("describe", `{"dataset": "lazy"}`)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Proof *store.Proof }
		mustUnmarshal(t, results[0], &got)
		if got.Proof == nil || *got.Proof != want {
			t.Errorf("describe says %+v, want %+v", got.Proof, want)
		}
	}
	rows := func(request string) (n int64, err error) {
		recs, err := f.get(&flight.Ticket{Ticket: []byte(request)})
		for _, r := range recs {
			n += r.NumRows()
			r.Release()
		}
		return n, err
	}
	want := store.Proof{OfBlobs: n, OfBytes: bytes}
	proven(want)
	if got, err := rows(`{"dataset": "lazy", "columns": ["id"]}`); err != nil || got != n {
		t.Fatalf("%d rows, %v", got, err)
	}
	proven(want) // no blob was read
	if got, err := rows(`{"dataset": "lazy", "shuffle": {"seed": 3}}`); err != nil || got != n {
		t.Fatalf("%d rows, %v", got, err)
	}
	want.Blobs, want.Bytes = want.OfBlobs, want.OfBytes
	proven(want)
	if err := attached.KeepProofs(t.Context()); err != nil {
		t.Fatal(err)
	}

	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Prefix: "0017.jpg", Flip: true})
	_, err = rows(`{"dataset": "lazy", "shuffle": {"seed": 4}}`)
	wantCode(t, err, codes.DataLoss, "0017.jpg")
	server.Heal()
	if got, err := rows(`{"dataset": "lazy", "shuffle": {"seed": 4}}`); err != nil || got != n {
		t.Errorf("%d rows, %v", got, err)
	}
}
