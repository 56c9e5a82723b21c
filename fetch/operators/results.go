package operators

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"bowstring/fetch/operators/program"
	"bowstring/schema"
	"bowstring/spill"
)

// Results are cached in the spill as blobs of their own: the bytes, the sizes along the
// axes, the number of axes, and the key. The key is the hash of the blob's key, of the
// canonical steps, and of the contract. So a cached result is always the one that would
// be made.

// Cache stores results: a *spill.Cache.
type Cache interface {
	// Ref is the reference of the result under a key; false if there is none.
	Ref(key schema.Key) (schema.BlobRef, bool)
	// Get, Wants and Offer are the methods of spill.Cache.
	Get(ref schema.BlobRef, at spill.Place) (schema.Blob, bool)
	Wants(at spill.Place, size int64, displace bool) bool
	Offer(ref schema.BlobRef, at spill.Place, cost time.Duration, blob schema.Blob) bool
}

// resultTail is the number of bytes after the bytes of a result, for n axes.
func resultTail(n int) int { return 4*n + 4 + len(schema.Key{}) }

// resultKey is the key of the result for a blob.
func (c *Column) resultKey(blob schema.Key) schema.Key {
	return sha256.Sum256(append(c.id[:], blob[:]...))
}

// keptCell is a cached result. It implements schema.Maker.
type keptCell struct {
	blob schema.Blob
	made schema.MadeCell
}

// Unpin implements schema.Owner.
func (k *keptCell) Unpin() { k.blob.Release() }

// Made implements schema.Maker.
func (k *keptCell) Made() *schema.MadeCell { return &k.made }

// keeps reports whether the result of a task may be cached: no step is random, and there
// is a cache.
func (s *Stage) keeps(t *Task) bool {
	return s.opts.Cache != nil && t.Column.whole && t.At.Dataset != 0
}

// kept returns the cached result of a task, if there is one.
func (s *Stage) kept(t *Task) (schema.Blob, bool) {
	return s.keptUnder(t, t.Column.resultKey(t.Ref.Key), t.Column.Form)
}

// keptUnder returns the cached result under a key, if it has that form.
func (s *Stage) keptUnder(t *Task, key schema.Key, form *schema.MadeForm) (schema.Blob, bool) {
	ref, ok := s.opts.Cache.Ref(key)
	if !ok {
		return schema.Blob{}, false
	}
	blob, ok := s.opts.Cache.Get(ref, t.At)
	if !ok {
		return schema.Blob{}, false
	}
	var result schema.Blob
	if err := schema.Guard(func() error {
		result, ok = parseKept(form, key, blob)
		return nil
	}); err != nil || !ok {
		blob.Release()
		return schema.Blob{}, false
	}
	return result, true
}

// parseKept parses a cached blob, and takes it over; false if it has not that key and
// form.
func parseKept(form *schema.MadeForm, key schema.Key, blob schema.Blob) (schema.Blob, bool) {
	b := blob.Bytes()
	n := len(form.Shape)
	if form.Encoded() {
		n = 0
	}
	end := len(b) - resultTail(n)
	if end < 0 || schema.Key(b[len(b)-len(key):]) != key || binary.LittleEndian.Uint32(b[end+4*n:]) != uint32(n) {
		return schema.Blob{}, false
	}
	k := &keptCell{blob: blob, made: schema.MadeCell{Params: nothingDrawn}}
	size := int64(1)
	if n > 0 {
		size = form.ElementBytes()
	}
	for i := range n {
		d := int32(binary.LittleEndian.Uint32(b[end+4*i:]))
		if want := form.Shape[i]; d < 0 || want != nil && int(d) != *want {
			return schema.Blob{}, false
		}
		k.made.Shape = append(k.made.Shape, d)
		size *= int64(d)
	}
	if n > 0 && size != int64(end) {
		return schema.Blob{}, false
	}
	return schema.NewBlob(b[:end:end], k), true
}

// keep offers a result to the cache if that pays: making it took more CPU time than
// reading it will, and the cache would not evict a blob that a job will use.
func (s *Stage) keep(t *Task, c *cell, n int, took time.Duration) {
	size := n + resultTail(len(c.made.Shape))
	if float64(took) < s.opts.KeepNanosPerByte*float64(size) || !s.opts.Cache.Wants(t.At, int64(size), false) {
		return
	}
	if s.offer(t, t.Column.resultKey(t.Ref.Key), c, n, took) {
		s.count.kept.Add(1)
	}
}

