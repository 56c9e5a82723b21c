package flight

import (
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/flight/wire"
)

// countedAllocator allocates for a lease. It panics with a refusal where that has no
// more, as its interface leaves no other way; bounded makes an error of that.
type countedAllocator struct {
	memory.Allocator
	lease *wire.Lease
}

// refusal is why memory was refused.
type refusal struct{ error }

// Unwrap is for who made an error of the panic.
func (r refusal) Unwrap() error { return r.error }

func (a *countedAllocator) take(n int) {
	if err := a.lease.Grow(int64(n)); err != nil {
		panic(refusal{err})
	}
}

// Allocate implements memory.Allocator.
func (a *countedAllocator) Allocate(size int) []byte {
	a.take(size)
	return a.Allocator.Allocate(size)
}

// Reallocate implements memory.Allocator.
func (a *countedAllocator) Reallocate(size int, b []byte) []byte {
	if size > len(b) {
		a.take(size - len(b))
	} else {
		a.lease.Shrink(int64(len(b) - size))
	}
	return a.Allocator.Reallocate(size, b)
}

// Free implements memory.Allocator.
func (a *countedAllocator) Free(b []byte) {
	a.lease.Shrink(int64(len(b)))
	a.Allocator.Free(b)
}

// bounded runs f, which allocates from a counted allocator, and makes an error
// of its refusal.
func bounded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r, ok := p.(refusal)
			if !ok {
				panic(p)
			}
			err = r.error
		}
	}()
	return f()
}
