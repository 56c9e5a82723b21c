package shm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

const (
	// LargeBytes is from which length on a buffer goes by shared memory: below, a socket is as good.
	LargeBytes = 64 << 10
	// bufferAlignment is of every buffer within a ring.
	bufferAlignment = 64
)

// Sideband is the ring of a call, by which it sends the large buffers of its batches. It is
// used by one goroutine. nil shares nothing.
type Sideband struct {
	ring   *Ring
	call   uint64
	refers bool   // to blobs where they lie
	todo   copies // of the batch at hand
}

// Sideband returns the ring that a call has named in its header, to be left in the end; nil if the ring is gone: then all
// goes by the connection. caller is the one who makes the call. refers says whether batches may refer to blobs where they
// lie, if the ring's client can do with that.
func (s *Server) Sideband(header, caller string, refers bool) (*Sideband, error) {
	id, call, err := ParseCall(header)
	if err != nil {
		return nil, err
	}
	ring := s.Ring(id, caller)
	if ring == nil {
		return nil, nil
	}
	return &Sideband{ring: ring, call: call, refers: refers && ring.Refers()}, nil
}

// Leave says that the call sends nothing more.
func (s *Sideband) Leave() {
	if s != nil {
		s.ring.Leave()
	}
}

// Extents says where in a ring the buffers of a batch lie that its message leaves out.
type Extents struct {
	Slot uint64 `json:"slot"`
	// Buffers have three numbers each: which of the message's buffers it is, from 0 on,
	// and in bytes where it begins in the ring, and its length.
	Buffers [][3]int64 `json:"buffers"`
	// References are of columns whose blobs lie elsewhere.
	References []*references `json:"references,omitempty"`

	slot *Slot
	// Waited is how long it took the client to let go of another.
	Waited time.Duration `json:"-"`
}

// Share copies the large buffers of a batch into the ring, in the order in which a message
// has them, and checks what was not checked yet. It returns nil where none is large, or the ring has no room.
func (s *Sideband) Share(ctx context.Context, b *schema.Batch, again Reread) (*Extents, error) {
	if s == nil {
		return nil, nil
	}
	var total int64
	for i := range b.Columns {
		total += largeBytes(&b.Columns[i])
	}
	if total == 0 {
		return nil, nil
	}
	if s.refers {
		if l, err := s.refer(ctx, b, total, again); l != nil || err != nil {
			return l, err
		}
	}
	start := time.Now()
	slot, ok, err := s.ring.Reserve(ctx, s.call, total)
	if err != nil || !ok {
		return nil, err
	}
	l := &Extents{Slot: slot.Number, slot: slot, Waited: time.Since(start)}
	memory, at, index := slot.Bytes(), int64(0), int64(0)
	defer s.todo.reset()
	for i := range b.Columns {
		at, index = l.place(&b.Columns[i], memory, at, index, &s.todo)
	}
	if err := s.todo.run(ctx, again); err != nil {
		l.Dropped()
		return nil, err
	}
	return l, nil
}

// place has a column's large buffers copied to memory[at:]. index is that of the column's first buffer.
func (l *Extents) place(v *schema.Vector, memory []byte, at, index int64, todo *copies) (nextAt, nextIndex int64) {
	for i := range v.Buffers {
		if b := &v.Buffers[i]; b.Len >= LargeBytes && !l.refers(index) {
			l.Buffers = append(l.Buffers, [3]int64{index, l.slot.Offset + at, b.Len})
			todo.add(memory[at:], b)
			at += padded(b.Len)
		}
		index++
	}
	for i := range v.Children {
		at, index = l.place(&v.Children[i], memory, at, index, todo)
	}
	return at, index
}

// Aside is from which length on the message leaves buffers out.
func (l *Extents) Aside() int64 {
	if l == nil {
		return math.MaxInt64
	}
	return LargeBytes
}

// Bytes is what went by the ring, and what is referred to.
func (l *Extents) Bytes() (n int64) {
	if l == nil {
		return 0
	}
	for _, b := range l.Buffers {
		n += b[2]
	}
	for _, r := range l.References {
		n += r.pinned + r.Data[1]
	}
	return n
}

// Sent says that the client is about to be told.
func (l *Extents) Sent() {
	if l != nil {
		l.slot.Sent()
	}
}

