package flight

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/fetch"
	"bowstring/schema"
)

func imageSchema() *arrow.Schema {
	return arrow.NewSchema([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.LargeBinary}}, nil)
}

// imageBatch is a batch of one row, whose blob lies where an owner has it.
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

// cutShort is memory of a file that has been cut short since: whoever reads it would end the process.
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
	b := cutShort(t, 10*inlineBytes)
	var out atomic.Int64
	out.Add(1)
	_, err := newEncoder(imageSchema()).batchFrame(imageBatch(b[:inlineBytes], counted{&out}), nil, nil)
	wantDataLoss(t, "a small blob", err)
	if out.Load() != 0 {
		t.Error("its batch was not released")
	}
	g, _ := gathered(t)
	f := &frame{pieces: []piece{{bytes: b}}}
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
	out.Add(1)
	answers := []fetch.Answer{{Blob: schema.NewBlob(b[:10], counted{&out})}, {Blob: schema.NewBlob([]byte("here"), nil)}}
	small := cloneSmall(answers)
	wantDataLoss(t, "a small blob for another node", answers[0].Err)
	if out.Load() != 0 || answers[1].Err != nil || string(small[1]) != "here" {
		t.Errorf("%d blobs are held; the other one is %q, %v", out.Load(), small[1], answers[1].Err)
	}
}

// A file of the store that is cut short while a stream reads it ends the stream, and not the process: whatever is just
// being done with its bytes, or with the manifest's, which lie there, too.
func TestFileCutShortWhileSending(t *testing.T) {
	f := serve(t, Options{})
	f.fill("few", 10_000)
	s, err := f.client.DoGet(t.Context(), &flight.Ticket{
		Ticket: []byte(`{"dataset": "few", "columns": ["image"], "batch": 1000}`)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	b, err := f.store.Get(t.Context(), schema.RefOf(content(20)))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	e, ok := b.Extent()
	if !ok {
		t.Fatal("the blob lies in no file")
	}
	if err := os.Truncate(e.File.Name(), 1<<20); err != nil {
		t.Fatal(err)
	}
	err = drainStream(s)
	if code := status.Code(err); err != nil && code != codes.DataLoss && code != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
}

func wantDataLoss(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("%s: %v, want %v", what, err, schema.ErrDataLoss)
	}
}
