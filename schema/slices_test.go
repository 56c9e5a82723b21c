package schema

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// makeSequences is a snapshot of sequences of a length; some are null, as are some of their items.
func makeSequences(t *testing.T, r *rand.Rand, length int, chunkRows ...int) *dataset {
	t.Helper()
	s, err := NewSchema([]arrow.Field{
		{Name: "tokens", Type: arrow.FixedSizeListOfNonNullable(int32(length), arrow.PrimitiveTypes.Uint16)},
		{Name: "weights", Type: arrow.FixedSizeListOf(int32(length), arrow.PrimitiveTypes.Float32), Nullable: true},
		{Name: "whole", Type: arrow.FixedSizeListOfNonNullable(3, arrow.PrimitiveTypes.Int8)},
		{Name: "names", Type: arrow.FixedSizeListOf(2, arrow.BinaryTypes.String), Nullable: true},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := &dataset{snap: Snapshot{Dataset: "sequences", Number: 1, Schema: s}}
	b := NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(MetaFields(s), nil))
	defer rb.Release()
	list := func(i int) *array.FixedSizeListBuilder { return rb.Field(i).(*array.FixedSizeListBuilder) }
	at := 0
	for _, n := range chunkRows {
		ids := make([]ID, n)
		for i := range ids {
			ids[i] = SampleID("sequences", fmt.Sprint(at))
			at++
			list(0).Append(true)
			for range length {
				list(0).ValueBuilder().(*array.Uint16Builder).Append(uint16(r.Uint32()))
			}
			if r.IntN(6) == 0 {
				list(1).AppendNull()
			} else {
				list(1).Append(true)
				for range length {
					if v := list(1).ValueBuilder().(*array.Float32Builder); r.IntN(5) == 0 {
						v.AppendNull()
					} else {
						v.Append(r.Float32())
					}
				}
			}
			list(2).Append(true)
			list(2).ValueBuilder().(*array.Int8Builder).AppendValues([]int8{int8(i), 1, 2}, nil)
			list(3).AppendNull()
		}
		rec := rb.NewRecord()
		if err := b.AppendBatch(ids, rec, nil); err != nil {
			t.Fatal(err)
		}
		rec.Release()
		data, c, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		c.BlobRef = RefOf(data)
		d.chunks, d.snap.Chunks = append(d.chunks, data), append(d.snap.Chunks, c)
	}
	return d
}

// values are those of a list as text; nil of one that is null.
func values(a arrow.Array, row int) []string {
	if a.IsNull(row) {
		return nil
	}
	list := a.(array.ListLike)
	from, to := list.ValueOffsets(row)
	out := []string{}
	for i := from; i < to; i++ {
		out = append(out, list.ListValues().ValueStr(int(i)))
	}
	return out
}

// sliced is what a rank gets of a sequence.
func sliced(whole []string, by string, rank, ranks int) []string {
	if whole == nil {
		return nil
	}
	n := len(whole) / ranks
	if by != SliceZigzag {
		return whole[rank*n : (rank+1)*n]
	}
	half := n / 2
	return slices.Concat(whole[rank*half:(rank+1)*half], whole[len(whole)-(rank+1)*half:len(whole)-rank*half])
}

// A rank gets its part of the sequences that are cut, and all of the others.
func TestSlices(t *testing.T) {
	r := random(t)
	mem := checked(t)
	const length = 24
	d := makeSequences(t, r, length, 40, 1, 25)
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	whole, err := NewProjection(&d.snap, []string{"weights", "whole", "position", "tokens"}, "")
	if err != nil {
		t.Fatal(err)
	}
	record := func(p *Projection, positions []int64) arrow.Record {
		rows, err := m.At(positions)
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.AssembleRows(m.form, positions, rows, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Release()
		rec, err := b.Record(mem)
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	for _, s := range []*Slices{{Columns: []string{"tokens"}}, {By: SliceZigzag, Columns: []string{"tokens", "weights"}},
		{By: SliceContiguous, Columns: []string{"weights"}}} {
		for _, mesh := range []string{"cp=1", "cp=2,tp=2", "dp=2,cp=4", "tp=3,cp=12", "pp=2,cp=3,dp=2"} {
			world := &World{Mesh: mesh}
			ranks, _ := world.counts()
			p, err := whole.Sliced(&d.snap, nil, s, world)
			if err != nil {
				t.Fatal(err)
			}
			positions := make([]int64, r.IntN(30))
			for i := range positions {
				positions[i] = r.Int64N(66)
				if i > 0 && r.IntN(2) == 0 {
					positions[i] = min(positions[i-1]+1, 65) // runs are not copied
				}
			}
			want := record(whole, positions)
			for rank := range int(ranks) {
				at, of := world.along("cp", rank)
				got := record(p.SliceOf(world, rank), positions)
				for c := range want.NumCols() {
					name := want.ColumnName(int(c))
					if !slices.Contains(s.Columns, name) {
						if !array.Equal(got.Column(int(c)), want.Column(int(c))) {
							t.Fatalf("%s %v rank %d: %s is not whole", mesh, s, rank, name)
						}
						continue
					}
					for row := range positions {
						g, w := values(got.Column(int(c)), row), sliced(values(want.Column(int(c)), row), s.By, int(at), int(of))
						if !slices.Equal(g, w) || (g == nil) != (w == nil) {
							t.Fatalf("%s %v rank %d, row %d of %s: %v, want %v", mesh, s, rank, row, name, g, w)
						}
					}
				}
				got.Release()
			}
			want.Release()
		}
	}
}

// Packed sequences are cut where they have a value for each token.
func TestPackedSlices(t *testing.T) {
	r := random(t)
	mem := checked(t)
	d := makeDocuments(t, r, 50, 40, 1, 25)
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	for range 10 {
		positions, k, longest := d.cut(r, 1+r.IntN(40))
		world := &World{Mesh: "dp=2,cp=3,tp=2"}
		pack := &Pack{Length: int64(longest+6) / 6 * 6, Column: "tokens", Pad: new(int64(r.IntN(1 << 16)))}
		s := &Slices{By: []string{"", SliceZigzag}[r.IntN(2)]}
		p, err := NewProjection(&d.snap, PackedColumns(&d.snap, nil, nil, nil), "")
		if err == nil {
			p, err = p.Packed(&d.snap, nil, nil, pack)
		}
		if err != nil {
			t.Fatal(err)
		}
		cut, err := p.Sliced(&d.snap, nil, s, world)
		if err != nil {
			t.Fatal(err)
		}
		record := func(p *Projection) arrow.Record {
			rows, err := m.At(positions)
			if err != nil {
				t.Fatal(err)
			}
			b, err := p.AssemblePacked(m.form, positions, rows, k, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Release()
			rec, err := b.Record(mem)
			if err != nil {
				t.Fatal(err)
			}
			return rec
		}
		want := record(p)
		for rank := range 12 {
			got := record(cut.SliceOf(world, rank))
			for c, f := range want.Schema().Fields() {
				for row := range int(want.NumRows()) {
					w := values(want.Column(c), row)
					if slices.Contains([]string{"tokens", PositionIDsColumn, SegmentIDsColumn}, f.Name) {
						w = sliced(w, s.By, rank/2%3, 3)
					}
					if g := values(got.Column(c), row); !slices.Equal(g, w) {
						t.Fatalf("rank %d, row %d of %s: %v, want %v", rank, row, f.Name, g, w)
					}
				}
			}
			got.Release()
		}
		want.Release()
	}
}

// Errors in slices are reported.
func TestSlicesErrors(t *testing.T) {
	const pack = `"dataset":"a","pack":{"length":24,"column":"t","pad":0}`
	for in, want := range map[string]string{
		pack + `,"slices":{},"world":{"mesh":"dp=2,cp=4"}`:                "",
		pack + `,"slices":{"by":"zigzag"},"world":{"mesh":"cp=12,tp=2"}`:  "",
		pack + `,"slices":{"by":"zigzag"},"world":{"mesh":"cp=1"}`:        "",
		pack + `,"slices":{"by":"zigzag"}`:                                "",
		`"dataset":"a","slices":{"columns":["x"]}`:                        "",
		`"dataset":"a","slices":{}`:                                       "slices.columns: got none",
		`"dataset":"a","slices":{"columns":[]}`:                           "slices.columns: got 0 names",
		`"dataset":"a","slices":{"columns":["x","x"]}`:                    `slices.columns[1]: got "x" again`,
		`"dataset":"a","slices":{"by":"stripes","columns":["x"]}`:         `slices.by: got "stripes", want "contiguous" or "zigzag"`,
		`"dataset":"a","layout":"huggingface","slices":{"columns":["x"]}`: `layout: got "huggingface" with slices`,
		pack + `,"slices":{"columns":["t"]}`:                              "slices.columns: got it with pack",
		pack + `,"slices":{},"world":{"size":4}`:                          "slices: got it without cp in world.mesh",
		pack + `,"slices":{},"world":{"mesh":"dp=2,tp=2"}`:                "slices: got it without cp in world.mesh",
		pack + `,"slices":{},"world":{"mesh":"cp=5"}`: "pack.length: got sequences of 24, want a multiple of 5, as world.mesh has 5 " +
			"context parallel ranks",
		pack + `,"slices":{"by":"zigzag"},"world":{"mesh":"cp=8"}`: "pack.length: got sequences of 24, want a multiple of 16, as " +
			`world.mesh has 8 context parallel ranks, each with two parts by "zigzag"`,
		`"dataset":"a","pack":{"length":24,"column":"t"},"slices":{}`: "pack.pad: got none with slices",
	} {
		_, err := ParseRequest([]byte("{" + in + "}"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
	d := makeSequences(t, random(t), 24, 1)
	p, err := NewProjection(&d.snap, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, try := range []struct {
		columns []string
		within  *Restriction
		want    string
	}{
		{[]string{"tokens", "whole"}, nil, "slices.columns[1]: got sequences of 3, want a multiple of 4"},
		{[]string{"names"}, nil, `slices.columns[0]: got "names", want a column of lists of numbers of one length: `},
		{[]string{"tokens"}, &Restriction{Columns: []string{"weights"}}, `slices.columns[0]: got "tokens", want a column of lists`},
	} {
		_, err := p.Sliced(&d.snap, try.within, &Slices{Columns: try.columns}, &World{Mesh: "cp=4"})
		if err == nil || !strings.Contains(err.Error(), try.want) {
			t.Errorf("%v: %v, want %q", try.columns, err, try.want)
		}
	}
}
