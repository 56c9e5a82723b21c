package peer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"bowstring/fetch/peers"
	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// Encoded asks decode to the same asks.
func TestAsksGoThere(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		asks := make([]Ask, rng.IntN(maxAsks+1))
		for i := range asks {
			asks[i] = Ask{rng.Uint32(), peers.Ask{
				Ref:      schema.BlobRef{Size: rng.Int64N(peers.MaxBlob + 1), Sum: schema.Sum(rng.Uint64())},
				Snapshot: []string{"", "d@1", "imagenet@17"}[rng.IntN(3)], Position: rng.Int64(),
				Tenant:  []string{"", fmt.Sprint("tenant ", rng.IntN(300))}[rng.IntN(2)],
				Forward: rng.IntN(2) == 0, Held: rng.IntN(2) == 0,
			}}
			for k := range asks[i].Ref.Key {
				asks[i].Ref.Key[k] = byte(rng.Uint32())
			}
		}
		var got []Ask
		if err := ParseAsks(AppendAsks(nil, asks), func(a Ask) error { got = append(got, a); return nil }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, asks) {
			t.Fatalf("got %v, want %v", got, asks)
		}
	}
}

// FuzzAsks: any bytes are decoded or refused.
func FuzzAsks(f *testing.F) {
	f.Add(AppendAsks(nil,
		[]Ask{{7, peers.Ask{Snapshot: "d@1", Tenant: "t", Position: 5, Ref: schema.BlobRef{Size: 9}}}}))
	f.Add(AppendAsks(nil, []Ask{{7, peers.Ask{Held: true, Position: 5, Ref: schema.BlobRef{Size: 9}}}}))
	f.Add([]byte{KindAsks, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var got []Ask
		if ParseAsks(b, func(a Ask) error { got = append(got, a); return nil }) != nil {
			return
		}
		var again []Ask
		if err := ParseAsks(AppendAsks(nil, got), func(a Ask) error {
			again = append(again, a)
			return nil
		}); err != nil || !slices.Equal(got, again) {
			t.Fatalf("%v is written and read as %v: %v", got, again, err)
		}
	})
}

// FuzzAnswers: the head of a message never announces more bytes than have arrived.
func FuzzAnswers(f *testing.F) {
	f.Add(append(AppendAnswers(nil, []Answer{{1, Here, 3}, {2, Lost, 1}}), "abcd"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		list, err := readAnswers(r, len(b))
		if err != nil {
			return
		}
		total := 0
		for _, a := range list {
			total += a.Size
		}
		if total > r.Len() {
			t.Fatalf("%d bytes in answers, and %d came", total, r.Len())
		}
	})
}

// Buffers are large enough, and not much larger.
func TestBuffers(t *testing.T) {
	for n := 0; n < 300_000; n += 1 + n/200 {
		b := newBuffer(n)
		if len(b.memory) < n || n > 1<<leastBits && len(b.memory) > n+n/4 {
			t.Fatalf("a buffer for %d bytes has %d", n, len(b.memory))
		}
		b.Unpin()
	}
	b := newBuffer(peers.MaxBlob)
	if len(b.memory) != peers.MaxBlob {
		t.Errorf("the largest buffer has %d bytes", len(b.memory))
	}
}
