package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"
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

// A batch's memory is its own until it is released.
func TestAssembleMemoryIsNotShared(t *testing.T) {
	r, mem := random(t), checked(t)
	d := makeDataset(t, r, mem, everySchema(t), 50, 50)
	defer d.release()
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	p, err := NewProjection(&d.snap, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	var batches []*Batch
	var want []arrow.Record
	for i := range 60 {
		positions := make([]int64, 1+r.IntN(40))
		for j := range positions {
			positions[j] = r.Int64N(m.Rows())
		}
		b, err := p.Assemble(m, positions, d.pinned(p, positions, &held))
		if err != nil {
			t.Fatal(err)
		}
		rec, err := b.Record(mem)
		if err != nil {
			t.Fatal(err)
		}
		batches, want = append(batches, b), append(want, rec)
		if i%3 == 0 { // let go of one of those alive
			k := r.IntN(len(batches))
			again, err := batches[k].Record(mem)
			if err != nil {
				t.Fatal(err)
			}
			if !array.RecordEqual(again, want[k]) {
				t.Fatal("a batch has changed while others were made")
			}
			again.Release()
			want[k].Release()
			batches[k].Release()
			batches, want = slices.Delete(batches, k, k+1), slices.Delete(want, k, k+1)
		}
	}
	for k := range batches {
		batches[k].Release()
		want[k].Release()
	}
}

func TestAssembleErrors(t *testing.T) {
	d := bigDataset(t, 10)
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	pins := held
	p, err := NewProjection(&d.snap, nil, LayoutBinary)
	if err != nil {
		t.Fatal(err)
	}
	blob := func(b []byte) Blob {
		held++
		return NewBlob(b, pin{&held})
	}
	huge, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE) // never read
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(huge); err != nil {
			t.Error(err)
		}
	}()
	for name, try := range map[string]struct {
		positions []int64
		blobs     [][]Blob
		want      error
	}{
		"a position too high":    {[]int64{10}, [][]Blob{{blob(nil)}}, ErrInvalid},
		"a negative position":    {[]int64{-1}, [][]Blob{{blob(nil)}}, ErrInvalid},
		"no column of blobs":     {[]int64{1}, nil, ErrInvalid},
		"fewer blobs than rows":  {[]int64{1, 2}, [][]Blob{{blob([]byte("x"))}}, ErrInvalid},
		"2 GiB in layout binary": {[]int64{1, 2}, [][]Blob{{blob(huge), blob(huge)}}, ErrLimit},
	} {
		b, err := p.Assemble(m, try.positions, try.blobs)
		if b != nil || !errors.Is(err, try.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if held != pins {
		t.Errorf("%d blobs still pinned", held-pins)
	}
	if v, err := blobColumn[int32](newArena(1), arrow.BinaryTypes.Binary,
		[]Blob{NewBlob(huge, nil), NewBlob(huge[:1<<30-1], nil)}, nil, nil); err != nil ||
		v.Buffers[2].Len != math.MaxInt32 {
		t.Error(v.Len, err)
	}
}

// An empty blob is no null, also where the store returns a nil slice for it.
func TestAssembleEmptyBlob(t *testing.T) {
	s, err := NewSchema(nil, []arrow.Field{BlobField("b", "", true)})
	if err != nil {
		t.Fatal(err)
	}
	cb := NewChunkBuilder(memory.DefaultAllocator, s)
	defer cb.Release()
	empty := RefOf(nil)
	for i, ref := range []*BlobRef{&empty, nil, &empty} {
		if err := cb.Append(ID{byte(i)}, nil, 0, []*BlobRef{ref}); err != nil {
			t.Fatal(err)
		}
	}
	data, c, err := cb.Finish()
	if err != nil {
		t.Fatal(err)
	}
	c.BlobRef = RefOf(data)
	snap := &Snapshot{Dataset: "e", Schema: s, Chunks: []Chunk{c}}
	m, err := OpenManifest(snap, []Blob{NewBlob(data, nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	p, err := NewProjection(snap, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Assemble(m, []int64{0, 1, 2}, [][]Blob{{NewBlob(nil, nil), {}, NewBlob([]byte{}, nil)}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if v := b.Columns[1]; v.Nulls != 1 || v.Buffers[0].Pieces[0][0] != 0b101 {
		t.Errorf("%+v", v)
	}
}

func TestProjection(t *testing.T) {
	snap := &Snapshot{Dataset: "d", Number: 1, Schema: everySchema(t)}
	p, err := NewProjection(snap, []string{"raw", "position", "image"}, LayoutBinary)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(p.BlobColumns(), []int{2, 0}) {
		t.Error(p.BlobColumns())
	}
	if got := fmt.Sprint(p.Schema.Field(0).Type, p.Schema.Field(1).Type,
		p.Schema.Field(2).Type); got != "binary int64 binary" {
		t.Error(got)
	}
	if p, err = NewProjection(snap, nil, ""); err != nil || p.Schema.NumFields() != snap.Schema.NumFields() ||
		len(p.BlobColumns()) != 3 {
		t.Error(p, err)
	}
	var fe *FieldError
	if _, err := NewProjection(snap, []string{"id", "labels"}, ""); !errors.As(err, &fe) || fe.Field != "columns[1]" ||
		!strings.Contains(fe.Want, "id, n00_BOOL") ||
		!strings.HasSuffix(fe.Want,
			`position, split, image.size, image.key, audio.size, audio.key, raw.size, raw.key (did you mean "label"?)`) {
		t.Error(err)
	}
	if _, err := NewProjection(snap, []string{"id", "id"}, ""); !errors.As(err, &fe) {
		t.Error(err)
	}
	if _, err := NewProjection(snap, nil, "parquet"); !errors.As(err, &fe) || fe.Field != "layout" {
		t.Error(err)
	}
}

func TestHuggingFaceSchema(t *testing.T) {
	snap := &Snapshot{Dataset: "d", Number: 1, Schema: everySchema(t)}
	p, err := NewProjection(snap, nil, LayoutHuggingFace)
	if err != nil {
		t.Fatal(err)
	}
	md := p.Schema.Metadata()
	text := md.Values()[md.FindKey("huggingface")]
	if !json.Valid([]byte(text)) {
		t.Fatal(text)
	}
	for _, f := range p.Schema.Fields() {
		if !f.Nullable {
			t.Errorf("%s is not nullable", f.Name)
		}
	}
	golden(t, "huggingface.json", []byte(strings.ReplaceAll(text, "}, \"", "},\n\"")+"\n"))
}

func TestSnapshotJSON(t *testing.T) {
	s, err := NewSchema([]arrow.Field{ClassField("label", []string{"cat", "dog"})},
		[]arrow.Field{BlobField("image", MediaImage, true)})
	if err != nil {
		t.Fatal(err)
	}
	snap := Snapshot{
		Dataset: "pets", Number: 3, Parent: 2, Created: time.Date(2024, 2, 3, 4, 5, 6, 789000, time.UTC),
		Source: "imagefolder pets",
		Schema: s, Splits: []Split{{"train", []Range{{0, 8}, {10, 12}}}, {"val", []Range{{8, 10}}}},
		Chunks: []Chunk{{BlobRef: RefOf([]byte("chunk")), Rows: 12, BlobBytes: []int64{345}}},
	}
	text, err := json.MarshalIndent(snap, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "snapshot.json", append(text, '\n'))
	var again Snapshot
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if !again.Schema.Equal(s) {
		t.Error(again.Schema)
	}
	again.Schema = s
	if !reflect.DeepEqual(again, snap) {
		t.Errorf("%+v", again)
	}
	for _, broken := range []string{
		`{}`, `{"schema":"AAAA"}`, `{"schema":3}`, `[]`, `{"dataset":3}`,
		strings.Replace(string(text), `"schema": "/////`, `"schema": "/////w`, 1),
		strings.Replace(string(text), "AAA", "B", 1),
	} {
		if err := json.Unmarshal([]byte(broken), &again); !errors.Is(err, ErrDataLoss) {
			t.Errorf("%.40s: %v", broken, err)
		}
	}
	if _, err := json.Marshal(Snapshot{}); err == nil {
		t.Error("a snapshot without a schema was marshalled")
	}
}

func TestCheckSchema(t *testing.T) {
	str := func(name string) arrow.Field { return arrow.Field{Name: name, Type: arrow.BinaryTypes.String} }
	of := func(dt arrow.DataType) arrow.Field { return arrow.Field{Name: "x", Type: dt} }
	deep := arrow.ListOf(arrow.PrimitiveTypes.Int8)
	for range 20 {
		deep = arrow.ListOf(deep)
	}
	bad := ClassField("label", nil)
	bad.Type = arrow.BinaryTypes.String
	blob := BlobField("b", "", true)
	blob.Type = arrow.BinaryTypes.Binary
	for name, s := range map[string]*arrow.Schema{
		"nil":              nil,
		"empty":            arrow.NewSchema(nil, nil),
		"no id":            arrow.NewSchema([]arrow.Field{str("a")}, nil),
		"id as text":       arrow.NewSchema([]arrow.Field{str("id")}, nil),
		"id twice":         arrow.NewSchema([]arrow.Field{IDField(), IDField()}, nil),
		"same name":        arrow.NewSchema([]arrow.Field{IDField(), str("a"), str("a")}, nil),
		"no name":          arrow.NewSchema([]arrow.Field{IDField(), str("")}, nil),
		"long name":        arrow.NewSchema([]arrow.Field{IDField(), str(strings.Repeat("a", 129))}, nil),
		"broken name":      arrow.NewSchema([]arrow.Field{IDField(), str("\xff")}, nil),
		"reserved name":    arrow.NewSchema([]arrow.Field{IDField(), str("split")}, nil),
		"blob before meta": arrow.NewSchema([]arrow.Field{IDField(), BlobField("b", "", true), str("a")}, nil),
		"blob of binary":   arrow.NewSchema([]arrow.Field{IDField(), blob}, nil),
		"media":            arrow.NewSchema([]arrow.Field{IDField(), BlobField("b", "smell", true)}, nil),
		"dictionary": arrow.NewSchema([]arrow.Field{IDField(),
			of(&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String})}, nil),
		"null": arrow.NewSchema([]arrow.Field{IDField(), of(arrow.Null)}, nil),
		"map in a list": arrow.NewSchema([]arrow.Field{IDField(),
			of(arrow.ListOf(arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.String)))}, nil),
		"struct of nothing": arrow.NewSchema([]arrow.Field{IDField(), of(arrow.StructOf())}, nil),
		"deep":              arrow.NewSchema([]arrow.Field{IDField(), of(deep)}, nil),
		"classes of text":   arrow.NewSchema([]arrow.Field{IDField(), bad}, nil),
		"width of 0":        arrow.NewSchema([]arrow.Field{IDField(), of(&arrow.FixedSizeBinaryType{})}, nil),
	} {
		if err := CheckSchema(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := everySchema(t)
	if got := Classes(s.Field(len(MetaFields(s)) - 1)); !reflect.DeepEqual(got, []string{"cat", "dog"}) {
		t.Error(got)
	}
	if Media(BlobFields(s)[1]) != MediaAudio || IsBlob(s.Field(0)) || Classes(s.Field(0)) != nil {
		t.Error("field metadata")
	}
}

func TestNearest(t *testing.T) {
	names := []string{"seed", "epoch", "batch", "batch_bytes"}
	for name, want := range map[string]string{"sed": "seed", "Seed": "seed", "esed": "seed", "bach": "batch",
		"batch_byte": "batch_bytes", "zzz": "", "": "", strings.Repeat("x", 1000): ""} {
		if got := Nearest(name, names); got != want {
			t.Errorf("%.10q: %q, want %q", name, got, want)
		}
	}
}

func TestSampleID(t *testing.T) {
	// Ids are kept outside: this one must never change.
	if got := FormatID(SampleID("imagenet", "n01440764/n01440764_10026.JPEG")); got != goldenID {
		t.Errorf("got %s, want %s", got, goldenID)
	}
	if SampleID("a", "b") == SampleID("ab", "") {
		t.Error("the dataset and the key run into each other")
	}
	id := SampleID("a", "b")
	if v := uuid.UUID(id); v.Version() != 5 || v.Variant() != uuid.RFC4122 {
		t.Error(v.Version(), v.Variant())
	}
	for _, s := range []string{FormatID(id), strings.ReplaceAll(FormatID(id), "-", ""), strings.ToUpper(FormatID(id))} {
		if got, err := ParseID(s); err != nil || got != id {
			t.Error(s, got, err)
		}
	}
	for _, s := range []string{"", "x", "{" + FormatID(id) + "}", "urn:uuid:" + FormatID(id), strings.Repeat("g", 32)} {
		if _, err := ParseID(s); !errors.Is(err, ErrInvalid) {
			t.Error(s, err)
		}
	}
	var text [36]byte
	if putID(text[:], id); string(text[:]) != FormatID(id) {
		t.Error(string(text[:]))
	}
}

const goldenID = "0fdd0fda-c9f6-574a-aaa7-6b6da4012b55"

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
