package segment

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"bowstring/schema"
)

// image makes the bytes of a segment in memory.
func image(id uint32, payloads ...[]byte) []byte {
	h := encodeFileHeader(id)
	b := bytes.Clone(h[:])
	for _, p := range payloads {
		ref := schema.RefOf(p)
		h := encodeRecordHeader(id, Record{Key: ref.Key, Length: ref.Size, Sum: ref.Sum})
		b = append(append(b, h[:]...), p...)
		b = append(b, make([]byte, Footprint(ref.Size)-HeaderSize-ref.Size)...)
	}
	return b
}

// scan returns the good records and the damage.
func scan(t testing.TB, b []byte, opts ScanOptions) (good []Record, damaged []*DamageError) {
	t.Helper()
	for rec, err := range Scan(bytes.NewReader(b), 3, int64(len(b)), opts) {
		var d *DamageError
		switch {
		case errors.As(err, &d):
			damaged = append(damaged, d)
		case err != nil:
			t.Fatal(err)
		default:
			good = append(good, rec)
		}
	}
	return good, damaged
}

func testPayloads() [][]byte {
	var list [][]byte
	for i, n := range []int{100, 0, 64, 5000, 1, 130_000, 777} {
		list = append(list, content(fmt.Sprint("scan", i), n))
	}
	return list
}

func TestScan(t *testing.T) {
	payloads := testPayloads()
	b := image(3, payloads...)
	for _, verify := range []bool{false, true} {
		good, damaged := scan(t, b, ScanOptions{Payloads: verify})
		if len(good) != len(payloads) || len(damaged) != 0 {
			t.Fatalf("found %d records and %v, want %d and none", len(good), damaged, len(payloads))
		}
		for i, rec := range good {
			if ref := schema.RefOf(payloads[i]); rec.Key != ref.Key || rec.Length != ref.Size || rec.Sum != ref.Sum {
				t.Errorf("record %d is %+v, want %+v", i, rec, ref)
			}
			if !bytes.Equal(b[rec.Offset:rec.Offset+rec.Length], payloads[i]) {
				t.Errorf("record %d is not at %d", i, rec.Offset)
			}
		}
		tail, _ := scan(t, b, ScanOptions{From: good[3].Offset - HeaderSize, Payloads: verify})
		if len(tail) != len(good)-3 || tail[0] != good[3] {
			t.Errorf("from record 3 the scan found %d records, want %d", len(tail), len(good)-3)
		}
	}
}

// TestScanFlippedBits flips each bit of a record's header, and bits of its
// payload: that record alone must be missed, and the damage reported.
func TestScanFlippedBits(t *testing.T) {
	payloads := testPayloads()
	b := image(3, payloads...)
	clean, _ := scan(t, b, ScanOptions{Payloads: true})
	const victim = 3
	start := clean[victim].Offset - HeaderSize
	check := func(bit int64) {
		b[bit/8] ^= 1 << (bit % 8)
		defer func() { b[bit/8] ^= 1 << (bit % 8) }()
		good, damaged := scan(t, b, ScanOptions{Payloads: true})
		if len(damaged) == 0 {
			t.Fatalf("bit %d of byte %d was flipped and nothing reported", bit%8, bit/8)
		}
		if len(good) != len(clean)-1 {
			t.Fatalf("bit %d of byte %d was flipped: %d good records, want %d", bit%8, bit/8, len(good), len(clean)-1)
		}
		for _, rec := range good {
			if rec.Key == clean[victim].Key {
				t.Fatalf("bit %d of byte %d was flipped and the record passed", bit%8, bit/8)
			}
		}
		if !errors.Is(damaged[0], schema.ErrDataLoss) || damaged[0].Offset != start {
			t.Fatalf("damage reported as %v, want at %d", damaged[0], start)
		}
	}
	for bit := start * 8; bit < (start+HeaderSize)*8; bit++ {
		check(bit)
	}
	for bit := clean[victim].Offset * 8; bit < (clean[victim].Offset+clean[victim].Length)*8; bit += 331 {
		check(bit)
	}
}

