package ipc

import "github.com/apache/arrow/go/v17/arrow/memory"

// Memory counts what decoding takes beyond the messages themselves. It is for one goroutine at a time.
type Memory interface {
	// Grow counts n more bytes in; an error refuses them.
	Grow(n int64) error
	// Shrink counts n bytes out.
	Shrink(n int64)
}

// Unbounded counts nothing.
type Unbounded struct{}

// Grow implements Memory.
func (Unbounded) Grow(int64) error { return nil }

// Shrink implements Memory.
func (Unbounded) Shrink(int64) {}

// Allocator allocates what its memory counts. It panics with a refusal where that has no more, as its interface leaves
// no other way; Bounded makes an error of that.
type Allocator struct {
	memory.Allocator
	Memory Memory
}

// refusal is why memory was refused.
type refusal struct{ error }

// Unwrap is for code that made an error of the panic.
func (r refusal) Unwrap() error { return r.error }

func (a *Allocator) take(n int) {
	if err := a.Memory.Grow(int64(n)); err != nil {
		panic(refusal{err})
	}
}

// Allocate implements memory.Allocator.
func (a *Allocator) Allocate(size int) []byte {
	a.take(size)
	return a.Allocator.Allocate(size)
}

// Reallocate implements memory.Allocator.
func (a *Allocator) Reallocate(size int, b []byte) []byte {
	if size > len(b) {
		a.take(size - len(b))
	} else {
		a.Memory.Shrink(int64(len(b) - size))
	}
	return a.Allocator.Reallocate(size, b)
}

// Free implements memory.Allocator.
func (a *Allocator) Free(b []byte) {
	a.Memory.Shrink(int64(len(b)))
	a.Allocator.Free(b)
}

// Bounded runs f, which allocates from an Allocator, and makes an error of its refusal.
func Bounded(f func() error) (err error) {
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
