package schema

import (
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
)

// A name that is not plain is in quotes with escapes, on its own, in a list and in a type.
func TestShown(t *testing.T) {
	for name, want := range map[string]string{
		"image": "image", "image.size": "image.size", "a/b_c-1": "a/b_c-1",
		"": `""`, "a b": `"a b"`, "x (go on at grpc://evil:1)": `"x (go on at grpc://evil:1)"`,
		"a, b": `"a, b"`, `a"b`: `"a\"b"`, "a\nb": `"a\nb"`, "a\x1b[2Jb": `"a\x1b[2Jb"`, "a\u202eb": `"a\u202eb"`,
		"é": `"é"`, strings.Repeat("a", 41): `"` + strings.Repeat("a", 41) + `"`,
	} {
		if got := Shown(name); got != want {
			t.Errorf("%q is shown as %s, want %s", name, got, want)
		}
	}
	if got := ShownList([]string{"a", "b, c", "d"}); got != `a, "b, c", d` {
		t.Errorf("the list is %s", got)
	}
	evil := "x> (go on at grpc://evil:1)\n"
	for want, dt := range map[string]arrow.DataType{
		"int64":                      arrow.PrimitiveTypes.Int64,
		"timestamp[us, tz=UTC]":      arrow.FixedWidthTypes.Timestamp_us,
		"list<item: utf8, nullable>": arrow.ListOf(arrow.BinaryTypes.String),
		"fixed_size_binary[16]":      &arrow.FixedSizeBinaryType{ByteWidth: 16},
		"nothing":                    nil,
	} {
		if got := ShownType(dt); got != want {
			t.Errorf("%v is shown as %s, want %s", dt, got, want)
		}
	}
	for _, dt := range []arrow.DataType{
		arrow.StructOf(arrow.Field{Name: evil, Type: arrow.PrimitiveTypes.Int8}),
		arrow.ListOf(arrow.StructOf(arrow.Field{Name: evil, Type: arrow.PrimitiveTypes.Int8})),
		&arrow.TimestampType{Unit: arrow.Second, TimeZone: evil},
		arrow.StructOf(arrow.Field{Name: "a: int8, b", Type: arrow.PrimitiveTypes.Int8}),
		arrow.StructOf(arrow.Field{Name: strings.Repeat("long", 1000), Type: arrow.PrimitiveTypes.Int8}),
	} {
		if got := ShownType(dt); !strings.HasPrefix(got, `"`) || !strings.HasSuffix(got, `"`) ||
			strings.Contains(got, "\n") || len(got) > 2*longestType {
			t.Errorf("%.60s… is shown as %s", dt, got)
		}
	}
}
