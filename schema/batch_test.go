package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/google/uuid"
)

// pinned returns the blobs of some positions, counting the pins.
func (d *dataset) pinned(p *Projection, positions []int64, held *int) [][]Blob {
	out := make([][]Blob, len(p.BlobColumns()))
	for i, col := range p.BlobColumns() {
		out[i] = make([]Blob, len(positions))
		for row, pos := range positions {
			if b := d.blobs[col][pos]; b != nil {
				*held++
				out[i][row] = NewBlob(b, pin{held})
			}
		}
	}
	return out
}

// value returns what a batch must hold of a column at a position, by the rows
// that the dataset was made of; as JSON, since that is what arrays offer.
func (d *dataset) value(name string, pos int64) any {
	c, row := 0, pos
	for row >= d.snap.Chunks[c].Rows {
		row -= d.snap.Chunks[c].Rows
		c++
	}
	for i, f := range MetaFields(d.snap.Schema) {
		if f.Name == name {
			return d.meta[c].Column(i).GetOneForMarshal(int(row))
		}
	}
	for i, f := range BlobFields(d.snap.Schema) {
		blob := d.blobs[i][pos]
		switch column, part, _ := strings.Cut(name, "."); {
		case column != f.Name:
		case blob == nil:
			return nil
		case part == SizePart:
			return len(blob)
		case part == KeyPart:
			key := RefOf(blob).Key
			return key[:]
		default:
			return blob
		}
	}
	switch name {
	case IDColumn:
		return d.ids[pos][:]
	case PositionColumn:
		return pos
	}
	n := d.snap.Rows()
	switch {
	case n > 1 && pos < n/2:
		return "train"
	case n > 1 && pos >= n-n/4:
		return "val"
	}
	return ""
}

func orders(r *rand.Rand, n int64) map[string][]int64 {
	span := func(from, to int64) (out []int64) {
		for ; from < to; from++ {
			out = append(out, from)
		}
		return out
	}
	shuffled := span(0, n)
	r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	backwards := span(0, n)
	slices.Reverse(backwards)
	return map[string][]int64{
		"all": span(0, n), "none": {}, "first": {0}, "last": {n - 1}, "middle": span(n/3, n/2+1), "shuffled": shuffled,
		"backwards": backwards, "repeated": {n / 2, n / 2, 0, 0, n / 2},
		"two runs": append(span(n/2, n), span(0, n/2)...),
	}
}

func TestAssemble(t *testing.T) {
	r, mem := random(t), checked(t)
	for _, rows := range [][]int{{1}, {20, 20, 3}, {9, 13, 1, 10}} {
		d := makeDataset(t, r, mem, everySchema(t), rows...)
		held := 0
		m := d.open(t, &held)
		pins := held
		var names []string
		for _, f := range d.snap.Schema.Fields() {
			names = append(names, f.Name)
		}
		names = append(names, PositionColumn, SplitColumn, "image.size", "image.key", "audio.key", "raw.size")
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, layout := range []Layout{"", LayoutBinary, LayoutHuggingFace} {
			p, err := NewProjection(&d.snap, names, layout)
			if err != nil {
				t.Fatal(err)
			}
			for order, positions := range orders(r, m.Rows()) {
				b, err := p.Assemble(m, positions, d.pinned(p, positions, &held))
				if err != nil {
					t.Fatal(err)
				}
				checkVectors(t, b)
				rec, err := b.Record(mem)
				if err != nil {
					t.Fatal(err)
				}
				b.Release()
				b.Release()
				if held != pins {
					t.Fatalf("%d blobs still pinned", held-pins)
				}
				for i, name := range names {
					col := rec.Column(i)
					if col.Len() != len(positions) {
						t.Fatalf("%s: %d rows", name, col.Len())
					}
					for row, pos := range positions {
						want := d.value(name, pos)
						got := col.GetOneForMarshal(row)
						switch s := col.(type) {
						case *array.Struct:
							if !IsBlob(rec.Schema().Field(i)) {
								break
							}
							got = nil
							if !s.IsNull(row) {
								got = s.Field(0).GetOneForMarshal(row)
								if path := s.Field(1).GetOneForMarshal(row); fmt.Sprint(path) != fmt.Sprint(d.value(PathColumn, pos)) {
									t.Fatalf("path %v, want %v", path, d.value(PathColumn, pos))
								}
							}
						case *array.String:
							if name == IDColumn && got != nil {
								id := uuid.MustParse(s.Value(row))
								got = id[:]
							}
						}
						a, errA := json.Marshal(unempty(got))
						b, errB := json.Marshal(unempty(want))
						if errA != nil || errB != nil || !bytes.Equal(a, b) {
							t.Fatalf("%v %s layout %q: %s at %d is %s, want %s", rows, order, layout, name, pos, a, b)
						}
					}
				}
				rec.Release()
			}
		}
		m.Close()
		d.release()
	}
}

