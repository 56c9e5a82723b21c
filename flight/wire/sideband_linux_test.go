package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/protobuf/proto"

	"bowstring/flight/shm"
	"bowstring/internal/shmtest"
	"bowstring/schema"
)

// bodyOf is a frame as a client reads it.
func bodyOf(t *testing.T, f *Frame) (body, metadata []byte) {
	t.Helper()
	var message []byte
	for _, p := range f.pieces {
		message = append(message, p.Bytes...)
	}
	var data flight.FlightData
	if err := proto.Unmarshal(message, &data); err != nil {
		t.Fatal(err)
	}
	return data.DataBody, data.AppMetadata
}

// The bytes in the ring and those in the message make up the batch, buffer by buffer, in
// every layout, with nested columns, and whichever buffers are large.
func TestSharedIsTheSameBatch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	local, err := shm.Listen(shm.Options{Path: filepath.Join(t.TempDir(), "s"), RingBytes: 32 << 20,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	}()
	name, memory := shmtest.Map(t, local.Path(), local.Key(""))
	s, err := local.Sideband(name+"/1", "", false)
	if err != nil || s == nil {
		t.Fatalf("the server does not know the ring that it gave: %v", err)
	}
	defer s.Leave()
	for _, layout := range []schema.Layout{schema.LayoutLargeBinary, schema.LayoutBinary, schema.LayoutHuggingFace} {
		for i, size := range []struct{ rows, most int }{{1, 1 << 20}, {7, 100}, {300, 1000}, {9_000, 60},
			{20_000, 20}} {
			t.Run(fmt.Sprintf("%s/%dx%d", layout, size.rows, size.most), func(t *testing.T) {
				var out atomic.Int64
				b, want := encodable(t, layout, size.rows, size.most, seed+uint64(i), &out)
				again, same := encodable(t, layout, size.rows, size.most, seed+uint64(i), &out)
				want.Release()
				same.Release()
				enc := newEncoder(b.Schema)
				whole, err := enc.batchFrame(again, math.MaxInt64, []byte(`{}`), time.Time{})
				if err != nil {
					t.Fatal(err)
				}
				nodes, buffers := slices.Clone(enc.nodes), slices.Clone(enc.buffers)
				wantBody, _ := bodyOf(t, whole)
				whole.discard()

				extents, err := s.Share(t.Context(), b, nil)
				if err != nil {
					t.Fatal(err)
				}
				meta, err := extents.AddTo([]byte(`{"a":1}`))
				if err != nil {
					t.Fatal(err)
				}
				f, err := enc.batchFrame(b, extents.Aside(), meta, time.Time{})
				if err != nil {
					t.Fatal(err)
				}
				extents.Sent()
				body, meta := bodyOf(t, f)
				f.discard()
				var said struct{ Shared *shm.Extents }
				if err := json.Unmarshal(meta, &said); err != nil {
					t.Fatalf("%s: %v", meta, err)
				}
				elsewhere := map[int64][]byte{}
				var bytesShared int64
				if said.Shared != nil {
					for _, l := range said.Shared.Buffers {
						if l[1]%64 != 0 {
							t.Errorf("buffer %d begins at %d of the ring, which is not aligned", l[0], l[1])
						}
						elsewhere[l[0]] = memory[l[1] : l[1]+l[2]]
						bytesShared += l[2]
					}
				}
				if !slices.Equal(enc.nodes, nodes) || len(enc.buffers) != len(buffers) {
					t.Fatalf("nodes %v, %d buffers; want %v, %d", enc.nodes, len(enc.buffers), nodes, len(buffers))
				}
				for k, at := range enc.buffers {
					got, ok := elsewhere[int64(k)]
					if !ok {
						got = body[at[0] : at[0]+at[1]]
					}
					if w := wantBody[buffers[k][0] : buffers[k][0]+buffers[k][1]]; !bytes.Equal(got, w) {
						t.Errorf("buffer %d has %d bytes, or others than the %d of the batch (by the ring: %t)", k,
							len(got), len(w), ok)
					}
					if large := buffers[k][1] >= shm.LargeBytes; large != ok {
						t.Errorf("buffer %d of %d bytes: by the ring %t", k, buffers[k][1], ok)
					}
				}
				if n := extents.Bytes(); n != bytesShared {
					t.Errorf("%d bytes are counted, %d went by the ring", n, bytesShared)
				}
				if n := out.Load(); n != 0 {
					t.Errorf("%d blobs are out", n)
				}
			})
		}
	}
}
