package schema

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

func swap(rec arrow.Record) arrow.Record {
	s := rec.Schema()
	return array.NewRecord(arrow.NewSchema([]arrow.Field{s.Field(1), s.Field(0)}, nil),
		[]arrow.Array{rec.Column(1), rec.Column(0)}, rec.NumRows())
}

func narrower(rec arrow.Record) arrow.Record {
	return array.NewRecord(arrow.NewSchema(rec.Schema().Fields()[:1], nil), rec.Columns()[:1], rec.NumRows())
}

func TestOpenManifestErrors(t *testing.T) {
	r, mem := random(t), checked(t)
	s, err := NewSchema([]arrow.Field{{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true}},
		[]arrow.Field{BlobField("b", "", true)})
	if err != nil {
		t.Fatal(err)
	}
	d := makeDataset(t, r, mem, s, 10, 10)
	defer d.release()
	for name, breakIt := range map[string]func(s *Snapshot, chunks [][]byte) [][]byte{
		"a chunk too few": func(_ *Snapshot, c [][]byte) [][]byte { return c[:1] },
		"a flipped bit": func(_ *Snapshot, c [][]byte) [][]byte {
			b := bytes.Clone(c[0])
			b[len(b)/2] ^= 4
			return [][]byte{b, c[1]}
		},
		"a short chunk": func(_ *Snapshot, c [][]byte) [][]byte { return [][]byte{c[0][:len(c[0])-1], c[1]} },
		"an empty chunk": func(s *Snapshot, c [][]byte) [][]byte {
			s.Chunks[1].BlobRef = RefOf(nil)
			return [][]byte{c[0], nil}
		},
		"other rows":       func(s *Snapshot, c [][]byte) [][]byte { s.Chunks[0].Rows++; return c },
		"other blob bytes": func(s *Snapshot, c [][]byte) [][]byte { s.Chunks[0].BlobBytes = []int64{-5}; return c },
		"no blob bytes":    func(s *Snapshot, c [][]byte) [][]byte { s.Chunks[0].BlobBytes = nil; return c },
		"another schema": func(s *Snapshot, c [][]byte) [][]byte {
			s.Schema, _ = NewSchema(nil, []arrow.Field{BlobField("b", "", true)})
			return c
		},
		"no schema":        func(s *Snapshot, c [][]byte) [][]byte { s.Schema = nil; return c },
		"a split too long": func(s *Snapshot, c [][]byte) [][]byte { s.Splits[1].Ranges[0].End++; return c },
		"splits that meet": func(s *Snapshot, c [][]byte) [][]byte { s.Splits[1].Ranges[0].Start = 3; return c },
		"a split upside down": func(s *Snapshot, c [][]byte) [][]byte {
			s.Splits[1].Ranges[0] = Range{9, 8}
			return c
		},
	} {
		snap := d.snap
		snap.Chunks = append([]Chunk(nil), d.snap.Chunks...)
		snap.Splits = []Split{{"a", []Range{{0, 5}}}, {"b", []Range{{5, 20}}}}
		held := 0
		broken := dataset{snap: snap, chunks: d.chunks}
		broken.chunks = breakIt(&broken.snap, d.chunks)
		m, err := OpenManifest(&broken.snap, broken.pins(&held))
		if m != nil || !errors.Is(err, ErrDataLoss) {
			t.Errorf("%s: %v", name, err)
		}
		if held != 0 {
			t.Errorf("%s: %d chunks still pinned", name, held)
		}
	}
}

// A chunk at an odd address is read all the same.
func TestManifestUnaligned(t *testing.T) {
	r, mem := random(t), checked(t)
	d := makeDataset(t, r, mem, everySchema(t), 10)
	defer d.release()
	shifted := alignedBytes(len(d.chunks[0]) + 3)[3:]
	copy(shifted, d.chunks[0])
	d.chunks[0] = shifted
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	if m.ID(9) != d.ids[9] {
		t.Fatal("id")
	}
}

