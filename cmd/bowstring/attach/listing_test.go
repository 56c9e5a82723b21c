package attach

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"bowstring/cmd/bowstring/source"
	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestListing attaches random listings one after the other, each a change of the one
// before. Every reference names the current object of its blob, and an unchanged object
// stays in its set.
func TestListing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		now := map[string]schema.Object{}
		var base []Base
		had := map[string]schema.ObjectAddress{} // by object and its version
		for range 4 {
			for range rng.IntN(200) {
				key := fmt.Sprintf("%03d", rng.IntN(300))
				if rng.IntN(4) == 0 {
					delete(now, key)
				} else {
					now[key] = schema.Object{Key: key, Size: 100, Version: schema.ObjectVersion{ETag: fmt.Sprint(rng.IntN(3))}}
				}
			}
			objects := slices.SortedFunc(maps.Values(now), func(a, b schema.Object) int { return cmpKeys(a, b) })
			l, err := NewListing("s3://b", "r", false, objects, base)
			if err != nil {
				t.Fatal(err)
			}
			refs := map[string]schema.BlobRef{}
			data := []byte("0123456789")
			for _, n := range rng.Perm(len(objects)) {
				o := objects[n]
				at := source.Extent{File: o.Key, Offset: 7, Length: 10}
				if o.Key[2]%3 == 0 {
					at.Unit = &schema.Unit{Offset: 5, Length: 9, Size: 20, Codec: schema.CodecZstd}
				}
				if refs[o.Key], err = l.Ref(at, data); err != nil {
					t.Fatal(err)
				}
			}
			sets := map[schema.ObjectPrefix]*schema.ObjectSet{}
			for _, b := range base {
				sets[b.Ref.Prefix] = b.Set
			}
			kept := base
			base = nil
			for _, b := range kept {
				if slices.Contains(l.KeptSets(), b.Ref) {
					base = append(base, b)
				}
			}
			for made := range l.Made {
				ref := schema.SetRef{Prefix: made.Prefix(), Blob: schema.RefOf([]byte(fmt.Sprint(len(sets))))}
				if sets[ref.Prefix] != nil {
					t.Fatalf("set %s is made again", ref.Prefix)
				}
				sets[ref.Prefix] = made
				base = append(base, Base{Ref: ref, Set: made})
			}
			for key, ref := range refs {
				a, ok := schema.ParseObjectAddress(ref.Key)
				set := sets[a.Prefix]
				if !ok || set == nil || int(a.Object) >= len(set.Objects) {
					t.Fatalf("%s: key %s leads nowhere: %+v", key, ref.Key, a)
				}
				o := set.Objects[a.Object]
				if o.Key != key || o.Version != now[key].Version || a.Offset != 7 || ref.Size != 10 ||
					ref.Sum != schema.Checksum(data) {
					t.Fatalf("%s leads to %+v of %+v", key, a, o)
				}
				if _, ok := o.Unit(a.Unit); a.Packed && !ok {
					t.Fatalf("%s is in a unit at %d, and there is none", key, a.Unit)
				}
				id := fmt.Sprint(key, now[key].Version, a.Packed)
				if was, ok := had[id]; ok && was != a && slices.ContainsFunc(kept, func(b Base) bool {
					return b.Ref.Prefix == was.Prefix
				}) && !slices.ContainsFunc(kept, func(b Base) bool { return b.Ref.Prefix == a.Prefix }) {
					t.Fatalf("%s has not changed, and moved from %+v to %+v", key, was, a)
				}
				had[id] = a
			}
		}
	}
}

func cmpKeys(a, b schema.Object) int {
	switch {
	case a.Key < b.Key:
		return -1
	case a.Key > b.Key:
		return 1
	}
	return 0
}

// TestListingOtherReading: another reading makes other object sets.
func TestListingOtherReading(t *testing.T) {
	objects := []schema.Object{{Key: "a", Size: 9}}
	set := &schema.ObjectSet{Bucket: "s3://b", Reading: "r", Objects: objects}
	base := []Base{{Ref: schema.SetRef{Prefix: set.Prefix()}, Set: set}}
	for name, c := range map[string]struct {
		bucket, reading string
		keeps           bool
	}{"the same": {"s3://b", "r", true}, "another bucket": {"s3://c", "r", false}, "another reading": {"s3://b", "q", false}} {
		l, err := NewListing(c.bucket, c.reading, false, objects, base)
		if err != nil {
			t.Fatal(err)
		}
		if l.Keeps() != c.keeps {
			t.Errorf("%s: keeps %v", name, l.Keeps())
		}
	}
}

// TestRefRefuses: an impossible extent is an error.
func TestRefRefuses(t *testing.T) {
	l, err := NewListing("s3://b", "r", false, []schema.Object{{Key: "a", Size: 9}, {Key: "big", Size: 1 << 60}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	unit := schema.Unit{Offset: 1, Length: 5, Size: 30, Codec: schema.CodecZstd}
	other := unit
	other.Size = 31
	for name, c := range map[string]struct {
		at   source.Extent
		data string
		want error
	}{
		"no such file":      {source.Extent{File: "b", Length: 1}, "x", schema.ErrConflict},
		"another length":    {source.Extent{File: "a", Length: 2}, "x", schema.ErrDataLoss},
		"beyond the object": {source.Extent{File: "a", Offset: 9, Length: 1}, "x", schema.ErrDataLoss},
		"before the object": {source.Extent{File: "a", Offset: -1, Length: 1}, "x", schema.ErrDataLoss},
		"beyond the unit":   {source.Extent{File: "a", Offset: 30, Length: 1, Unit: &unit}, "x", schema.ErrDataLoss},
		"too far":           {source.Extent{File: "big", Offset: 1 << 48, Length: 1}, "x", schema.ErrNotSupported},
		"all of it":         {source.Extent{File: "a", Length: 9}, "123456789", nil},
		"nothing":           {source.Extent{File: "a", Offset: 9}, "", nil},
		"in a unit":         {source.Extent{File: "a", Offset: 29, Length: 1, Unit: &unit}, "x", nil},
	} {
		if _, err := l.Ref(c.at, []byte(c.data)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := l.Ref(source.Extent{File: "a", Length: 1, Unit: &other}, []byte("x")); !errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("two units at one place: %v", err)
	}
	if _, err := NewListing("s3://b", "r", false, []schema.Object{{Key: "b"}, {Key: "a"}}, nil); err == nil {
		t.Error("a listing out of order is taken")
	}
}
