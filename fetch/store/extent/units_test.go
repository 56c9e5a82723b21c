package extent_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"bowstring/fetch/store"
	"bowstring/fetch/store/extent"
	"bowstring/schema"
)

// pack compresses data; nil for a codec that nothing here compresses by.
func pack(codec schema.Codec, data []byte) []byte {
	var out bytes.Buffer
	write := func(w io.WriteCloser) []byte {
		_, err := w.Write(data)
		if err := errors.Join(err, w.Close()); err != nil {
			panic(err)
		}
		return out.Bytes()
	}
	switch codec {
	case schema.CodecZstd:
		w, err := zstd.NewWriter(&out)
		if err != nil {
			panic(err)
		}
		return write(w)
	case schema.CodecGzip:
		return write(gzip.NewWriter(&out))
	case schema.CodecDeflate:
		w, err := flate.NewWriter(&out, 5)
		if err != nil {
			panic(err)
		}
		return write(w)
	case schema.CodecSnappy:
		return snappy.Encode(nil, data)
	case schema.CodecLZ4:
		return write(lz4.NewWriter(&out))
	case schema.CodecLZ4Raw:
		to := make([]byte, lz4.CompressBlockBound(len(data)))
		n, err := lz4.CompressBlock(data, to, nil)
		if err != nil || n == 0 {
			return nil // it does not get smaller
		}
		return to[:n]
	case schema.CodecBrotli:
		return write(brotli.NewWriter(&out))
	}
	return nil
}

var all = []schema.Codec{schema.CodecZstd, schema.CodecGzip, schema.CodecDeflate, schema.CodecSnappy, schema.CodecLZ4,
	schema.CodecLZ4Raw, schema.CodecBrotli, schema.CodecBzip2}

// bzipped is the line of text that the test stores, as the program bzip2 compresses it.
const bzipped = "425a6839314159265359f380a17000000ad180001040003a6d0e802000314c00014d0f506c9a88e9647a28a6c540762dfc5dc914e142" +
	"43ce0285c0"

// TestDecode: each codec gives back what was compressed; other lengths and damaged bytes are no data.
func TestDecode(t *testing.T) {
	rng := random(t)
	for _, codec := range all {
		for range 8 {
			data := make([]byte, rng.IntN(70_000))
			for i := range data {
				data[i] = byte(rng.Uint32()) & 7
			}
			packed := pack(codec, data)
			if codec == schema.CodecBzip2 {
				var err error
				data = []byte("what lies in a bucket\n")
				packed, err = hex.DecodeString(bzipped)
				must(t, err)
			}
			if packed == nil {
				continue
			}
			got := make([]byte, len(data))
			if err := extent.Decode(codec, packed, got); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%s: %d bytes: %v", codec, len(data), err)
			}
			for _, size := range []int{len(data) + 1, len(data) - 1, 0} {
				if size < 0 || size == len(data) {
					continue
				}
				if err := extent.Decode(codec, packed, make([]byte, size)); !errors.Is(err, schema.ErrDataLoss) {
					t.Errorf("%s: %d bytes as %d: %v", codec, len(data), size, err)
				}
			}
			broken := bytes.Clone(packed)
			broken[rng.IntN(len(broken))] ^= 1 << rng.IntN(8)
			if err := extent.Decode(codec, broken[:rng.IntN(len(broken)+1)], got); err != nil &&
				!errors.Is(err, schema.ErrDataLoss) {
				t.Errorf("%s: damaged: %v", codec, err)
			}
		}
	}
	if err := extent.Decode("lzma", nil, nil); !errors.Is(err, schema.ErrNotSupported) {
		t.Errorf("a codec that is not known: %v", err)
	}
}

// FuzzDecode: no bytes have a decoder fail otherwise than by an error, or write beyond what it was given.
func FuzzDecode(f *testing.F) {
	for i, codec := range all {
		if packed := pack(codec, []byte(strings.Repeat("seed ", 30))); packed != nil {
			f.Add(i, packed, 150)
		}
	}
	f.Fuzz(func(t *testing.T, codec int, packed []byte, size int) {
		if codec < 0 || codec >= len(all) || size < 0 || size > 1<<16 {
			return
		}
		room := bytes.Repeat([]byte{0xa5}, size+64)
		err := extent.Decode(all[codec], packed, room[:size])
		if err != nil && !errors.Is(err, schema.ErrDataLoss) {
			t.Fatal(err)
		}
		if !bytes.Equal(room[size:], bytes.Repeat([]byte{0xa5}, 64)) {
			t.Fatal("bytes behind those of the unit were written to")
		}
	})
}

