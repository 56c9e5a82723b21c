package shm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"bowstring/schema"
)

const (
	// copyPart is how many bytes a goroutine copies before it looks what is left: a fraction of a core's cache, and
	// long against what it takes to look.
	copyPart = 256 << 10
	// copyAlone is up to how many parts a batch is copied by its stream's goroutine alone: there is no time to gain.
	copyAlone = 4
)

// copies is what is to be copied of a batch into memory that a client shares. The stream's goroutine and a helper take
// its parts in turn: one core does not move as many bytes as memory delivers, and a client that reads bytes faster than
// its stream copies them leaves its own core idle. Where no core is idle, one of the two comes late, finds nothing
// left, and has cost next to nothing. The helper never outlives run.
type copies struct {
	parts []part
	next  atomic.Int64 // part that nobody has taken

	mu       sync.Mutex
	err      error  // of the first part that failed, by its place; guarded by mu
	at       int    // which one that is; guarded by mu
	panicked any    // what the helper has panicked with; guarded by mu
	stack    []byte // where; guarded by mu
}

// part is some pieces of a buffer that lie one behind the other, and where they go; nil if they stay where they are,
// and are only checked.
type part struct {
	to         []byte
	buffer     *schema.Buffer
	first, end int
}

// reset forgets what was copied, and nothing refers to it any more.
func (c *copies) reset() {
	clear(c.parts)
	c.parts = c.parts[:0]
	c.next.Store(0)
	c.err, c.panicked, c.stack = nil, nil, nil
}

// add has a buffer copied to the beginning of memory.
func (c *copies) add(memory []byte, b *schema.Buffer) {
	first, size := 0, 0
	for i := range b.Pieces {
		size += len(b.Pieces[i])
		if size >= copyPart || i == len(b.Pieces)-1 {
			c.parts = append(c.parts, part{memory[:size:size], b, first, i + 1})
			memory = memory[size:]
			first, size = i+1, 0
		}
	}
}

// check has a buffer checked where it lies, if it was not yet.
func (c *copies) check(b *schema.Buffer) {
	if b.Unchecked == nil {
		return
	}
	first, size := 0, 0
	for i := range b.Pieces {
		size += len(b.Pieces[i])
		if size >= copyPart || i == len(b.Pieces)-1 {
			c.parts = append(c.parts, part{nil, b, first, i + 1})
			first, size = i+1, 0
		}
	}
}

// run copies all. Of several parts that fail, the error is that of the first one. again may be called by two goroutines
// at once.
func (c *copies) run(ctx context.Context, again Reread) error {
	if len(c.parts) <= copyAlone || runtime.GOMAXPROCS(0) == 1 {
		c.work(ctx, again)
		return c.err
	}
	var helper sync.WaitGroup
	helper.Go(func() {
		defer func() {
			// Panics are caught for each call, and this goroutine has none.
			if p := recover(); p != nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.panicked, c.stack = p, debug.Stack()
			}
		}()
		c.work(ctx, again)
	})
	// A processor that is idle takes what waits for any of them at once, but for what a running one goes on with next
	// it sleeps first, for some 70 µs. So the helper begins here, and this goroutine is taken.
	runtime.Gosched()
	func() {
		defer helper.Wait() // also where this goroutine panics: it is about to give the memory back
		c.work(ctx, again)
	}()
	if c.panicked != nil {
		panic(fmt.Sprintf("%v; where a batch is copied:\n%s", c.panicked, c.stack))
	}
	return c.err
}

// work copies parts until none is left, or one has failed.
func (c *copies) work(ctx context.Context, again Reread) {
	for {
		i := int(c.next.Add(1)) - 1
		if i >= len(c.parts) {
			return
		}
		if err := c.parts[i].copy(ctx, again, c.soon); err != nil {
			c.failed(i, err)
			return
		}
	}
}

// soon returns the piece that the next part begins with: whoever has done a part is probably the one to take that.
func (c *copies) soon() []byte {
	if i := c.next.Load(); i < int64(len(c.parts)) {
		return c.parts[i].buffer.Pieces[c.parts[i].first]
	}
	return nil
}

// failed notes that a part could not be copied. No other one is begun.
func (c *copies) failed(i int, err error) {
	c.next.Store(int64(len(c.parts)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil || i < c.at {
		c.err, c.at = err, i
	}
}

// copy copies a part, and checks what was not checked yet. soon is asked what comes after it.
func (p *part) copy(ctx context.Context, again Reread, soon func() []byte) error {
	if p.to == nil {
		return p.check(soon)
	}
	memory := p.to
	for i, from := range p.buffer.Pieces[p.first:p.end] {
		to := memory[:len(from)]
		memory = memory[len(from):]
		if p.buffer.Unchecked != nil {
			want := p.buffer.Unchecked[p.first+i]
			if err := copyChecked(ctx, to, from, p.after(p.first+i, soon), want, again); err != nil {
				return err
			}
		} else if err := copyGuarded(to, from); err != nil {
			return err
		}
	}
	return nil
}

// after returns the piece that comes after piece i, which may be in another part; nil if nobody knows.
func (p *part) after(i int, soon func() []byte) []byte {
	if i+1 < p.end {
		return p.buffer.Pieces[i+1]
	}
	return soon()
}

// errWrong says that a blob cannot be referred to, as it is not what it has to be.
var errWrong = errors.New("a blob has proved wrong where it lies")

// check compares a part with what it has to be. Where something is wrong, or cannot be read, it is errWrong.
func (p *part) check(soon func() []byte) error {
	for i := p.first; i < p.end; i++ {
		if p.buffer.Unchecked[i].Ref.CheckBefore(p.buffer.Pieces[i], p.after(i, soon)) != nil {
			return errWrong
		}
	}
	return nil
}

// Reread brings a blob of a batch's row once more, checked, where it has proved wrong. It may be called by several
// goroutines at once.
type Reread func(ctx context.Context, row int, ref schema.BlobRef) (schema.Blob, error)

// copyChecked copies a blob, and checks what it has written. next is the blob that will be copied next, if it is known.
func copyChecked(ctx context.Context, to, from, next []byte, want schema.Unchecked, again Reread) error {
	if want.Ref.CheckedCopy(to, from, next) == nil {
		return nil
	}
	blob, err := again(ctx, want.Row, want.Ref)
	if err != nil {
		return err
	}
	defer blob.Release()
	return want.Ref.CheckedCopy(to, blob.Bytes(), nil)
}

// copyGuarded copies what was checked before; a page of it may be unreadable by now.
func copyGuarded(to, from []byte) error {
	return schema.Guard(func() error {
		copy(to, from)
		return nil
	})
}