// Dropped says that it never will be.
func (l *Extents) Dropped() {
	if l != nil {
		l.slot.Drop()
	}
}

// AddTo adds to a batch's metadata, a JSON object, where its buffers lie.
func (l *Extents) AddTo(meta []byte) ([]byte, error) {
	if l == nil {
		return meta, nil
	}
	said, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(meta[:len(meta)-1], `,"shared":%s}`, said), nil
}

func largeBytes(v *schema.Vector) (n int64) {
	for i := range v.Buffers {
		if b := &v.Buffers[i]; b.Len >= LargeBytes {
			n += padded(b.Len)
		}
	}
	for i := range v.Children {
		n += largeBytes(&v.Children[i])
	}
	return n
}

func padded(n int64) int64 { return (n + bufferAlignment - 1) &^ (bufferAlignment - 1) }

const (
	// referredBytes is from which length on a blob is referred to: a copy of less costs no more than its reference.
	referredBytes = 16 << 10
	viewBytes     = 16 // of a row, in Arrow's layout of views
	inlineView    = 12 // so long a value lies in its view
	entryBytes    = 24 // of a reference: file, offset and length
)

// references are the blobs of one column that a client finds where they lie in the server's files, and the rest of it.
// In the slot there are three things of the column, each with its offset in the ring and its length in bytes: the views
// of its rows, in Arrow's layout; a table of the blobs referred to, three signed 64-bit integers each; and the bytes of
// the others, one after another. The views' first buffer is the latter, and after it each entry of the table is one.
type references struct {
	Buffer int64    `json:"buffer"` // of the message's buffers the one that has no bytes for that
	Views  [2]int64 `json:"views"`
	Table  [2]int64 `json:"table"`
	Data   [2]int64 `json:"data"`

	column  *schema.Vector
	rows    []int           // referred to
	extents []schema.Extent // of those
	checked schema.Buffer   // those blobs, to be checked where they lie
	copied  schema.Buffer   // the other blobs
	pinned  int64           // bytes that are referred to
}

// bytes is what the column takes of the slot.
func (r *references) bytes() int64 {
	return padded(int64(r.column.Len)*viewBytes) + padded(int64(len(r.rows))*entryBytes) + padded(r.copied.Len)
}

// refersTo returns what of a column can be referred to, index being that of its first buffer; nil if nothing can.
func refersTo(v *schema.Vector, index int64) *references {
	last := len(v.Buffers) - 1
	if v.Blobs == nil || v.Buffers[last].Len < LargeBytes {
		return nil
	}
	values := &v.Buffers[last]
	r := &references{Buffer: index + int64(last), column: v}
	piece := 0
	for row := range v.Blobs {
		b := &v.Blobs[row]
		n := int64(len(b.Bytes()))
		if n == 0 {
			continue
		}
		to := &r.copied
		if n >= referredBytes && n <= math.MaxInt32 {
			if e, ok := b.Extent(); ok && e.Limit > 0 {
				r.rows, r.extents, r.pinned = append(r.rows, row), append(r.extents, e), r.pinned+n
				to = &r.checked
			}
		}
		to.Pieces, to.Len = append(to.Pieces, values.Pieces[piece]), to.Len+n
		if values.Unchecked != nil {
			to.Unchecked = append(to.Unchecked, values.Unchecked[piece])
		}
		piece++
	}
	if r.rows == nil || piece != len(values.Pieces) || r.copied.Len > math.MaxInt32 {
		return nil
	}
	return r
}

// refer is share for a batch of whose blobs some are referred to: the slot holds them, and all else that is large is
// copied. total is the length of what is large. It returns nil where nothing can be referred to, or no more may be.
func (s *Sideband) refer(ctx context.Context, b *schema.Batch, total int64, again Reread) (*Extents, error) {
	l := &Extents{Buffers: [][3]int64{}}
	index, pinned := int64(0), int64(0)
	for i := range b.Columns {
		v := &b.Columns[i]
		if r := refersTo(v, index); r != nil {
			l.References = append(l.References, r)
			total += r.bytes() - padded(v.Buffers[len(v.Buffers)-1].Len)
			pinned += r.pinned
		}
		index += buffersOf(v)
	}
	if l.References == nil {
		return nil, nil
	}
	start := time.Now()
	slot, ok, err := s.ring.ReserveReferring(ctx, s.call, total, pinned)
	if err != nil || !ok {
		return nil, err
	}
	l.Slot, l.slot, l.Waited = slot.Number, slot, time.Since(start)
	if err := s.fill(ctx, b, l, again); err != nil {
		l.Dropped()
		if errors.Is(err, errWrong) {
			return nil, nil // what is copied is put right
		}
		return nil, err
	}
	return l, nil
}

