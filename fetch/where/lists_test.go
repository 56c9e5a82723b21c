package where

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// listCell is a cell of lists, as Arrow has it: items are null where they are nil.
type listCell struct {
	null   bool
	items  []*int
	fields []*int // of the structs; items says which are null
}

// has reports whether a test holds of any item that is not null.
func (c listCell) has(test func(int) bool) bool {
	return slices.ContainsFunc(c.items, func(v *int) bool { return v != nil && test(*v) })
}

func (c listCell) at(i int) *int {
	if i >= len(c.items) {
		return nil
	}
	return c.items[i]
}

// Expressions see the lists that Arrow has, whatever in them is null: of all layouts of
// lists, alone, in structs and as slices of longer columns.
func TestListsAreArrows(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	number := arrow.PrimitiveTypes.Int32
	pair := arrow.StructOf(arrow.Field{Name: "v", Type: number, Nullable: true})
	types := map[string]arrow.DataType{
		"list": arrow.ListOf(number), "fixed": arrow.FixedSizeListOf(3, number), "structs": arrow.ListOf(pair),
		"within": arrow.StructOf(arrow.Field{Name: "list", Type: arrow.ListOf(number), Nullable: true}),
		"nested": arrow.ListOf(arrow.ListOf(number)),
	}
	paths := map[string]string{"within": "within.list", "nested": "nested[0]"}
	for name, dt := range types {
		s, err := schema.NewSchema([]arrow.Field{{Name: name, Type: dt, Nullable: true}},
			[]arrow.Field{schema.BlobField("image", schema.MediaImage, true)})
		if err != nil {
			t.Fatal(err)
		}
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(s), nil))
		var cells []listCell
		for range 200 {
			cells = append(cells, drawList(rng, name, b.Field(0)))
		}
		rec := b.NewRecord()
		b.Release()
		m := manifestOf(t, s, rec.NewSlice(0, 77), rec.NewSlice(77, 200))
		path, item := name, "#"
		if p, ok := paths[name]; ok {
			path = p
		}
		if name == "structs" {
			item = "#.v"
		}
		value := func(c listCell, i int) *int {
			if name == "structs" && c.at(i) != nil {
				return c.fields[i]
			}
			return c.at(i)
		}
		values := func(c listCell) listCell {
			if name == "structs" {
				out := listCell{null: c.null}
				for i := range c.items {
					out.items = append(out.items, value(c, i))
				}
				return out
			}
			return c
		}
		index := func(i int) string {
			if name == "structs" {
				return fmt.Sprintf("%s[%d].v", path, i)
			}
			return fmt.Sprintf("%s[%d]", path, i)
		}
		k := rng.IntN(4)
		tests := map[string]func(listCell) bool{
			path + " == nil":                      func(c listCell) bool { return c.null },
			fmt.Sprintf("len(%s) == %d", path, k): func(c listCell) bool { return !c.null && len(c.items) == k },
			fmt.Sprintf("any(%s, %s == %d)", path, item, k): func(c listCell) bool {
				return values(c).has(func(v int) bool { return v == k })
			},
			fmt.Sprintf("any(%s, %s != %d)", path, item, k): func(c listCell) bool {
				return values(c).has(func(v int) bool { return v != k })
			},
			fmt.Sprintf("any(%s, %s == nil)", path, item): func(c listCell) bool {
				return slices.Contains(values(c).items, nil)
			},
			fmt.Sprintf("all(%s, %s >= %d)", path, item, k): func(c listCell) bool {
				return !c.null && !slices.ContainsFunc(values(c).items, func(v *int) bool { return v == nil || *v < k })
			},
			fmt.Sprintf("count(%s, # == nil) == %d", path, k): func(c listCell) bool {
				n := 0
				for _, v := range c.items {
					if v == nil {
						n++
					}
				}
				return !c.null && n == k
			},
			fmt.Sprintf("len(filter(%s, %s < 2)) == %d", path, item, k): func(c listCell) bool {
				n := 0
				for _, v := range values(c).items {
					if v != nil && *v < 2 {
						n++
					}
				}
				return !c.null && n == k
			},
			fmt.Sprintf("len(%s) > 1 and %s == %d", path, index(1), k): func(c listCell) bool {
				v := value(c, 1)
				return !c.null && len(c.items) > 1 && v != nil && *v == k
			},
			fmt.Sprintf("len(%s) > 1 and %s != %d", path, index(1), k): func(c listCell) bool {
				v := value(c, 1)
				return !c.null && len(c.items) > 1 && v != nil && *v != k
			},
			fmt.Sprintf("len(%s) > 1 and (%s ?? 9) == 9", path, index(1)): func(c listCell) bool {
				return !c.null && len(c.items) > 1 && value(c, 1) == nil
			},
			fmt.Sprintf("sum(map(%s, %s)) == %d", path, item, k): func(c listCell) bool {
				n := 0
				for _, v := range values(c).items {
					if v != nil {
						n += *v
					}
				}
				return !c.null && n == k
			},
			fmt.Sprintf("max(map(%s, %s)) == %d", path, item, k): func(c listCell) bool {
				highest := -1
				for _, v := range values(c).items {
					if v != nil {
						highest = max(highest, *v)
					}
				}
				return highest == k
			},
			fmt.Sprintf("max(map(%s, %s)) == nil", path, item): func(c listCell) bool {
				return !values(c).has(func(int) bool { return true })
			},
			fmt.Sprintf("first(%s) == nil", path): func(c listCell) bool { return c.at(0) == nil },
		}
		if name != "structs" {
			tests[fmt.Sprintf("%d in %s", k, path)] = func(c listCell) bool {
				return c.has(func(v int) bool { return v == k })
			}
			tests[fmt.Sprintf("%d not in %s", k, path)] = func(c listCell) bool {
				return !c.has(func(v int) bool { return v == k })
			}
			tests[fmt.Sprintf("nil in %s", path)] = func(c listCell) bool { return slices.Contains(c.items, nil) }
		}
		for text, want := range tests {
			e, err := Compile(t.Context(), text, s, now)
			if err != nil {
				t.Errorf("%s: %v", text, err)
				continue
			}
			got, err := e.Eval(t.Context(), m, now)
			if err != nil {
				t.Errorf("%s: %v", text, err)
				continue
			}
			for row, c := range cells {
				if got.Has(int64(row)) != want(c) {
					t.Errorf("%s: row %d: %t; %s", text, row, !want(c), rec.Column(0).ValueStr(row))
					break
				}
			}
		}
	}
}

