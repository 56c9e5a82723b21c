package where

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

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
		{`big == 3 or big == 18446744073709551615`, "1 2"},
		{`big == 9223372036854775807`, ""},
		{`big > 9223372036854775807`, "1"},
		{`big >= 18446744073709551616`, ""},
		{`big < 18446744073709551616`, "0 1 2 4 5"},
		{`big in [3, 18446744073709551615]`, "1 2"},
		{`big in 3..0xFFFF_FFFF_FFFF_FFFF`, "1 2 4 5"},
		{`big > -1`, "0 1 2 4 5"},
		{`big % 10 == 5`, "1 4"},
		{`big > 100 and big - 18446744073709551614 == 1`, "1"},
		{`max(big, width) == big`, "1"},
		{`(big ?? 18446744073709551615) == 18446744073709551615`, "1 3"},
		{`float(big) == 18446744073709551616.0`, "1"},
		{`big == 18446744073709551616.0`, ""},
		{`string(big) == "18446744073709551615"`, "1"},
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
		{`len(tags) == 1`, "2"},
		{`len(tags) == 2`, "0 4 5"},
		{`tags != nil and len(tags) > 1 and tags[0] == nil`, "4"},
		{`len(tags) > 1 and tags[0] != "red"`, ""},
		{`len(tags) > 1 and tags[1] == "green"`, "4"},
		{`len(tags) > 1 and (tags[0] ?? "none") == "none"`, "4"},
		{`"green" in tags`, "4"},
		{`nil in tags`, "4"},
		{`any(tags, # == nil)`, "4"},
		{`all(tags, # != nil)`, "0 1 2 5"},
		{`none(tags, # startsWith "r")`, "1 2 4"},
		{`count(tags, # != nil) == 1`, "2 4"},
		{`first(tags) == nil`, "1 3 4"},
		{`last(tags) == "green"`, "4"},
		{`find(tags, # == nil or # == "blue") == "blue"`, "0 2"},
		{`findIndex(tags, # == "green") == 1`, "4"},
		{`map(tags, upper(#))[1:] == ["GREEN"]`, "4"},
		{`len(boxes) == 1 and boxes[0].w == nil`, "4"},
		{`len(boxes) > 0 and boxes[0].w > 5`, "5"},
		{`find(boxes, .w > 5).tag == "r"`, "2"},
		{`sum(boxes, .w) == 0`, "1 4"},
		{`mean(vec) == 8`, "4 5"},
		{`max(vec) == 8 and min(vec) == 8`, "4"},
		{`max(tags == nil ? [] : [nil]) == nil`, "0 1 2 3 4 5"},
		{`vec[0] == nil`, "3 4"},
		{`vec[0] + 1 > 3`, "1 2 5"},
		{`not (vec[0] > 0)`, "3 4"},
		{`all(tags, # == "red")`, "1 5"},
		{`count(tags, # == "red") > 1`, "5"},
		{`tags != nil and len(tags) > 0 and tags[0] startsWith "r"`, "0 5"},
		{`sum(vec) > 10`, "2 5"},
		{`len(vec) < 2`, ""},
		{`len(vec) == 2`, "0 1 2 4 5"},
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
			e, err := Compile(t.Context(), test.expr, m.Snapshot().Schema, now)
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
		e, err := Compile(t.Context(), text, s, now)
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
	if _, err := Compile(t.Context(), `taken > date("yesterday")`, s, now); !errors.Is(err, schema.ErrInvalid) {
		t.Error(err)
	}
}

func TestEvalErrors(t *testing.T) {
	m := testManifest(t, 3, 3)
	for text, want := range map[string]string{
		`tags[0] == "x"`:              "position 1: ",
		`height % (height - 50) == 0`: "position 4: ",
		`len(map(tags, map(tags, #))) > 3 or 1 % (position - 2) == 7`: "position 2: ",
	} {
		e, err := Compile(t.Context(), text, m.Snapshot().Schema, now)
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
	e, err := Compile(t.Context(), "width > 3", m.Snapshot().Schema, now)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Eval(ctx, m, now); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
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
				e, err := Compile(b.Context(), text, s, now)
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
