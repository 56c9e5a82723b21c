package where

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// A literal that no column of integers holds can be compared, and no more.
func TestWideLiterals(t *testing.T) {
	s := testSchema(t)
	for text, want := range map[string]string{
		"big + 18446744073709551616 > 0":      "is beyond what an integer holds",
		"len([18446744073709551616]) == 1":    "is beyond what an integer holds",
		"-9223372036854775809 + 1 < big":      "is beyond what an integer holds",
		"18446744073709551615(3) > 1":         "only functions can be called",
		"big > 3 18446744073709551615":        `Identifier("18446744073709551615")`,
		"big > 18446744073709551615 xyz":      "unexpected token",
		"file_name == 18446744073709551615":   "mismatched types",
		"big > 99999999999999999999999999x":   "bad number syntax",
		"big == 18446744073709551615 and zz":  `no column "zz"`,
		"[18446744073709551615, 1] in ['a']":  "",
		"big < 0b" + strings.Repeat("1", 65):  "",
		"big <= 1_8446744073_709551615":       "",
		"big != -9223372036854775808":         "",
		"label > -9223372036854775809":        "",
		"score < " + strings.Repeat("9", 400): "",
	} {
		_, err := Compile(t.Context(), text, s, now)
		if want == "" && err != nil && !strings.Contains(err.Error(), "cannot use") {
			t.Errorf("%s: %v", text, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q in it", text, err, want)
		}
	}
}

// A decimal is the float that is written as it is.
func TestDecimalsAreTheNearestFloats(t *testing.T) {
	dt := &arrow.Decimal128Type{Precision: 38, Scale: 2}
	s, err := schema.NewSchema([]arrow.Field{{Name: "price", Type: dt}},
		[]arrow.Field{schema.BlobField("image", schema.MediaImage, true)})
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(s), nil))
	defer b.Release()
	texts := []string{"0.35", "0.41", "0.57", "-8.21", "1234567.89", "123456789012345678901234567890.12", "0.00"}
	for _, text := range texts {
		if err := b.Field(0).AppendValueFromString(text); err != nil {
			t.Fatal(err)
		}
	}
	p := pagedOf(t, rand.New(rand.NewPCG(1, 1)), s, b.NewRecord())
	for row, text := range texts {
		e, err := Compile(t.Context(), "price == "+text, s, now)
		if err != nil {
			t.Fatal(err)
		}
		for _, p.blind = range []bool{true, false} {
			got, err := e.Eval(t.Context(), p, now)
			if err != nil {
				t.Fatal(err)
			}
			if got.Len() != 1 || !got.Has(int64(row)) {
				t.Errorf("%s: %d rows match, row %d: %t", text, got.Len(), row, got.Has(int64(row)))
			}
		}
	}
}