// drawList appends a random cell to a column, and returns its value.
func drawList(rng *rand.Rand, name string, b array.Builder) (c listCell) {
	if rng.IntN(5) == 0 && name != "nested" {
		b.AppendNull()
		return listCell{null: true}
	}
	n := rng.IntN(4)
	if name == "fixed" {
		n = 3
	}
	for range n {
		draw := func() *int {
			if rng.IntN(3) == 0 {
				return nil
			}
			v := rng.IntN(4)
			return &v
		}
		c.items, c.fields = append(c.items, draw()), append(c.fields, draw())
	}
	switch name {
	case "within":
		b.(*array.StructBuilder).Append(true)
		b = b.(*array.StructBuilder).FieldBuilder(0)
		if rng.IntN(5) == 0 {
			b.AppendNull()
			return listCell{null: true}
		}
	case "nested":
		b.(*array.ListBuilder).Append(true)
		b = b.(*array.ListBuilder).ValueBuilder()
		if rng.IntN(5) == 0 {
			b.AppendNull()
			return listCell{null: true}
		}
	}
	var items array.Builder
	switch b := b.(type) {
	case *array.ListBuilder:
		b.Append(true)
		items = b.ValueBuilder()
	case *array.FixedSizeListBuilder:
		b.Append(true)
		items = b.ValueBuilder()
	}
	for i, v := range c.items {
		switch {
		case v == nil:
			items.AppendNull()
		case name != "structs":
			items.(*array.Int32Builder).Append(int32(*v))
		default:
			items.(*array.StructBuilder).Append(true)
			if f := c.fields[i]; f != nil {
				items.(*array.StructBuilder).FieldBuilder(0).(*array.Int32Builder).Append(int32(*f))
			} else {
				items.(*array.StructBuilder).FieldBuilder(0).AppendNull()
			}
		}
	}
	return c
}
