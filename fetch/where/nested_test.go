package where

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// Numbers are exact within lists and structs too, and where their type is known only from
// a row.
func TestNestedNumbersAreExact(t *testing.T) {
	u := arrow.PrimitiveTypes.Uint64
	s, err := schema.NewSchema([]arrow.Field{
		{Name: "list", Type: arrow.ListOf(u), Nullable: true},
		{Name: "box", Type: arrow.StructOf(arrow.Field{Name: "u", Type: u, Nullable: true}), Nullable: true},
		{Name: "boxes", Type: arrow.ListOf(arrow.StructOf(arrow.Field{Name: "u", Type: u, Nullable: true})), Nullable: true},
		{Name: "f", Type: arrow.PrimitiveTypes.Float64},
		{Name: "i", Type: arrow.PrimitiveTypes.Int64},
		{Name: "floats", Type: arrow.ListOf(arrow.PrimitiveTypes.Float64)},
	}, []arrow.Field{schema.BlobField("image", schema.MediaImage, true)})
	if err != nil {
		t.Fatal(err)
	}
	meta := arrow.NewSchema(schema.MetaFields(s), nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, meta, strings.NewReader(`[
{"list":["18446744073709551615",null,"3"],"box":{"u":"18446744073709551614"},"boxes":[{"u":"9223372036854775808"},null],
 "f":9007199254740992,"i":"9007199254740993","floats":[9007199254740992]},
{"list":["9223372036854775807"],"box":{"u":null},"boxes":[],"f":1.5,"i":"1","floats":[]},
{"list":null,"box":null,"boxes":null,"f":0,"i":"0","floats":[0.5]}]`))
	if err != nil {
		t.Fatal(err)
	}
	m := manifestOf(t, s, rec)
	for text, want := range map[string]string{
		`18446744073709551615 in list`:                                  "0",
		`9223372036854775808 in list`:                                   "",
		`len(list) > 0 and list[0] > 9223372036854775807`:               "0",
		`len(list) > 0 and list[0] % 10 == 5`:                           "0",
		`any(list, # == 18446744073709551615)`:                          "0",
		`max(list) == 18446744073709551615`:                             "0",
		`max(list) - 1 == 18446744073709551614`:                         "0",
		`len(list) == 1 and sum(list) == 9223372036854775807`:           "1",
		`list == [18446744073709551615, nil, 3]`:                        "0",
		`box.u == 18446744073709551614`:                                 "0",
		`(box.u ?? 18446744073709551615) > 18446744073709551614`:        "1 2",
		`(box == nil ? 18446744073709551615 : 1) > 9223372036854775807`: "2",
		`any(boxes, .u == 9223372036854775808)`:                         "0",
		`len(map(boxes, .u ?? 0)) == 2`:                                 "0",
		`first(map(boxes, .u)) == 9223372036854775808`:                  "0",
		`i == f`:                                          "2",
		`i in floats`:                                     "",
		`f in [i]`:                                        "2",
		`any([i, f], # > 9007199254740992)`:               "0",
		`max(i, f) == i`:                                  "0 2",
		`min([i, f]) == f`:                                "0 2",
		`i in [9007199254740993.0]`:                       "",
		`i in 9007199254740992.5..1e300`:                  "0",
		`1 < i < 9007199254740992.5`:                      "",
		`1 < i < 9007199254740993.5`:                      "0",
		`-i == -9007199254740993`:                         "0",
		`abs(-i) == 9007199254740993`:                     "0",
		`float(i) == f`:                                   "0 2",
		`int(f) == 9007199254740992`:                      "0",
		`string(list) startsWith "[18446744073709551615"`: "0",
	} {
		e, err := Compile(t.Context(), text, s, now)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		found, err := e.Eval(t.Context(), m, now)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for i := range found.Len() {
			got = append(got, fmt.Sprint(found.At(i)))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: rows %v, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		`list != nil and list[0] - 5 > -1`:            "",
		`any(list ?? [], int(#) > 3)`:                 "beyond what an integer holds",
		`max(list ?? [0]) + i > 0`:                    "beyond what an integer holds",
		`sum(list ?? []) > 0`:                         "beyond what an integer holds",
		`floats != nil and int(f * 1e300) > 0`:        "beyond what an integer holds",
		`list != nil and floats[list[0]] > 1`:         "beyond what an integer holds",
		`any(boxes ?? [], .u * 3 > 1)`:                "beyond what an integer holds",
		`i * 4611686018427387904 > 0`:                 "beyond what an integer holds",
		`i > 1 and (i - 9223372036854775807) * 2 < 0`: "beyond what an integer holds",
	} {
		e, err := Compile(t.Context(), text, s, now)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		_, err = e.Eval(t.Context(), m, now)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q in it", text, err, want)
		}
	}
}
