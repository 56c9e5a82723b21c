package shm

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/internal/shmtest"
	"bowstring/schema"
)

// unproven is the owner of a blob in a file whose bytes have not been compared with its
// reference.
type unproven struct {
	extent    schema.Extent
	out       *atomic.Int64
	unchecked bool
}

func (l *unproven) Unpin()                              { l.out.Add(-1) }
func (l *unproven) Extent([]byte) (schema.Extent, bool) { return l.extent, l.extent.File != nil }
func (l *unproven) Unchecked() bool                     { return l.unchecked }

// referable returns a batch with one column of blobs, and their values. Each third blob
// is in a file.
func referable(t *testing.T, rng *rand.Rand, file *os.File, rows int, out *atomic.Int64) (*schema.Batch, [][]byte) {
	t.Helper()
	var data []byte
	want := make([][]byte, rows)
	blobs := make([]schema.Blob, rows)
	offsets := make([]byte, 0, 8*(rows+1))
	values := schema.Buffer{Unchecked: []schema.Unchecked{}}
	for i := range rows {
		offsets = binary.LittleEndian.AppendUint64(offsets, uint64(values.Len))
		n := []int{referredBytes + rng.IntN(50_000), rng.IntN(2 * inlineView), rng.IntN(2 * referredBytes)}[i%3]
		if rng.IntN(6) == 0 {
			continue // a null
		}
		b := make([]byte, n)
		for k := range b {
			b[k] = byte(rng.Uint32())
		}
		want[i] = b
		if n == 0 {
			continue
		}
		l := &unproven{out: out, unchecked: rng.IntN(2) == 0}
		if i%3 != 1 {
			l.extent = schema.Extent{File: file, Offset: int64(len(data)), Length: int64(n), Limit: 1 << 30}
			data = append(data, b...)
		}
		out.Add(1)
		blobs[i] = schema.NewBlob(b, l)
		values.Pieces, values.Len = append(values.Pieces, b), values.Len+int64(n)
		values.Unchecked = append(values.Unchecked, schema.Unchecked{Row: i, Ref: schema.RefOf(b)})
	}
	offsets = binary.LittleEndian.AppendUint64(offsets, uint64(values.Len))
	if _, err := file.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	kind := arrow.BinaryTypes.LargeBinary
	return &schema.Batch{
		Schema: arrow.NewSchema([]arrow.Field{{Name: "image", Type: kind, Nullable: true}}, nil),
		Rows:   rows, Blobs: [][]schema.Blob{blobs},
		Columns: []schema.Vector{{Type: kind, Len: rows, Blobs: blobs,
			Buffers: []schema.Buffer{{}, {Pieces: [][]byte{offsets}, Len: int64(len(offsets))}, values}}}}, want
}

// sharingFixture is a call of a client that can do with references.
func sharingFixture(t *testing.T) (s *Sideband, memory []byte) {
	t.Helper()
	local, err := Listen(Options{Path: filepath.Join(t.TempDir(), "s"), RingBytes: 32 << 20,
		References: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	})
	name, memory := shmtest.Map(t, local.Path(), local.Key(""))
	ring := local.Ring(name, "")
	if ring == nil {
		t.Fatal("the server does not know the ring that it gave")
	}
	t.Cleanup(ring.Leave)
	return &Sideband{ring: ring, call: 1, refers: true}, memory
}

// viewed reads a value as Arrow's layout of views has it.
func viewed(memory, file []byte, r *references, row int) []byte {
	view := memory[r.Views[0]+int64(row)*viewBytes:][:viewBytes]
	n := binary.LittleEndian.Uint32(view)
	if n <= inlineView {
		return view[4:][:n]
	}
	buffer, offset := binary.LittleEndian.Uint32(view[8:]), binary.LittleEndian.Uint32(view[12:])
	from := memory[r.Data[0]:][:r.Data[1]]
	if buffer > 0 {
		entry := memory[r.Table[0]+int64(buffer-1)*entryBytes:][:entryBytes]
		at, length := binary.LittleEndian.Uint64(entry[8:]), binary.LittleEndian.Uint64(entry[16:])
		from = file[at:][:length]
	}
	if value := from[offset:][:n]; bytes.Equal(value[:4], view[4:8]) {
		return value
	}
	return nil // the view's beginning is wrong
}