// TestScanTornTail cuts the file at many places, with garbage, zeros or
// nothing after the cut: what comes before it must be found, and nothing else.
func TestScanTornTail(t *testing.T) {
	const seed = 11
	r := rand.New(rand.NewPCG(seed, 0))
	b := image(3, testPayloads()...)
	clean, _ := scan(t, b, ScanOptions{Payloads: true})
	for range 300 {
		cut := HeaderSize + r.IntN(len(b)-HeaderSize)
		torn := bytes.Clone(b[:cut])
		switch r.IntN(3) {
		case 0:
			torn = append(torn, make([]byte, len(b)-cut)...)
		case 1:
			torn = append(torn, content(fmt.Sprint(cut), len(b)-cut)...)
		}
		good, _ := scan(t, torn, ScanOptions{Payloads: true})
		for i, rec := range clean {
			// A cut inside the padding takes nothing of the payload; one inside
			// a header or payload may have put back the very bytes it took.
			whole := int64(cut) >= rec.Offset+rec.Length
			same := int64(len(torn)) >= rec.Offset+rec.Length &&
				bytes.Equal(torn[rec.Offset-HeaderSize:rec.Offset+rec.Length],
					b[rec.Offset-HeaderSize:rec.Offset+rec.Length])
			found := i < len(good) && good[i] == rec
			if found != (whole || same) {
				t.Fatalf("seed %d, cut at %d: record %d at %d found: %v", seed, cut, i, rec.Offset, found)
			}
		}
		if len(good) > len(clean) {
			t.Fatalf("seed %d, cut at %d: %d records of %d", seed, cut, len(good), len(clean))
		}
	}
}

func TestScanForeign(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty":           nil,
		"short":           []byte("BOWSEG"),
		"garbage":         content("garbage", 100_000),
		"zeros":           make([]byte, 100_000),
		"another segment": image(4, testPayloads()...),
	} {
		good, damaged := scan(t, b, ScanOptions{Payloads: true})
		if len(good) != 0 || len(damaged) == 0 {
			t.Errorf("%s: %d good records, %d damaged stretches", name, len(good), len(damaged))
		}
	}
}

type failingReader struct{ after int64 }

var errDisk = errors.New("the disk fails")

func (r failingReader) ReadAt(b []byte, off int64) (int, error) {
	if off+int64(len(b)) > r.after {
		return 0, errDisk
	}
	img := image(3, make([]byte, 10_000), make([]byte, 10_000))
	return copy(b, img[off:]), nil
}

func TestScanReadError(t *testing.T) {
	size := int64(len(image(3, make([]byte, 10_000), make([]byte, 10_000))))
	var last error
	n := 0
	for _, err := range Scan(failingReader{9000}, 3, size, ScanOptions{}) {
		last = err
		n++
	}
	if !errors.Is(last, errDisk) || errors.Is(last, schema.ErrDataLoss) || n != 2 {
		t.Errorf("%d results, the last with %v; want the first record and the error of the disk", n, last)
	}
}

func FuzzScan(f *testing.F) {
	f.Add(image(3, testPayloads()[:4]...), int64(0), true)
	f.Add(image(3), int64(0), false)
	f.Add([]byte{}, int64(0), true)
	torn := image(3, []byte("abc"), content("torn", 1000))
	torn[70] ^= 1
	f.Add(torn, int64(64), true)
	f.Fuzz(func(t *testing.T, b []byte, from int64, payloads bool) {
		if from < 0 || from > int64(len(b)) {
			return
		}
		size := int64(len(b))
		at := from
		for rec, err := range Scan(bytes.NewReader(b), 3, size, ScanOptions{From: from, Payloads: payloads}) {
			var d *DamageError
			switch {
			case errors.As(err, &d):
				if d.Offset < at || d.Length < 0 || d.Offset+d.Length > size {
					t.Fatalf("damage of %d bytes at %d, after %d of %d", d.Length, d.Offset, at, size)
				}
				at = d.Offset + d.Length
			case err != nil:
				t.Fatal(err)
			default:
				if rec.Offset < at+HeaderSize || rec.Length < 0 || rec.Length > size-rec.Offset {
					t.Fatalf("a record of %d bytes at %d, after %d of %d", rec.Length, rec.Offset, at, size)
				}
				if payloads && !rec.Void && schema.Checksum(b[rec.Offset:rec.Offset+rec.Length]) != rec.Sum {
					t.Fatalf("a record at %d whose checksum is wrong passed", rec.Offset)
				}
				at = rec.Offset + rec.Length
			}
		}
	})
}
