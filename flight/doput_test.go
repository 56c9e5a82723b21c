package flight

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/codes"

	"bowstring/fetch/admission"
	"bowstring/flight/upload"
	"bowstring/schema"
)

func TestPutAndGet(t *testing.T) {
	f := serve(t, Options{})
	results, err := f.put(command(`{"put": {"dataset": "d", "split": "test", "key": "file_name", "source": "a test"}}`),
		samples(0, 100), samples(100, 250))
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 3 {
		t.Fatalf("got %d results for 2 batches, want 3: %s", len(results), results)
	}
	size := 0
	for i := range 100 {
		size += len(content(i))
	}
	if got, want := decoded[batchAck](t, results[0]), (batchAck{Batch: 0, Rows: 100, Bytes: int64(size)}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := decoded[batchAck](t, results[1]); got.Batch != 1 || got.Rows != 250 {
		t.Errorf("got %+v, want 250 rows up to batch 1", got)
	}
	if got, want := decoded[putAck](t, results[2]), (putAck{"d", 1, 250, true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}

	info, err := f.client.GetFlightInfo(t.Context(), path("d", "test"))
	if err != nil {
		t.Fatal(err)
	}
	recs, err := f.get(info.Endpoint[0].Ticket)
	if err != nil {
		t.Fatal(err)
	}
	images, names, ids := column(t, recs, "image"), column(t, recs, "file_name"), column(t, recs, "id")
	if len(images) != 250 {
		t.Fatalf("got %d rows, want 250", len(images))
	}
	for i := range images {
		name := fmt.Sprintf("%06d.jpg", i)
		if images[i] != string(content(i)) || names[i] != name ||
			ids[i] != schema.FormatID(schema.SampleID("d", name)) {
			t.Fatalf("row %d is %s %s %.30q", i, ids[i], names[i], images[i])
		}
	}
	snap, err := f.store.Snapshot(t.Context(), "d", 0)
	if err != nil {
		t.Fatal(err)
	}
	if snap.Source != "a test" || snap.Splits[0].Name != "test" {
		t.Errorf("got source %q, splits %v", snap.Source, snap.Splits)
	}
}

func TestPutModes(t *testing.T) {
	f := serve(t, Options{})
	if ack := f.fill("d", 120); ack.Snapshot != 1 || !ack.Changed {
		t.Fatalf("got %+v", ack)
	}
	_, err := f.put(path("d"), samples(0, 10))
	wantCode(t, err, codes.AlreadyExists, "d")

	put := func(mode string, lo, hi int) putAck {
		t.Helper()
		results, err := f.put(command(`{"put": {"dataset": "d", "key": "file_name", "mode": %q, "media": {"image": "image"}}}`, mode), samples(lo, hi))
		if err != nil {
			t.Fatal(err)
		}
		return last[putAck](t, results)
	}
	if got, want := put("replace", 0, 120), (putAck{"d", 1, 120, false}); got != want {
		t.Errorf("replacing by the same: got %+v, want %+v", got, want)
	}
	if got, want := put("append", 120, 200), (putAck{"d", 2, 80, true}); got != want {
		t.Errorf("append: got %+v, want %+v", got, want)
	}
	if got, want := put("replace", 7, 9), (putAck{"d", 3, 2, true}); got != want {
		t.Errorf("replace: got %+v, want %+v", got, want)
	}
	_, err = f.put(command(`{"put": {"dataset": "d", "key": "file_name", "mode": "append", "media": {"image": "image"}}}`), samples(8, 10))
	wantCode(t, err, codes.InvalidArgument, schema.FormatID(schema.SampleID("d", "000008.jpg")))
	_, err = f.put(command(`{"put": {"dataset": "d", "key": "file_name", "mode": "append"}}`), samples(9, 10))
	wantCode(t, err, codes.InvalidArgument, "image")
	_, err = f.put(command(`{"put": {"dataset": "d", "key": "file_name", "mode": "replace", "media": {"image": "image"}}}`), samples(0, 0))
	wantCode(t, err, codes.InvalidArgument, "no rows came to replace those of dataset d")
	_, err = f.put(command(`{"put": {"dataset": "none", "mode": "append"}}`), samples(9, 10))
	wantCode(t, err, codes.NotFound, "none")
}

// TestPutNumbersRows: without ids and without a key, ids are derived from the split and the
// row's number. An append continues the numbers.
func TestPutNumbersRows(t *testing.T) {
	f := serve(t, Options{})
	for _, mode := range []string{"create", "append"} {
		if _, err := f.put(command(`{"put": {"dataset": "d", "split": "s", "mode": %q}}`, mode), samples(0, 3),
			samples(3, 5)); err != nil {
			t.Fatal(err)
		}
	}
	recs, err := f.get(&flight.Ticket{Ticket: []byte(`{"dataset": "d", "columns": ["id"]}`)})
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range column(t, recs, "id") {
		if want := schema.FormatID(schema.SampleID("d", fmt.Sprintf("put:s:%d", i))); id != want {
			t.Errorf("row %d has id %s, want %s", i, id, want)
		}
	}
	if rowsOf(recs) != 10 {
		t.Errorf("got %d rows, want 10", rowsOf(recs))
	}
}

func TestPutRefuses(t *testing.T) {
	text := func(name, json string) arrow.Record {
		return oneColumn(t, arrow.Field{Name: name, Type: arrow.BinaryTypes.String, Nullable: true}, json)
	}
	for _, tt := range []struct {
		name string
		d    *flight.FlightDescriptor
		rec  arrow.Record
		want string
	}{
		{"no descriptor type", &flight.FlightDescriptor{}, samples(0, 1), "PATH or CMD"},
		{"long path", path("a", "b", "c"), samples(0, 1), "3 elements"},
		{"bad name", path("a b"), samples(0, 1), "put.dataset"},
		{"bad split", path("a", "/"), samples(0, 1), "put.split"},
		{"no JSON", command(`put`), samples(0, 1), "JSON"},
		{"unknown field", command(`{"put": {"dataset": "d", "spilt": "x"}}`), samples(0, 1),
			`put.spilt: got an unknown field, want one of dataset, split, mode, key, blobs, media, source, commit, on, missing, drop_columns (did you mean "split"?)`},
		{"neither", command(`{}`), samples(0, 1), `either "put" or "selection"`},
		{"both", command(`{"put": {"dataset": "d"}, "selection": {"dataset": "d"}}`), samples(0, 1),
			`either "put" or "selection"`},
		{"mode", command(`{"put": {"dataset": "d", "mode": "upsert"}}`), samples(0, 1), `put.mode: got "upsert"`},
		{"commit", command(`{"put": {"dataset": "d", "commit": "now"}}`), samples(0, 1), `put.commit: got "now"`},
		{"source", command(`{"put": {"dataset": "d", "source": %q}}`, strings.Repeat("x", upload.MaxSource+1)), samples(0, 1),
			"put.source"},
		{"unknown key", command(`{"put": {"dataset": "d", "key": "path"}}`), samples(0, 1), "file_name, label"},
		{"key not text", command(`{"put": {"dataset": "d", "key": "v"}}`),
			oneColumn(t, arrow.Field{Name: "v", Type: arrow.PrimitiveTypes.Float64}, `[1.5]`), "put.key"},
		{"null key", command(`{"put": {"dataset": "d", "key": "v"}}`), text("v", `["a", null]`), "row 1"},
		{"key and id", command(`{"put": {"dataset": "d", "key": "label"}}`),
			array.NewRecord(arrow.NewSchema([]arrow.Field{schema.IDField(),
				{Name: "label", Type: arrow.PrimitiveTypes.Int64}}, nil),
				[]arrow.Array{fromJSON(t, schema.IDField().Type, `[]`), fromJSON(t, arrow.PrimitiveTypes.Int64, `[]`)},
				0), "no key"},
		{"unknown blob", command(`{"put": {"dataset": "d", "blobs": ["img"]}}`), samples(0, 1), "put.blobs"},
		{"blob not binary", command(`{"put": {"dataset": "d", "blobs": ["label"]}}`), samples(0, 1), `column "label"`},
		{"media of no blob", command(`{"put": {"dataset": "d", "media": {"label": "image"}}}`), samples(0, 1),
			"put.media"},
		{"unknown media", command(`{"put": {"dataset": "d", "media": {"image": "video"}}}`), samples(0, 1),
			`"image" or "audio"`},
		{"reserved", path("d"), text("split", `["x"]`), `column "split"`},
		{"several blobs a row", path("d"), oneColumn(t, arrow.Field{Name: "pics",
			Type: arrow.ListOf(arrow.StructOf(arrow.Field{Name: "bytes", Type: arrow.BinaryTypes.Binary}))}, `[]`),
			`column "pics": got list<item: struct<bytes: binary>, nullable>, want a blob column for each of its blobs`},
		{"unsupported type", path("d"), oneColumn(t,
			arrow.Field{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.String)}, `[]`),
			`"m"`},
		{"id not a UUID", path("d"), text("id", `["6ba7b811-9dad-51d1-80b4-00c04fd430c8", "n0144"]`),
			`row 1: got "n0144"`},
		{"id null", path("d"), text("id", `[null]`), `row 0: got null`},
		{"id of a wrong type", path("d"), oneColumn(t, arrow.Field{Name: "id", Type: arrow.PrimitiveTypes.Int64},
			`[1]`), `column "id"`},
		{"id twice", path("d"),
			text("id", `["6ba7b811-9dad-51d1-80b4-00c04fd430c8", "6ba7b811-9dad-51d1-80b4-00c04fd430c8"]`),
			"6ba7b811-9dad-51d1-80b4-00c04fd430c8"},
		{"null where none may be", path("d"), oneColumn(t, arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int64},
			`[null]`), `"n"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := serve(t, Options{})
			_, err := f.put(tt.d, tt.rec)
			wantCode(t, err, codes.InvalidArgument, tt.want)
			f.wantDatasets()
		})
	}
}

// wantDatasets checks which datasets exist.
func (f *fixture) wantDatasets(names ...string) {
	f.t.Helper()
	list, err := f.store.Datasets(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	var got []string
	for _, d := range list {
		if len(d.Snapshots) > 0 {
			got = append(got, d.Name)
		}
	}
	if !slices.Equal(got, names) {
		f.t.Errorf("the store has datasets %q, want %q", got, names)
	}
}

// TestLargeImage: 20 MB and more pass both ways in one message.
func TestLargeImage(t *testing.T) {
	f := serve(t, Options{})
	image := make([]byte, 40<<20)
	src := rand.NewChaCha8([32]byte{1})
	if _, err := src.Read(image); err != nil {
		t.Fatal(err)
	}
	b := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
	defer b.Release()
	b.Append(image[:20<<20])
	b.Append(image[20<<20:])
	rec := array.NewRecord(arrow.NewSchema([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.Binary}}, nil),
		[]arrow.Array{b.NewArray()}, 2)
	if _, err := f.put(path("d"), rec); err != nil {
		t.Fatal(err)
	}
	recs, err := f.get(&flight.Ticket{Ticket: []byte(`{"dataset": "d", "columns": ["image"]}`)})
	if err != nil {
		t.Fatal(err)
	}
	if len(recs) != 2 {
		t.Errorf("got %d batches, want 2: two images exceed batch_bytes", len(recs))
	}
	if got := strings.Join(column(t, recs, "image"), ""); got != string(image) {
		t.Error("the images differ")
	}
}

// TestPutCompressed: batches may be compressed, but their decompressed size is bounded.
func TestPutCompressed(t *testing.T) {
	limits := admission.Limits{Uploads: 8 << 20}
	limits.EnsureDefaults()
	f := serve(t, Options{MaxMessageBytes: 1 << 20, Ledger: admission.NewLedger(limits)})
	send := func(dataset string, rec arrow.Record) error {
		t.Helper()
		stream, err := f.client.DoPut(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w := flight.NewRecordWriter(stream, ipc.WithSchema(rec.Schema()), ipc.WithZstd())
		w.SetFlightDescriptor(path(dataset))
		if err := w.Write(rec); err != nil && !errors.Is(err, io.EOF) { // refused; the results have the reason
			t.Fatal(err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		_, err = resultsOf(stream)
		return err
	}
	put := func(dataset string, size int) error {
		t.Helper()
		b := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
		defer b.Release()
		b.Append(make([]byte, size))
		return send(dataset,
			array.NewRecord(arrow.NewSchema([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.Binary}}, nil),
				[]arrow.Array{b.NewArray()}, 1))
	}
	if err := put("small", 100_000); err != nil {
		t.Error(err)
	}
	wantCode(t, put("large", 10<<20), codes.ResourceExhausted, "MaxMessageBytes, which is 1048576")
	// The decompressed message fits, but the rows made of it do not.
	huggingFace := arrow.StructOf(arrow.Field{Name: "bytes", Type: arrow.BinaryTypes.Binary, Nullable: true},
		arrow.Field{Name: "path", Type: arrow.BinaryTypes.String, Nullable: true})
	paths := oneColumn(t, arrow.Field{Name: "image", Type: huggingFace, Nullable: true},
		fmt.Sprintf(`[{"bytes": "eA==", "path": %q}%s]`, strings.Repeat("x", 3<<19),
			strings.Repeat(`, {"bytes": "eA==", "path": "x"}`, 2000)))
	wantCode(t, send("paths", paths), codes.ResourceExhausted, "uploads")
	f.wantDatasets("small")
}

func TestPutSelection(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 300)
	position := arrow.Field{Name: "position", Type: arrow.PrimitiveTypes.Int64}
	d := command(`{"selection": {"dataset": "d", "snapshot": 1}}`)
	results, err := f.put(d, oneColumn(t, position, `[250, 5]`), oneColumn(t, position, `[17]`))
	if err != nil {
		t.Fatal(err)
	}
	ack := last[selectionAck](t, results)
	if len(results) != 1 || ack.Rows != 3 || ack.Snapshot != 1 || len(ack.Selection) != 64 {
		t.Errorf("got %s", results)
	}
	recs, err := f.get(&flight.Ticket{Ticket: fmt.Appendf(nil,
		`{"dataset": "d", "snapshot": 1, "selection": {"name": %q}, "columns": ["position", "id"]}`, ack.Selection)})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := column(t, recs, "position"), []string{"5", "17", "250"}; !slices.Equal(got, want) {
		t.Errorf("got positions %q, want %q", got, want)
	}
	// The same set by ids, of the newest snapshot, has the same name.
	var ids []string
	for _, id := range column(t, recs, "id") {
		ids = append(ids, fmt.Sprintf("%q", id))
	}
	results, err = f.put(command(`{"selection": {"dataset": "d"}}`),
		oneColumn(t, arrow.Field{Name: "id", Type: arrow.BinaryTypes.String}, "["+strings.Join(ids, ",")+"]"))
	if err != nil {
		t.Fatal(err)
	}
	if again := last[selectionAck](t, results); !reflect.DeepEqual(again, ack) {
		t.Errorf("got %+v, want %+v", again, ack)
	}

	for _, tt := range []struct {
		d    *flight.FlightDescriptor
		rec  arrow.Record
		code codes.Code
		want string
	}{
		{d, oneColumn(t, position, `[300]`), codes.InvalidArgument, "got 300, want 0 to 299"},
		{d, oneColumn(t, position, `[-1]`), codes.InvalidArgument, "got -1"},
		{d, oneColumn(t, position, `[3, 3]`), codes.InvalidArgument, "2 positions of which 1 differ"},
		{d, oneColumn(t, arrow.Field{Name: "row", Type: arrow.PrimitiveTypes.Int64}, `[3]`), codes.InvalidArgument,
			`"position" or "id"`},
		{d, oneColumn(t, arrow.Field{Name: "id", Type: arrow.BinaryTypes.String},
			`["6ba7b811-9dad-51d1-80b4-00c04fd430c8"]`), codes.NotFound, "6ba7b811-9dad-51d1-80b4-00c04fd430c8"},
		{command(`{"selection": {"dataset": "e"}}`), oneColumn(t, position, `[1]`), codes.NotFound, "e"},
		{command(`{"selection": {"dataset": "d", "snapshot": 9}}`), oneColumn(t, position, `[1]`), codes.NotFound, "9"},
		{command(`{"selection": {"dataset": "d", "snapshot": -9}}`), oneColumn(t, position, `[1]`),
			codes.InvalidArgument, "snapshot"},
	} {
		_, err := f.put(tt.d, tt.rec)
		wantCode(t, err, tt.code, tt.want)
	}
}
