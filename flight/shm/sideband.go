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
	// LargeBytes is the length in bytes from which a buffer goes by shared memory. Below
	// it, the socket costs no more.
	LargeBytes = 64 << 10
	// bufferAlignment aligns each buffer in a ring, as Arrow recommends.
	bufferAlignment = 64
)

// Sideband sends the large buffers of one call's batches by a ring. One goroutine uses
// it. A nil Sideband shares nothing.
type Sideband struct {
	ring   *Ring
	call   uint64
	refers bool   // whether batches may refer to blobs in files
	todo   copies // of the current batch; kept, so that its memory is reused
}

// Sideband returns the ring that a call names in its header. The call's goroutine calls
// Leave at its end. It returns nil if the ring is gone: all data then goes by the
// connection. The ring must belong to caller. refers allows batches to refer to blobs in
// files, if the server and the ring allow it, too.
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

// Leave ends the use of the ring: the call sends no more batches.
func (s *Sideband) Leave() {
	if s != nil {
		s.ring.Leave()
	}
}

// Extents are the places in a ring of the buffers that a batch's message leaves out. A
// nil Extents has none: all buffers are in the message.
type Extents struct {
	Slot uint64 `json:"slot"`
	// Buffers have three numbers each: the index of the buffer in the message, from 0;
	// its offset in the ring; and its length, both in bytes.
	Buffers [][3]int64 `json:"buffers"`
	// References describe columns whose blobs stay in files.
	References []*references `json:"references,omitempty"`

	slot *Slot
	// Waited is how long the batch waited until the client released a slot.
	Waited time.Duration `json:"-"`
}

// Share copies the large buffers of a batch into the ring, in the order of the message,
// and verifies blobs that have not been verified. It returns nil if no buffer is large or
// the ring has no room. The caller calls Sent or Dropped on the result. again reads a
// blob once more if its bytes are wrong.
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

// place assigns ring offsets to a column's large buffers and adds their copies to todo.
// at is the next free offset in memory; index is the number of the column's first buffer
// in the message. It returns both for the next column.
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

// Aside returns the length in bytes from which the message leaves buffers out.
func (l *Extents) Aside() int64 {
	if l == nil {
		return math.MaxInt64
	}
	return LargeBytes
}

// Bytes returns the bytes that the batch has in the ring or refers to.
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

// Sent marks the slot as sent. The caller sends the message next.
func (l *Extents) Sent() {
	if l != nil {
		l.slot.Sent()
	}
}

// Dropped frees the slot of a message that is not sent.
func (l *Extents) Dropped() {
	if l != nil {
		l.slot.Drop()
	}
}

// AddTo appends the extents to a batch's metadata, which is a JSON object. It reuses the
// memory of meta.
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

// largeBytes returns the room in bytes that a column's large buffers need in a slot.
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
	// referredBytes is the length in bytes from which a blob is referred to. Copying a
	// shorter one costs no more than its reference.
	referredBytes = 16 << 10
	viewBytes     = 16 // size of a row's view in Arrow's layout
	inlineView    = 12 // values up to this length are stored in their view
	entryBytes    = 24 // size of a table entry: file, offset and length
)

// references is a column some of whose blobs the client reads from the server's files.
// The slot has three ranges for it, each with its offset in the ring and its length in
// bytes: the views of the rows in Arrow's layout; a table of the referred blobs, three
// signed 64-bit integers each; and the bytes of the other blobs, one after another. The
// first buffer of the views is that last range; each entry of the table is one further
// buffer.
type references struct {
	Buffer int64    `json:"buffer"` // index of the message's buffer that is empty in exchange
	Views  [2]int64 `json:"views"`
	Table  [2]int64 `json:"table"`
	Data   [2]int64 `json:"data"`

	column  *schema.Vector
	rows    []int           // rows whose blobs are referred to
	extents []schema.Extent // the extents of these blobs
	checked schema.Buffer   // these blobs, to be verified in place
	copied  schema.Buffer   // the other blobs, to be copied
	pinned  int64           // bytes of the referred blobs
}

// bytes returns the room that the column takes in the slot.
func (r *references) bytes() int64 {
	return padded(int64(r.column.Len)*viewBytes) + padded(int64(len(r.rows))*entryBytes) + padded(r.copied.Len)
}

// refersTo splits a column's blobs into referred and copied ones. index is the number of
// the column's first buffer. It returns nil if no blob can be referred to, or if the
// copied ones exceed the 32-bit offsets of Arrow's views.
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

// refer is Share for a batch that refers to blobs in files. The slot holds these blobs,
// and all other large data is copied. total is the length of the large data in bytes. It
// returns nil if no blob can be referred to, or if no more may be pinned.
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
			return nil, nil // Share copies the batch instead, and repairs the wrong blob
		}
		return nil, err
	}
	return l, nil
}

// fill writes the slot of a batch with references. It moves ownership of the blobs to the
// slot last, when nothing can fail any more: after an error the batch still has all its
// blobs and can be copied.
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
			return errWrong // a page has become unreadable since the check
		}
	}
	for _, r := range l.References { // nothing fails from here on
		pins := make([]schema.Blob, len(r.rows))
		for i, row := range r.rows {
			pins[i], r.column.Blobs[row] = r.column.Blobs[row], schema.Blob{}
		}
		l.slot.Keep(pins)
	}
	return nil
}

// lay allocates the three ranges of a column from memory[at:] on and writes the table. It
// returns the memory for the copied blobs. If the client cannot get a file, the error is
// errWrong.
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

