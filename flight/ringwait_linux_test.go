package flight

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/metadata"

	"bowstring/flight/shm"
	"bowstring/internal/shmtest"
)

// The time of a client's steps counts as the consumer's also with a ring. Its messages are
// so small that the connection never blocks.
func TestStepsByRingAreTheConsumers(t *testing.T) {
	// On a busy machine the server takes long for its own part. The steps are longer then.
	for step := 100 * time.Millisecond; ; step *= 4 {
		stepped, consumer, took := stepsByRing(t, step)
		if consumer > took {
			t.Fatalf("a client whose steps took %v of %v is said to have taken %v", stepped, took, consumer)
		}
		// The first two found room, and what comes after the last is in no metadata.
		if consumer >= stepped/2 {
			return
		}
		if step > time.Second {
			t.Fatalf("a client whose steps took %v of %v is said to have taken %v", stepped, took, consumer)
		}
	}
}

// stepsByRing reads a dataset by a ring in steps, and returns how long the steps took, how long the server says that
// it waited for the consumer, and how long all took.
func stepsByRing(t *testing.T, step time.Duration) (stepped, consumer, took time.Duration) {
	t.Helper()
	local, err := shm.Listen(shm.Options{Path: filepath.Join(t.TempDir(), "s"), RingBytes: 9 << 20,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	}()
	f := serve(t, Options{Shm: local})
	f.fillLarge("big")
	g, err := shmtest.Visit(local.Path(), "", local.Key(""))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	release := func(slot uint64) {
		var records [32]byte
		records[0], records[16] = 1, 2 // taken, released
		binary.LittleEndian.PutUint64(records[8:], slot)
		binary.LittleEndian.PutUint64(records[24:], slot)
		if _, err := g.Conn.Write(records[:]); err != nil {
			t.Error(err)
		}
	}
	stream, err := f.client.DoGet(metadata.AppendToOutgoingContext(t.Context(), ringHeader, g.Ring+"/1"),
		&flight.Ticket{Ticket: []byte(`{"dataset": "big", "batch": 4}`)})
	if err != nil {
		t.Fatal(err)
	}
	start, shared := time.Now(), 0
	for {
		data, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(data.AppMetadata) == 0 {
			continue // the schema
		}
		var batch struct {
			Wait   waitMetadata
			Shared *shm.Extents
		}
		if err := json.Unmarshal(data.AppMetadata, &batch); err != nil {
			t.Fatal(err)
		}
		consumer += time.Duration(batch.Wait.Consumer) * time.Microsecond
		began := time.Now()
		time.Sleep(step)
		stepped += time.Since(began)
		if batch.Shared != nil {
			shared++
			release(batch.Shared.Slot)
		}
	}
	if shared != largeRows/4 {
		t.Fatalf("%d batches came by the ring", shared)
	}
	return stepped, consumer, time.Since(start)
}
