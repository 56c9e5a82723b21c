package schema

import (
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// columnBuilder accumulates a column. The content of null rows is normalised:
// zeros, or nothing where the length varies.
type columnBuilder struct {
	field    arrow.Field
	shape    shape
	width    int
	n, nulls int
	validity growing
	offsets  growing
	values   growing
	children []*columnBuilder
}

func newColumnBuilder(mem memory.Allocator, f arrow.Field) *columnBuilder {
	c := &columnBuilder{field: f, validity: growing{mem: mem}, offsets: growing{mem: mem}, values: growing{mem: mem}}
	c.shape, c.width = shapeOf(f.Type)
	switch dt := f.Type.(type) {
	case *arrow.ListType:
		c.children = []*columnBuilder{newColumnBuilder(mem, dt.ElemField())}
	case *arrow.FixedSizeListType:
		c.children = []*columnBuilder{newColumnBuilder(mem, dt.ElemField())}
	case *arrow.StructType:
		for _, sub := range dt.Fields() {
			c.children = append(c.children, newColumnBuilder(mem, sub))
		}
	}
	c.reset()
	return c
}

func (c *columnBuilder) reset() {
	c.n, c.nulls = 0, 0
	c.validity.b, c.offsets.b, c.values.b = c.validity.b[:0], c.offsets.b[:0], c.values.b[:0]
	switch c.shape {
	case shapeBytes, shapeList:
		c.offsets.grow(4)
	case shapeBytes8:
		c.offsets.grow(8)
	}
	for _, sub := range c.children {
		sub.reset()
	}
}

func (c *columnBuilder) release() {
	c.validity.release()
	c.offsets.release()
	c.values.release()
	for _, sub := range c.children {
		sub.release()
	}
}

// valid marks n more rows as valid.
func (c *columnBuilder) valid(n int) {
	c.validity.grow((c.n+n+7)/8 - len(c.validity.b))
	bitutil.SetBitsTo(c.validity.b, int64(c.n), int64(n), true)
	c.n += n
}

// appendEmpty adds n rows of nothing: null where the field allows it.
func (c *columnBuilder) appendEmpty(n int) {
	c.validity.grow((c.n+n+7)/8 - len(c.validity.b))
	if c.field.Nullable {
		c.nulls += n
	} else {
		bitutil.SetBitsTo(c.validity.b, int64(c.n), int64(n), true)
	}
	switch c.shape {
	case shapeBits:
		c.values.grow((c.n+n+7)/8 - len(c.values.b))
	case shapeFixed:
		c.values.grow(n * c.width)
	case shapeBytes, shapeList:
		last := cast[int32](c.offsets.b)[c.n]
		off := cast[int32](c.offsets.grow(4 * n))
		for i := range off {
			off[i] = last
		}
	case shapeBytes8:
		last := cast[int64](c.offsets.b)[c.n]
		off := cast[int64](c.offsets.grow(8 * n))
		for i := range off {
			off[i] = last
		}
	case shapeFixedList:
		c.children[0].appendEmpty(n * c.width)
	case shapeStruct:
		for _, sub := range c.children {
			sub.appendEmpty(n)
		}
	}
	c.n += n
}

// check reports why rows [start, start+n) of v cannot be appended.
func (c *columnBuilder) check(v *view, start, n int) error {
	if n == 0 {
		return nil
	}
	if v.validity != nil && !c.field.Nullable && bitutil.CountSetBits(v.validity, v.bit+start, n) < n {
		return fmt.Errorf("%w: null in %q, which is not nullable", ErrInvalid, c.field.Name)
	}
	full := func(length int64, have int32) error {
		if length > int64(math.MaxInt32-have) {
			return fmt.Errorf("%w: a chunk holds at most 2^31-1 bytes or items of a column of type %s", ErrLimit,
				c.field.Type)
		}
		return nil
	}
	switch c.shape {
	case shapeBytes:
		return full(int64(v.off32[start+n]-v.off32[start]), cast[int32](c.offsets.b)[c.n])
	case shapeList:
		first, last := v.off32[start], v.off32[start+n]
		if err := full(int64(last-first), cast[int32](c.offsets.b)[c.n]); err != nil {
			return err
		}
		return eachValid(v, start, n, func(at, k int) error {
			return c.children[0].check(&v.children[0], int(v.off32[at]), int(v.off32[at+k]-v.off32[at]))
		})
	case shapeFixedList:
		return eachValid(v, start, n, func(at, k int) error {
			return c.children[0].check(&v.children[0], at*c.width, k*c.width)
		})
	case shapeStruct:
		return eachValid(v, start, n, func(at, k int) error {
			for i, sub := range c.children {
				if err := sub.check(&v.children[i], at, k); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return nil
}

// eachValid calls f for each longest run of valid rows.
func eachValid(v *view, start, n int, f func(at, k int) error) error {
	if v.validity == nil {
		return f(start, n)
	}
	for at := start; at < start+n; {
		if v.null(at) {
			at++
			continue
		}
		k := 1
		for at+k < start+n && !v.null(at+k) {
			k++
		}
		if err := f(at, k); err != nil {
			return err
		}
		at += k
	}
	return nil
}

// append adds rows [start, start+n) of v, which has been checked.
func (c *columnBuilder) append(v *view, start, n int) {
	if n == 0 {
		return
	}
	at := start
	_ = eachValid(v, start, n, func(from, k int) error { // its callback does not fail
		c.appendEmpty(from - at)
		c.appendValid(v, from, k)
		at = from + k
		return nil
	})
	c.appendEmpty(start + n - at)
}

func (c *columnBuilder) appendValid(v *view, start, n int) {
	switch c.shape {
	case shapeBits:
		c.values.grow((c.n+n+7)/8 - len(c.values.b))
		bitutil.CopyBitmap(v.values, v.bit+start, n, c.values.b, c.n)
	case shapeFixed:
		c.values.append(v.values[start*c.width : (start+n)*c.width])
	case shapeBytes:
		first, last := appendOffsets(c, v.off32, start, n)
		c.values.append(v.values[first:last])
	case shapeBytes8:
		first, last := appendOffsets(c, v.off64, start, n)
		c.values.append(v.values[first:last])
	case shapeList:
		first, last := appendOffsets(c, v.off32, start, n)
		c.children[0].append(&v.children[0], int(first), int(last-first))
	case shapeFixedList:
		c.children[0].append(&v.children[0], start*c.width, n*c.width)
	case shapeStruct:
		for i, sub := range c.children {
			sub.append(&v.children[i], start, n)
		}
	}
	c.valid(n)
}

func appendOffsets[T int32 | int64](c *columnBuilder, off []T, start, n int) (first, last T) {
	have := cast[T](c.offsets.b)
	shift := have[c.n] - off[start]
	width := len(c.offsets.b) / (c.n + 1)
	dst := cast[T](c.offsets.grow(n * width))
	for i := range dst {
		dst[i] = off[start+1+i] + shift
	}
	return off[start], off[start+n]
}

// vector views what has been appended. It is valid until the next change.
func (c *columnBuilder) vector() Vector {
	v := Vector{Type: c.field.Type, Len: c.n, Nulls: c.nulls, Buffers: []Buffer{{}}}
	if c.nulls > 0 {
		v.Buffers[0] = pieces(c.validity.b)
	}
	switch c.shape {
	case shapeBits, shapeFixed:
		v.Buffers = append(v.Buffers, pieces(c.values.b))
	case shapeBytes, shapeBytes8:
		v.Buffers = append(v.Buffers, pieces(c.offsets.b), pieces(c.values.b))
	case shapeList:
		v.Buffers = append(v.Buffers, pieces(c.offsets.b))
	}
	for _, sub := range c.children {
		v.Children = append(v.Children, sub.vector())
	}
	return v
}

// growing is a byte slice that grows within memory of an allocator.
type growing struct {
	mem memory.Allocator
	b   []byte
}

// grow adds n bytes of zero and returns them.
func (g *growing) grow(n int) []byte {
	if n <= 0 {
		return nil
	}
	have := len(g.b)
	if need := have + n; need > cap(g.b) {
		size := max(need, 2*cap(g.b), 64)
		if g.b == nil {
			g.b = g.mem.Allocate(size)
		} else {
			g.b = g.mem.Reallocate(size, g.b[:cap(g.b)])
		}
	}
	g.b = g.b[:have+n]
	clear(g.b[have:])
	return g.b[have:]
}

func (g *growing) append(b []byte) { copy(g.grow(len(b)), b) }

func (g *growing) release() {
	if g.b != nil {
		g.mem.Free(g.b[:cap(g.b)])
		g.b = nil
	}
}