// view writes the views of a column. data are the copied blobs, which are verified by
// now. It takes values from data and not from the source, whose bytes could have changed
// since.
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

// refers reports whether a buffer of the message belongs to a column with references.
func (l *Extents) refers(index int64) bool {
	return slices.ContainsFunc(l.References, func(r *references) bool { return r.Buffer == index })
}

// buffersOf returns how many buffers a column has in a message.
func buffersOf(v *schema.Vector) int64 {
	n := int64(len(v.Buffers))
	for i := range v.Children {
		n += buffersOf(&v.Children[i])
	}
	return n
}

const (
	// copyPart is how many bytes a goroutine copies before it takes the next part: a
	// fraction of a core's cache, and long compared to the cost of taking one.
	copyPart = 256 << 10
	// copyAlone is the number of parts up to which the stream's goroutine copies alone.
	// Starting a helper would take longer.
	copyAlone = 4
)

// copies are the copies of a batch into a ring. The stream's goroutine and one helper
// take parts from a shared counter. One core does not use the full memory bandwidth, and
// a client that reads faster than its stream copies leaves its own core idle. If no core
// is idle, one of the two starts late, finds no part left, and has cost next to nothing.
// The helper never outlives run.
type copies struct {
	parts []part
	next  atomic.Int64 // the next part that no goroutine has taken

	mu       sync.Mutex
	err      error  // the error of the first part that failed, in the order of parts; guarded by mu
	at       int    // the index of that part; guarded by mu
	panicked any    // the helper's panic; guarded by mu
	stack    []byte // the helper's stack at its panic; guarded by mu
}

// part is a range of consecutive pieces of a buffer and their destination. The
// destination is nil if the pieces are only verified in place.
type part struct {
	to         []byte
	buffer     *schema.Buffer
	first, end int
}

// reset drops all parts and their references to buffers, and keeps the slice for the next
// batch.
func (c *copies) reset() {
	clear(c.parts)
	c.parts = c.parts[:0]
	c.next.Store(0)
	c.err, c.panicked, c.stack = nil, nil, nil
}

// add splits the copy of a buffer to the beginning of memory into parts.
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

// check adds the verification of a buffer in place, if it has unverified pieces.
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

// run does all copies. If several parts fail, the error is that of the first one, as if
// one goroutine had done them in order. again may be called by two goroutines at once.
func (c *copies) run(ctx context.Context, again Reread) error {
	if len(c.parts) <= copyAlone || runtime.GOMAXPROCS(0) == 1 {
		c.work(ctx, again)
		return c.err
	}
	var helper sync.WaitGroup
	helper.Go(func() {
		defer func() {
			// The panic handlers of calls cover the stream's goroutine only, not this
			// one.
			if p := recover(); p != nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.panicked, c.stack = p, debug.Stack()
			}
		}()
		c.work(ctx, again)
	})
	// The Go scheduler gives a runnable goroutine to an idle P at once, but a goroutine
	// in the run-next slot of a running P only after a sleep of some 70 µs. Gosched runs
	// the helper here, and an idle P takes this goroutine.
	runtime.Gosched()
	func() {
		defer helper.Wait() // also after a panic: this goroutine then frees the memory
		c.work(ctx, again)
	}()
	if c.panicked != nil {
		panic(fmt.Sprintf("%v; where a batch is copied:\n%s", c.panicked, c.stack))
	}
	return c.err
}

// work takes parts until none is left or one fails.
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

// soon returns the first piece of the next part, for the prefetch of its bytes. The
// goroutine that has finished a part is likely to take the next one.
func (c *copies) soon() []byte {
	if i := c.next.Load(); i < int64(len(c.parts)) {
		return c.parts[i].buffer.Pieces[c.parts[i].first]
	}
	return nil
}

// failed records the error of a part and prevents that another part begins.
func (c *copies) failed(i int, err error) {
	c.next.Store(int64(len(c.parts)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil || i < c.at {
		c.err, c.at = err, i
	}
}

// copy copies a part and verifies unverified pieces. soon returns the first piece of the
// part after it.
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

// after returns the piece after piece i, which may be in the next part; nil if it is
// unknown.
func (p *part) after(i int, soon func() []byte) []byte {
	if i+1 < p.end {
		return p.buffer.Pieces[i+1]
	}
	return soon()
}

// errWrong means that a batch cannot refer to its blobs. Share then copies it.
var errWrong = errors.New("a blob cannot be referred to in its file")

// check verifies a part in place. If a blob is wrong or unreadable, the error is
// errWrong.
func (p *part) check(soon func() []byte) error {
	for i := p.first; i < p.end; i++ {
		if p.buffer.Unchecked[i].Ref.CheckBefore(p.buffer.Pieces[i], p.after(i, soon)) != nil {
			return errWrong
		}
	}
	return nil
}

// Reread reads the blob of a row again after its bytes were wrong, and verifies it. The
// caller releases it. Several goroutines may call it at once.
type Reread func(ctx context.Context, row int, ref schema.BlobRef) (schema.Blob, error)

// copyChecked copies a blob and verifies the copy, not the source, which could change in
// between. next is the blob to copy next, or nil: its bytes are prefetched into the CPU's
// cache.
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

// copyGuarded copies pieces that were verified earlier. A page of a mapped file may be
// unreadable by now, which is an error here and not a crash.
func copyGuarded(to, from []byte) error {
	return schema.Guard(func() error {
		copy(to, from)
		return nil
	})
}
