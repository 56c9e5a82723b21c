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
{"label":1,"width":200,"height":20,"big":18446744073709551615,"score":1.5,"price":"2.50","ok":false,"file_name":"b/dog.png","raw":"eQ==","taken":"2024-06-01 12:00:00Z","day":"2024-06-01","took":3600,"tags":[],"vec":[3,4],"box":{"w":6,"tag":"y"},"boxes":[],"odd name":2,"date":2},
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

func TestEval(t *testing.T) {
	id2 := schema.FormatID(schema.SampleID("test", "2"))
	tests := []struct {
		expr string
		want string // positions
	}{
		{`true`, "0 1 2 3 4 5"},
		{`false`, ""},
		{`label == 1`, "1 2"},
		{`label < 2 and width >= 200`, "1 2 5"},
		{`label < 2 && width >= 200`, "1 2 5"},
		{`height > 30`, "3 4 5"},
		{`height in 20..40`, "1 2 3"},
		{`width in 200..width`, "1 2 4 5"},
		{`score in 0..2`, "0 1"},
		{`len(file_name) in 9..10`, "1 2 0"},
		{`label in [0, 5]`, "0 4"},
		{`label not in [0, 5]`, "1 2 3 5"},
		{`not (label in [0, 5])`, "1 2 3 5"},
		{`big == 3 or big == 9223372036854775807`, "1 2"},
		{`score > 1`, "1 2 5"},
		{`score > 1.25 and score < 3`, "1 2"},
		{`price < 0`, "2"},
		{`price == 1.25`, "0"},
		{`abs(label) >= 2`, "4 5"},
		{`width / 2 > 100`, "2 4 5"},
		{`width % 200 == 0`, "1 5"},
		{`-label > 1`, "5"},
		{`2 ** label == 2`, "1 2"},
		{`max(width, 250) == 250`, "0 1"},
		{`ok`, "0 2 5"},
		{`not ok`, "1 3 4"},
		{`!ok`, "1 3 4"},
		{`ok == false`, "1 4"},
		{`ok != true`, "1 4"},
		{`(ok ? width : height) > 250`, "2 5"},
		{`ok ? width > 250 : height > 30`, "2 3 4 5"},
		{`split == "train"`, "0 1 2"},
		{`split == "val"`, "3 4"},
		{`split == ""`, "5"},
		{`split == "train" and file_name contains "cat"`, "0 2"},
		{`file_name contains "cat"`, "0 2"},
		{`file_name not contains "cat"`, "1 3 4 5"},
		{`file_name startsWith "a/"`, "0"},
		{`file_name endsWith ".jpg"`, "0 2"},
		{`lower(file_name) endsWith ".jpg"`, "0 2 5"},
		{`file_name matches "cat[0-9]"`, "0 2"},
		{`file_name matches "(?i)\\.JPG$"`, "0 2 5"},
		{`file_name == ""`, "4"},
		{`len(file_name) > 9`, "0 2 5"},
		{`file_name | lower() | hasSuffix(".jpg")`, "0 2 5"},
		{`raw == "x"`, "0 5"},
		{`id == "` + id2 + `"`, "2"},
		{`id in ["` + id2 + `", "nope"]`, "2"},
		{`position >= 4`, "4 5"},
		{`position % 2 == 0`, "0 2 4"},
		{`took > duration("30m")`, "1 2"},
		{`any(tags, # == "red")`, "0 5"},
		{`"blue" in tags`, "0 2"},
		{`len(tags) == 0`, "1"},
		{`len(tags) == 1`, "2 4"},
		{`all(tags, # == "red")`, "1 5"},
		{`count(tags, # == "red") > 1`, "5"},
		{`tags != nil and len(tags) > 0 and tags[0] startsWith "r"`, "0 5"},
		{`sum(vec) > 10`, "2 5"},
		{`len(vec) < 2`, "4"},
		{`box.w > 5`, "1 2"},
		{`box.w + 1 > 6 or box.tag == ""`, "1 2 5"},
		{`box == nil`, "3"},
		{`box.w == nil`, "3 4"},
		{`box.w != nil`, "0 1 2 5"},
		{`box?.w > 5`, "1 2"},
		{`not (box.w > 5)`, "0 3 4 5"},
		{`any(boxes, #.w > 5)`, "2 5"},
		{`any(boxes, .w > 5 and .tag != "r")`, "5"},
		{`any(boxes, .w == nil)`, "4"},
		{`count(boxes, #.w > width) > 0`, ""},
		{`any(boxes, any(tags, # == "blue"))`, "0 2"},
		{`width == nil`, "3"},
		{`nil == width`, "3"},
		{`width != nil`, "0 1 2 4 5"},
		{`not (width == nil)`, "0 1 2 4 5"},
		{`height == nil`, ""},
		{`width > 400 or width == nil`, "3 4 5"},
		{`not (width > 400)`, "0 1 2 3"},
		{`(width ?? 0) == 0`, "3"},
		{`(width ?? height) < 150`, "0 3"},
		{`(width ?? label ?? 7) == 7`, "3"},
		{`(width ?? box.w ?? 7) == 7`, "3"},
		{`(width == nil ? 1 : width) < 150`, "0 3"},
		{`(box.w ?? 7) == 7`, "2 3 4"},
		{`(box.w ?? label) == nil`, "3"},
		{`(box?.w ?? label) != nil and box.tag == nil`, "4"},
		{`(box.w ?? width) > 300`, "4"},
		{`(box.w == nil) == (ok == nil)`, "0 1 2 3 5"},
		{`any(boxes, (.w ?? 9) == 9)`, "2 4"},
		{`any(boxes, .tag == nil and .w == nil)`, "4"},
		{`(width + 1) != nil`, "0 1 2 4 5"},
		{`width == label`, ""},
		{`width != label`, "0 1 2 4 5"},
		{`file_name == nil or file_name == ""`, "3 4"},
		{`any([width, height], # == 40)`, ""},
		{`40 in [height]`, "3"},
		{`$env["odd name"] == 3`, "2"},
		{`$env["odd name"] in 2..3`, "1 2"},
		{`date == 2`, "1"},
	}
	for _, chunks := range [][]int64{{6}, {3, 3}, {1, 2, 3}, {1, 1, 1, 1, 1, 1}} {
		m := testManifest(t, chunks...)
		for _, test := range tests {
			e, err := Compile(test.expr, m.Snapshot().Schema)
			if err != nil {
				t.Errorf("%s: %v", test.expr, err)
				continue
			}
			got, err := e.Eval(t.Context(), m, now)
			if err != nil {
				t.Errorf("%s: %v", test.expr, err)
				continue
			}
			want := map[string]bool{}
			for w := range strings.FieldsSeq(test.want) {
				want[w] = true
			}
			var list []string
			for i := range got.Len() {
				p := fmt.Sprint(got.At(i))
				list = append(list, p)
				delete(want, p)
			}
			if len(want) > 0 || len(list) != len(strings.Fields(test.want)) {
				t.Errorf("%s: got %v, want %s (chunks %v)", test.expr, list, test.want, chunks)
			}
		}
	}
}

