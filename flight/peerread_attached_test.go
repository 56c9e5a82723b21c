package flight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc"

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

// A node is asked for blobs of a bucket, of a snapshot that it has never opened. It finds
// the set and sends the attached bytes. Without TLS it seals them.
func TestPeerReadsAttached(t *testing.T) {
	for _, encrypted := range []bool{true, false} {
		t.Run(fmt.Sprintf("tls=%t", encrypted), func(t *testing.T) { readAttached(t, encrypted) })
	}
}

func readAttached(t *testing.T, encrypted bool) {
	dir := t.TempDir()
	bucket, err := object.Open(t.Context(), "file://"+dir, object.Options{})
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Cluster: &Cluster{Name: "c", Node: "b", Keys: peer.NewKeys(clusterKey)}}
	way := peer.Options{Cluster: "c", Node: "a", Other: "b", Keys: peer.NewKeys(clusterKey),
		Logger: slog.New(slog.DiscardHandler)}
	var dial []grpc.DialOption
	if encrypted {
		d := newLogins(t, nil)
		opts.Auth, way.TLS, dial = d.auth, d.client(nil), append(dial, d.trust(nil, nil))
	}
	f := serveOver(t, opts, overBuckets, dial...)
	refs := attachFiles(t, f.store, bucket, 10)
	if err := os.WriteFile(filepath.Join(dir, "8"), []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	relay := f.addr
	if !encrypted {
		relay = changing(t, f.addr, content(9)[:20])
	}
	link, err := peer.Dial(relay, way)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := link.Close(); err != nil {
			t.Error(err)
		}
	})
	waitFor(t, "a way to the node", link.Up)
	if !link.Secure() {
		t.Error("a way with a key is not secure")
	}
	var all sync.WaitGroup
	for i, ref := range refs {
		all.Go(func() {
			blob, err := link.Get(t.Context(), peers.Ask{Ref: ref})
			switch {
			case i == 8:
				if err == nil {
					t.Error("a file that has changed was sent")
				}
			case i == 9 && !encrypted:
				if !errors.Is(err, schema.ErrDataLoss) || !strings.Contains(err.Error(), "seal") {
					t.Errorf("a blob that was changed on the way: %v", err)
				}
			case err != nil || !bytes.Equal(blob.Bytes(), content(i)):
				t.Errorf("blob %d: %v", i, err)
			}
			blob.Release()
		})
	}
	all.Wait()
}

// Without a key a node sends no blob without a hash, and sends those with a hash.
func TestPeerReadsAttachedWithoutKey(t *testing.T) {
	bucket, err := object.Open(t.Context(), "file://"+t.TempDir(), object.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := serveOver(t, Options{Cluster: &Cluster{Name: "c", Node: "b"}}, overBuckets)
	refs := attachFiles(t, f.store, bucket, 2)
	link, err := peer.Dial(f.addr, peer.Options{Cluster: "c", Node: "a", Other: "b",
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := link.Close(); err != nil {
			t.Error(err)
		}
	})
	waitFor(t, "a way to the node", link.Up)
	if link.Secure() {
		t.Error("a way without a key is secure")
	}
	if b, err := link.Get(t.Context(), peers.Ask{Ref: refs[0]}); !errors.Is(err, schema.ErrUnavailable) {
		b.Release()
		t.Errorf("a blob without a hash, from a node without a key: %v", err)
	}
}

// overBuckets is a store over another one that finds attached data.
func overBuckets(s *local.Store) store.Store {
	return extent.New(s, extent.Options{Buckets: func(ctx context.Context, url string) (object.Bucket, error) {
		return object.Open(ctx, url, object.Options{})
	}})
}

// changing returns the address of a relay that replaces a byte in each occurrence of
// needle.
func changing(t *testing.T, to string, needle []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(needle)
	changed[0] ^= 1
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	pass := func(to, from net.Conn, change bool) {
		defer func() { _ = to.Close() }()
		var b [256 << 10]byte
		for {
			n, err := from.Read(b[:])
			data := b[:n]
			if change {
				data = bytes.ReplaceAll(data, needle, changed)
			}
			if _, failed := to.Write(data); failed != nil || err != nil {
				return
			}
		}
	}
	all.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				_ = a.Close()
				continue
			}
			all.Go(func() { pass(b, a, false) })
			all.Go(func() { pass(a, b, true) })
		}
	})
	return l.Addr().String()
}
