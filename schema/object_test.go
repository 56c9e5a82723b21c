package schema

import (
	"math/rand/v2"
	"testing"
)

// An address is read back from its key as it was, and the key has the form of one.
func TestObjectAddress(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 10_000 {
		a := ObjectAddress{Object: rng.Uint32(), Offset: rng.Int64N(1 << 48)}
		for i := range a.Prefix {
			a.Prefix[i] = byte(rng.Uint32())
		}
		if rng.IntN(2) == 0 {
			a.Packed, a.Offset, a.Unit = true, rng.Int64N(1<<40), rng.Int64N(1<<48)
		}
		sum := Sum(rng.Uint64())
		k := a.Key(sum)
		if got, ok := ParseObjectAddress(k); !ok || got != a {
			t.Fatalf("%+v became %+v, %t", a, got, ok)
		}
		if (BlobRef{Key: k, Sum: sum}).Hashed() {
			t.Fatalf("key %s of sum %s is taken for a hash", k, sum)
		}
	}
	for name, a := range map[string]ObjectAddress{
		"offset": {Offset: 1 << 48}, "negative": {Offset: -1}, "in unit": {Packed: true, Offset: 1 << 40},
		"unit": {Packed: true, Unit: 1 << 48},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: an address out of bounds became a key", name)
				}
			}()
			a.Key(0)
		}()
	}
}

// A reference without a checksum is known as such by itself, is an address, and keeps its key when the checksum is there.
func TestUnprovenRef(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 10_000 {
		a := ObjectAddress{Object: rng.Uint32(), Offset: rng.Int64N(1 << 48)}
		for i := range a.Prefix {
			a.Prefix[i] = byte(rng.Uint32())
		}
		if rng.IntN(2) == 0 {
			a.Packed, a.Offset, a.Unit = true, rng.Int64N(1<<40), rng.Int64N(1<<48)
		}
		ref := UnprovenRef(a, 1+rng.Int64N(1<<40))
		if got, ok := ParseObjectAddress(ref.Key); !ok || got != a {
			t.Fatalf("%+v became %+v, %t", a, got, ok)
		}
		if !ref.Unproven() || ref.Hashed() {
			t.Fatalf("%+v: unproven %t, hashed %t", ref, ref.Unproven(), ref.Hashed())
		}
		proven := ref.Prove(Sum(rng.Uint64()))
		if proven.Key != ref.Key || proven.Size != ref.Size || proven.Unproven() || proven.Hashed() {
			t.Fatalf("%+v became %+v: unproven %t, hashed %t", ref, proven, proven.Unproven(), proven.Hashed())
		}
		settled := BlobRef{Key: a.Key(proven.Sum), Size: ref.Size, Sum: proven.Sum}
		if got := proven.Settled(); got != settled || settled.Settled() != settled || ref.Settled() != ref {
			t.Fatalf("%+v is settled as %+v, want %+v", proven, got, settled)
		}
		other := ref
		other.Size++
		if other.Unproven() {
			t.Fatalf("%+v is taken for unproven, too", other)
		}
		sum := Sum(rng.Uint64())
		if (BlobRef{Key: a.Key(sum), Size: ref.Size, Sum: sum}).Unproven() {
			t.Fatalf("the address %+v of sum %s is taken for unproven", a, sum)
		}
	}
	if ref := UnprovenRef(ObjectAddress{}, 0); ref.Unproven() || ref.Check(nil) != nil {
		t.Errorf("an empty blob is %+v: its content is known", ref)
	}
}

// The prefix of a set distinguishes versions, sizes, keys and buckets, and not units.
func TestObjectSetPrefix(t *testing.T) {
	base := func() *ObjectSet {
		return &ObjectSet{Bucket: "s3://b", Objects: []Object{{Key: "a", Size: 1, Version: ObjectVersion{ETag: "x"}}}}
	}
	same := base()
	same.Objects[0].Units = []Unit{{Length: 1, Size: 2, Codec: CodecZstd}}
	if same.Prefix() != base().Prefix() {
		t.Error("units change the prefix")
	}
	for name, change := range map[string]func(*ObjectSet){
		"bucket": func(s *ObjectSet) { s.Bucket = "s3://c" }, "reading": func(s *ObjectSet) { s.Reading = "r" }, "key": func(s *ObjectSet) { s.Objects[0].Key = "b" },
		"size": func(s *ObjectSet) { s.Objects[0].Size = 2 }, "etag": func(s *ObjectSet) { s.Objects[0].Version.ETag = "y" },
		"id": func(s *ObjectSet) { s.Objects[0].Version.ID = "1" }, "unproven": func(s *ObjectSet) { s.Unproven = true },
		"more": func(s *ObjectSet) { s.Objects = append(s.Objects, Object{}) },
	} {
		s := base()
		change(s)
		if s.Prefix() == base().Prefix() {
			t.Errorf("%s: the same prefix", name)
		}
	}
}

// Units are found by where they begin, and by nothing else.
func TestObjectUnit(t *testing.T) {
	o := Object{Units: []Unit{{Offset: 0, Length: 4, Size: 9}, {Offset: 7, Length: 1, Size: 2}, {Offset: 8, Size: 3}}}
	for at := int64(-1); at < 10; at++ {
		u, ok := o.Unit(at)
		if want := at == 0 || at == 7 || at == 8; ok != want || ok && u.Offset != at {
			t.Errorf("at %d: %+v, %v", at, u, ok)
		}
	}
}
