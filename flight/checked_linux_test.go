package flight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"bowstring/flight/shm"
	"bowstring/internal/shmtest"
	"bowstring/schema"
)

// If bytes of files change behind the server's back, they never reach a client: neither
// through a ring nor through the connection, neither from the page cache nor after its
// pages were dropped. When the file is right again, it is served again.
func TestWrongBytesNeverLeave(t *testing.T) {
	for name, ring := range map[string]int64{"by the ring": 32 << 20, "no room": 1 << 20, "no ring": 0} {
		t.Run(name, func(t *testing.T) {
			local, err := shm.Listen(shm.Options{Path: filepath.Join(t.TempDir(), "s"),
				RingBytes: max(ring, 1<<20), Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := local.Close(); err != nil {
					t.Error(err)
				}
			}()
			f := serve(t, Options{Shm: local})
			const rows = 1000
			f.fill("big", rows)
			var want []byte
			for i := range rows {
				want = append(want, content(i)...)
			}
			id, memory := shmtest.Map(t, local.Path(), local.Key(""))
			call := 0
			read := func() (shared int, err error) {
				ctx := t.Context()
				if call++; ring > 0 {
					ctx = metadata.AppendToOutgoingContext(ctx, ringHeader, fmt.Sprintf("%s/%d", id, call))
				}
				return f.readShared(ctx, memory, want)
			}
			shared, err := read()
			if err != nil {
				t.Fatal(err)
			}
			if large := ring > 1<<20; large != (shared == 1) {
				t.Errorf("%d batches came by the ring", shared)
			}
			ref := schema.RefOf(content(rows / 2))
			b, err := f.store.Get(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Release()
			e, ok := b.Extent()
			if !ok {
				t.Fatal("the blob is in no file")
			}
			name := e.File.Name()
			for _, dropped := range []bool{false, true} {
				flipByte(t, name, e.Offset+e.Length/2, dropped)
				if _, err := read(); err == nil {
					t.Error("a client read what is wrong")
				} else {
					wantCode(t, err, codes.DataLoss, "position 500 of big@1")
				}
				flipByte(t, name, e.Offset+e.Length/2, dropped)
				if _, err := read(); err != nil {
					t.Errorf("after the file was put right: %v", err)
				}
			}
		})
	}
}

// readShared reads a dataset as one batch and requires its blobs to be want, one after the
// other. It returns how many batches came through a ring, which is mapped to memory.
func (f *fixture) readShared(ctx context.Context, memory, want []byte) (shared int, err error) {
	f.t.Helper()
	stream, err := f.client.DoGet(ctx,
		&flight.Ticket{Ticket: []byte(`{"dataset": "big", "columns": ["image"], "batch": 1000, "rank": 0, "step": 0}`)})
	if err != nil {
		return 0, err
	}
	for {
		data, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return shared, nil
		}
		if err != nil {
			return shared, err
		}
		if len(data.AppMetadata) == 0 {
			continue // the schema
		}
		var said struct{ Shared *shm.Extents }
		mustUnmarshal(f.t, data.AppMetadata, &said)
		if said.Shared == nil {
			if !bytes.Contains(data.DataBody, want) {
				f.t.Error("a message has other blobs")
			}
			continue
		}
		shared++
		if l := said.Shared.Buffers[0]; !bytes.Equal(memory[l[1]:l[1]+l[2]], want) {
			f.t.Error("other blobs are in the ring")
		}
	}
}

// flipByte changes a byte of a file. If drop is set, the kernel drops its page, and the
// next read is from the disk.
func flipByte(t *testing.T, name string, at int64, drop bool) {
	t.Helper()
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var b [1]byte
	if _, err := file.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := file.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	if drop {
		if err := file.Sync(); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
	}
}
