package flight

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/metadata"

	"bowstring/flight/samenode"
)

// What a client takes for its steps shows as time of the consumer also where it has a ring, of which the messages are
// so small that the connection never waits.
func TestStepsByRingAreTheConsumers(t *testing.T) {
	const step = 100 * time.Millisecond
	local, err := samenode.Listen(samenode.Options{Path: filepath.Join(t.TempDir(), "s"), RingBytes: 9 << 20,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	}()
	f := serve(t, Options{SameNode: local})
	f.fillLarge("big")
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: local.Path(), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	said, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, _, _, _, err := c.ReadMsgUnix(said, rights)
	if err != nil {
		t.Fatal(err)
	}
	var hello struct{ Ring string }
	mustUnmarshal(t, said[:n], &hello)
	letGo := func(slot uint64) {
		var records [32]byte
		records[0], records[16] = 1, 2 // taken, released
		binary.LittleEndian.PutUint64(records[8:], slot)
		binary.LittleEndian.PutUint64(records[24:], slot)
		if _, err := c.Write(records[:]); err != nil {
			t.Error(err)
		}
	}
	stream, err := f.client.DoGet(metadata.AppendToOutgoingContext(t.Context(), ringHeader, hello.Ring+"/1"),
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
			Shared *lies
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
			letGo(batch.Shared.Slot)
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
