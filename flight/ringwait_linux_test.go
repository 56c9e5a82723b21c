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
	const step = 100 * time.Millisecond
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
	var consumer, stepped time.Duration
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
	took := time.Since(start)
	if shared != largeRows/4 {
		t.Fatalf("%d batches came by the ring", shared)
	}
	// The first two found room, and what comes after the last is in no metadata.
	if consumer < stepped/2 || consumer > took {
		t.Errorf("a client whose steps took %v of %v is said to have taken %v", stepped, took, consumer)
	}
}
