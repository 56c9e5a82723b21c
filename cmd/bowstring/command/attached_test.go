package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/rogpeppe/go-internal/testscript"

	"bowstring/fetch/ingest"
	"bowstring/fetch/object"
	"bowstring/fetch/store/local"
	"bowstring/schema"
)

// cmdAttached is "attached STORE NAME ROWS DIR": it makes a dataset NAME of files that stay in a directory, and a dataset
// NAME-imported of the same rows, whose blobs are in the store.
func cmdAttached(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 4 {
		ts.Fatalf("usage: attached STORE NAME ROWS DIR")
	}
	rows, err := strconv.Atoi(args[2])
	ts.Check(err)
	ts.Check(os.MkdirAll(ts.MkAbs(args[3]), 0o755))
	ts.Check(makeAttached(ts.MkAbs(args[0]), args[1], rows, ts.MkAbs(args[3])))
}

func makeAttached(dir, name string, rows int, files string) (err error) {
	ctx := context.Background()
	store, err := local.Open(dir, local.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	bucket, err := object.Open(ctx, "file://"+files, object.Options{})
	if err != nil {
		return err
	}
	meta := []arrow.Field{{Name: "file", Type: arrow.BinaryTypes.String}}
	s, err := schema.NewSchema(meta, []arrow.Field{schema.BlobField("data", "", false)})
	if err != nil {
		return err
	}
	set := &schema.ObjectSet{Bucket: bucket.URL()}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(meta, nil))
	defer b.Release()
	var ids []schema.ID
	var blobs [][]byte
	for i := range rows {
		key := fmt.Sprintf("%04d.bin", i)
		blobs = append(blobs, noise(uint64(i), 100+13*i))
		if err := os.WriteFile(filepath.Join(files, key), blobs[i], 0o600); err != nil {
			return err
		}
		info, err := bucket.Stat(ctx, key)
		if err != nil {
			return err
		}
		set.Objects = append(set.Objects, schema.Object{Key: key, Size: info.Size, Version: info.Version})
		ids = append(ids, schema.SampleID(name, key))
		b.Field(0).(*array.StringBuilder).Append(key)
	}
	refs := make([]*schema.BlobRef, rows)
	for i, data := range blobs {
		sum := schema.Checksum(data)
		key := schema.ObjectAddress{Prefix: set.Prefix(), Object: uint32(i)}.Key(sum)
		refs[i] = &schema.BlobRef{Key: key, Size: int64(len(data)), Sum: sum}
	}
	rec := b.NewRecord()
	defer rec.Release()
	write := func(name string, rows func(w *ingest.Writer) error) error {
		w, err := ingest.New(ctx, store, ingest.Options{Dataset: name, Source: "test", Schema: s, Mode: ingest.Replace})
		if err != nil {
			return err
		}
		if err = rows(w); err == nil {
			_, _, err = w.Commit(ctx)
		}
		return errors.Join(err, w.Close())
	}
	return errors.Join(
		write(name, func(w *ingest.Writer) error {
			return errors.Join(w.WriteRefs(ctx, "train", ids, rec, [][]*schema.BlobRef{refs}), w.PutSet(ctx, set))
		}),
		write(name+"-imported", func(w *ingest.Writer) error {
			return w.Write(ctx, "train", ids, rec, [][][]byte{blobs})
		}))
}

// A list of buckets allows what it names, and a star all that begins so.
func TestBucketList(t *testing.T) {
	for text, allows := range map[string]map[string]bool{
		"":                       {"s3://a": true},
		"s3://a":                 {"s3://a": true, "s3://ab": false, "gs://a": false},
		" s3://team-* , gs://b,": {"s3://team-1": true, "s3://team-": true, "s3://tea": false, "gs://b": true},
	} {
		list, err := parseBuckets(text)
		if err != nil {
			t.Fatal(err)
		}
		for url, want := range allows {
			if err := list.check(url); (err == nil) != want || err != nil && !errors.Is(err, schema.ErrDenied) {
				t.Errorf("%q of %s: %v, want %v", text, url, err, want)
			}
		}
	}
	if _, err := parseBuckets("photos"); err == nil {
		t.Error("a name without a scheme is taken for a bucket")
	}
}
