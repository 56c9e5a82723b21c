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
	key := t.Column.resultKey(t.Ref.Key)
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
		result, ok = t.Column.parseResult(key, blob)
		return nil
	}); err != nil || !ok {
		blob.Release()
		return schema.Blob{}, false
	}
	return result, true
}

// parseResult takes a kept blob apart, and over; false if it is none of the column's.
func (c *Column) parseResult(key schema.Key, blob schema.Blob) (schema.Blob, bool) {
	b := blob.Bytes()
	n := len(c.Form.Shape)
	if c.Form.Encoded() {
		n = 0
	}
	end := len(b) - resultTail(n)
	if end < 0 || schema.Key(b[len(b)-len(key):]) != key || binary.LittleEndian.Uint32(b[end+4*n:]) != uint32(n) {
		return schema.Blob{}, false
	}
	k := &keptCell{blob: blob, made: schema.MadeCell{Params: nothingDrawn}}
	size := int64(1)
	if n > 0 {
		size = c.Form.ElementBytes()
	}
	for i := range n {
		d := int32(binary.LittleEndian.Uint32(b[end+4*i:]))
		if want := c.Form.Shape[i]; d < 0 || want != nil && int(d) != *want {
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
func (s *Stage) keep(t *Task, result schema.Blob, took time.Duration) {
	b, made := result.Bytes(), result.Made()
	size := len(b) + resultTail(len(made.Shape))
	c, ok := ownerOf(t, result)
	if !ok || float64(took) < s.opts.KeepNanosPerByte*float64(size) || !s.opts.Cache.Wants(t.At, int64(size), false) {
		return
	}
	key := t.Column.resultKey(t.Ref.Key)
	tail := c.memory[len(b):len(b)]
	for _, d := range made.Shape {
		tail = binary.LittleEndian.AppendUint32(tail, uint32(d))
	}
	tail = binary.LittleEndian.AppendUint32(tail, uint32(len(made.Shape)))
	_ = append(tail, key[:]...) // in place: there is room behind a result
	whole := c.memory[:size:size]
	c.holds.Add(1)
	ref := schema.BlobRef{Key: key, Size: int64(size), Sum: schema.Checksum(whole)}
	if s.opts.Cache.Offer(ref, t.At, took, schema.NewBlob(whole, c)) {
		s.count.kept.Add(1)
	}
}

// ownerOf is the memory of a result that was just made; false where what is to be written behind it
// does not fit.
func ownerOf(t *Task, result schema.Blob) (*cell, bool) {
	c := t.made
	return c, c != nil && len(c.memory)-len(result.Bytes()) >= resultTail(len(c.made.Shape))
}
