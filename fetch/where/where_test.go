package where

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"go.uber.org/goleak"

	"bowstring/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testSchema(t testing.TB) *arrow.Schema {
	box := arrow.StructOf(
		arrow.Field{Name: "w", Type: arrow.PrimitiveTypes.Int16, Nullable: true},
		arrow.Field{Name: "tag", Type: arrow.BinaryTypes.String, Nullable: true})
	field := func(name string, dt arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: dt, Nullable: true}
	}
	s, err := schema.NewSchema([]arrow.Field{
		schema.ClassField("label", []string{"a", "b"}),
		field("width", arrow.PrimitiveTypes.Int32),
		{Name: "height", Type: arrow.PrimitiveTypes.Uint16},
		field("big", arrow.PrimitiveTypes.Uint64),
		field("score", arrow.PrimitiveTypes.Float32),
		field("price", &arrow.Decimal128Type{Precision: 10, Scale: 2}),
		field("ok", arrow.FixedWidthTypes.Boolean),
		field("file_name", arrow.BinaryTypes.String),
		field("raw", arrow.BinaryTypes.Binary),
		field("taken", &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"}),
		field("day", arrow.FixedWidthTypes.Date32),
		field("took", arrow.FixedWidthTypes.Duration_s),
		field("tags", arrow.ListOf(arrow.BinaryTypes.String)),
		field("vec", arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float64)),
		field("box", box),
		field("boxes", arrow.ListOf(box)),
		field("odd name", arrow.PrimitiveTypes.Int8),
		field("date", arrow.PrimitiveTypes.Int8),
	}, []arrow.Field{schema.BlobField("image", schema.MediaImage, true)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Six rows; row 3 is null wherever that is allowed, and row 4 has nulls inside.
const rows = `[
{"label":0,"width":100,"height":10,"big":1,"score":0.5,"price":"1.25","ok":true,"file_name":"a/cat1.jpg","raw":"eA==","taken":"2024-01-01 00:00:00Z","day":"2024-01-01","took":60,"tags":["red","blue"],"vec":[1,2],"box":{"w":5,"tag":"x"},"boxes":[{"w":1,"tag":"p"}],"odd name":1,"date":1},
{"label":1,"width":200,"height":20,"big":"18446744073709551615","score":1.5,"price":"2.50","ok":false,"file_name":"b/dog.png","raw":"eQ==","taken":"2024-06-01 12:00:00Z","day":"2024-06-01","took":3600,"tags":[],"vec":[3,4],"box":{"w":6,"tag":"y"},"boxes":[],"odd name":2,"date":2},
{"label":1,"width":300,"height":30,"big":3,"score":2.5,"price":"-3.75","ok":true,"file_name":"c/cat2.jpg","raw":"eg==","taken":"2025-01-01 00:00:00Z","day":"2025-01-01","took":7200,"tags":["blue"],"vec":[5,6],"box":{"w":7,"tag":"z"},"boxes":[{"w":3,"tag":"q"},{"w":9,"tag":"r"}],"odd name":3,"date":3},
{"label":null,"width":null,"height":40,"big":null,"score":null,"price":null,"ok":null,"file_name":null,"raw":null,"taken":null,"day":null,"took":null,"tags":null,"vec":null,"box":null,"boxes":null,"odd name":null,"date":null},
{"label":5,"width":500,"height":50,"big":5,"score":-1,"price":"0.00","ok":false,"file_name":"","raw":"","taken":"1969-12-31 23:59:59Z","day":"1969-12-31","took":0,"tags":[null,"green"],"vec":[null,8],"box":{"w":null,"tag":null},"boxes":[{"w":null,"tag":null}],"odd name":5,"date":5},
{"label":-2,"width":600,"height":60,"big":6,"score":6,"price":"6.00","ok":true,"file_name":"dir/Zebra.JPG","raw":"eA==","taken":"2024-12-31 00:00:00Z","day":"2024-12-31","took":1,"tags":["red","red"],"vec":[7,9],"box":{"w":-6,"tag":""},"boxes":[{"w":6,"tag":"s"}],"odd name":6,"date":6}
]`

// manifestOf makes a manifest of the records, one a chunk, all null blobs.
// whole is a manifest that is open whole.
type whole struct{ *schema.Manifest }

// Walk visits the pages in order.
func (w whole) Walk(ctx context.Context, _, _ int64, _ func(int64, *schema.Chunk) bool,
	visit func(ctx context.Context, start int64, p *schema.Page) error) error {
	for c := range w.Chunks() {
		if err := visit(ctx, w.ChunkStart(c), w.Page(c)); err != nil {
			return err
		}
	}
	return nil
}

func manifestOf(t testing.TB, s *arrow.Schema, recs ...arrow.Record) whole {
	t.Helper()
	return placedManifest(t, s, nil, recs...)
}

// placedManifest is manifestOf with each chunk where place puts it.
func placedManifest(t testing.TB, s *arrow.Schema, place func([]byte) []byte, recs ...arrow.Record) whole {
	t.Helper()
	snap := &schema.Snapshot{Dataset: "test", Number: 1, Schema: s}
	b := schema.NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	var chunks []schema.Blob
	n := int64(0)
	for _, rec := range recs {
		ids := make([]schema.ID, rec.NumRows())
		for i := range ids {
			ids[i] = schema.SampleID("test", fmt.Sprint(n))
			n++
		}
		if err := b.AppendBatch(ids, rec, [][]*schema.BlobRef{make([]*schema.BlobRef, len(ids))}); err != nil {
			t.Fatal(err)
		}
		data, c, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		c.BlobRef = schema.RefOf(data)
		if place != nil {
			data = place(data)
		}
		snap.Chunks, chunks = append(snap.Chunks, c), append(chunks, schema.NewBlob(data, nil))
	}
	snap.Splits = []schema.Split{{Name: "train", Ranges: []schema.Range{{Start: 0, End: n / 2}}},
		{Name: "val", Ranges: []schema.Range{{Start: n / 2, End: n - 1}}}}
	m, err := schema.OpenManifest(snap, chunks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return whole{m}
}

func testManifest(t testing.TB, chunkRows ...int64) whole {
	t.Helper()
	s := testSchema(t)
	meta := arrow.NewSchema(schema.MetaFields(s), nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, meta, strings.NewReader(rows))
	if err != nil {
		t.Fatal(err)
	}
	var recs []arrow.Record
	at := int64(0)
	for _, n := range chunkRows {
		recs = append(recs, rec.NewSlice(at, at+n))
		at += n
	}
	return manifestOf(t, s, recs...)
}

func TestColumns(t *testing.T) {
	const text = `width > 3 and ($env["odd name"] == 1 or split == "x") and any(boxes, .w > width)`
	e, err := Compile(t.Context(), text, testSchema(t), now)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(e.columns); got != "[boxes odd name split width]" {
		t.Error(got)
	}
}

// The size and the key of a blob column have values, and the blob is not read for them.
func TestBlobParts(t *testing.T) {
	s, err := schema.NewSchema(nil, []arrow.Field{
		schema.BlobField("image", schema.MediaImage, true), schema.BlobField("odd name", "", false),
	})
	if err != nil {
		t.Fatal(err)
	}
	blobs := make([]schema.BlobRef, 5)
	for i := range blobs {
		blobs[i] = schema.RefOf(make([]byte, 10*i))
	}
	b := schema.NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	rec := array.NewRecord(arrow.NewSchema(nil, nil), nil, 5)
	ids := make([]schema.ID, 5)
	var image, odd []*schema.BlobRef
	for i := range ids {
		ids[i] = schema.SampleID("test", fmt.Sprint(i))
		image, odd = append(image, &blobs[i]), append(odd, &blobs[4-i])
	}
	image[1] = nil
	if err := b.AppendBatch(ids, rec, [][]*schema.BlobRef{image, odd}); err != nil {
		t.Fatal(err)
	}
	data, c, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	c.BlobRef = schema.RefOf(data)
	snap := &schema.Snapshot{Dataset: "test", Number: 1, Schema: s, Chunks: []schema.Chunk{c}}
	m, err := schema.OpenManifest(snap, []schema.Blob{schema.NewBlob(data, nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for expr, want := range map[string][]int64{
		`image.size >= 20`:                                 {2, 3, 4},
		`not (image.size >= 20)`:                           {0, 1},
		`image.size == nil`:                                {1},
		`(image.size ?? 99) > 30`:                          {1, 4},
		`image.key == $env["odd name.key"]`:                {2},
		fmt.Sprintf(`image.key == "%s"`, blobs[3].Key):     {3},
		`$env["image.size"] + $env["odd name.size"] == 40`: {0, 2, 3, 4},
	} {
		e, err := Compile(t.Context(), expr, s, now)
		if err != nil {
			t.Fatal(err)
		}
		found, err := e.Eval(t.Context(), whole{m}, now)
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for i := range found.Freeze().Len() {
			got = append(got, found.At(i))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got rows %v, want %v", expr, got, want)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	s := testSchema(t)
	for _, test := range []struct{ expr, at, want string }{
		{``, "1:1", "empty"},
		{` `, "1:1", "empty"},
		{`lable == 1`, "1:1", `no column "lable" (did you mean "label"?); there are id, label, width`},
		{`width > 3 and zzz == 1`, "1:15", `no column "zzz"; there are`},
		{"width > 3\n and zzz == 1", "2:6", "no column"},
		{`image != nil`, "1:1",
			`"image" is a blob column, which has no value here but image.size and image.key; there are id, label`},
		{`image.bytes > 3`, "1:7", `no column "image.bytes"`},
		{`image.size > "a"`, "1:12", "mismatched types"},
		{`width > "a"`, "1:7", "mismatched types"},
		{`width`, "1:1", "bool"},
		{`width +`, "1:", "unexpected token EOF"},
		{`width > 3 3`, "1:11", "unexpected token"},
		{`"unclosed`, "1:", "literal not terminated"},
		{`split("a", ",") == 1`, "1:1", `"split"`},
		{`now() > 3`, "1:1", `no function "now"`},
		{`lenn(file_name) > 3`, "1:1", `(did you mean "len"?)`},
		{`let x = 1; x > 0`, "1:", "let has no place"},
		{`true; false`, "1:", "one expression"},
		{`{"a": 1}.a == 1`, "1:", "a map has no place"},
		{`$env == nil`, "1:1", "$env takes the name of a column"},
		{`$env[file_name] == 1`, "1:", "$env takes the name of a column"},
		{`$env["nope"] == 1`, "1:", "no column"},
		{`len(1..1000000000) > 3`, "1:", "a range stands to the right of in"},
		{`all(1..1000000, all(1..1000000, true))`, "1:", "a range stands"},
		{`file_name in 1..3`, "1:", "mismatched types"},
		{`file_name matches raw`, "1:19", "literal string"},
		{`file_name matches "("`, "1:", "missing closing"},
		{`any(tags, any(tags, any(tags, true)))`, "1:", "predicates are nested more than 2 deep"},
		{`ok ? ok : ok ? ok : ok ? ok : ok ? ok : ok ? ok : ok`, "1:", "conditionals are nested more than 4 deep"},
		{`file_name.len() > 3`, "1:", "only functions can be called"},
		{`box.depth > 3`, "1:", "unknown field depth"},
		{strings.Repeat("(", 20000), "1:1", "expression of 20000 bytes, want at most 16384"},
		{`took > duration("soon")`, "1:8", "duration"},
	} {
		_, err := Compile(t.Context(), test.expr, s, now)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, schema.ErrInvalid) {
			t.Errorf("%.60s: %v", test.expr, err)
			continue
		}
		if !strings.Contains(e.Message, test.want) {
			t.Errorf("%.60s: %q, want %q in it", test.expr, e.Message, test.want)
		}
		if at := fmt.Sprintf("%d:%d", e.Line, e.Column); !strings.HasPrefix(at, test.at) {
			t.Errorf("%.60s: error at %s, want %s", test.expr, at, test.at)
		}
	}
	_, err := Compile(t.Context(), "width > 3 and\n zzz == 1", s, now)
	if want := "\n |  zzz == 1\n | .^"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %q, want it to end in %q", err, want)
	}
}

// An error shows the line where it is, and of a long one what is around the place.
func TestErrorsShowThePlace(t *testing.T) {
	s := testSchema(t)
	long := strings.Repeat("ok or ", 100)
	for text, want := range map[string]string{
		"zzz == 1":                        "\n | zzz == 1\n | ^",
		"ok and\n\tzzz == 1\n or ok":      "\n |  zzz == 1\n | .^",
		"ok or file_name == \"ü\" or zzz": "\n | ok or file_name == \"ü\" or zzz\n | " + strings.Repeat(".", 26) + "^",
		long + "zzz or " + long + "ok": "\n | …" + long[len(long)-shownAround:] + ("zzz or " + long)[:shownAround] + "…\n | " +
			strings.Repeat(".", shownAround+1) + "^",
		long + "zzz": "\n | …" + long[len(long)-shownAround:] + "zzz\n | " + strings.Repeat(".", shownAround+1) + "^",
	} {
		_, err := Compile(t.Context(), text, s, now)
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%.40s: got %q, want it to end in %q", text, err, want)
		}
	}
}

// Whatever the text, Compile gives an Error or an expression that evaluates to
// a bitmap or an Error.
func FuzzCompile(f *testing.F) {
	for _, seed := range []string{
		`label < 10 and width >= 400`, `split == "train" and file_name contains "cat"`, `(width ?? 0) in 1..3`,
		`any(boxes, .w > 5)`, `box?.w == nil`, `ok ? width > 3 : tags[0] == "x"`, `$env["odd name"] > 3`,
		`not (file_name matches "a+") or len(tags) > 2`, `sum(vec) / score ** 2 > abs(label) % 3`,
		`took > duration("1h")`, `file_name[0:2] == "a/"`, `tags | filter(# != "x") | len() > 0`,
	} {
		f.Add(seed)
	}
	m := testManifest(f, 2, 4)
	f.Fuzz(func(t *testing.T, text string) {
		e, err := compileWithin(t, text, m.Snapshot().Schema)
		if err == nil {
			_, err = e.Eval(t.Context(), m, now)
		}
		var at *Error
		if err != nil && !errors.As(err, &at) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}
