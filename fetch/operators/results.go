package operators

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

// Results are kept in the spill as blobs of their own: the bytes, the sizes along the
// axes, how many these are, and the key. The key is the hash of the blob's key, of the
// canonical steps, and of the contract: what is found under it is what would be made.

// Cache is where results are kept: a *spill.Cache.
type Cache interface {
	// Ref is the reference of what is there under a key; false if nothing is.
	Ref(key schema.Key) (schema.BlobRef, bool)
	// Get, Wants and Offer are those of spill.Cache.
	Get(ref schema.BlobRef, at spill.Place) (schema.Blob, bool)
	Wants(at spill.Place, size int64, displace bool) bool
	Offer(ref schema.BlobRef, at spill.Place, cost time.Duration, blob schema.Blob) bool
}

// resultTail is what a result has behind its bytes, for n axes.
func resultTail(n int) int { return 4*n + 4 + len(schema.Key{}) }

// resultKey is what the result of a blob is kept under.
func (c *Column) resultKey(blob schema.Key) schema.Key {
	return sha256.Sum256(append(c.id[:], blob[:]...))
}

// keptCell is a result that was kept. It implements schema.Maker.
type keptCell struct {
	blob schema.Blob
	made schema.MadeCell
}

// Unpin implements schema.Owner.
func (k *keptCell) Unpin() { k.blob.Release() }

// Made implements schema.Maker.
func (k *keptCell) Made() *schema.MadeCell { return &k.made }

// keeps reports whether the result of a task may be kept.
func (s *Stage) keeps(t *Task) bool {
	return s.opts.Cache != nil && t.Column.whole && t.At.Dataset != 0
}

// kept returns the result of a task, if it is kept.
func (s *Stage) kept(t *Task) (schema.Blob, bool) {
	return s.keptUnder(t, t.Column.resultKey(t.Ref.Key), t.Column.Form)
}

// keptUnder returns what is kept under a key, if it is of a form.
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

// parseKept takes a kept blob apart, and over; false if it is none of that key and form.
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

// keep offers a result to the spill, if that pays: where making it took more processor
// time than reading it will, and no blob gives way that a job is going to use.
func (s *Stage) keep(t *Task, c *cell, n int, took time.Duration) {
	size := n + resultTail(len(c.made.Shape))
	if float64(took) < s.opts.KeepNanosPerByte*float64(size) || !s.opts.Cache.Wants(t.At, int64(size), false) {
		return
	}
	if s.offer(t, t.Column.resultKey(t.Ref.Key), c, n, took) {
		s.count.kept.Add(1)
	}
}

// offer offers the n bytes of a cell to the spill, under a key and as what took so long to make.
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
	_ = append(tail, key[:]...) // in place: there is room behind a result
	whole := c.memory[:size:size]
	c.holds.Add(1)
	ref := schema.BlobRef{Key: key, Size: int64(size), Sum: schema.Checksum(whole)}
	return s.opts.Cache.Offer(ref, t.At, took, schema.NewBlob(whole, c))
}