// unempty makes an empty slice of a nil one: arrays return either for a cell
// that is empty and not null.
func unempty(v any) any {
	if b, ok := v.([]byte); ok && b == nil {
		return []byte{}
	}
	return v
}

// checkVectors checks that a batch has the buffers that the format asks for.
func checkVectors(t *testing.T, b *Batch) {
	t.Helper()
	var total int64
	var check func(v *Vector)
	check = func(v *Vector) {
		want := map[shape]int{shapeBits: 2, shapeFixed: 2, shapeBytes: 3, shapeBytes8: 3, shapeList: 2,
			shapeFixedList: 1, shapeStruct: 1}
		shape, _ := shapeOf(v.Type)
		if len(v.Buffers) != want[shape] {
			t.Fatalf("%s has %d buffers", v.Type, len(v.Buffers))
		}
		if (v.Nulls == 0) != (v.Buffers[0].Len == 0) {
			t.Fatalf("%s has %d nulls and a validity bitmap of %d bytes", v.Type, v.Nulls, v.Buffers[0].Len)
		}
		for _, buf := range v.Buffers {
			var n int64
			for _, p := range buf.Pieces {
				n += int64(len(p))
			}
			if n != buf.Len {
				t.Fatalf("buffer of %d bytes says %d", n, buf.Len)
			}
			total += (n + 7) / 8 * 8
		}
		for i := range v.Children {
			check(&v.Children[i])
		}
	}
	for i := range b.Columns {
		if b.Columns[i].Len != b.Rows {
			t.Fatalf("column of %d rows in a batch of %d", b.Columns[i].Len, b.Rows)
		}
		check(&b.Columns[i])
	}
	if total != b.Bytes() {
		t.Fatalf("batch of %d bytes says %d", total, b.Bytes())
	}
}

// Blobs, and long runs of metadata, are pointed at.
func TestAssembleDoesNotCopy(t *testing.T) {
	d := bigDataset(t, 10000)
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	p, err := NewProjection(&d.snap, []string{"image", "label", "file_name"}, "")
	if err != nil {
		t.Fatal(err)
	}
	var positions []int64
	blobs := [][]Blob{nil}
	for i := range 5000 {
		positions = append(positions, int64(i+100))
		blobs[0] = append(blobs[0], NewBlob([]byte{byte(i)}, nil))
	}
	b, err := p.Assemble(m, positions, blobs)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if &b.Columns[0].Buffers[2].Pieces[17][0] != &blobs[0][17].Bytes()[0] {
		t.Error("a blob was copied")
	}
	within := func(buf Buffer) bool {
		at := uintptr(unsafe.Pointer(&buf.Pieces[0][0]))
		start := uintptr(unsafe.Pointer(&d.chunks[0][0]))
		return at >= start && at < start+uintptr(len(d.chunks[0]))
	}
	if !within(b.Columns[1].Buffers[1]) || !within(b.Columns[2].Buffers[2]) {
		t.Error("a run of metadata was copied")
	}
}

func BenchmarkAssembleImages(b *testing.B) {
	d := bigDataset(b, 100_000)
	held := 0
	m := d.open(b, &held)
	defer m.Close()
	p, err := NewProjection(&d.snap, []string{"image", "label", "file_name"}, "")
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	positions, blobs := make([]int64, 64), [][]Blob{make([]Blob, 64)}
	blob := make([]byte, 110_000)
	b.ReportAllocs()
	for b.Loop() {
		for i := range positions {
			positions[i] = r.Int64N(100_000)
			blobs[0][i] = NewBlob(blob, nil)
		}
		batch, err := p.Assemble(m, positions, blobs)
		if err != nil {
			b.Fatal(err)
		}
		batch.Release()
	}
}
