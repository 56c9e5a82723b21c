package operators_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/operators"
	"bowstring/fetch/operators/program"
	"bowstring/internal/operatorstest"
	"bowstring/schema"
)

// A contract that cannot be known just now is asked for again by the next request. Nothing is promised, or named for
// the cache, before it is known.
func TestContractIsAskedAgain(t *testing.T) {
	s, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("audio", "audio", true),
		schema.BlobField("image", "image", true)})
	if err != nil {
		t.Fatal(err)
	}
	known := ""
	kinds := operatorstest.Kinds()
	kind := kinds["audio"]
	kind.Contract = func() (string, error) {
		if known == "" {
			return "", fmt.Errorf("%w: no answer", program.ErrUnavailable)
		}
		return known, nil
	}
	kinds["audio"] = kind
	list := func(column, contract string) schema.Operators {
		return schema.Operators{column: {Contract: contract, Steps: []schema.Step{{Name: "Decode",
			Params: json.RawMessage("{}")}}}}
	}
	for _, contract := range []string{"", "test/2"} {
		if set, err := operators.CompileSet(kinds, s, nil, list("audio", contract)); set != nil ||
			!errors.Is(err, schema.ErrUnavailable) || errors.Is(err, schema.ErrInvalid) {
			t.Errorf("contract %q, before it is known: %v", contract, err)
		}
	}
	if _, err := operators.CompileSet(kinds, s, nil, list("image", "")); err != nil {
		t.Errorf("of another kind: %v", err)
	}
	known = "test/2"
	for _, contract := range []string{"", "test/2"} {
		set, err := operators.CompileSet(kinds, s, nil, list("audio", contract))
		if err != nil || set.Canonical()["audio"].Contract != "test/2" || set.Column("audio").Form.Contract != "test/2" {
			t.Errorf("contract %q, when it is known: %v", contract, err)
		}
	}
	if _, err := operators.CompileSet(kinds, s, nil, list("audio", "test/1")); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("another contract: %v", err)
	}
}
