package flight

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/object"
	"bowstring/fetch/peers"
	"bowstring/fetch/store"
	"bowstring/fetch/store/extent"
	"bowstring/fetch/store/local"
	"bowstring/flight/peer"
	"bowstring/schema"
)

// attachFiles commits a dataset of files that stay in a directory, and returns the references of their blobs.
func attachFiles(t *testing.T, s store.Store, bucket object.Bucket, files int) []schema.BlobRef {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	set := schema.ObjectSet{Bucket: bucket.URL()}
	for i := range files {
		info, _, err := bucket.Put(ctx, fmt.Sprint(i), content(i), object.Condition{})
		must(err)
		set.Objects = append(set.Objects, schema.Object{Key: fmt.Sprint(i), Size: info.Size, Version: info.Version})
	}
	sc, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("data", "", false)})
	must(err)
	in, err := s.Begin(ctx, "attached")
	must(err)
	defer func() { must(in.Close()) }()
	data, err := schema.EncodeObjectSet(&set)
	must(err)
	ref, err := in.Put(ctx, data)
	must(err)
	builder := schema.NewChunkBuilder(memory.DefaultAllocator, sc)
	defer builder.Release()
	refs := make([]schema.BlobRef, files)
	for i := range refs {
		sum := schema.Checksum(content(i))
		address := schema.ObjectAddress{Prefix: set.Prefix(), Object: uint32(i)}
		refs[i] = schema.BlobRef{Key: address.Key(sum), Size: set.Objects[i].Size, Sum: sum}
		must(builder.Append(schema.SampleID("attached", fmt.Sprint(i)), nil, 0, []*schema.BlobRef{&refs[i]}))
	}
	page, chunk, err := builder.Finish()
	must(err)
	chunk.BlobRef, err = in.Put(ctx, page)
	must(err)
	_, err = in.Commit(ctx, schema.Snapshot{Schema: sc, Chunks: []schema.Chunk{chunk},
		Sets: []schema.SetRef{{Prefix: set.Prefix(), Blob: ref}}})
	must(err)
	return refs
}

// A node is asked for blobs that lie in a bucket, of a snapshot that it has never opened: it finds the set, and sends
// what was attached.
func TestLendAttached(t *testing.T) {
	d := newDoors(t, nil)
	dir := t.TempDir()
	bucket, err := object.Open(t.Context(), "file://"+dir, object.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := serveOver(t, Options{Door: d.door, Cluster: &Cluster{Name: "c", Node: "b", Keys: peer.NewKeys(clusterKey)}},
		func(s *local.Store) store.Store {
			return extent.New(s, extent.Options{Buckets: func(ctx context.Context, url string) (object.Bucket, error) {
				return object.Open(ctx, url, object.Options{})
			}})
		}, d.trust(nil, nil))
	refs := attachFiles(t, f.store, bucket, 9)
	if err := os.WriteFile(filepath.Join(dir, "8"), []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	link, err := peer.Dial(f.addr, peer.Options{Cluster: "c", Node: "a", Other: "b", TLS: d.client(nil),
		Keys: peer.NewKeys(clusterKey), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := link.Close(); err != nil {
			t.Error(err)
		}
	})
	waitFor(t, "a way by TLS", link.Up)
	for i, ref := range refs {
		blob, err := link.Get(t.Context(), peers.Ask{Ref: ref})
		if i == 8 {
			if err == nil {
				t.Error("a file that has changed was sent")
			}
			continue
		}
		if err != nil || !bytes.Equal(blob.Bytes(), content(i)) {
			t.Errorf("blob %d: %v", i, err)
		}
		blob.Release()
	}
}