func TestManifestEmpty(t *testing.T) {
	d := &dataset{snap: Snapshot{Dataset: "none", Schema: everySchema(t)}}
	held := 0
	m := d.open(t, &held)
	defer m.Close()
	if _, ok := m.Lookup(ID{}); ok || m.Rows() != 0 || m.SplitOf(0) != "" {
		t.Fatal("rows in an empty manifest")
	}
	p, err := NewProjection(&d.snap, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Assemble(m, nil, make([][]Blob, 3))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	rec, err := b.Record(memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	if rec.NumRows() != 0 {
		t.Fatal(rec)
	}
}

// fuzzSchema has every shape of column once.
func fuzzSchema(t testing.TB) *arrow.Schema {
	s, err := NewSchema([]arrow.Field{
		{Name: "bool", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "int", Type: arrow.PrimitiveTypes.Int32},
		{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "large", Type: arrow.BinaryTypes.LargeString},
		{Name: "list", Type: arrow.ListOf(arrow.BinaryTypes.Binary), Nullable: true},
		{Name: "pair", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float64)},
		{Name: "struct", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int8, Nullable: true}),
			Nullable: true},
	}, []arrow.Field{BlobField("blob", MediaImage, true)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Whatever the bytes, opening gives an ErrDataLoss or a manifest whose every
// cell can be read.
func FuzzOpenManifest(f *testing.F) {
	d := makeDataset(f, rand.New(rand.NewPCG(1, 2)), memory.DefaultAllocator, fuzzSchema(f), 5)
	f.Add(d.chunks[0], int64(5), d.snap.Chunks[0].BlobBytes[0])
	f.Fuzz(func(t *testing.T, data []byte, rows, size int64) { openMutated(t, &d.snap, data, rows, size) })
}

// The same, with mutations that keep most of a chunk whole.
func TestOpenManifestMutated(t *testing.T) {
	r := random(t)
	d := makeDataset(t, r, memory.DefaultAllocator, fuzzSchema(t), 5)
	opened := 0
	for range 5000 {
		data := bytes.Clone(d.chunks[0])
		for range 1 + r.IntN(3) {
			at := r.IntN(len(data))
			switch r.IntN(3) {
			case 0:
				data[at] = byte(r.Int())
			case 1:
				data[at] ^= 1 << r.IntN(8)
			case 2:
				data[at] = []byte{0, 0xff, 0x7f, 0x80}[r.IntN(4)]
			}
		}
		if r.IntN(20) == 0 {
			data = data[:r.IntN(len(data))]
		}
		if openMutated(t, &d.snap, data, 5, d.snap.Chunks[0].BlobBytes[0]) {
			opened++
		}
	}
	if opened == 0 {
		t.Error("no mutation was harmless, which means that none was tried")
	}
}

func openMutated(t *testing.T, base *Snapshot, data []byte, rows, size int64) bool {
	snap := *base
	snap.Chunks = []Chunk{{BlobRef: RefOf(data), Rows: rows, BlobBytes: []int64{size}}}
	snap.Splits = nil
	held := 1
	m, err := OpenManifest(&snap, []Blob{NewBlob(data, pin{&held})})
	if err != nil {
		if !errors.Is(err, ErrDataLoss) {
			t.Fatal(err)
		}
		if held != 0 {
			t.Fatal("still pinned")
		}
		return false
	}
	defer m.Close()
	if m.Rows() > 1000 {
		return true
	}
	p, err := NewProjection(&snap, nil, LayoutHuggingFace)
	if err != nil {
		t.Fatal(err)
	}
	for _, backwards := range []bool{false, true} {
		var positions []int64
		for pos := range m.Rows() {
			if m.Lookup(m.ID(pos)); backwards {
				pos = m.Rows() - 1 - pos
			}
			positions = append(positions, pos)
		}
		b, err := p.Assemble(m, positions, [][]Blob{make([]Blob, len(positions))})
		if err != nil {
			t.Fatal(err)
		}
		rec, err := b.Record(memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		_ = fmt.Sprint(rec)
		rec.Release()
		b.Release()
	}
	return true
}