// fill fills the slot of a batch that is referred to, and hands the blobs over to it.
func (s *Sideband) fill(ctx context.Context, b *schema.Batch, l *Extents, again Reread) error {
	memory, at, index := l.slot.Bytes(), int64(0), int64(0)
	defer s.todo.reset()
	for i := range b.Columns {
		at, index = l.place(&b.Columns[i], memory, at, index, &s.todo)
	}
	for _, r := range l.References {
		rest, err := r.lay(l, memory, at)
		if err != nil {
			return err
		}
		at += r.bytes()
		s.todo.check(&r.checked)
		s.todo.add(rest, &r.copied)
	}
	if err := s.todo.run(ctx, again); err != nil {
		return err
	}
	for _, r := range l.References {
		views := memory[r.Views[0]-l.slot.Offset:][:r.Views[1]]
		data := memory[r.Data[0]-l.slot.Offset:][:r.Data[1]]
		if err := schema.Guard(func() error { r.view(views, data); return nil }); err != nil {
			return errWrong // a page that could be read a moment ago
		}
	}
	for _, r := range l.References { // nothing fails any more
		pins := make([]schema.Blob, len(r.rows))
		for i, row := range r.rows {
			pins[i], r.column.Blobs[row] = r.column.Blobs[row], schema.Blob{}
		}
		l.slot.Keep(pins)
	}
	return nil
}

// lay finds places for a column from memory[at:] on, writes its table, and returns where its other blobs are to be
// copied to.
func (r *references) lay(l *Extents, memory []byte, at int64) (rest []byte, err error) {
	base := l.slot.Offset
	r.Views = [2]int64{base + at, int64(r.column.Len) * viewBytes}
	at += padded(r.Views[1])
	r.Table = [2]int64{base + at, int64(len(r.rows)) * entryBytes}
	table := memory[at:][:0:r.Table[1]]
	at += padded(r.Table[1])
	r.Data = [2]int64{base + at, r.copied.Len}
	for _, e := range r.extents {
		file, ok := l.slot.Refer(e.File, e.Limit)
		if !ok {
			return nil, errWrong
		}
		for _, n := range []uint64{file, uint64(e.Offset), uint64(e.Length)} {
			table = binary.LittleEndian.AppendUint64(table, n)
		}
	}
	return memory[at:][:r.copied.Len], nil
}

// view writes the views of a column. data are the bytes of those of its blobs that were copied.
func (r *references) view(views, data []byte) {
	referred, at := 0, 0
	for row := range r.column.Len {
		view := views[row*viewBytes:][:viewBytes]
		clear(view)
		value := r.column.Blobs[row].Bytes()
		n := len(value)
		binary.LittleEndian.PutUint32(view, uint32(n))
		buffer, offset := 0, at
		if referred < len(r.rows) && r.rows[referred] == row {
			referred++
			buffer, offset = referred, 0
		} else {
			value = data[at : at+n] // the copy was checked
			at += n
		}
		if n <= inlineView {
			copy(view[4:], value)
			continue
		}
		copy(view[4:8], value)
		binary.LittleEndian.PutUint32(view[8:], uint32(buffer))
		binary.LittleEndian.PutUint32(view[12:], uint32(offset))
	}
}

// refers reports whether a buffer of the message is one whose blobs are referred to.
func (l *Extents) refers(index int64) bool {
	return slices.ContainsFunc(l.References, func(r *references) bool { return r.Buffer == index })
}

// buffersOf is how many buffers a column has in a message.
func buffersOf(v *schema.Vector) int64 {
	n := int64(len(v.Buffers))
	for i := range v.Children {
		n += buffersOf(&v.Children[i])
	}
	return n
}

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
