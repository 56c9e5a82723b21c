package images

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"bowstring/fetch/operators/program"
)

// TestDocs checks that docs/operators.md has every operator with its parameters and their
// defaults.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operators.md")
	if err != nil {
		t.Fatal(err)
	}
	needed := map[string]string{"CenterCrop": `{"size":1}`, "RandomCrop": `{"size":1}`,
		"RandomResizedCrop": `{"size":1}`, "Resize": `{"size":1}`,
		"Pad": `{"padding":1}`, "RandomRotation": `{"degrees":1}`, "GaussianBlur": `{"kernel_size":1}`,
		"ToDtype":   `{"dtype":"uint8"}`,
		"Normalize": `{"mean":[0,0,0],"std":[1,1,1]}`}
	for _, name := range Names() {
		list := []program.Step{{Name: "Decode"}}
		if name == "Normalize" {
			list = append(list, program.Step{Name: "ToDtype",
				Params: json.RawMessage(`{"dtype":"float32","scale":true}`)})
		}
		if name != "Decode" {
			list = append(list, program.Step{Name: name, Params: json.RawMessage(needed[name])})
		}
		p, err := Compile(list)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		steps := p.Steps()
		if row := rowOf(t, name, steps[len(steps)-1].Params, needed[name]); !strings.Contains(string(page), row) {
			t.Errorf("docs/operators.md has no line that begins with\n%s", row)
		}
	}
}

// rowOf returns the beginning of an operator's line in the table. Required parameters have
// no default.
func rowOf(t *testing.T, name string, canonical json.RawMessage, needed string) string {
	t.Helper()
	var values map[string]json.RawMessage
	if err := json.Unmarshal(canonical, &values); err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, k := range slices.Sorted(maps.Keys(values)) {
		v := values[k]
		if strings.Contains(needed, fmt.Sprintf("%q:", k)) {
			words = append(words, fmt.Sprintf("`%s`", k))
		} else {
			words = append(words, fmt.Sprintf("`%s` %s", k, strings.ReplaceAll(string(v), ",", ", ")))
		}
	}
	return fmt.Sprintf("| `%s` | %s |", name, strings.Join(words, "; "))
}