// The referred blobs, the copied blobs and the values in views make up the column. The
// referred blobs are held until the slot is released, long after the batch.
func TestReferencesAreTheColumn(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	s, memory := sharingFixture(t)
	for _, rows := range []int{1, 9, 100} {
		t.Run(fmt.Sprint(rows), func(t *testing.T) {
			var out atomic.Int64
			file, err := os.Create(filepath.Join(t.TempDir(), "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			b, want := referable(t, rng, file, rows, &out)
			size := b.Columns[0].Buffers[2].Len
			l, err := s.Share(t.Context(), b, nil)
			if err != nil {
				t.Fatal(err)
			}
			if size < LargeBytes {
				if l != nil {
					t.Error("a batch of little does not come by the connection")
				}
				b.Release()
				return
			}
			meta, err := l.AddTo([]byte(`{"a":1}`))
			if err != nil {
				t.Fatal(err)
			}
			if got := l.Bytes(); got != size {
				t.Errorf("%d bytes are counted of %d", got, size)
			}
			l.Sent()
			b.Release()
			var said struct{ Shared *Extents }
			if err := json.Unmarshal(meta, &said); err != nil {
				t.Fatalf("%s: %v", meta, err)
			}
			if said.Shared == nil || len(said.Shared.References) != 1 || said.Shared.Slot == 0 {
				t.Fatalf("the client gets %s", meta)
			}
			content, err := os.ReadFile(file.Name())
			if err != nil {
				t.Fatal(err)
			}
			r := said.Shared.References[0]
			for row := range rows {
				if got := viewed(memory, content, r, row); !bytes.Equal(got, want[row]) {
					t.Errorf("row %d has %d bytes, or others than the %d that it is to have", row, len(got), len(want[row]))
				}
			}
			if held := out.Load(); held != r.Table[1]/entryBytes {
				t.Errorf("%d blobs are held, %d are referred to", held, r.Table[1]/entryBytes)
			}
			l.Dropped()
			if n := out.Load(); n != 0 {
				t.Errorf("%d blobs are held after everything was released", n)
			}
		})
	}
}

// The server does not refer to a blob that is wrong in its file. It copies the batch and
// reads the wrong blob again.
func TestWrongBytesAreNotReferredTo(t *testing.T) {
	s, memory := sharingFixture(t)
	var out atomic.Int64
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	b, want := referable(t, rand.New(rand.NewPCG(1, 2)), file, 50, &out)
	values := &b.Columns[0].Buffers[2]
	wrong := -1
	for k, u := range values.Unchecked {
		if wrong < 0 && len(values.Pieces[k]) > referredBytes {
			wrong = u.Row
			values.Pieces[k] = append([]byte(nil), values.Pieces[k]...)
			values.Pieces[k][7] ^= 1
		}
	}
	asked := 0
	l, err := s.Share(t.Context(), b, func(_ context.Context, row int, _ schema.BlobRef) (schema.Blob, error) {
		asked++
		if row != wrong {
			t.Errorf("row %d is read again, and not %d", row, wrong)
		}
		return schema.NewBlob(want[row], nil), nil
	})
	if err != nil || l == nil || len(l.References) != 0 || len(l.Buffers) != 1 || asked != 1 {
		t.Fatalf("%+v: %v, want one buffer by the ring, and one blob read again; %d were", l, err, asked)
	}
	at := l.Buffers[0][1]
	for row, w := range want {
		if got := memory[at : at+int64(len(w))]; !bytes.Equal(got, w) {
			t.Errorf("row %d is wrong", row)
		}
		at += int64(len(w))
	}
	l.Dropped()
	b.Release()
	if n := out.Load(); n != 0 {
		t.Errorf("%d blobs are out", n)
	}
}
