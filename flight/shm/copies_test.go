package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"bowstring/schema"
)

// copied is a buffer of random pieces and the memory that it is copied to, which ends
// where the buffer does. With unchecked, the pieces are blobs that have not been
// verified.
func copied(r *rand.ChaCha8, unchecked bool, sizes ...int) (b *schema.Buffer, want, memory []byte) {
	b = &schema.Buffer{}
	for row, n := range sizes {
		p := make([]byte, n)
		_, _ = r.Read(p) // never fails
		b.Pieces = append(b.Pieces, p)
		if unchecked {
			b.Unchecked = append(b.Unchecked, schema.Unchecked{Row: row, Ref: schema.RefOf(p)})
		}
	}
	want = slices.Concat(b.Pieces...)
	return b, want, make([]byte, len(want))
}

// twoProcessors has copies made by two goroutines wherever the test runs.
func twoProcessors(t *testing.T) {
	t.Helper()
	was := runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0)))
	t.Cleanup(func() { runtime.GOMAXPROCS(was) })
}

// Whatever the pieces, each byte is copied to its place, of several buffers, time and again.
func TestCopiesAreTheBuffers(t *testing.T) {
	twoProcessors(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	bytesOf := rand.NewChaCha8([32]byte(fmt.Appendf(nil, "%032d", seed)))
	r := rand.New(bytesOf)
	var c copies
	for round := range 10 {
		var wants, memories [][]byte
		for range 1 + r.IntN(4) {
			sizes := make([]int, r.IntN(40))
			for i := range sizes {
				sizes[i] = r.IntN([]int{1, 1 << 10, 60 << 10, 600 << 10}[r.IntN(4)])
			}
			b, want, memory := copied(bytesOf, r.IntN(2) == 0, sizes...)
			c.add(memory, b)
			wants, memories = append(wants, want), append(memories, memory)
		}
		if err := c.run(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		for i := range wants {
			if !bytes.Equal(memories[i], wants[i]) {
				t.Fatalf("round %d: buffer %d has other bytes", round, i)
			}
		}
		c.reset()
	}
}

// wrongAt is a buffer of twelve parts, some of whose blobs are not what they have to be, and what brings them once
// more: when all of them are asked for, so that a goroutine has to have come to each.
func wrongAt(t *testing.T, answer func(row, nth int) error, rows ...int) (c *copies, memory, want []byte, again Reread) {
	t.Helper()
	b, want, memory := copied(rand.NewChaCha8([32]byte{}), true, slices.Repeat([]int{copyPart}, 12)...)
	right := slices.Clone(b.Pieces)
	for _, row := range rows {
		b.Pieces[row] = slices.Clone(b.Pieces[row])
		b.Pieces[row][copyPart/2] ^= 1
	}
	c = &copies{}
	c.add(memory, b)
	var all sync.WaitGroup
	all.Add(len(rows))
	var asked atomic.Int32
	return c, memory, want, func(_ context.Context, row int, _ schema.BlobRef) (schema.Blob, error) {
		nth := int(asked.Add(1))
		all.Done()
		all.Wait()
		if err := answer(row, nth); err != nil {
			return schema.Blob{}, err
		}
		return schema.NewBlob(right[row], nil), nil
	}
}

// A second goroutine copies where the first one is held up, and what is wrong is put right by both.
func TestCopiesAreMadeByTwo(t *testing.T) {
	twoProcessors(t)
	c, memory, want, again := wrongAt(t, func(int, int) error { return nil }, 2, 9)
	if err := c.run(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(memory, want) {
		t.Error("other bytes were copied")
	}
}

// If two parts fail at once, the error is that of the first one, and the copies can be
// used again.
func TestCopiesFailInOrder(t *testing.T) {
	twoProcessors(t)
	lost := errors.New("lost")
	c, _, _, again := wrongAt(t, func(row, _ int) error { return fmt.Errorf("row %d: %w", row, lost) }, 3, 7)
	if err := c.run(t.Context(), again); !errors.Is(err, lost) || err.Error() != "row 3: lost" {
		t.Errorf("the error is %v; want that of row 3", err)
	}
	c.reset()
	b, want, memory := copied(rand.NewChaCha8([32]byte{1}), true, slices.Repeat([]int{copyPart}, 6)...)
	c.add(memory, b)
	if err := c.run(t.Context(), nil); err != nil || !bytes.Equal(memory, want) {
		t.Errorf("after a failure: %v, or other bytes", err)
	}
}

// A panic of either goroutine becomes the stream's, after both have stopped writing to
// the memory.
func TestCopiesPanic(t *testing.T) {
	twoProcessors(t)
	for nth := 1; nth <= 2; nth++ {
		c, _, _, again := wrongAt(t, func(_, n int) error {
			if n == nth {
				panic("a defect")
			}
			return nil
		}, 0, 1)
		func() {
			defer func() {
				if p := recover(); p == nil {
					t.Error("the panic is lost")
				}
			}()
			_ = c.run(t.Context(), again)
		}()
	}
}
