package source

import (
	"crypto/md5" //nolint:gosec // it is what inventories have
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// inventoryOf writes inventories of a bucket in several formats, and returns their names.
func inventoryOf(t *testing.T, s *s3) map[string]string {
	t.Helper()
	b, err := s.opts.Bucket(t.Context(), "s3://b?endpoint="+s.Endpoint()+"&region=eu-central-1&anonymous=true")
	if err != nil {
		t.Fatal(err)
	}
	var rows []object.Info
	for o, err := range b.List(t.Context(), object.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, o)
	}
	rand.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	put := func(key, content string) string {
		s.PutObject("lists", key, []byte(content))
		return s.inBucket("lists", key)
	}
	sum := func(content string) string {
		m := md5.Sum([]byte(content)) //nolint:gosec // it is what inventories have
		return hex.EncodeToString(m[:])
	}
	manifest := func(format, fields string, files map[string]string) string {
		var list []string
		for key, content := range files {
			put(key, content)
			list = append(list, fmt.Sprintf(`{"key": %q, "size": %d, "MD5checksum": %q}`, key, len(content), sum(content)))
		}
		return fmt.Sprintf(`{"sourceBucket": "b", "destinationBucket": "arn:aws:s3:::lists", "version": "2016-11-30",
			"creationTimestamp": "1764000000000", "fileFormat": %q, "fileSchema": %q, "files": [%s]}`, format, fields,
			strings.Join(list, ", "))
	}
	found := map[string]string{}
	var parts [2]strings.Builder
	var lines, jsonl, msc, table strings.Builder
	columns := csv.NewWriter(&table)
	_ = columns.Write([]string{"size", "key", "ETag"})
	for i, o := range rows {
		fmt.Fprintf(&parts[i%2], "\"b\",%q,\"\",\"true\",\"false\",\"%d\",\"2026-01-01T00:00:00.000Z\",%q,\"STANDARD\"\n",
			strings.ReplaceAll(url.QueryEscape(o.Key), "%2F", "/"), o.Size, o.Version.ETag)
		fmt.Fprintf(&parts[0], "\"b\",%q,\"v\",\"false\",\"true\",\"\",\"\",\"\",\"\"\n", "d/deleted")
		fmt.Fprintln(&lines, o.Key)
		fmt.Fprintf(&jsonl, "{\"key\": %q, \"size\": %d, \"etag\": %q}\n", s.inBucket("b", o.Key), o.Size, o.Version.ETag)
		if rel, ok := strings.CutPrefix(o.Key, "d/"); ok {
			fmt.Fprintf(&msc, "{\"key\": %q, \"size_bytes\": %d, \"last_modified\": \"2026-01-01T00:00:00Z\"}\n", rel, o.Size)
		}
		_ = columns.Write([]string{fmt.Sprint(o.Size), o.Key, o.Version.ETag})
	}
	columns.Flush()
	csvs := map[string]string{"data/1.csv.gz": gzipped(t, parts[0].String()), "data/2.csv.gz": gzipped(t, parts[1].String())}
	fields := "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag, StorageClass"
	found["csv"] = put("csv/manifest.json", manifest("CSV", fields, csvs))
	found["parquet"] = put("parquet/manifest.json", manifest("Parquet", "message s3.inventory { required binary key (UTF8); "+
		"optional int64 size; optional binary e_tag (UTF8); }", map[string]string{"data/3.parquet": parquetOf(t, rows)}))
	found["keys"] = put("keys.txt", lines.String())
	found["jsonl"] = put("list.jsonl.gz", gzipped(t, jsonl.String()))
	found["table"] = put("list.csv", table.String())
	put("msc/parts/1.jsonl", msc.String())
	found["msc"] = put("msc/msc_manifest_index.json", `{"version": "1", "parts": [{"path": "parts/1.jsonl"}]}`)
	found["orc"] = put("orc/manifest.json", manifest("ORC", fields, map[string]string{"data/4.orc": "ORC"}))
	found["other bucket"] = put("other/manifest.json", strings.Replace(manifest("CSV", fields, csvs), `"b"`, `"c"`, 1))
	found["without ETags"] = put("bare/manifest.json", manifest("CSV", "Bucket, Key, Size", csvs))
	found["another MD5"] = put("md5/manifest.json", strings.ReplaceAll(manifest("CSV", fields, csvs),
		sum(csvs["data/1.csv.gz"]), sum("")))
	found["another size"] = put("size/manifest.json", strings.ReplaceAll(manifest("CSV", fields, csvs),
		fmt.Sprintf(`"size": %d`, len(csvs["data/1.csv.gz"])), `"size": 7`))
	found["nothing"] = put("x.json", `{}`)
	copied := t.TempDir()
	for name, content := range csvs {
		writeFile(t, filepath.Join(copied, name), []byte(content))
	}
	writeFile(t, filepath.Join(copied, "b", "all", "2026-01-01", "manifest.json"), []byte(manifest("CSV", fields, csvs)))
	found["copy"] = filepath.Join(copied, "b", "all", "2026-01-01", "manifest.json")
	return found
}

// inBucket returns the URL of a key in a bucket.
func (s *s3) inBucket(bucket, key string) string {
	return "s3://" + bucket + "/" + key + "?endpoint=" + s.Endpoint() + "&region=eu-central-1&anonymous=true"
}

