package command

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"bowstring/fetch/store"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// storedRow is all that a reader sees of a row.
type storedRow struct {
	id    schema.ID
	split string
	meta  string
	blobs [][]byte // nil for null
	keys  []schema.Key
}

// storedRows reads a snapshot, blobs and all, and checks each blob.
func storedRows(t *testing.T, dir, dataset string) (*schema.Snapshot, []storedRow) {
	t.Helper()
	st, err := openStore(t.Context(), dir, false, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	snap, err := st.Snapshot(t.Context(), dataset, 0)
	if err != nil {
		t.Fatal(err)
	}
	form, err := schema.NewForm(snap)
	if err != nil {
		t.Fatal(err)
	}
	var rows []storedRow
	err = store.EachPage(t.Context(), snap, snap.Chunks, st.Get, func(_ schema.Chunk, m *schema.Manifest) error {
		page := m.Page(0)
		for i := range page.Rows() {
			row := storedRow{id: page.ID(i), split: form.SplitOf(int64(len(rows)))}
			for c, f := range schema.MetaFields(snap.Schema) {
				column := page.Column(1 + c)
				row.meta += f.Name + "=" + array.NewSlice(column, int64(i), int64(i)+1).String() + " "
			}
			for c := range schema.BlobFields(snap.Schema) {
				ref, ok := page.Blob(c, i)
				if !ok {
					row.blobs, row.keys = append(row.blobs, nil), append(row.keys, schema.Key{})
					continue
				}
				blob, err := st.Get(t.Context(), ref)
				if err != nil {
					return err
				}
				if err := ref.Check(blob.Bytes()); err != nil {
					return err
				}
				row.blobs, row.keys = append(row.blobs, append([]byte{}, blob.Bytes()...)), append(row.keys, ref.Key)
				blob.Release()
			}
			rows = append(rows, row)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return snap, rows
}

func sameRow(a, b storedRow) bool {
	return a.id == b.id && a.split == b.split && a.meta == b.meta && slices.EqualFunc(a.blobs, b.blobs,
		func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) })
}

// writeFiles writes files below a new directory.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		p := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// tarOf makes a tar of names and contents.
func tarOf(t *testing.T, format tar.Format, members ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(members); i += 2 {
		h := &tar.Header{Name: members[i], Mode: 0o644, Size: int64(len(members[i+1])), Format: format}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(members[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func gzipOf(t *testing.T, content string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// wave is a WAV file of n samples.
func wave(n int) string {
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	b.WriteString("RIFF")
	put(uint32(36 + 2*n))
	b.WriteString("WAVEfmt ")
	put(struct {
		Size              uint32
		Format, Channels  uint16
		Rate, BytesSecond uint32
		Align, Bits       uint16
	}{16, 1, 1, 8000, 16000, 2, 16})
	b.WriteString("data")
	put(uint32(2 * n))
	for i := range n {
		put(int16(i * n))
	}
	return b.String()
}

// attached is a data set that is imported and attached.
type attached struct {
	name  string
	path  func(t *testing.T) string
	flags []string
	// refused is how many rows of the import cannot be attached.
	refused int
	packed  bool // its blobs are in units
}

func testdata(path string) func(*testing.T) string {
	abs, err := filepath.Abs(filepath.Join("..", "source", "testdata", path))
	return func(t *testing.T) string {
		if err != nil {
			t.Fatal(err)
		}
		return abs
	}
}

func files(make func(t *testing.T) map[string]string) func(*testing.T) string {
	return func(t *testing.T) string { return writeFiles(t, make(t)) }
}

// parquetOf writes files of two blob columns and one of text, in several row groups and pages.
func parquetOf(codec compress.Compression, dictionary bool) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		root := t.TempDir()
		for n, name := range []string{"train-00000-of-00002.parquet", "train-00001-of-00002.parquet"} {
			fields := []arrow.Field{{Name: "image", Type: arrow.BinaryTypes.Binary}, {Name: "mask", Type: arrow.BinaryTypes.Binary,
				Nullable: true}, {Name: "text", Type: arrow.BinaryTypes.String}}
			b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
			for i := range 60 {
				b.Field(0).(*array.BinaryBuilder).Append(photo(t, 100*n+i))
				if i%3 == 0 {
					b.Field(1).AppendNull()
				} else {
					b.Field(1).(*array.BinaryBuilder).Append(bytes.Repeat([]byte{byte(i % 7)}, i%7))
				}
				b.Field(2).(*array.StringBuilder).Append(fmt.Sprint("text ", i))
			}
			rec := b.NewRecord()
			f, err := os.Create(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			props := parquet.NewWriterProperties(parquet.WithCompression(codec), parquet.WithDictionaryDefault(dictionary),
				parquet.WithDataPageSize(4<<10), parquet.WithBatchSize(4))
			table := array.NewTableFromRecords(rec.Schema(), []arrow.Record{rec})
			if err := pqarrow.WriteTable(table, f, 25, props, pqarrow.DefaultWriterProps()); err != nil {
				t.Fatal(err)
			}
			table.Release()
			rec.Release()
			b.Release()
		}
		return root
	}
}

var attachedSets = []attached{
	{name: "imagefolder", path: func(t *testing.T) string { return photos(t, 24) }},
	{name: "imagefolder with metadata", path: files(func(t *testing.T) map[string]string {
		return map[string]string{"train/1.jpg": string(photo(t, 1)), "train/2.jpg": string(photo(t, 2)),
			"train/metadata.csv": "file_name,caption\n1.jpg,one\n2.jpg,two\n"}
	})},
	{name: "audiofolder", path: files(func(*testing.T) map[string]string {
		return map[string]string{"a/1.wav": wave(10), "a/2.wav": wave(500), "b/3.wav": wave(7)}
	})},
	{name: "list", path: func(t *testing.T) string {
		root := writeFiles(t, map[string]string{"x/1.jpg": string(photo(t, 1)), "y/2.jpg": string(photo(t, 2)),
			"list.csv": "path,label\nx/1.jpg,7\ny/2.jpg,8\n"})
		return filepath.Join(root, "list.csv")
	}},
	{name: "webdataset", path: files(func(t *testing.T) map[string]string {
		long := strings.Repeat("long/", 60)
		return map[string]string{
			"train-0.tar": tarOf(t, tar.FormatUSTAR, "a.jpg", string(photo(t, 1)), "a.cls", "1", "a.json", `{"x": 1}`,
				"b.jpg", string(photo(t, 2)), "b.cls", "2"),
			"train-1.tar": tarOf(t, tar.FormatGNU, long+"c.jpg", string(photo(t, 3)), long+"c.cls", "1"),
			"val-0.tar":   tarOf(t, tar.FormatPAX, long+"d.jpg", string(photo(t, 4)), long+"d.cls", "0"),
		}
	})},
	{name: "webdataset of several columns", path: files(func(t *testing.T) map[string]string {
		return map[string]string{"x.tar": tarOf(t, tar.FormatUSTAR, "a.jpg", string(photo(t, 1)), "a.mask.png", "",
			"a.txt", "text", "b.jpg", string(photo(t, 2)), "b.npy", "\x93NUMPY")}
	}), flags: []string{"--verify", "none"}},
	{name: "huggingface", path: testdata("huggingface")},
	{name: "mds", path: testdata("mds/plain")},
	{name: "mds zstd", path: testdata("mds/zstd"), packed: true},
	{name: "mds gz", path: testdata("mds/gz"), packed: true},
	{name: "mds br", path: testdata("mds/br"), packed: true},
	{name: "mds bz2", path: testdata("mds/bz2"), packed: true},
	{name: "litdata", path: testdata("litdata/plain")},
	{name: "litdata sample", path: testdata("litdata/sample"), packed: true},
	{name: "litdata batch", path: testdata("litdata/batch"), packed: true},
	{name: "litdata chunk", path: testdata("litdata/chunk"), packed: true},
	{name: "megatron", path: testdata("megatron"), flags: []string{"--token-blobs"}},
	{name: "tfrecord", path: testdata("tfrecord/records")},
	{name: "parquet plain", path: parquetOf(compress.Codecs.Uncompressed, false)},
	{name: "parquet snappy", path: parquetOf(compress.Codecs.Snappy, false), packed: true},
	{name: "parquet zstd with a dictionary", path: parquetOf(compress.Codecs.Zstd, true), packed: true},
}

// importAndAttach imports a data set into one store and attaches it to another.
func importAndAttach(t *testing.T, c attached) (imported, there string) {
	t.Helper()
	path := c.path(t)
	imported, there = filepath.Join(t.TempDir(), "imported"), filepath.Join(t.TempDir(), "attached")
	args := append([]string{path, "d", "--json", "--skip-bad"}, c.flags...)
	if status, _, errs := runImport(t, append(args, "--store", imported)...); status != 0 {
		t.Fatalf("import: %s", errs)
	}
	if status, _, errs := runCommand(t, append(append([]string{"attach"}, args...), "--store", there)...); status != 0 {
		t.Fatalf("attach: %s", errs)
	}
	return imported, there
}

// TestAttachedEqualsImported: an attached dataset has the rows of the imported one, byte
// by byte, and no blob of it is in the store.
func TestAttachedEqualsImported(t *testing.T) {
	for _, c := range attachedSets {
		t.Run(c.name, func(t *testing.T) {
			imported, there := importAndAttach(t, c)
			one, want := storedRows(t, imported, "d")
			two, got := storedRows(t, there, "d")
			if !one.Schema.Equal(two.Schema) || !reflect.DeepEqual(one.Splits, two.Splits) && c.refused == 0 {
				t.Errorf("schema %v, splits %v; imported: %v, %v", two.Schema, two.Splits, one.Schema, one.Splits)
			}
			if len(got) != len(want)-c.refused || len(got) == 0 {
				t.Fatalf("%d rows, %d imported, %d refused", len(got), len(want), c.refused)
			}
			sets := map[schema.ObjectPrefix]bool{}
			for _, s := range two.Sets {
				sets[s.Prefix] = true
			}
			packed := false
			for i := range got {
				if c.refused == 0 && !sameRow(want[i], got[i]) {
					t.Errorf("row %d: %+v\nimported: %+v", i, got[i], want[i])
				}
				for b, key := range got[i].keys {
					a, ok := schema.ParseObjectAddress(key)
					if got[i].blobs[b] != nil && (!ok || !sets[a.Prefix]) {
						t.Errorf("row %d: key %s is no address in a set of the snapshot", i, key)
					}
					packed = packed || a.Packed
				}
			}
			if packed != c.packed {
				t.Errorf("packed %v, want %v", packed, c.packed)
			}
		})
	}
}

// attachJSON attaches, and reads the summary.
func attachJSON(t *testing.T, args ...string) summary {
	t.Helper()
	status, out, errs := runCommand(t, append([]string{"attach", "--json"}, args...)...)
	if status != 0 {
		t.Fatalf("attach %q: %s", args, errs)
	}
	var sum summary
	if err := json.Unmarshal([]byte(out), &sum); err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestAttachUpdate changes a folder in every way, and attaches it again: only what is new or changed is read, the rest
// keeps its references, and the dataset is as if it had been imported then.
func TestAttachUpdate(t *testing.T) {
	root := photos(t, 40)
	there, imported := filepath.Join(t.TempDir(), "attached"), filepath.Join(t.TempDir(), "imported")
	if sum := attachJSON(t, root, "d", "--store", there); sum.Rows != 40 || sum.Snapshot != 1 || sum.Update != nil {
		t.Fatalf("%+v", sum)
	}
	_, before := storedRows(t, there, "d")
	if sum := attachJSON(t, "--update", "d", "--store", there); sum.Changed || *sum.Update != (updated{Kept: 40}) {
		t.Fatalf("nothing has changed: %+v, %+v", sum, sum.Update)
	}
	write := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("train/ant/000.jpg", photo(t, 77))
	write("train/ant/new.jpg", photo(t, 78))
	if err := os.Remove(filepath.Join(root, "train/bee/001.jpg")); err != nil {
		t.Fatal(err)
	}
	// Unchanged objects are not read: they could not be.
	kept := filepath.Join(root, "train/ant/002.jpg")
	if os.Geteuid() != 0 {
		if err := os.Chmod(kept, 0); err != nil {
			t.Fatal(err)
		}
	}
	sum := attachJSON(t, "--update", root, "d", "--store", there)
	if err := os.Chmod(kept, 0o644); err != nil {
		t.Fatal(err)
	}
	if *sum.Update != (updated{Kept: 38, Changed: 1, New: 1, Gone: 1}) || !sum.Changed || sum.Snapshot != 2 {
		t.Errorf("%+v, %+v", sum, sum.Update)
	}
	if status, _, errs := runImport(t, root, "d", "--store", imported); status != 0 {
		t.Fatal(errs)
	}
	_, want := storedRows(t, imported, "d")
	snap, got := storedRows(t, there, "d")
	if len(snap.Sets) != 2 {
		t.Errorf("%d sets, want that of before and one of what is new", len(snap.Sets))
	}
	if !slices.EqualFunc(want, got, sameRow) {
		t.Errorf("rows %+v\nimported: %+v", got, want)
	}
	was := map[schema.ID]storedRow{}
	for _, row := range before {
		was[row.id] = row
	}
	same := 0
	for _, row := range got {
		if slices.Equal(was[row.id].keys, row.keys) {
			same++
		}
	}
	if same != 38 {
		t.Errorf("%d rows have their references, want 38", same)
	}
	// A class more renumbers labels: rows keep their references, and their labels are those of now.
	if err := os.MkdirAll(filepath.Join(root, "train/aardvark"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("train/aardvark/1.jpg", photo(t, 79))
	if sum := attachJSON(t, "--update", "d", "--store", there); *sum.Update != (updated{Kept: 40, New: 1}) {
		t.Errorf("%+v", sum.Update)
	}
	if status, _, errs := runImport(t, root, "d", "--store", imported); status != 0 {
		t.Fatal(errs)
	}
	_, want = storedRows(t, imported, "d")
	if _, got = storedRows(t, there, "d"); !slices.EqualFunc(want, got, sameRow) {
		t.Errorf("with a class more: rows %+v\nimported: %+v", got, want)
	}
	// Objects that are read in another way are read again, into other sets.
	if sum := attachJSON(t, "--mode", "replace", "--leave-out", "width", "--drop-column", "width", root, "d", "--store",
		there); *sum.Update != (updated{Changed: 41}) {
		t.Errorf("%+v", sum.Update)
	}
}

// TestAttachAppend adds another folder; then an update has to name one of them.
func TestAttachAppend(t *testing.T) {
	one, two := photos(t, 8), writeFiles(t, map[string]string{"train/ant/x.jpg": string(photo(t, 50)),
		"train/bee/y.jpg": string(photo(t, 51))})
	there := filepath.Join(t.TempDir(), "attached")
	attachJSON(t, one, "d", "--store", there)
	if sum := attachJSON(t, two, "d", "--mode", "append", "--store", there); sum.Rows != 2 || sum.Snapshot != 2 {
		t.Errorf("%+v", sum)
	}
	snap, rows := storedRows(t, there, "d")
	if len(rows) != 10 || len(snap.Sets) != 2 {
		t.Errorf("%d rows, %d sets", len(rows), len(snap.Sets))
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--update", "d"}, "2 places"},
		{[]string{one, "d"}, "append to it or replace it"},
		{[]string{one, "d", "--mode", "append"}, "already"},
		{[]string{"--update", "d", "--mode", "append"}, "--update and --mode"},
		{[]string{"--update", "e"}, "e"},
		{[]string{one + "/nothing", "e"}, "no such"},
		{[]string{"s3://", "e"}, "bucket"},
		{[]string{one, "e", "--media", "image"}, "tables"},
	} {
		status, _, errs := runCommand(t, append(append([]string{"attach"}, c.args...), "--store", there)...)
		if status == 0 || !strings.Contains(errs, c.says) {
			t.Errorf("%q: status %d, %s; want %q", c.args, status, errs, c.says)
		}
	}
}

// TestAttachedObjectChanges: an object that has changed is lost data, by its name, and no other bytes.
func TestAttachedObjectChanges(t *testing.T) {
	root := photos(t, 4)
	there := filepath.Join(t.TempDir(), "attached")
	attachJSON(t, root, "d", "--store", there)
	_, rows := storedRows(t, there, "d")
	for name, change := range map[string]func(path string) error{
		"changed": func(path string) error { return os.WriteFile(path, photo(t, 99), 0o644) },
		"gone":    os.Remove,
	} {
		path := filepath.Join(root, "train/ant/000.jpg")
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		st, err := openStore(t.Context(), there, false, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Snapshot(t.Context(), "d", 0); err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			ref := schema.BlobRef{Key: row.keys[0], Size: int64(len(row.blobs[0])), Sum: schema.Checksum(row.blobs[0])}
			blob, err := st.Get(t.Context(), ref)
			if bytes.Equal(row.blobs[0], photo(t, 0)) {
				if err == nil || !strings.Contains(err.Error(), "train/ant/000.jpg") || !errors.Is(err, schema.ErrDataLoss) {
					t.Errorf("%s: %v, want lost data by its name", name, err)
				}
			} else if err != nil || !bytes.Equal(blob.Bytes(), row.blobs[0]) {
				t.Errorf("%s: another object: %v", name, err)
			}
			blob.Release()
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAttachRefuses: a blob that is not in one piece anywhere is listed, with what to do
// instead.
func TestAttachRefuses(t *testing.T) {
	root := writeFiles(t, map[string]string{"train-0.tar": tarOf(t, tar.FormatUSTAR, "a.jpg", string(photo(t, 1))),
		"train-1.tar.gz": gzipOf(t, tarOf(t, tar.FormatUSTAR, "b.jpg", string(photo(t, 2))))})
	there := filepath.Join(t.TempDir(), "attached")
	status, _, errs := runCommand(t, "attach", root, "d", "--store", there)
	if status == 0 || !strings.Contains(errs, "import it instead") || !strings.Contains(errs, "1 of 2 samples") {
		t.Errorf("status %d, %s", status, errs)
	}
	if sum := attachJSON(t, root, "d", "--store", there, "--skip-bad"); sum.Rows != 1 || sum.Bad != 1 {
		t.Errorf("%+v", sum)
	}
	if sum := attachJSON(t, root, "e", "--store", there, "--skip-bad", "--dry-run"); sum.Rows != 1 || sum.Snapshot != 0 {
		t.Errorf("dry run: %+v", sum)
	}
	if got := fmt.Sprint(snapshots(t, there, "e")); got != "[]" {
		t.Errorf("a dry run made %s", got)
	}
}

// serveS3 starts a server of buckets for the length of a test, and has the process know credentials for it.
func serveS3(t *testing.T, config objecttest.Config) *objecttest.Server {
	t.Helper()
	server, err := objecttest.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret of the test")
	return server
}

// TestAttachFromS3 attaches folders and tars in a bucket: they are the rows of an import of the same files, each byte is
// read about once, and an update reads what has changed alone.
func TestAttachFromS3(t *testing.T) {
	server := serveS3(t, objecttest.Config{})
	for _, c := range attachedSets {
		if c.name == "list" { // its path is a file
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			root := c.path(t)
			name := strings.ReplaceAll(c.name, " ", "-")
			where := upload(t, server, root, name, "data/v 1")
			imported, there := filepath.Join(t.TempDir(), "imported"), filepath.Join(t.TempDir(), "attached")
			if status, _, errs := runImport(t, append([]string{root, "d", "--store", imported}, c.flags...)...); status != 0 {
				t.Fatal(errs)
			}
			before := server.Counts()
			attachJSON(t, append([]string{where, "d", "--store", there}, c.flags...)...)
			read := server.Counts().Sent - before.Sent
			snap, got := storedRows(t, there, "d")
			if strings.Contains(fmt.Sprint(snap.Source), "secret") {
				t.Errorf("source %s", snap.Source)
			}
			_, want := storedRows(t, imported, "d")
			if !slices.EqualFunc(want, got, sameRow) {
				t.Errorf("rows %+v\nimported: %+v", got, want)
			}
			// The first file that is a sample or a shard changes.
			before = server.Counts()
			if sum := attachJSON(t, "--update", "d", "--store", there); sum.Changed {
				t.Errorf("nothing has changed: %+v", sum.Update)
			}
			if again := server.Counts().Sent - before.Sent; c.name == "imagefolder" && again > read/2 {
				t.Errorf("an update of nothing read %d bytes, the attachment %d", again, read)
			}
		})
	}
}

// TestAttachFromFaultyS3: a server that fails, cuts bodies and asks for patience is asked again, and nothing is wrong.
func TestAttachFromFaultyS3(t *testing.T) {
	server := serveS3(t, objecttest.Config{Seed: 7})
	url := server.URL("photos")
	for i := range 60 {
		server.PutObject("photos", fmt.Sprintf("train/%c/%03d.jpg", 'a'+i%3, i), photo(t, i))
	}
	server.Fail(objecttest.Fault{Share: .2, Status: 503, Code: "SlowDown"})
	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Share: .1, Status: 500, Code: "InternalError"})
	there := filepath.Join(t.TempDir(), "attached")
	if sum := attachJSON(t, url, "d", "--store", there); sum.Rows != 60 || sum.Bad != 0 {
		t.Errorf("%+v", sum)
	}
	server.Heal()
	_, rows := storedRows(t, there, "d")
	for i, row := range rows {
		if !bytes.Equal(row.blobs[0], photo(t, i%20*3+i/20)) {
			t.Errorf("row %d has other bytes", i)
		}
	}
}
