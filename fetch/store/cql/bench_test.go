//go:build cassandra

package cql

import (
	"fmt"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// BenchmarkGet reads blobs from a real server on the same machine. It shows allocations, and CPU time without the
// server's.
func BenchmarkGet(b *testing.B) {
	for _, size := range []int{20_000, 110_000} {
		s, refs := stored(b, size)
		get := func(i int64) {
			blob, err := s.Get(b.Context(), refs[int(i)%len(refs)])
			if err != nil {
				b.Error(err)
				return
			}
			blob.Release()
		}
		b.Run(fmt.Sprintf("%dkB/one", size/1000), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			defer cpuTime(b)()
			for i := range int64(b.N) {
				get(i)
			}
		})
		b.Run(fmt.Sprintf("%dkB/64", size/1000), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			defer cpuTime(b)()
			b.SetParallelism(32) // times GOMAXPROCS
			var next atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					get(next.Add(1))
				}
			})
		})
	}
}

// cpuTime reports what this process has used, which the server's share of
// the machine changes less than the time that passes.
func cpuTime(b *testing.B) (report func()) {
	used := func() float64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
	}
	before := used()
	return func() { b.ReportMetric((used()-before)/float64(b.N), "cpu-µs/op") }
}

// stored is a store with a thousand blobs in it.
func stored(b *testing.B, size int) (*Store, []schema.BlobRef) {
	b.Helper()
	s := openStore(b, newKeyspace(b))
	data := blobs("bench", 1000, size)
	if _, err := importInto(b.Context(), s, "bench", 0, data); err != nil {
		b.Fatal(err)
	}
	refs := make([]schema.BlobRef, len(data))
	for i, d := range data {
		refs[i] = schema.RefOf(d)
	}
	return s, refs
}
