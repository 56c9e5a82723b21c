package ipc

import "github.com/apache/arrow/go/v17/arrow/memory"

// Memory counts the memory that decoding takes in addition to the messages. It is used by
// one goroutine at a time.
type Memory interface {
	// Grow adds n bytes; an error refuses them.
	Grow(n int64) error
	// Shrink subtracts n bytes.
	Shrink(n int64)
}

// Unbounded counts nothing.
type Unbounded struct{}

// Grow implements Memory.
func (Unbounded) Grow(int64) error { return nil }

// Shrink implements Memory.
func (Unbounded) Shrink(int64) {}

// Allocator is an Arrow allocator that counts its memory. Its interface has no errors, so
// it panics if Memory refuses; Bounded turns the panic into an error.
type Allocator struct {
	memory.Allocator
	Memory Memory
}

// refusal is the panic of a refused allocation.
type refusal struct{ error }

// Unwrap is for code that turned the panic into an error.
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

// Bounded runs f, which uses an Allocator, and returns a refusal as an error.
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
