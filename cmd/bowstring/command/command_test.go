package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"
	"github.com/rogpeppe/go-internal/testscript"

	"bowstring/cmd/bowstring/export"
	"bowstring/fetch/ingest"
	"bowstring/fetch/store/local"
	"bowstring/internal/authtest"
	"bowstring/internal/scripttest"
	"bowstring/schema"
)

var update = flag.Bool("update", false, "rewrite the golden parts of the scripts")

func TestMain(m *testing.M) {
	scripttest.Main(m, map[string]func(){"bowstring": Main})
}

// TestScripts runs the scripts in testdata/script. Each has a directory of its own,
// and bowstring is a process of its own.
func TestScripts(t *testing.T) {
	scripttest.Run(t, *update, map[string]scripttest.Command{
		"damage":   cmdDamage,
		"dataset":  cmdDataset,
		"rows":     cmdRows,
		"attached": cmdAttached,
		"normal":   cmdNormal,
		"certificates": func(ts *testscript.TestScript, _ bool, args []string) {
			ts.Check(makeCertificates(t, ts.MkAbs(args[0])))
		},
	})
}

// cmdDataset is "dataset STORE NAME ROWS": it makes a dataset of small images of
// three classes and two splits, the last third being "valid", the same each time.
func cmdDataset(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: dataset STORE NAME ROWS")
	}
	rows, err := strconv.Atoi(args[2])
	ts.Check(err)
	ts.Check(makeDataset(ts.MkAbs(args[0]), args[1], rows, 0))
}

// makeCertificates makes a directory with an authority (ca.pem), and a server and
// a client of it (server.pem, server.key, client.pem, client.key).
func makeCertificates(t *testing.T, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	a := authtest.NewAuthority(t, "authority")
	authtest.Write(t, dir, "ca.pem", a.PEM)
	for name, pair := range map[string]authtest.Pair{"server": a.Server(t), "client": a.Client(t, "carol", nil)} {
		authtest.Write(t, dir, name+".pem", pair.Cert)
		authtest.Write(t, dir, name+".key", pair.Key)
	}
	return nil
}

// makeDataset appends padding to each image.
func makeDataset(dir, name string, rows, padding int) (err error) {
	classes := []string{"cat", "dog", "tench"}
	meta := []arrow.Field{
		schema.ClassField("label", classes),
		{Name: "file_name", Type: arrow.BinaryTypes.String},
		{Name: "width", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	}
	s, err := schema.NewSchema(meta, []arrow.Field{schema.BlobField("image", schema.MediaImage, false)})
	if err != nil {
		return err
	}
	store, err := local.Open(dir, local.Options{})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := store.Close(); err == nil {
			err = cerr
		}
	}()
	ctx := context.Background()
	w, err := ingest.New(ctx, store, ingest.Options{Dataset: name, Source: "test", Schema: s, Mode: ingest.Replace})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := w.Close(); err == nil {
			err = cerr
		}
	}()
	for _, split := range []string{"train", "valid"} {
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(meta, nil))
		var ids []schema.ID
		var images [][]byte
		for i := range rows {
			if (i >= rows-rows/3) != (split == "valid") {
				continue
			}
			file := fmt.Sprintf("%s/%s/%04d.png", split, classes[i%3], i)
			ids = append(ids, schema.SampleID(name, file))
			b.Field(0).(*array.Int64Builder).Append(int64(i % 3))
			b.Field(1).(*array.StringBuilder).Append(file)
			b.Field(2).(*array.Int32Builder).Append(int32(1 + i%5))
			picture := image.NewGray(image.Rect(0, 0, 1+i%5, 1))
			picture.Set(0, 0, color.Gray{uint8(i)})
			var data bytes.Buffer
			if err := png.Encode(&data, picture); err != nil {
				return err
			}
			images = append(images, append(data.Bytes(), noise(uint64(i), padding)...))
		}
		rec := b.NewRecord()
		err := w.Write(ctx, split, ids, rec, [][][]byte{images})
		rec.Release()
		b.Release()
		if err != nil {
			return err
		}
	}
	_, _, err = w.Commit(ctx)
	return err
}