// TestUnits: a unit is read once for all blobs that are wanted together, though the read
// that began it is cancelled. A unit that is too large is refused by name.
func TestUnits(t *testing.T) {
	rng := random(t)
	bucket := newPail("mem://photos")
	m := fill(rng, bucket, 60)
	const large = extent.MaxUnitBytes + 1
	huge := bucket.put("zzz", make([]byte, 100))
	huge.Units = []schema.Unit{{Length: 100, Size: large, Codec: schema.CodecZstd}}
	m = m.with(huge)
	s := extent.New(openLocal(t, filepath.Join(t.TempDir(), "store")), extent.Options{Buckets: newPails(bucket).open})
	defer func() { must(t, s.Close()) }()
	m.attach(t, s, "d")
	_, err := s.Snapshot(t.Context(), "d", 0)
	must(t, err)

	// The first read is cancelled while the bucket is asked; others wait for the same
	// unit.
	i := slices.IndexFunc(m.blobs, func(b lying) bool {
		at, _ := schema.ParseObjectAddress(b.ref.Key)
		return at.Packed && len(b.data) > 0
	})
	asked, answer := make(chan struct{}), make(chan struct{})
	var once sync.Once
	bucket.before = func(context.Context, string) error {
		once.Do(func() { close(asked) })
		<-answer
		return nil
	}
	ctx, leave := context.WithCancel(t.Context())
	first, second := make(chan error), make(chan error)
	go func() { first <- m.blobs[i].check(ctx, s) }()
	<-asked
	go func() { second <- m.blobs[i].check(t.Context(), s) }()
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled read: %v", err)
	}
	close(answer)
	must(t, <-second)

	var workers sync.WaitGroup
	for _, b := range m.blobs {
		workers.Go(func() {
			if err := b.check(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
	workers.Wait()
	at, _ := schema.ParseObjectAddress(m.blobs[i].ref.Key)
	unit, _ := m.set.Objects[at.Object].Unit(at.Unit)
	given := fmt.Sprintf("%s %d+%d", m.set.Objects[at.Object].Key, unit.Offset, unit.Length) // up, and read again
	units := map[string]int{}
	for _, o := range m.set.Objects {
		for _, u := range o.Units {
			units[fmt.Sprintf("%s %d+%d", o.Key, u.Offset, u.Length)] = 0
		}
	}
	for _, r := range bucket.ranges {
		if _, ok := units[r]; ok {
			units[r]++
		}
	}
	for r, n := range units {
		if n > 1 && r != given || n > 2 {
			t.Errorf("unit %s was read %d times", r, n)
		}
	}
	address := schema.ObjectAddress{Prefix: m.set.Prefix(), Object: 60, Packed: true}
	_, err = s.Get(t.Context(), schema.BlobRef{Key: address.Key(0), Size: 5})
	if !errors.Is(err, schema.ErrNotSupported) || !strings.Contains(err.Error(), "zzz") {
		t.Errorf("a unit of %d bytes: %v", large, err)
	}
}

// with is the dataset with an object more, at the end of its set.
func (m *made) with(o schema.Object) *made {
	next := &made{set: m.set}
	next.set.Objects = append(slices.Clone(m.set.Objects), o)
	for _, b := range m.blobs {
		at, _ := schema.ParseObjectAddress(b.ref.Key)
		at.Prefix = next.set.Prefix()
		b.ref.Key = at.Key(b.ref.Sum)
		next.blobs = append(next.blobs, b)
	}
	return next
}

// counting counts what is asked of the store below.
type counting struct {
	store.Store
	mu                  sync.Mutex
	datasets, snapshots int
	fails               error
	hold                chan struct{}
}

func (c *counting) Datasets(ctx context.Context) ([]store.Dataset, error) {
	c.mu.Lock()
	c.datasets++
	err, hold := c.fails, c.hold
	c.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if err != nil {
		return nil, err
	}
	return c.Store.Datasets(ctx)
}

func (c *counting) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	c.mu.Lock()
	c.snapshots++
	c.mu.Unlock()
	return c.Store.Snapshot(ctx, dataset, number)
}

// TestLooks: the catalog is looked through once for all that ask, each snapshot once for good; what is in no set is not
// looked for again at once, and a look that fails is no answer.
func TestScans(t *testing.T) {
	rng := random(t)
	bucket := newPail("mem://photos")
	one := fill(rng, bucket, 10)
	below := &counting{Store: openLocal(t, filepath.Join(t.TempDir(), "store")), hold: make(chan struct{})}
	one.attach(t, below.Store, "a")
	one.attach(t, below.Store, "a")
	s := extent.New(below, extent.Options{Buckets: newPails(bucket).open})
	defer func() { must(t, s.Close()) }()
	address := schema.ObjectAddress{Prefix: schema.ObjectPrefix{1}}
	unknown := schema.BlobRef{Key: address.Key(5), Sum: 5, Size: 1}
	var workers sync.WaitGroup
	for i := range 40 {
		workers.Go(func() {
			if i%2 == 0 {
				if err := one.blobs[0].check(t.Context(), s); err != nil {
					t.Error(err)
				}
			} else if _, err := s.Get(t.Context(), unknown); !errors.Is(err, schema.ErrNotFound) {
				t.Errorf("an address in no set: %v", err)
			}
			if _, ok, err := s.Locate(t.Context(), unknown); ok || err != nil {
				t.Errorf("located: %v, %v", ok, err)
			}
		})
	}
	for looked := 0; looked == 0; {
		below.mu.Lock()
		looked = below.datasets
		below.mu.Unlock()
	}
	close(below.hold)
	workers.Wait()
	if below.datasets != 1 || below.snapshots != 2 {
		t.Errorf("the catalog was listed %d times, and %d snapshots read of 2", below.datasets, below.snapshots)
	}
	if _, err := s.Get(t.Context(), schema.RefOf([]byte("a blob that was never put"))); !errors.Is(err, schema.ErrNotFound) ||
		below.datasets != 1 {
		t.Errorf("a hash was looked for in the catalog, %d: %v", below.datasets, err)
	}
}
