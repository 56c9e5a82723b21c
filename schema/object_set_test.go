package schema

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// madeSet makes an object set of n objects, some of which have units.
func madeSet(rng *rand.Rand, n int) *ObjectSet {
	s := &ObjectSet{Bucket: "s3://bucket/a-" + fmt.Sprint(rng.IntN(100)), Reading: strings.Repeat("r", rng.IntN(9)), Unproven: rng.IntN(2) == 0}
	keys := map[string]bool{}
	for len(keys) < n {
		keys[fmt.Sprintf("train/n%04d/%s%d.JPEG", rng.IntN(30), strings.Repeat("é", rng.IntN(9)), rng.IntN(1<<20))] = true
	}
	for k := range keys {
		o := Object{Key: k, Size: rng.Int64N(1 << 40)}
		switch rng.IntN(4) {
		case 0:
			o.Version.ETag = fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64())
		case 1:
			o.Version.ETag = fmt.Sprintf("%016X%016X-%d", rng.Uint64(), rng.Uint64(), rng.IntN(9))
		case 2:
			o.Version.ID = fmt.Sprint(rng.Uint64())
		}
		for end := int64(0); rng.IntN(3) > 0 && end < o.Size; {
			u := Unit{Offset: end + rng.Int64N(o.Size-end), Size: rng.Int64N(1 << 30), Codec: codecs[1+rng.IntN(len(codecs)-1)]}
			u.Length = 1 + rng.Int64N(o.Size-u.Offset)
			o.Units = append(o.Units, u)
			end = u.Offset + u.Length
		}
		s.Objects = append(s.Objects, o)
	}
	slices.SortFunc(s.Objects, func(a, b Object) int { return strings.Compare(a.Key, b.Key) })
	return s
}

// A set is read back as it was, whole and object by object, and no change of a byte is read as something else unnoticed
// but in what the checksum of the blob is for.
func TestObjectSetIsReadBack(t *testing.T) {
	rng := random(t)
	for _, n := range []int{0, 1, 15, 16, 17, 33, 500} {
		want := madeSet(rng, n)
		data, err := EncodeObjectSet(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeObjectSet(data)
		if err != nil || len(got.Objects) != n || n > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("%d objects: %v\n%+v\n%+v", n, err, got, want)
		}
		x, err := OpenObjectSet(data)
		if err != nil || x.Len() != n || x.Bucket() != want.Bucket || x.Prefix() != want.Prefix() ||
			x.Unproven() != want.Unproven {
			t.Fatalf("%+v, %v", x, err)
		}
		for i, o := range want.Objects {
			units := o.Units
			o.Units = nil
			if got, err := x.Object(uint32(i)); err != nil || !reflect.DeepEqual(got, o) {
				t.Fatalf("object %d is %+v, %v; want %+v", i, got, err, o)
			}
			for j, u := range units {
				if of, got, err := x.Unit(uint32(i), u.Offset); err != nil || got != u || of.Key != o.Key {
					t.Fatalf("unit %d of object %d is %+v, %v; want %+v", j, i, got, err, u)
				}
			}
			if _, _, err := x.Unit(uint32(i), o.Size); !errors.Is(err, ErrDataLoss) {
				t.Fatalf("a unit where none begins: %v", err)
			}
		}
		if _, err := x.Object(uint32(n)); !errors.Is(err, ErrDataLoss) {
			t.Fatalf("an object behind the last one: %v", err)
		}
		for range 300 {
			broken := slices.Clone(data)
			broken[rng.IntN(len(broken))] ^= 1 << rng.IntN(8)
			if rng.IntN(4) == 0 {
				broken = broken[:rng.IntN(len(broken))]
			}
			hostileSet(t, broken)
		}
	}
}