// cmdDamage is "damage STORE DATASET@N ROW": it flips a bit of the row's image, on the disk.
func cmdDamage(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: damage STORE DATASET@N ROW")
	}
	var of datasetRef
	ts.Check(of.UnmarshalText([]byte(args[1])))
	row, err := strconv.ParseInt(args[2], 10, 64)
	ts.Check(err)
	ts.Check(damageRow(ts.MkAbs(args[0]), of, row))
}

func damageRow(dir string, of datasetRef, row int64) error {
	store, err := local.Open(dir, local.Options{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	snap, err := store.Snapshot(ctx, of.Name, of.Snapshot)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	chunk, err := store.Get(ctx, snap.Chunks[0].BlobRef)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	one := *snap
	one.Chunks = one.Chunks[:1]
	m, err := schema.OpenManifest(&one, []schema.Blob{chunk})
	if err != nil {
		return errors.Join(err, store.Close())
	}
	ref, _ := m.Blob(0, row)
	blob, err := store.Get(ctx, ref)
	m.Close()
	if err != nil {
		return errors.Join(err, store.Close())
	}
	at, ok := blob.Extent()
	name := at.File.Name()
	blob.Release()
	if err := store.Close(); err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("row %d is in no file", row)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], at.Offset+at.Length/2); err != nil {
		return errors.Join(err, f.Close())
	}
	b[0] ^= 16
	_, err = f.WriteAt(b[:], at.Offset+at.Length/2)
	return errors.Join(err, f.Close())
}

// cmdRows is "rows FILE": it prints the rows of a Parquet or Arrow file as JSON lines, to stdout.
func cmdRows(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: rows FILE")
	}
	path := ts.MkAbs(args[0])
	recs, err := readFile(path)
	ts.Check(err)
	for _, rec := range recs {
		for row := range int(rec.NumRows()) {
			line, err := json.Marshal(export.Row(rec, row))
			ts.Check(err)
			_, _ = fmt.Fprintf(ts.Stdout(), "%s\n", line)
		}
		rec.Release()
	}
}

func readFile(path string) ([]arrow.Record, error) {
	if strings.HasSuffix(path, ".arrow") {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r, err := ipc.NewFileReader(f)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		var recs []arrow.Record
		for i := range r.NumRecords() {
			rec, err := r.RecordAt(i)
			if err != nil {
				return nil, err
			}
			recs = append(recs, rec)
		}
		return recs, nil
	}
	pf, err := file.OpenParquetFile(path, false)
	if err != nil {
		return nil, err
	}
	defer pf.Close()
	r, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	table, err := r.ReadTable(context.Background())
	if err != nil {
		return nil, err
	}
	defer table.Release()
	tr := array.NewTableReader(table, 0)
	defer tr.Release()
	var recs []arrow.Record
	for tr.Next() {
		rec := tr.Record()
		rec.Retain()
		recs = append(recs, rec)
	}
	return recs, tr.Err()
}

var unstable = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?UTC|Z)?`), "TIME"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:PORT"},
	{regexp.MustCompile(`[\d.]+ [KMGT]iB on this machine`), "SIZE on this machine"},
	{regexp.MustCompile(`process \d+ on host \S+`), "process PID on host HOST"},
}

// cmdNormal is "normal FILE...": it rewrites files, replacing what differs from run to run.
func cmdNormal(ts *testscript.TestScript, _ bool, args []string) {
	for _, arg := range args {
		data, err := os.ReadFile(ts.MkAbs(arg))
		ts.Check(err)
		text := strings.ReplaceAll(string(data), ts.Getenv("WORK"), "$WORK")
		for _, u := range unstable {
			text = u.pattern.ReplaceAllString(text, u.name)
		}
		ts.Check(os.WriteFile(ts.MkAbs(arg), []byte(text), 0o644))
	}
}