// parquetOf returns an inventory in Parquet.
func parquetOf(t *testing.T, rows []object.Info) string {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		{Name: "bucket", Type: arrow.BinaryTypes.String}, {Name: "key", Type: arrow.BinaryTypes.String},
		{Name: "is_latest", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "size", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "e_tag", Type: arrow.BinaryTypes.Binary, Nullable: true},
	}, nil))
	defer b.Release()
	row := func(key string, latest bool, size int64, etag string) {
		b.Field(0).(*array.StringBuilder).Append("b")
		b.Field(1).(*array.StringBuilder).Append(key)
		b.Field(2).(*array.BooleanBuilder).Append(latest)
		b.Field(3).(*array.Int64Builder).Append(size)
		b.Field(4).(*array.BinaryBuilder).Append([]byte(etag))
	}
	for _, o := range rows {
		row(o.Key, true, o.Size, o.Version.ETag)
		row(o.Key, false, 1, "old")
	}
	rec := b.NewRecord()
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "x.parquet")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pqarrow.NewFileWriter(rec.Schema(), f, nil, pqarrow.DefaultWriterProps())
	if err == nil {
		err = errors.Join(w.Write(rec), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// A list from another program replaces listing the bucket, and gives the same rows.
func TestInventories(t *testing.T) {
	s := startS3(t)
	s.put(t, tree(t, map[string]string{"d/a/1 é+%.jpg": jpg(t, 1), "d/a/2.jpg": jpg(t, 2), "d/b/3,\".jpg": jpg(t, 3),
		"e/a/4.jpg": jpg(t, 4)}), "")
	s.PutObject("b", "d/a//odd.jpg", nil)
	want := readOnce(t, s.inBucket("b", "d/"), s.opts, ReadOptions{})
	if len(want.keys) != 3 {
		t.Fatalf("rows %q", want.keys)
	}
	lists := inventoryOf(t, s)
	refused := map[string]struct {
		err     error
		message string
	}{
		"orc":           {schema.ErrNotSupported, "CSV or Parquet"},
		"other bucket":  {schema.ErrInvalid, "it lists bucket c, and s3://b is attached"},
		"without ETags": {schema.ErrInvalid, "it has no field etag"},
		"another MD5":   {schema.ErrDataLoss, "it has the MD5"},
		"another size":  {schema.ErrDataLoss, "and the manifest says 7"},
		"nothing":       {schema.ErrInvalid, "neither manifest.json"},
		"missing":       {schema.ErrNotFound, ""},
	}
	lists["missing"] = s.inBucket("lists", "missing/manifest.json")
	for name, at := range lists {
		opts := s.opts
		opts.Inventory = at
		before := s.Counts()
		if r, ok := refused[name]; ok {
			if _, err := Open(t.Context(), s.inBucket("b", "d/"), opts); !errors.Is(err, r.err) ||
				!strings.Contains(err.Error(), r.message) {
				t.Errorf("%s: %v, want %q", name, err, r.message)
			}
			continue
		}
		got := readOnce(t, s.inBucket("b", "d/"), opts, ReadOptions{})
		if got.rowsText() != want.rowsText() {
			t.Errorf("%s: %s\nlisted\n%s", name, got.rowsText(), want.rowsText())
		}
		after := s.Counts()
		if n := after.Requests[objecttest.List] - before.Requests[objecttest.List]; n > 0 {
			t.Errorf("%s: the bucket was listed by %d requests", name, n)
		}
	}
	// A change since then is found when the object is read.
	s.PutObject("b", "d/a/2.jpg", []byte(jpg(t, 9)))
	s.DeleteObject("b", "d/b/3,\".jpg")
	for _, name := range []string{"csv", "jsonl"} {
		opts := s.opts
		opts.Inventory = lists[name]
		if r := readOnce(t, s.inBucket("b", "d/"), opts, ReadOptions{}); len(r.keys) != 1 || len(r.bad) != 2 {
			t.Errorf("%s: rows %q, bad %v", name, r.keys, r.bad)
		}
	}
	opts := s.opts
	opts.Inventory = lists["msc"]
	if r := readOnce(t, s.inBucket("b", "d/"), opts, ReadOptions{}); len(r.keys) != 2 ||
		!strings.Contains(fmt.Sprint(r.notes), "1 objects of the inventory are not in the bucket") {
		t.Errorf("msc: rows %q, notes %q", r.keys, r.notes)
	}
}

// A keySorter returns objects in the order of their keys, each once.
func TestKeySorter(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var s keySorter
	var want []string
	for i := range 2*sortedRun + 1000 {
		key := fmt.Sprintf("%06x", rng.IntN(1<<22))
		want = append(want, key)
		if err := s.add(object.Info{Key: key, Size: int64(len(key))}); err != nil {
			t.Fatal(i, err)
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	all, err := s.sorted()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for o := range all.from("") {
		got = append(got, o.Key)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d keys, want %d", len(got), len(want))
	}
	for _, other := range []object.Info{{Key: want[7], Size: 9}, {Key: want[7], Version: schema.ObjectVersion{ETag: "x"}, Size: 6}} {
		two := keySorter{runs: []keyList{all}}
		if err := two.add(other); err != nil {
			t.Fatal(err)
		}
		if _, err := two.sorted(); !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "twice") {
			t.Errorf("%+v: %v", other, err)
		}
	}
}
