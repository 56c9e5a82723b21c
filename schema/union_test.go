package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// someSchema has some of the columns of everySchema, metadata in an order drawn at random.
func someSchema(t *testing.T, r *rand.Rand) *arrow.Schema {
	t.Helper()
	all := everySchema(t)
	meta, blobs := MetaFields(all), BlobFields(all)
	r.Shuffle(len(meta), func(i, j int) { meta[i], meta[j] = meta[j], meta[i] })
	r.Shuffle(len(blobs), func(i, j int) { blobs[i], blobs[j] = blobs[j], blobs[i] })
	s, err := NewSchema(meta[:1+r.IntN(len(meta))], blobs[:r.IntN(len(blobs)+1)])
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Samples of several snapshots, in any order, have the cells that they have in their own snapshot, and nulls in the columns
// that it lacks or that a restriction hides.
func TestUnionAssembles(t *testing.T) {
	r, mem := random(t), checked(t)
	for round := range 12 {
		parts := make([]Part, 1+r.IntN(4))
		sets := make([]*dataset, len(parts))
		held := 0
		var manifests []*Manifest
		same := everySchema(t)
		for i := range parts {
			s := same
			if round%3 > 0 {
				s = someSchema(t, r)
			}
			sets[i] = makeDataset(t, r, mem, s, 1+r.IntN(30), 1+r.IntN(30))
			defer sets[i].release()
			parts[i] = Part{Name: fmt.Sprintf("part-%d", i), Snapshot: &sets[i].snap}
			if r.IntN(4) == 0 {
				parts[i].Within = &Restriction{Columns: []string{IDColumn}}
				for _, f := range s.Fields()[1:] {
					if r.IntN(2) == 0 {
						parts[i].Within.Columns = append(parts[i].Within.Columns, f.Name)
					}
				}
			}
			manifests = append(manifests, sets[i].open(t, &held))
		}
		form, within, err := NewUnion(parts)
		if err != nil {
			t.Fatal(err)
		}
		if within != nil {
			t.Fatalf("the id is shown everywhere, and the union has %v", within)
		}
		total := int64(0)
		for _, d := range sets {
			total += d.snap.Rows()
		}
		if form.Rows() != total {
			t.Fatalf("%d rows, want %d", form.Rows(), total)
		}
		var names []string
		for _, f := range form.Snapshot().Schema.Fields() {
			names = append(names, f.Name)
			if IsBlob(f) {
				names = append(names, f.Name+"."+SizePart, f.Name+"."+KeyPart)
			}
		}
		names = append(names, PositionColumn, SplitColumn, SourceColumn)
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		p, err := NewProjectionWithin(form.Snapshot(), within, names, "", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		adopted := map[*Page]*Page{}
		for name, positions := range orders(r, total) {
			rows := make([]Row, len(positions))
			blobs := make([][]Blob, len(p.BlobColumns()))
			for c := range blobs {
				blobs[c] = make([]Blob, len(positions))
			}
			for i, pos := range positions {
				part, at := form.Part(pos)
				found, err := manifests[part].At([]int64{at})
				if err != nil {
					t.Fatal(err)
				}
				own := found[0].Page
				if adopted[own] == nil {
					adopted[own] = form.Adopt(part, own)
				}
				rows[i] = Row{adopted[own], found[0].At}
				for c, ordinal := range p.BlobColumns() {
					ref, ok := rows[i].Blob(ordinal)
					column := BlobFields(form.Snapshot().Schema)[ordinal].Name
					want, _ := unionValue(&parts[part], sets[part], column, at).([]byte)
					if ok != (want != nil) || ok && ref != RefOf(want) {
						t.Fatalf("position %d, column %s: a reference %t, want %t", pos, column, ok, want != nil)
					}
					if ok {
						held++
						blobs[c][i] = NewBlob(want, pin{&held})
					}
				}
			}
			batch, err := p.AssembleRows(form, positions, rows, blobs, nil)
			if err != nil {
				t.Fatal(err)
			}
			rec, err := batch.Record(mem)
			if err != nil {
				t.Fatal(err)
			}
			for c, column := range names {
				for i, pos := range positions {
					part, at := form.Part(pos)
					got := rec.Column(c).GetOneForMarshal(i)
					want := unionValue(&parts[part], sets[part], column, at)
					if a, b := asJSON(t, unempty(got)), asJSON(t, unempty(want)); !bytes.Equal(a, b) {
						t.Fatalf("%s, position %d (%d of part %d), column %s: %s, want %s", name, pos, at, part, column, a, b)
					}
				}
				if rec.Column(c).NullN() > 0 && !rec.Schema().Field(c).Nullable {
					t.Fatalf("column %s has nulls and is not nullable", column)
				}
			}
			rec.Release()
			batch.Release()
		}
		for _, m := range manifests {
			m.Close()
		}
		if held != 0 {
			t.Fatalf("%d blobs are held", held)
		}
	}
}

// unionValue is dataset.value, of a part of a union.
func unionValue(p *Part, d *dataset, name string, at int64) any {
	if name == SourceColumn {
		return p.Name
	}
	column, _, _ := strings.Cut(name, ".")
	has := d.snap.Schema.HasField(column) && !p.Within.Hides(d.snap.Schema, column)
	if !has && name != PositionColumn && name != SplitColumn {
		return nil
	}
	return d.value(name, at)
}

func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Columns with different types in the sources are reported by name if a request names
// them. An id that one source hides is hidden in all.
func TestUnionOfDifferentTypes(t *testing.T) {
	number := func(dt arrow.DataType, metadata ...string) *Snapshot {
		field := arrow.Field{Name: "label", Type: dt, Nullable: true}
		if len(metadata) > 0 {
			field = ClassField("label", metadata)
		}
		s, err := NewSchema([]arrow.Field{field, {Name: "text", Type: arrow.BinaryTypes.String}},
			[]arrow.Field{BlobField("image", MediaImage, true)})
		if err != nil {
			t.Fatal(err)
		}
		return &Snapshot{Dataset: "d", Number: 1, Schema: s}
	}
	a, b := number(arrow.PrimitiveTypes.Int64), number(arrow.PrimitiveTypes.Int32)
	form, _, err := NewUnion([]Part{{Name: "one", Snapshot: a}, {Name: "two", Snapshot: b}})
	if err != nil {
		t.Fatal(err)
	}
	for _, columns := range [][]string{nil, {"text", "label"}} {
		_, err := NewProjectionWithin(form.Snapshot(), nil, columns, "", nil, nil)
		fault, ok := errors.AsType[*FieldError](err)
		if !ok || fault.Got != `column "label" as int64 in source "one" and as int32 in source "two"` {
			t.Errorf("columns %v: %v", columns, err)
		}
	}
	if _, err := NewProjectionWithin(form.Snapshot(), nil, []string{"text", "image", SourceColumn}, "", nil, nil); err != nil {
		t.Error(err)
	}
	_, err = NewProjectionWithin(form.Snapshot(), nil, []string{"sourse"}, "", nil, nil)
	if err == nil || !strings.Contains(err.Error(), `did you mean "source"?`) {
		t.Errorf("a column that there is not: %v", err)
	}

	// Classes that have other names are no classes of the union.
	same, other := number(nil, "cat", "dog"), number(nil, "dog", "cat")
	for want, second := range map[bool]*Snapshot{true: same, false: other} {
		form, _, err := NewUnion([]Part{{Name: "one", Snapshot: same}, {Name: "two", Snapshot: second}})
		if err != nil {
			t.Fatal(err)
		}
		at := form.Snapshot().Schema.FieldIndices("label")[0]
		if got := Classes(form.Snapshot().Schema.Field(at)) != nil; got != want {
			t.Errorf("the union has classes: %t, want %t", got, want)
		}
	}

	_, within, err := NewUnion([]Part{{Name: "one", Snapshot: a}, {Name: "two", Snapshot: b,
		Within: &Restriction{Columns: []string{"text"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if form, _, _ := NewUnion([]Part{{Name: "one", Snapshot: a}}); !within.Hides(form.Snapshot().Schema, IDColumn) ||
		within.Hides(form.Snapshot().Schema, "text") {
		t.Errorf("the union shows %v", within)
	}
}

// A column of nulls of any type is one that Arrow takes.
func TestNullView(t *testing.T) {
	for _, f := range everyField() {
		for _, n := range []int{0, 1, 65, 1000} {
			v := nullView(f.Type, n)
			a := v.array()
			if a.Len() != n || a.NullN() != n {
				t.Errorf("%s: %d rows, %d nulls, want %d", f.Type, a.Len(), a.NullN(), n)
			}
			if n > 0 && !a.IsNull(n-1) {
				t.Errorf("%s: the last row is not null", f.Type)
			}
			want := array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, n)
			if !array.Equal(a, want) {
				t.Errorf("%s: not %d nulls", f.Type, n)
			}
			want.Release()
		}
	}
}
