package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// TestMistakes checks the errors for wrong lists.
func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		steps string
		step  int
		param string
		says  string
	}{
		{`[]`, 0, "", "at least one"},
		{`[{"name":"Resize","params":{"size":4}}]`, 0, "", "begin with Decode"},
		{`[{"name":"Decode"},{"name":"Decode"}]`, 1, "", "decoded already"},
		{`[{"name":"Decode"},{"name":"Sharpen"}]`, 1, "", "RandomResizedCrop"},
		{`[{"name":"Decode","params":{"mode":"BGR"}}]`, 0, "mode", `"RGB", "L", "UNCHANGED"`},
		{`[{"name":"Decode","params":{"mode":"L","icc_profile":"srgb"}}]`, 0, "icc_profile", `takes mode "RGB"`},
		{`[{"name":"Decode","params":{"mode":"I;16"}},{"name":"Resize","params":{"size":9}}]`, 1, "", "gives uint16"},
		{`[{"name":"Decode","params":{"mode":"RGB;16"}},{"name":"ColorJitter"}]`, 1, "", "gives uint16"},
		{`[{"name":"Decode","params":{"mode":"RGB;16"}},{"name":"RandomErasing"}]`, 1, "", "gives uint16"},
		{`[{"name":"Decode","params":{"mode":"RGB;16"}},{"name":"EncodeJPEG"}]`, 1, "", "gives uint16"},
		{`[{"name":"Decode","params":{"mode":"RGB;16"}},{"name":"Pad","params":{"padding":1,"fill":3}}]`, 1, "",
			"gives uint16"},
		{`[{"name":"Decode","params":{"mode":"RGB;16"}},{"name":"ToDtype","params":{"dtype":"float32"}}]`, 1, "dtype",
			`takes "uint16"`},
		{`[{"name":"Decode"},{"name":"ToDtype","params":{"dtype":"uint16"}}]`, 1, "dtype",
			`takes "uint8", "float16", "float32"`},
		{`[{"name":"Decode","params":{"modus":1}}]`, 0, "modus", "takes mode, apply_exif_orientation"},
		{`[{"name":"Decode","params":[1]}]`, 0, "", "JSON object"},
		{`[{"name":"Decode"},{"name":"Resize"}]`, 1, "size", "has to be given"},
		{`[{"name":"Decode"},{"name":"Resize","params":{"size":0}}]`, 1, "size", "got 0"},
		{`[{"name":"Decode"},{"name":"Resize","params":{"size":4.5}}]`, 1, "size", "got 4.5"},
		{`[{"name":"Decode"},{"name":"Resize","params":{"size":1e9}}]`, 1, "size", "got 1e+09"},
		{`[{"name":"Decode"},{"name":"Resize","params":{"size":[1,2,3]}}]`, 1, "size", "[1,2,3]"},
		{`[{"name":"Decode"},{"name":"Resize","params":{"size":9,"max_size":9}}]`, 1, "max_size", "more than size"},
		{`[{"name":"Decode"},{"name":"Resize","params":{"size":9,"antialias":false}}]`, 1, "antialias", "takes true"},
		{`[{"name":"Decode"},{"name":"RandomResizedCrop","params":{"size":9,"scale":[2,1]}}]`, 1, "scale",
			"low <= high"},
		{`[{"name":"Decode"},{"name":"RandomHorizontalFlip","params":{"p":1.5}}]`, 1, "p", "from 0 to 1"},
		{`[{"name":"Decode"},{"name":"Normalize","params":{"mean":[0],"std":[1]}}]`, 1, "", "put ToDtype before"},
		{`[{"name":"Decode"},{"name":"ToDtype","params":{"dtype":"int8"}}]`, 1, "dtype", `"float16"`},
		{`[{"name":"Decode"},{"name":"ToDtype","params":{"dtype":"float32"}},{"name":"Resize","params":{"size":4}}]`, 2,
			"", "before ToDtype"},
		{`[{"name":"Decode"},{"name":"ToDtype","params":{"dtype":"float32"}},{"name":"Normalize","params":{"mean":[0,1],"std":[1]}}]`, 2, "mean", "has 2 numbers"},
		{`[{"name":"Decode"},{"name":"ToDtype","params":{"dtype":"float32"}},{"name":"Normalize","params":{"mean":[0],"std":[0]}}]`, 2, "std", "divided"},
		{`[{"name":"Decode"},{"name":"ToDtype","params":{"dtype":"float32"}},` +
			`{"name":"Normalize","params":{"mean":[0.5,null,0.5],"std":[1]}}]`, 2, "mean", "got [0.5,null,0.5]"},
		{`[{"name":"Decode"},{"name":"Pad","params":{"padding":[null,1]}}]`, 1, "padding", "got [null,1]"},
		{`[{"name":"Decode","params":{"mode":"UNCHANGED"}},{"name":"ColorJitter"}]`, 1, "", "Decode can make RGB"},
		{`[{"name":"Decode"},{"name":"ColorJitter","params":{"hue":0.6}}]`, 1, "hue", "0.5"},
		{`[{"name":"Decode"},{"name":"GaussianBlur","params":{"kernel_size":4}}]`, 1, "kernel_size", "odd"},
		{`[{"name":"Decode"},{"name":"Pad","params":{"padding":-1}}]`, 1, "padding", "-1"},
		{`[{"name":"Decode"},{"name":"RandAugment","params":{"magnitude":31}}]`, 1, "magnitude", "less than"},
		{`[{"name":"Decode"},{"name":"EncodeJPEG"},{"name":"ToImage"}]`, 2, "", "has to be the last"},
		{`[{"name":"Decode"},{"name":"RandomErasing","params":{"value":"random"}}]`, 1, "value", "not done here"},
	} {
		_, err := Compile(steps(t, c.steps))
		var wrong *program.StepError
		if !errors.As(err, &wrong) {
			t.Errorf("%s: %v", c.steps, err)
			continue
		}
		if wrong.Step != c.step || wrong.Param != c.param || !strings.Contains(wrong.Error(), c.says) {
			t.Errorf("%s: %+v, want step %d, %q, %q", c.steps, wrong, c.step, c.param, c.says)
		}
	}
}

