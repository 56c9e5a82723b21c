package wire

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"golang.org/x/sys/unix"

	"bowstring/schema"
)

func imageSchema() *arrow.Schema {
	return arrow.NewSchema([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.LargeBinary}}, nil)
}

// imageBatch is a batch of one row, whose blob is in the memory of an owner.
func imageBatch(blob []byte, owner schema.Owner) *schema.Batch {
	n := int64(len(blob))
	offsets := make([]byte, 16)
	offsets[8], offsets[9] = byte(n), byte(n>>8)
	return &schema.Batch{
		Schema: imageSchema(), Rows: 1,
		Columns: []schema.Vector{{Len: 1, Buffers: []schema.Buffer{{}, {Len: 16, Pieces: [][]byte{offsets}},
			{Len: n, Pieces: [][]byte{blob}}}}},
		Blobs: [][]schema.Blob{{schema.NewBlob(blob, owner)}},
	}
}

// cutShort is memory of a file that has been truncated: reading it would end the process.
func cutShort(t *testing.T, n int) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "segment"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	return b
}

// A file that is cut short under a message ends its stream or its connection, and no more.
func TestFileCutShortUnderMessage(t *testing.T) {
	b := cutShort(t, 10*InlineBytes)
	var out atomic.Int64
	out.Add(1)
	_, err := newEncoder(imageSchema()).batchFrame(imageBatch(b[:InlineBytes], counted{&out}), math.MaxInt64, nil, time.Time{})
	wantDataLoss(t, "a small blob", err)
	if out.Load() != 0 {
		t.Error("its batch was not released")
	}
	g, _ := gathered(t)
	f := &Frame{pieces: []Piece{{Bytes: b}}}
	if err := laneFor(g, 1).expect(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Write(dataHeader(1, len(b))); err != nil {
		t.Fatal(err)
	}
	_, err = g.Write(b[:10:10])
	wantDataLoss(t, "a small part of a blob", err)
	_, err = g.Write([]byte{1})
	wantDataLoss(t, "what follows", err)
}

func wantDataLoss(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("%s: %v, want %v", what, err, schema.ErrDataLoss)
	}
}
