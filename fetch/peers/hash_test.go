package peers_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"

	"bowstring/fetch/peers"
	"bowstring/schema"
	"bowstring/schema/checksum/forge"
	"bowstring/spill"
)

// sends is a link to a node that sends the same bytes for each request.
type sends struct {
	mute
	data   []byte
	secure bool
	asked  int
}

func (s *sends) Secure() bool { return s.secure }

func (s *sends) Get(context.Context, peers.Ask) (schema.Blob, error) {
	s.asked++
	return schema.NewBlob(bytes.Clone(s.data), nil), nil
}

// askedOf returns what a tier gets from node "b" over a link.
func askedOf(t *testing.T, link peers.Link, ref schema.BlobRef) (got []byte, has bool, st peers.NodeStats, err error) {
	t.Helper()
	tier := tierOf(t, link)
	has = tier.Has(ref)
	b, err := tier.Get(t.Context(), ref, spill.Place{})
	if err == nil {
		got = bytes.Clone(b.Bytes())
		b.Release()
	}
	return got, has, tier.Stats()[0], err
}

// tierOf returns a tier whose only route is node "b" over a link.
func tierOf(t *testing.T, link peers.Link) *peers.Tier {
	t.Helper()
	tier, err := peers.New(peers.Options{
		Directory: one{}, Dial: func(string) (peers.Link, error) { return link, nil },
		SnapshotName: func(uint32) string { return "" }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tier.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := tier.SetNodes([]string{"b"}); err != nil {
		t.Fatal(err)
	}
	return tier
}

// Bytes forged to have the checksum of a blob are rejected from any node, because their hash differs. This holds for
// secure and other links, and for short and long blobs.
func TestForgedBytesAreWrong(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, n := range []int{300, 20_000, 64 << 10, 64<<10 + 1, 1 << 20} {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		right, forged := forge.Twins(data)
		ref := schema.RefOf(right)
		if ref.Check(forged) != nil {
			t.Fatal("the checksums of the twins differ")
		}
		for _, secure := range []bool{false, true} {
			_, _, st, err := askedOf(t, &sends{data: forged, secure: secure}, ref)
			if !errors.Is(err, schema.ErrDataLoss) || st.Wrong != 1 || !st.Silent || st.Answered != 0 {
				t.Errorf("%d forged bytes: %v, %+v; want that they are wrong", n, err, st)
			}
			got, has, st, err := askedOf(t, &sends{data: right, secure: secure}, ref)
			if err != nil || !has || !bytes.Equal(got, right) || st.Answered != 1 {
				t.Errorf("%d right bytes: there %v, %v, %+v", n, has, err, st)
			}
		}
	}
}

// A cell of another program's table has no hash, nor has a blob in a bucket. Such a blob is requested only over a
// secure link.
func TestAddressesAreAskedBySecureWays(t *testing.T) {
	data := []byte("a cell of another program's table")
	ref := schema.BlobRef{Size: int64(len(data)), Sum: schema.Checksum(data)}
	for _, key := range []schema.Key{schema.AddressKey([12]byte{1, 2, 3}, ref.Sum, schema.SampleID("d", "1")),
		schema.ObjectAddress{Prefix: schema.ObjectPrefix{1, 2, 3}, Object: 4, Offset: 5}.Key(ref.Sum)} {
		ref.Key = key
		addressIsAsked(t, data, ref)
	}
}

func addressIsAsked(t *testing.T, data []byte, ref schema.BlobRef) {
	t.Helper()
	if ref.Hashed() || !schema.RefOf(data).Hashed() {
		t.Fatal("an address is taken for a hash, or a hash for an address")
	}
	link := &sends{data: data}
	if _, has, _, err := askedOf(t, link, ref); has || !errors.Is(err, schema.ErrUnavailable) || link.asked != 0 {
		t.Errorf("by any way: there %v, %v, asked %d times; want never", has, err, link.asked)
	}
	if tier := tierOf(t, link); !tier.Owns(ref) || tier.Owns(schema.RefOf(data)) {
		t.Error("what is asked for nowhere is not this node's to keep, or what has a hash is")
	}
	link.secure = true
	if tierOf(t, link).Owns(ref) {
		t.Error("what another node keeps is this node's to keep, too")
	}
	if got, has, _, err := askedOf(t, link, ref); !has || err != nil || !bytes.Equal(got, data) {
		t.Errorf("by a secure way: there %v, %v, %q", has, err, got)
	}
	link.data = []byte("A cell of another program's table")
	if _, _, st, err := askedOf(t, link, ref); !errors.Is(err, schema.ErrDataLoss) || st.Wrong != 1 {
		t.Errorf("another cell: %v, %+v", err, st)
	}
}

// BenchmarkCheck measures the check of a blob from another node, by hash and by checksum alone.
func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{4 << 10, 110_000, 4 << 20} {
		data := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7}, n/7+1)[:n]
		ref := schema.RefOf(data)
		for name, check := range map[string]func([]byte) error{"checksum": ref.Check, "hash": ref.CheckHash} {
			b.Run(name, func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					if err := check(data); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
