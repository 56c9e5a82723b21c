package spill

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"bowstring/schema"
)

// numbered is a blob of eight bytes. Its key is made up: only the sum is compared.
func numbered(i int, data *[8]byte) schema.BlobRef {
	binary.LittleEndian.PutUint64(data[:], uint64(i))
	var key schema.Key
	binary.LittleEndian.PutUint64(key[:], uint64(i))
	return schema.BlobRef{Key: key, Size: 8, Sum: schema.Checksum(data[:])}
}

// BenchmarkOpenMillion opens a cache of a million blobs that was not closed in order, as kill -9 leaves it.
func BenchmarkOpenMillion(b *testing.B) {
	n := 1_000_000
	if testing.Short() {
		n = 10_000
	}
	opts := testOptions(b.TempDir())
	opts.Bytes = 1 << 30
	c := openCache(b, opts)
	var data [8]byte
	for i := range n {
		if ref := numbered(i, &data); !c.Put(ref, Place{Dataset: 1, Position: int64(i)}, time.Millisecond, data[:]) {
			b.Fatal("a blob was not stored")
		}
	}
	indexed := usage(b, c.path(indexDir))
	for b.Loop() {
		b.StopTimer()
		c.index.dropped.Store(1) // so that it is not noted that the cache was closed in order
		closeCache(b, c)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		var err error
		if c, err = Open(opts); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		if st := c.Stats(); st.Entries != int64(n) {
			b.Fatalf("%+v", st)
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n), "B/entry")
		b.ReportMetric(float64(indexed)/float64(n), "disk-B/entry")
		b.StartTimer()
	}
	b.StopTimer()
	closeCache(b, c)
}

func BenchmarkGet(b *testing.B) {
	opts := testOptions(b.TempDir())
	opts.Bytes = 256 << 20
	c := openCache(b, opts)
	const n = 512
	var refs [n]schema.BlobRef
	r := rand.New(rand.NewPCG(1, 1))
	for i := range refs {
		var data []byte
		data, refs[i] = fill(r, 110_000)
		c.Put(refs[i], Place{}, time.Millisecond, data)
	}
	b.SetBytes(110_000)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		blob, ok := c.Get(refs[i%n], Place{})
		if !ok {
			b.Fatal("a blob is not there")
		}
		blob.Release()
		i++
	}
}

// BenchmarkPut stores into a full cache: each blob has another evicted, while four jobs run.
func BenchmarkPut(b *testing.B) {
	future := &Future{}
	opts := testOptions(b.TempDir())
	opts.Bytes, opts.Oracle = 256<<20, future
	c := openCache(b, opts)
	for range 4 {
		// Ever sooner, so that each is admitted.
		if _, err := future.Add(JobOptions{Dataset: 1, Order: descending(1 << 40)}, c.opts.Clock()); err != nil {
			b.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(1, 1))
	data, ref := fill(r, 110_000)
	b.SetBytes(110_000)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		binary.LittleEndian.PutUint64(ref.Key[:], uint64(i))
		if !c.Put(ref, Place{Dataset: 1, Position: int64(i)}, time.Millisecond, data) {
			b.Fatal("a blob was not stored")
		}
		i++
	}
}

// descending is the order in which the last is used first.
type descending int64

func (n descending) Rows() int64 { return int64(n) }

func (n descending) Index(_, position int64) (int64, bool) { return int64(n) - 1 - position, true }
