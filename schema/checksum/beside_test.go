package checksum

import (
	"bytes"
	"sync"
	"testing"

	"github.com/zeebo/xxh3"
)

// Copies to neighbouring memory, which share lines of the cache, lose no byte of each other.
func TestNeighbours(t *testing.T) {
	r := testRand(t)
	for range 200 {
		var all [][]byte
		var want []byte
		for range 2 + r.IntN(6) {
			b := randomBytes(r, 1+r.IntN(3*fastBytes))
			all, want = append(all, b), append(want, b...)
		}
		at := r.IntN(stripe)
		to := make([]byte, at+len(want))[at:]
		var copying sync.WaitGroup
		rest := to
		for i, b := range all {
			part := rest[:len(b):len(b)]
			rest = rest[len(b):]
			copying.Go(func() {
				if got := Copy(part, b, all[(i+1)%len(all)]); got != xxh3.Hash(b) {
					t.Errorf("%d bytes have another checksum", len(b))
				}
			})
		}
		copying.Wait()
		if !bytes.Equal(to, want) {
			t.Fatalf("%d copies of %d bytes in all, the first %d bytes behind a line's beginning: bytes were lost",
				len(all), len(want), at)
		}
	}
}

// The result is the checksum of the written bytes, even if the source changes meanwhile.
func TestChangedMeanwhile(t *testing.T) {
	r := testRand(t)
	from := randomBytes(r, 4*fastBytes)
	from = from[:len(from)-len(from)%8]
	to := make([]byte, len(from))
	flip, stop := flipper(from), make(chan struct{})
	var flipping sync.WaitGroup
	flipping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				flip()
			}
		}
	})
	defer flipping.Wait()
	defer close(stop)
	for range 5000 {
		if got := Copy(to, from, nil); got != xxh3.Hash(to) {
			t.Fatalf("%016x is returned, and %016x is what was written", got, xxh3.Hash(to))
		}
	}
}
