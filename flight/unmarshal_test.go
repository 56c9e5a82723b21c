package flight

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// field is a random field of a message, with a random wire type: often one that the message does not want.
func field(rng *rand.Rand, depth int) []byte {
	number := protowire.Number(1 + rng.IntN(8))
	switch kind := rng.IntN(7); {
	case kind == 0:
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), rng.Uint64())
	case kind == 1:
		return protowire.AppendFixed64(protowire.AppendTag(nil, number, protowire.Fixed64Type), rng.Uint64())
	case kind == 2:
		return protowire.AppendFixed32(protowire.AppendTag(nil, number, protowire.Fixed32Type), rng.Uint32())
	case kind == 3:
		within := bytes.Repeat(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1), rng.IntN(99))
		return protowire.AppendGroup(protowire.AppendTag(nil, number, protowire.StartGroupType), number, within)
	case kind == 4 || depth == 0:
		return nested(number, bytes.Repeat([]byte("a"), rng.IntN(99)))
	}
	var within []byte
	for range rng.IntN(4) {
		within = append(within, field(rng, depth-1)...)
	}
	return nested(number, within)
}

// A decoded body never takes more memory than was counted for it, whatever it contains.
func TestDecodedBodiesTakeWhatIsCounted(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	decoded, worst := 0, 0.0
	for range 4000 {
		about := []proto.Message{&flight.CancelFlightInfoRequest{}, &flight.RenewFlightEndpointRequest{}}[rng.IntN(2)]
		body := bytes.Repeat(field(rng, 4), 1+rng.IntN(2000))
		if rng.IntN(2) == 0 {
			body = nested(1, body)
		}
		cost, err := decodedCost(body, about.ProtoReflect().Descriptor(), 0)
		if err != nil || len(body) < 10_000 { // noise of other goroutines would be a part of it
			continue
		}
		var before, after runtime.MemStats
		m := about.ProtoReflect().New().Interface()
		runtime.ReadMemStats(&before)
		if proto.Unmarshal(body, m) != nil {
			continue
		}
		runtime.ReadMemStats(&after)
		decoded++
		got := int64(after.TotalAlloc - before.TotalAlloc)
		worst = max(worst, float64(got)/float64(cost))
		if got > cost+64<<10 {
			t.Fatalf("seed %d: a %s of %d bytes takes %d, and %d are counted; it begins with %x", seed,
				about.ProtoReflect().Descriptor().Name(), len(body), got, cost, body[:40])
		}
	}
	t.Logf("%d bodies, at worst %.2f of what is counted", decoded, worst)
	if decoded < 100 {
		t.Errorf("seed %d: only %d bodies were decoded", seed, decoded)
	}
}
