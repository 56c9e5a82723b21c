package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"golang.org/x/sys/unix"
)

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
		if i%3 == 0 { // release one of those alive
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