// hostileSet reads bytes that may be no set.
func hostileSet(t *testing.T, data []byte) {
	t.Helper()
	check := func(err error) bool {
		if err != nil && !errors.Is(err, ErrDataLoss) && !errors.Is(err, ErrNotSupported) {
			t.Fatalf("%v", err)
		}
		return err == nil
	}
	s, err := DecodeObjectSet(data)
	if check(err) {
		again, err := EncodeObjectSet(s)
		if err != nil {
			t.Fatalf("a set that was read cannot be written: %v", err)
		}
		if back, err := DecodeObjectSet(again); err != nil || !reflect.DeepEqual(back, s) {
			t.Fatalf("a set that was read is written as another one: %v", err)
		}
	}
	x, err := ReopenObjectSet(data)
	if !check(err) {
		return
	}
	for _, n := range []uint32{0, 1, 17, uint32(x.Len()) - 1} {
		_, err := x.Object(n)
		check(err)
		_, _, err = x.Unit(n, 1)
		check(err)
	}
}

func FuzzOpenObjectSet(f *testing.F) {
	for _, n := range []int{0, 1, 20} {
		data, err := EncodeObjectSet(madeSet(rand.New(rand.NewPCG(1, uint64(n))), n))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { hostileSet(t, data) })
}

func TestObjectSetRefused(t *testing.T) {
	object := func(change func(*Object)) *ObjectSet {
		o := Object{Key: "k", Size: 10, Units: []Unit{{Offset: 2, Length: 3, Size: 4, Codec: CodecGzip}}}
		change(&o)
		return &ObjectSet{Objects: []Object{o}}
	}
	for name, s := range map[string]*ObjectSet{
		"descending": {Objects: []Object{{Key: "b"}, {Key: "a"}}},
		"twice":      {Objects: []Object{{Key: "a"}, {Key: "a"}}},
		"size":       object(func(o *Object) { o.Size = -1 }),
		"key":        object(func(o *Object) { o.Key = strings.Repeat("k", MaxObjectKey+1) }),
		"codec":      object(func(o *Object) { o.Units[0].Codec = "lzma" }),
		"no codec":   object(func(o *Object) { o.Units[0].Codec = "" }),
		"beyond":     object(func(o *Object) { o.Units[0].Length = 9 }),
		"negative":   object(func(o *Object) { o.Units[0].Size = -1 }),
		"overlap":    object(func(o *Object) { o.Units = append(o.Units, o.Units[0]) }),
	} {
		if _, err := EncodeObjectSet(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := EncodeObjectSet(&ObjectSet{Objects: make([]Object, MaxObjects+1)}); !errors.Is(err, ErrLimit) {
		t.Errorf("too many: %v", err)
	}
}

// The format does not change by accident.
func TestObjectSetGolden(t *testing.T) {
	s := &ObjectSet{Bucket: "s3://photos/train", Reading: `{"format":"zip"}`, Unproven: true, Objects: []Object{
		{Key: "a/1.jpg", Size: 110_000, Version: ObjectVersion{ETag: "0123456789abcdef0123456789abcdef"}},
		{Key: "a/2.jpg", Size: 90_000, Version: ObjectVersion{ETag: "0123456789abcdef0123456789abcdef-2", ID: "v7"}},
		{Key: "b.zip", Size: 1 << 33, Units: []Unit{
			{Offset: 40, Length: 100, Size: 300, Codec: CodecDeflate}, {Offset: 200, Length: 7, Size: 9, Codec: CodecZstd}}},
	}}
	data, err := EncodeObjectSet(s)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "object_set.hex")
	want, err := os.ReadFile(path)
	if err != nil || strings.TrimSpace(string(want)) != hex.EncodeToString(data) {
		t.Errorf("%v; the set is\n%x", err, data)
	}
}

// An object of a set of 65,536 takes no memory until it is asked for, and then little.
func BenchmarkObjectIndex(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := &ObjectSet{Bucket: "s3://b"}
	for i := range MaxObjects {
		s.Objects = append(s.Objects, Object{Key: fmt.Sprintf("train/n%04d/%08d.JPEG", i/1300, i), Size: 110_000,
			Version: ObjectVersion{ETag: fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64())}})
	}
	data, err := EncodeObjectSet(s)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("open", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := OpenObjectSet(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	x, err := OpenObjectSet(data)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("object", func(b *testing.B) {
		b.ReportAllocs()
		b.ReportMetric(float64(len(data))/MaxObjects, "B/object")
		for b.Loop() {
			if _, err := x.Object(rng.Uint32N(MaxObjects)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