const everything = `[{"name":"Decode"},{"name":"RandomRotation","params":{"degrees":20}},
	{"name":"RandomResizedCrop","params":{"size":40}},{"name":"Pad","params":{"padding":[1,2]}},
	{"name":"RandomCrop","params":{"size":36,"padding":2,"padding_mode":"reflect"}},{"name":"RandomHorizontalFlip"},
	{"name":"ColorJitter","params":{"brightness":0.4,"contrast":0.4,"saturation":0.4,"hue":0.1}},
	{"name":"RandAugment"},{"name":"GaussianBlur","params":{"kernel_size":3}},{"name":"CenterCrop","params":{"size":32}},
	{"name":"ToImage"},{"name":"ToDtype","params":{"dtype":"float32","scale":true}},
	{"name":"Normalize","params":{"mean":[0.5,0.4,0.3],"std":[0.2,0.3,0.4]}},{"name":"RandomErasing","params":{"p":1}}]`

// TestCanonical checks that canonical steps are a fixed point, and make the same bytes.
func TestCanonical(t *testing.T) {
	p := compiledOf(t, everything)
	again, err := Compile(p.Steps())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(p.Steps(), again.Steps()) {
		t.Errorf("%s, again %s", p.Steps(), again.Steps())
	}
	for _, s := range p.Steps() {
		if !json.Valid(s.Params) {
			t.Errorf("%s: %s is no JSON", s.Name, s.Params)
		}
	}
	if want := (program.Form{Kind: program.Image, Type: program.Float32, Axes: "CHW",
		Dims: []int{3, 32, 32}}); !reflect.DeepEqual(p.Result(), want) {
		t.Errorf("the result is %+v", p.Result())
	}
	if p.Deterministic() != 1 {
		t.Errorf("%d steps draw nothing", p.Deterministic())
	}
	cell := file(t, "420-67x51.jpg")
	by := program.Draws{Key: draw.Key{Seed: 5, Position: 77}, Column: "image"}
	a, outcome, err := result(p, cell, by)
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := result(again, cell, by)
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("other bytes by the canonical steps: %v", err)
	}
	if len(outcome.Drawn) != 8 {
		t.Errorf("%d steps drew: %+v", len(outcome.Drawn), outcome.Drawn)
	}
	by.Key.Position++
	if c, _, _ := result(p, cell, by); bytes.Equal(a, c) {
		t.Error("another position gives the same bytes")
	}
}

func file(t testing.TB, name string) []byte {
	t.Helper()
	cell, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return cell
}

// TestMask checks that a mask gets the geometry of its image, and no class that it did not
// have.
func TestMask(t *testing.T) {
	list := steps(t, everything)
	image, err := Compile(list)
	if err != nil {
		t.Fatal(err)
	}
	mask, err := CompileMask(list)
	if err != nil {
		t.Fatal(err)
	}
	if image.Deterministic() != mask.Deterministic() {
		t.Errorf("%d and %d steps draw nothing", image.Deterministic(), mask.Deterministic())
	}
	cell := file(t, "palette.png")
	by := program.Draws{Key: draw.Key{Seed: 2}, Column: "image"}
	whole, _, err := result(must(CompileMask(list[:1])), cell, by)
	if err != nil {
		t.Fatal(err)
	}
	classes := map[byte]bool{0: true}
	for _, v := range whole {
		classes[v] = true
	}
	pixels := steps(t, everything)[:11] // until ToImage: a mask as bytes
	for position := range uint64(20) {
		by.Key.Position = position
		a, first, err := result(must(Compile(pixels)), cell, by)
		if err != nil {
			t.Fatal(err)
		}
		b, second, err := result(must(CompileMask(pixels)), cell, by)
		if err != nil {
			t.Fatal(err)
		}
		if len(a) != 3*len(b) {
			t.Fatalf("%v and %v", first.Dims, second.Dims)
		}
		for _, v := range b {
			if !classes[v] {
				t.Fatalf("class %d is new", v)
			}
		}
		for i := range first.Drawn[:2] {
			if !reflect.DeepEqual(first.Drawn[i], second.Drawn[i]) {
				t.Errorf("the image drew %+v, its mask %+v", first.Drawn[i], second.Drawn[i])
			}
		}
	}
}

func must(p program.Program, err error) program.Program {
	if err != nil {
		panic(err)
	}
	return p
}
