package flight

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// TestPutColumns uploads the columns that clients have, and checks the schema of the
// dataset.
func TestPutColumns(t *testing.T) {
	type col struct {
		field arrow.Field
		json  string
	}
	hfImage := arrow.StructOf(arrow.Field{Name: "bytes", Type: arrow.BinaryTypes.Binary, Nullable: true},
		arrow.Field{Name: "path", Type: arrow.BinaryTypes.String, Nullable: true})
	marked := schema.BlobField("wav", "audio", true)
	marked.Type = arrow.BinaryTypes.Binary
	hf := arrow.NewMetadata([]string{"huggingface"},
		[]string{`{"info": {"features": {"image": {"_type": "Image"}, "sound": {"_type": "Audio"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "x": [{"dtype": "int8"}]}}}`})
	uuids := `["6ba7b811-9dad-51d1-80b4-00c04fd430c8", "6ba7b811-9dad-51d1-80b4-00c04fd430c9"]`
	for _, tt := range []struct {
		name    string
		options string
		columns []col
		meta    *arrow.Metadata
		want    string // "name kind[:media] type[ classes]" of each column but id
		values  map[string][]string
	}{
		{
			name: "binary columns are blobs",
			columns: []col{{arrow.Field{Name: "a", Type: arrow.BinaryTypes.LargeBinary, Nullable: true},
				`["eA==", null]`}, {arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int32}, `[1, 2]`},
				{arrow.Field{Name: "b", Type: arrow.BinaryTypes.Binary}, `["", "eQ=="]`}},
			want:   "n metadata int32; a blob large_binary; b blob large_binary",
			values: map[string][]string{"a": {"x", "(null)"}, "b": {"", "y"}, "n": {"1", "2"}},
		},
		{
			name:    "blobs named",
			options: `, "blobs": ["a"], "media": {"a": "image"}`,
			columns: []col{{arrow.Field{Name: "a", Type: arrow.BinaryTypes.Binary}, `["eA==", "eQ=="]`},
				{arrow.Field{Name: "thumb", Type: arrow.BinaryTypes.Binary}, `["eA==", "eQ=="]`}},
			want: "thumb metadata binary; a blob:image large_binary",
		},
		{
			name:    "no blobs, it says",
			options: `, "blobs": []`,
			columns: []col{{arrow.Field{Name: "hashes", Type: arrow.ListOf(arrow.BinaryTypes.Binary)},
				`[["eA=="], []]`}},
			want: "hashes metadata list<item: binary, nullable>",
		},
		{
			name: "blobs marked",
			columns: []col{{marked, `["eA==", "eQ=="]`}, {arrow.Field{Name: "raw", Type: arrow.BinaryTypes.Binary},
				`["eA==", "eQ=="]`}},
			want: "raw metadata binary; wav blob:audio large_binary",
		},
		{
			name:    "hugging face",
			options: `, "key": "file_name"`,
			columns: []col{{arrow.Field{Name: "image", Type: hfImage, Nullable: true},
				`[{"bytes": "eA==", "path": "a.jpg"}, {"bytes": null, "path": "b.jpg"}]`},
				{arrow.Field{Name: "sound", Type: hfImage, Nullable: true},
					`[{"bytes": "eA==", "path": "a.wav"}, null]`},
				{arrow.Field{Name: "label", Type: arrow.PrimitiveTypes.Int64}, `[0, 1]`}},
			meta: &hf,
			want: `label metadata int64 ["cat" "dog"]; file_name metadata utf8; image blob:image large_binary; sound blob:audio large_binary`,
			values: map[string][]string{"image": {"x", "(null)"}, "sound": {"x", "(null)"},
				"file_name": {"a.jpg", "b.jpg"},
				"id": {schema.FormatID(schema.SampleID("d", "a.jpg")),
					schema.FormatID(schema.SampleID("d", "b.jpg"))}},
		},
		{
			name: "dictionaries",
			columns: []col{
				{arrow.Field{Name: "kind", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8,
					ValueType: arrow.BinaryTypes.String}, Nullable: true}, `["cat", null]`},
				{arrow.Field{Name: "image", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Uint32,
					ValueType: arrow.BinaryTypes.Binary}}, `["eA==", "eA=="]`},
			},
			want:   "kind metadata utf8; image blob large_binary",
			values: map[string][]string{"kind": {"cat", array.NullValueStr}, "image": {"x", "x"}},
		},
		{
			name:    "classes marked",
			columns: []col{{schema.ClassField("label", []string{"a", "b"}), `[1, 0]`}},
			want:    `label metadata int64 ["a" "b"]`,
		},
		{
			name:    "ids as text",
			columns: []col{{arrow.Field{Name: "id", Type: arrow.BinaryTypes.String}, uuids}},
			values: map[string][]string{"id": {"6ba7b811-9dad-51d1-80b4-00c04fd430c8",
				"6ba7b811-9dad-51d1-80b4-00c04fd430c9"}},
		},
		{
			name:    "ids as bytes",
			columns: []col{{schema.IDField(), `["a6e4EZ2tUdGAtADAT9QwyA==", "a6e4EZ2tUdGAtADAT9QwyQ=="]`}},
			values: map[string][]string{"id": {"6ba7b811-9dad-51d1-80b4-00c04fd430c8",
				"6ba7b811-9dad-51d1-80b4-00c04fd430c9"}},
		},
		{
			name:    "integer key",
			options: `, "key": "n"`,
			columns: []col{{arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Uint16}, `[7, 8]`}},
			want:    "n metadata uint16",
			values: map[string][]string{"id": {schema.FormatID(schema.SampleID("d", "7")),
				schema.FormatID(schema.SampleID("d", "8"))}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := serve(t, Options{})
			fields, cols := make([]arrow.Field, len(tt.columns)), make([]arrow.Array, len(tt.columns))
			for i, c := range tt.columns {
				fields[i] = c.field
				cols[i] = fromJSON(t, c.field.Type, c.json)
			}
			rec := array.NewRecord(arrow.NewSchema(fields, tt.meta), cols, 2)
			if _, err := f.put(command(`{"put": {"dataset": "d"%s}}`, tt.options), rec); err != nil {
				t.Fatal(err)
			}
			results, err := f.act("describe", `{"dataset": "d"}`)
			if err != nil {
				t.Fatal(err)
			}
			var about struct{ Columns []columnInfo }
			mustUnmarshal(t, results[0], &about)
			var got []string
			for _, c := range about.Columns[1:] {
				s := c.Name + " " + c.Kind
				if c.Media != "" {
					s += ":" + c.Media
				}
				s += " " + c.Type
				if c.Classes != nil {
					s += fmt.Sprintf(" %q", c.Classes)
				}
				got = append(got, s)
			}
			if s := strings.Join(got, "; "); s != tt.want {
				t.Errorf("got columns %s\nwant %s", s, tt.want)
			}
			recs, err := f.get(&flight.Ticket{Ticket: []byte(`{"dataset": "d"}`)})
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range tt.values {
				if got := column(t, recs, name); !slices.Equal(got, want) {
					t.Errorf("column %s: got %q, want %q", name, got, want)
				}
			}
		})
	}
}

func fromJSON(t *testing.T, dt arrow.DataType, json string) arrow.Array {
	t.Helper()
	a, _, err := array.FromJSON(memory.DefaultAllocator, dt, strings.NewReader(json))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// oneColumn is a record of one column.
func oneColumn(t *testing.T, f arrow.Field, json string) arrow.Record {
	t.Helper()
	a := fromJSON(t, f.Type, json)
	return array.NewRecord(arrow.NewSchema([]arrow.Field{f}, nil), []arrow.Array{a}, int64(a.Len()))
}
