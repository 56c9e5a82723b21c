//go:build objects

package extent_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/fetch/store/bucket"
	"bowstring/fetch/store/extent"
	"bowstring/fetch/store/maintenance"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// TestRealVersityCopy copies, by reference, a dataset whose blobs are stored in a bucket
// of a real server: into a store in the bucket, into another one, and back into a
// directory. Each serves the same bytes, from the same objects.
func TestRealVersityCopy(t *testing.T) { copyReal(t, objecttest.Versity(t)) }

func TestRealGCSCopy(t *testing.T) { copyReal(t, objecttest.FakeGCS(t)) }

func TestRealAzureCopy(t *testing.T) { copyReal(t, objecttest.Azurite(t)) }

func copyReal(t *testing.T, real objecttest.Real) {
	rng := random(t)
	keys := object.Options{Keys: &real.Keys}
	photos, err := object.Open(t.Context(), real.URL, keys)
	must(t, err)
	defer func() { must(t, photos.Close()) }()
	m := &made{set: schema.ObjectSet{Bucket: photos.URL()}}
	for i := range 12 {
		data := make([]byte, 100+rng.IntN(5000))
		for j := range data {
			data[j] = byte(rng.Uint32())
		}
		key := fmt.Sprintf("photos/%02d.bin", i)
		_, _, err := photos.Put(t.Context(), key, data, object.Condition{})
		must(t, err)
		info, err := photos.Stat(t.Context(), key)
		must(t, err)
		m.set.Objects = append(m.set.Objects, schema.Object{Key: key, Size: info.Size, Version: info.Version})
		m.blobs = append(m.blobs, lying{data: data})
	}
	for i := range m.blobs {
		b := &m.blobs[i]
		b.ref = schema.BlobRef{Size: int64(len(b.data)), Sum: schema.Checksum(b.data)}
		b.ref.Key = schema.ObjectAddress{Prefix: m.set.Prefix(), Object: uint32(i)}.Key(b.ref.Sum)
	}
	over := func(below store.Store) *extent.Store {
		s := extent.New(below, extent.Options{Buckets: func(ctx context.Context, url string) (object.Bucket, error) {
			return object.Open(ctx, url, keys)
		}})
		t.Cleanup(func() { must(t, s.Close()) })
		return s
	}
	place, settings, _ := strings.Cut(real.URL, "?")
	inBucket := func(name string) *extent.Store {
		url := place + "/" + name + "?" + settings
		options := bucket.Options{Logger: slog.New(slog.DiscardHandler), Bucket: keys, Renew: time.Second, Lapse: time.Hour}
		_, err := bucket.Init(t.Context(), url, bucket.InitOptions{Options: options})
		must(t, err)
		s, err := bucket.Open(t.Context(), url, options)
		must(t, err)
		return over(s)
	}
	from := over(openLocal(t, filepath.Join(t.TempDir(), "from")))
	snap := m.attach(t, from, "d")
	_, want := extents(t, from, snap)
	for _, to := range []*extent.Store{
		inBucket("one"), inBucket("two"), over(openLocal(t, filepath.Join(t.TempDir(), "back"))),
	} {
		done, err := maintenance.Copy(t.Context(), from, to, snapshots(t, from),
			maintenance.CopyOptions{Attached: maintenance.ByReference})
		must(t, err)
		if done.SentBytes > 64<<10 {
			t.Errorf("%d bytes went over, of a manifest", done.SentBytes)
		}
		got := snapshots(t, to)[0]
		if _, refs := extents(t, to, got); fmt.Sprint(refs) != fmt.Sprint(want) {
			t.Errorf("the rows refer to %v, want %v", refs, want)
		}
		for i, data := range rows(t, to, got) {
			if !bytes.Equal(data, m.blobs[i].data) {
				t.Errorf("row %d has other bytes", i)
			}
		}
		from = to
	}
}
