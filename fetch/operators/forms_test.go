package operators

import (
	"encoding/json"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/operators/audio"
	"bowstring/fetch/operators/program"
	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestForms holds that tensors of every type are tensors in schemas, too.
func TestForms(t *testing.T) {
	for dtype := program.Uint8; dtype <= program.Int16; dtype++ {
		f := formOf(program.Form{Kind: program.Audio, Type: dtype, Dims: []int{1, program.Unknown}, Axes: "CT"}, "c")
		if err := f.Check(); err != nil || f.Encoded() {
			t.Errorf("type %d: %+v, %v", dtype, f, err)
		}
	}
}

// TestWholeSamples holds it of a request for samples that are whole numbers.
func TestWholeSamples(t *testing.T) {
	s, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("audio", "audio", true)})
	if err != nil {
		t.Fatal(err)
	}
	kinds := Kinds{"audio": {Contract: audio.Contract, Operators: audio.Names(), Compile: audio.Compile}}
	set, err := CompileSet(kinds, s, nil,
		schema.Operators{"audio": {Steps: []schema.Step{{Name: "Decode"}, {Name: "Mono"},
			{Name: "RandomCrop", Params: json.RawMessage(`{"length": 100}`)},
			{Name: "ToDtype", Params: json.RawMessage(`{"dtype": "int16"}`)}}}})
	if err != nil {
		t.Fatal(err)
	}
	if f := set.Column("audio").Form; f.Encoded() || f.DType != "int16" || f.CellBytes() != 200 {
		t.Errorf("the form is %+v", f)
	}
}
