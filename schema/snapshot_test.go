package schema

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/google/uuid"
)

func TestSnapshotJSON(t *testing.T) {
	s, err := NewSchema([]arrow.Field{ClassField("label", []string{"cat", "dog"})},
		[]arrow.Field{BlobField("image", MediaImage, true)})
	if err != nil {
		t.Fatal(err)
	}
	snap := Snapshot{
		Dataset: "pets", Number: 3, Parent: 2, Created: time.Date(2024, 2, 3, 4, 5, 6, 789000, time.UTC),
		Source: "imagefolder pets",
		Schema: s, Splits: []Split{{"train", []Range{{0, 8}, {10, 12}}}, {"val", []Range{{8, 10}}}},
		Chunks: []Chunk{{BlobRef: RefOf([]byte("chunk")), Rows: 12, BlobBytes: []int64{345}}},
	}
	text, err := json.MarshalIndent(snap, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "snapshot.json", append(text, '\n'))
	var again Snapshot
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if !again.Schema.Equal(s) {
		t.Error(again.Schema)
	}
	again.Schema = s
	if !reflect.DeepEqual(again, snap) {
		t.Errorf("%+v", again)
	}
	for _, broken := range []string{
		`{}`, `{"schema":"AAAA"}`, `{"schema":3}`, `[]`, `{"dataset":3}`,
		strings.Replace(string(text), `"schema": "/////`, `"schema": "/////w`, 1),
		strings.Replace(string(text), "AAA", "B", 1),
	} {
		if err := json.Unmarshal([]byte(broken), &again); !errors.Is(err, ErrDataLoss) {
			t.Errorf("%.40s: %v", broken, err)
		}
	}
	if _, err := json.Marshal(Snapshot{}); err == nil {
		t.Error("a snapshot without a schema was marshalled")
	}
}

func TestCheckSchema(t *testing.T) {
	str := func(name string) arrow.Field { return arrow.Field{Name: name, Type: arrow.BinaryTypes.String} }
	of := func(dt arrow.DataType) arrow.Field { return arrow.Field{Name: "x", Type: dt} }
	deep := arrow.ListOf(arrow.PrimitiveTypes.Int8)
	for range 20 {
		deep = arrow.ListOf(deep)
	}
	bad := ClassField("label", nil)
	bad.Type = arrow.BinaryTypes.String
	blob := BlobField("b", "", true)
	blob.Type = arrow.BinaryTypes.Binary
	for name, s := range map[string]*arrow.Schema{
		"nil":              nil,
		"empty":            arrow.NewSchema(nil, nil),
		"no id":            arrow.NewSchema([]arrow.Field{str("a")}, nil),
		"id as text":       arrow.NewSchema([]arrow.Field{str("id")}, nil),
		"id twice":         arrow.NewSchema([]arrow.Field{IDField(), IDField()}, nil),
		"same name":        arrow.NewSchema([]arrow.Field{IDField(), str("a"), str("a")}, nil),
		"no name":          arrow.NewSchema([]arrow.Field{IDField(), str("")}, nil),
		"long name":        arrow.NewSchema([]arrow.Field{IDField(), str(strings.Repeat("a", 129))}, nil),
		"broken name":      arrow.NewSchema([]arrow.Field{IDField(), str("\xff")}, nil),
		"reserved name":    arrow.NewSchema([]arrow.Field{IDField(), str("split")}, nil),
		"blob before meta": arrow.NewSchema([]arrow.Field{IDField(), BlobField("b", "", true), str("a")}, nil),
		"blob of binary":   arrow.NewSchema([]arrow.Field{IDField(), blob}, nil),
		"media":            arrow.NewSchema([]arrow.Field{IDField(), BlobField("b", "smell", true)}, nil),
		"dictionary": arrow.NewSchema([]arrow.Field{IDField(),
			of(&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String})}, nil),
		"null": arrow.NewSchema([]arrow.Field{IDField(), of(arrow.Null)}, nil),
		"map in a list": arrow.NewSchema([]arrow.Field{IDField(),
			of(arrow.ListOf(arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.String)))}, nil),
		"struct of nothing": arrow.NewSchema([]arrow.Field{IDField(), of(arrow.StructOf())}, nil),
		"deep":              arrow.NewSchema([]arrow.Field{IDField(), of(deep)}, nil),
		"classes of text":   arrow.NewSchema([]arrow.Field{IDField(), bad}, nil),
		"width of 0":        arrow.NewSchema([]arrow.Field{IDField(), of(&arrow.FixedSizeBinaryType{})}, nil),
	} {
		if err := CheckSchema(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := everySchema(t)
	if got := Classes(s.Field(len(MetaFields(s)) - 1)); !reflect.DeepEqual(got, []string{"cat", "dog"}) {
		t.Error(got)
	}
	if Media(BlobFields(s)[1]) != MediaAudio || IsBlob(s.Field(0)) || Classes(s.Field(0)) != nil {
		t.Error("field metadata")
	}
}

func TestNearest(t *testing.T) {
	names := []string{"seed", "epoch", "batch", "batch_bytes"}
	for name, want := range map[string]string{"sed": "seed", "Seed": "seed", "esed": "seed", "bach": "batch",
		"batch_byte": "batch_bytes", "zzz": "", "": "", strings.Repeat("x", 1000): ""} {
		if got := Nearest(name, names); got != want {
			t.Errorf("%.10q: %q, want %q", name, got, want)
		}
	}
}

func TestSampleID(t *testing.T) {
	// Ids are kept outside: this one must never change.
	if got := FormatID(SampleID("imagenet", "n01440764/n01440764_10026.JPEG")); got != goldenID {
		t.Errorf("got %s, want %s", got, goldenID)
	}
	if SampleID("a", "b") == SampleID("ab", "") {
		t.Error("the dataset and the key run into each other")
	}
	id := SampleID("a", "b")
	if v := uuid.UUID(id); v.Version() != 5 || v.Variant() != uuid.RFC4122 {
		t.Error(v.Version(), v.Variant())
	}
	for _, s := range []string{FormatID(id), strings.ReplaceAll(FormatID(id), "-", ""), strings.ToUpper(FormatID(id))} {
		if got, err := ParseID(s); err != nil || got != id {
			t.Error(s, got, err)
		}
	}
	for _, s := range []string{"", "x", "{" + FormatID(id) + "}", "urn:uuid:" + FormatID(id), strings.Repeat("g", 32)} {
		if _, err := ParseID(s); !errors.Is(err, ErrInvalid) {
			t.Error(s, err)
		}
	}
	var text [36]byte
	if putID(text[:], id); string(text[:]) != FormatID(id) {
		t.Error(string(text[:]))
	}
}

const goldenID = "0fdd0fda-c9f6-574a-aaa7-6b6da4012b55"