// Times need the function date, which the column of that name hides above.
func TestEvalTimes(t *testing.T) {
	m := testManifest(t, 6)
	fields := m.Snapshot().Schema.Fields()
	var kept []arrow.Field
	for _, f := range fields {
		if f.Name != "date" {
			kept = append(kept, f)
		}
	}
	s := arrow.NewSchema(kept, nil)
	for text, want := range map[string]int64{
		`taken > date("2024-06-01")`:                                      3,
		`taken == date("2024-01-01")`:                                     1,
		`taken >= date("2024-06-01T12:00:00Z")`:                           3,
		`day < date("2024-01-01")`:                                        1,
		`day in [date("2024-01-01"), date("2025-01-01")]`:                 2,
		`taken - date("2024-01-01") < duration("24h")`:                    2,
		`taken + took > date("2025-01-01") and day == date("2025-01-01")`: 1,
		`taken.Year() == 2024`:                                            -1,
	} {
		e, err := Compile(text, s)
		if want < 0 {
			if !errors.Is(err, schema.ErrInvalid) {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := e.Eval(t.Context(), m, now)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got.Len() != want {
			t.Errorf("%s: %d rows, want %d", text, got.Len(), want)
		}
	}
	if _, err := Compile(`taken > date("yesterday")`, s); !errors.Is(err, schema.ErrInvalid) {
		t.Error(err)
	}
}

func TestColumns(t *testing.T) {
	e, err := Compile(`width > 3 and ($env["odd name"] == 1 or split == "x") and any(boxes, .w > width)`, testSchema(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(e.columns); got != "[boxes odd name split width]" {
		t.Error(got)
	}
}

// Of a blob column its size and key are there to be asked for, without reading it.
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
		e, err := Compile(expr, s)
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
		{`(ok ? 1 : 2) in 1..3`, "1:", "conditional"},
		{`file_name matches raw`, "1:19", "literal string"},
		{`file_name matches "("`, "1:", "missing closing"},
		{`any(tags, any(tags, any(tags, true)))`, "1:", "predicates are nested more than 2 deep"},
		{`ok ? ok : ok ? ok : ok ? ok : ok ? ok : ok ? ok : ok`, "1:", "conditionals are nested more than 4 deep"},
		{`file_name.len() > 3`, "1:", "only functions can be called"},
		{`box.depth > 3`, "1:", "unknown field depth"},
		{strings.Repeat("(", 20000), "1:1", "expression of 20000 bytes, want at most 16384"},
		{strings.Repeat("1+", 8000) + "1 > 0", "1:", "maximum allowed nodes"},
		{`took > duration("soon")`, "1:8", "duration"},
	} {
		_, err := Compile(test.expr, s)
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
	_, err := Compile("width > 3 and\n zzz == 1", s)
	if want := "\n |  zzz == 1\n | .^"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %q, want it to end in %q", err, want)
	}
}

func TestEvalErrors(t *testing.T) {
	m := testManifest(t, 3, 3)
	for text, want := range map[string]string{
		`tags[0] == "x"`:              "position 1: ",
		`height % (height - 50) == 0`: "position 4: ",
		`len(map(tags, map(tags, #))) > 3 or 1 % (position - 2) == 7`: "position 2: ",
	} {
		e, err := Compile(text, m.Snapshot().Schema)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		_, err = e.Eval(t.Context(), m, now)
		var at *Error
		if !errors.As(err, &at) || !strings.HasPrefix(at.Message, want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	e, err := Compile("width > 3", m.Snapshot().Schema)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Eval(ctx, m, now); !errors.Is(err, context.Canceled) {
		t.Error(err)
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
		e, err := Compile(text, m.Snapshot().Schema)
		if err == nil {
			_, err = e.Eval(t.Context(), m, now)
		}
		var at *Error
		if err != nil && !errors.As(err, &at) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

func BenchmarkEval(b *testing.B) {
	s, err := schema.NewSchema([]arrow.Field{
		schema.ClassField("label", []string{"a", "b"}),
		{Name: "width", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "file_name", Type: arrow.BinaryTypes.String, Nullable: true},
	}, []arrow.Field{schema.BlobField("image", schema.MediaImage, true)})
	if err != nil {
		b.Fatal(err)
	}
	for _, withNulls := range []bool{false, true} {
		var recs []arrow.Record
		rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(s), nil))
		for at := 0; at < 1_000_000; {
			for range min(schema.ChunkRows, 1_000_000-at) {
				rb.Field(0).(*array.Int64Builder).Append(int64(at % 1000))
				if withNulls && at%10 == 0 {
					rb.Field(1).AppendNull()
				} else {
					rb.Field(1).(*array.Int32Builder).Append(int32(at % 5000))
				}
				rb.Field(2).(*array.StringBuilder).Append(fmt.Sprintf("n%08d/cat_%08d.jpg", at%1000, at))
				at++
			}
			recs = append(recs, rb.NewRecord())
		}
		m := manifestOf(b, s, recs...)
		for _, text := range []string{
			`label < 10`,
			`label < 10 and width >= 400`,
			`width >= 400 and label < 10`,
			`split == "train" and file_name contains "cat"`,
		} {
			b.Run(fmt.Sprintf("nulls=%t/%s", withNulls, text), func(b *testing.B) {
				e, err := Compile(text, s)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := e.Eval(b.Context(), m, now); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// now runs every piece at once.
func now(_ context.Context, piece func() error) error { return piece() }