// offer offers the n bytes of a cell to the cache under a key. took is the time that a
// hit saves.
func (s *Stage) offer(t *Task, key schema.Key, c *cell, n int, took time.Duration) bool {
	size := n + resultTail(len(c.made.Shape))
	if len(c.memory) < size {
		return false
	}
	tail := c.memory[n:n]
	for _, d := range c.made.Shape {
		tail = binary.LittleEndian.AppendUint32(tail, uint32(d))
	}
	tail = binary.LittleEndian.AppendUint32(tail, uint32(len(c.made.Shape)))
	_ = append(tail, key[:]...) // in place: newCell left room for it
	whole := c.memory[:size:size]
	c.holds.Add(1)
	ref := schema.BlobRef{Key: key, Size: int64(size), Sum: schema.Checksum(whole)}
	return s.opts.Cache.Offer(ref, t.At, took, schema.NewBlob(whole, c))
}

// cell is the result of a program and its memory. It implements schema.Maker. The memory
// is reused when the last hold is released.
type cell struct {
	memory []byte // 64-byte aligned, of its class
	made   schema.MadeCell
	holds  atomic.Int32
}

// Unpin implements schema.Owner.
func (c *cell) Unpin() {
	if c.holds.Add(-1) == 0 {
		keep(c)
	}
}

// Made implements schema.Maker.
func (c *cell) Made() *schema.MadeCell { return &c.made }

// Memory has size classes, four for each power of two, so that less than a fifth is
// unused. Unused memory of each class is pooled until the next garbage collection.
const (
	leastClass  = 10 // 1 KiB
	mostClass   = 32
	classParts  = 4
	cellTrailer = 256 // minimum room after a result, for the tail that the cache stores
)

// kept has the memory of released results by size class.
var kept [classParts * (mostClass - leastClass)]sync.Pool

// classOf is the size class for n bytes and its size; class is -1 if n is too large for
// any.
func classOf(n int) (class, size int) {
	n = max(n, 1<<leastClass)
	top := bits.Len(uint(n-1)) - 1 // 2^top < n <= 2^(top+1), for n > 1<<leastClass
	if n == 1<<leastClass {
		return 0, n
	}
	part := 1 << top / classParts
	k := (n - 1<<top + part - 1) / part // 1 to classParts
	class = classParts*(top-leastClass) + k
	if class >= len(kept) {
		return -1, n
	}
	return class, 1<<top + k*part
}

// newCell returns a cell with n bytes of undefined content. The caller holds it.
func newCell(n int) *cell {
	class, size := classOf(n + cellTrailer)
	var c *cell
	if class >= 0 {
		c, _ = kept[class].Get().(*cell)
	}
	if c == nil {
		c = &cell{memory: aligned(size)}
	}
	c.made = schema.MadeCell{}
	c.holds.Store(1)
	return c
}

// keep returns the memory of a cell to its pool.
func keep(c *cell) {
	if class, size := classOf(len(c.memory)); class >= 0 && size == len(c.memory) {
		kept[class].Put(c)
	}
}

// aligned allocates n bytes at a multiple of 64.
func aligned(n int) []byte {
	b := make([]byte, n+63)
	at := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 63)
	return b[at : at+n : at+n]
}

// nothingDrawn are the parameters of a cell without random steps.
var nothingDrawn = []byte("[]")

// describe sets the sizes and random parameters of a result from its outcome.
func (c *cell) describe(col *Column, o *program.Outcome) {
	if n := len(o.Dims); n > 0 {
		c.made.Shape = make([]int32, n)
		for i, d := range o.Dims {
			c.made.Shape[i] = int32(d)
		}
	}
	c.made.Params = nothingDrawn
	if len(o.Drawn) > 0 {
		c.made.Params = appendDrawn(nil, col, o.Drawn)
	}
}

// appendDrawn appends [{"step": 1, "name": "RandomResizedCrop", "values": {"top": 3, …}}, …].
func appendDrawn(b []byte, col *Column, drawn []program.Drawn) []byte {
	b = append(b, '[')
	for i, d := range drawn {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"step":`...)
		b = strconv.AppendInt(b, int64(d.Step), 10)
		b = append(b, `,"name":`...)
		b = appendJSON(b, col.Named(d.Step))
		b = append(b, `,"values":{`...)
		for k, v := range d.Values {
			if k > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, v.Name)
			b = append(b, ':')
			b = appendJSON(b, v.Number)
		}
		b = append(b, "}}"...)
	}
	return append(b, ']')
}

// appendJSON appends a text or a number; null for NaN and infinities, which JSON lacks.
func appendJSON(b []byte, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		return append(b, "null"...)
	}
	return append(b, text...)
}
