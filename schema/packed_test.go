package schema

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// documents is a snapshot of documents of tokens.
type documents struct {
	dataset
	tokens [][]uint16 // nil of one that is null
	names  []string
}

func makeDocuments(t *testing.T, r *rand.Rand, longest int, chunkRows ...int) *documents {
	t.Helper()
	s, err := NewSchema([]arrow.Field{
		{Name: "name", Type: arrow.BinaryTypes.String},
		{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Uint16), Nullable: true},
		{Name: "scores", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32)},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := &documents{dataset: dataset{snap: Snapshot{Dataset: "text", Number: 1, Schema: s}}}
	b := NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(MetaFields(s), nil))
	defer rb.Release()
	for _, n := range chunkRows {
		ids := make([]ID, n)
		for i := range ids {
			at := len(d.tokens)
			ids[i] = SampleID("text", fmt.Sprint(at))
			d.names = append(d.names, fmt.Sprintf("document %d", at))
			rb.Field(0).(*array.StringBuilder).Append(d.names[at])
			list := rb.Field(1).(*array.ListBuilder)
			if r.IntN(8) == 0 {
				list.AppendNull()
				d.tokens = append(d.tokens, nil)
			} else {
				list.Append(true)
				tokens := make([]uint16, r.IntN(longest))
				for j := range tokens {
					tokens[j] = uint16(r.Uint32())
				}
				list.ValueBuilder().(*array.Uint16Builder).AppendValues(tokens, nil)
				d.tokens = append(d.tokens, tokens)
			}
			rb.Field(2).(*array.ListBuilder).Append(true)
			rb.Field(2).(*array.ListBuilder).ValueBuilder().(*array.Float32Builder).Append(float32(at))
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

// cut makes parts of documents, some of which are cut, and sequences of them.
func (d *documents) cut(r *rand.Rand, most int) (positions []int64, k *Packing, longest int) {
	k = &Packing{}
	in := 0
	end := func() {
		if n := len(k.Parts); n > 0 && (len(k.Ends) == 0 || k.Ends[len(k.Ends)-1] < n) {
			k.Ends = append(k.Ends, n)
		}
		longest, in = max(longest, in), 0
	}
	for at := r.IntN(len(d.tokens)); len(positions) < most; {
		n := len(d.tokens[at])
		for from := 0; ; {
			part := n - from
			if r.IntN(3) == 0 {
				part = r.IntN(part + 1)
			}
			positions, k.Parts = append(positions, int64(at)), append(k.Parts, PackPart{from, part, n})
			if in += part; r.IntN(5) == 0 {
				end()
			}
			if from += part; from == n || r.IntN(4) == 0 {
				break
			}
		}
		if at++; at == len(d.tokens) || r.IntN(3) == 0 {
			at = r.IntN(len(d.tokens))
		}
	}
	end()
	return positions, k, longest
}

// Sequences have the tokens of their parts, whatever those are, and say where each of them is from.
func TestAssemblePacked(t *testing.T) {
	r := random(t)
	mem := checked(t)
	for _, longest := range []int{5, 5000} {
		d := makeDocuments(t, r, longest, 40, 1, 25)
		held := 0
		m := d.open(t, &held)
		for range 15 {
			positions, k, length := d.cut(r, 1+r.IntN(40))
			pack := &Pack{Length: int64(max(length+r.IntN(3), 1)), Column: "tokens"}
			pad := int64(r.IntN(1 << 16))
			if r.IntN(2) == 0 {
				pack.Pad = &pad
			}
			var columns []string
			if r.IntN(2) == 0 {
				columns = []string{CuSeqlensColumn, "tokens", PositionColumn, SegmentIDsColumn, "name", "scores", PositionIDsColumn}
			}
			b := d.pack(t, m, positions, k, columns, pack)
			rec, err := b.Record(mem)
			b.Release()
			if err != nil {
				t.Fatal(err)
			}
			d.check(t, rec, positions, k, pack)
			rec.Release()
		}
		m.Close()
	}
}

func (d *documents) pack(t *testing.T, m *Manifest, positions []int64, k *Packing, columns []string, pack *Pack) *Batch {
	t.Helper()
	b, err := d.tryPack(t, m, positions, k, columns, pack)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (d *documents) tryPack(t *testing.T, m *Manifest, positions []int64, k *Packing, columns []string, pack *Pack) (*Batch, error) {
	t.Helper()
	p, err := NewProjection(&d.snap, PackedColumns(&d.snap, nil, columns, nil), "")
	if err == nil {
		p, err = p.Packed(&d.snap, nil, columns, pack)
	}
	if err != nil {
		t.Fatal(err)
	}
	rows, err := m.At(positions)
	if err != nil {
		t.Fatal(err)
	}
	return p.AssemblePacked(m.form, positions, rows, k, nil)
}

// check compares a batch with what it is to be.
func (d *documents) check(t *testing.T, rec arrow.Record, positions []int64, k *Packing, pack *Pack) {
	t.Helper()
	col := func(name string) arrow.Array { return rec.Column(rec.Schema().FieldIndices(name)[0]) }
	if n := rec.NumRows(); n != int64(len(k.Ends)) {
		t.Fatalf("%d rows, want %d", n, len(k.Ends))
	}
	row := 0
	for i, end := range k.Ends {
		var tokens, ids, segments []string
		ends := []string{"0"}
		var names, scores []string
		for segment := 1; row < end; segment++ {
			part, at := k.Parts[row], positions[row]
			for j, token := range d.tokens[at][part.From : part.From+part.Tokens] {
				tokens, ids, segments = append(tokens, fmt.Sprint(token)), append(ids, fmt.Sprint(j)), append(segments,
					fmt.Sprint(segment))
			}
			ends = append(ends, fmt.Sprint(len(tokens)))
			names = append(names, fmt.Sprintf("%q", d.names[at]))
			scores = append(scores, fmt.Sprintf("[%d]", at))
			row++
		}
		for pack.Pad != nil && int64(len(tokens)) < pack.Length {
			tokens, ids, segments = append(tokens, fmt.Sprint(*pack.Pad)), append(ids, "0"), append(segments, "0")
		}
		for name, want := range map[string][]string{"tokens": tokens, PositionIDsColumn: ids, SegmentIDsColumn: segments,
			CuSeqlensColumn: ends, "name": names, "scores": scores} {
			list := col(name).(array.ListLike)
			from, to := list.ValueOffsets(i)
			if list.IsNull(i) || int(to-from) != len(want) {
				t.Fatalf("row %d of %s has %d values, want %d", i, name, to-from, len(want))
			}
			for j, w := range want {
				values := list.ListValues()
				got := values.ValueStr(int(from) + j)
				if s, ok := values.(*array.String); ok {
					got = fmt.Sprintf("%q", s.Value(int(from)+j))
				}
				if got != w {
					t.Fatalf("value %d of row %d of %s is %s, want %s", j, i, name, got, w)
				}
			}
		}
	}
}

// Errors in a packing are reported.
func TestPackedErrors(t *testing.T) {
	r := random(t)
	d := makeDocuments(t, r, 9, 30)
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	at := slices.IndexFunc(d.tokens, func(tokens []uint16) bool { return len(tokens) > 2 })
	n := len(d.tokens[at])
	for name, try := range map[string]struct {
		pack *Pack
		part PackPart
		want string
	}{
		"another length":          {&Pack{Length: 9, Column: "tokens", Lengths: "n"}, PackPart{0, n + 1, n + 1}, "pack.lengths"},
		"another length by lists": {&Pack{Length: 9, Column: "tokens"}, PackPart{0, n + 1, n + 1}, "tokens at position"},
		"a part beyond its end":   {&Pack{Length: 9, Column: "tokens"}, PackPart{2, n - 1, n}, "tokens at position"},
		"a sequence too long":     {&Pack{Length: 1, Column: "tokens", Pad: new(int64)}, PackPart{0, n, n}, "more than 1 tokens"},
	} {
		b, err := d.tryPack(t, m, []int64{int64(at)}, &Packing{Parts: []PackPart{try.part}, Ends: []int{1}}, nil, try.pack)
		if b != nil || err == nil || !strings.Contains(err.Error(), try.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, try := range map[string]struct {
		pack *Pack
		want string
	}{
		"a column of texts":   {&Pack{Length: 9, Column: "name"}, `pack.column: got "name", want a column of lists of integers`},
		"no column":           {&Pack{Length: 9, Column: "token"}, "tokens"},
		"a padding too large": {&Pack{Length: 9, Column: "tokens", Pad: new(int64(1 << 16))}, "pack.pad: got 65536"},
		"a column of numbers": {&Pack{Length: 9, Column: "scores"}, `pack.column: got "scores"`},
	} {
		p, err := NewProjection(&d.snap, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err = p.Packed(&d.snap, nil, nil, try.pack); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), try.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	blobs := BlobFields(everySchema(t))
	s, err := NewSchema([]arrow.Field{{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64)},
		{Name: SegmentIDsColumn, Type: arrow.PrimitiveTypes.Int64}}, blobs[:1])
	if err != nil {
		t.Fatal(err)
	}
	snap := &Snapshot{Dataset: "x", Number: 1, Schema: s}
	p, err := NewProjection(snap, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	pack := &Pack{Length: 9, Column: "tokens"}
	if _, err = p.Packed(snap, nil, nil, pack); err == nil || !strings.Contains(err.Error(), SegmentIDsColumn) {
		t.Error(err)
	}
	hides := &Restriction{Columns: []string{"tokens", blobs[0].Name}}
	if _, err = p.Packed(snap, hides, nil, pack); err == nil || !strings.Contains(err.Error(), blobs[0].Name) {
		t.Error(err)
	}
}
