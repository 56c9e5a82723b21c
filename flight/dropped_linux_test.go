package flight

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/fetch"
	"bowstring/schema"
)

// counted counts the blobs that are out.
type counted struct{ out *atomic.Int64 }

func (c counted) Unpin() { c.out.Add(-1) }

// A file that is cut short under a small blob for another node fails that blob alone.
func TestFileTruncatedUnderStream(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "segment"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(1 << 10); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(file.Fd()), 0, 1<<10, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	if err := file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	var out atomic.Int64
	out.Add(1)
	answers := []fetch.Answer{{Blob: schema.NewBlob(b[:10], counted{&out})}, {Blob: schema.NewBlob([]byte("here"), nil)}}
	list, batch := answersMessage(answers, nil)
	defer batch.Release()
	if !errors.Is(answers[0].Err, schema.ErrDataLoss) {
		t.Errorf("a small blob for another node: %v, want %v", answers[0].Err, schema.ErrDataLoss)
	}
	if out.Load() != 0 || answers[1].Err != nil || !bytes.HasSuffix(list[0], []byte("here")) {
		t.Errorf("%d blobs are held; the message ends in %q, %v", out.Load(), list[0], answers[1].Err)
	}
}

// If a file of the store is truncated while a stream reads it, the stream ends and the
// process does not. That holds for each step that reads blobs, and for the manifest, which
// is in a file too.
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
		t.Fatal("the blob is in no file")
	}
	if err := os.Truncate(e.File.Name(), 1<<20); err != nil {
		t.Fatal(err)
	}
	err = drainStream(s)
	if code := status.Code(err); err != nil && code != codes.DataLoss && code != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
}
