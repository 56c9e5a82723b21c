package operators

import (
	"encoding/json"
	"math/bits"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"bowstring/fetch/operators/program"
	"bowstring/schema"
)

// cell is what a program has made of a blob, and the memory that it lies in. It implements
// schema.Maker. The memory is used again when the last hold is given up.
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

// Memory comes in classes, four for each power of two, so that less than a fifth is left
// over. Of each, what is not used is kept until the next collection of garbage.
const (
	leastClass  = 10 // 1 KiB
	mostClass   = 32
	classParts  = 4
	cellTrailer = 256 // bytes that a cell has beyond its result at least, for who keeps it
)

var kept [classParts * (mostClass - leastClass)]sync.Pool

// classOf is the class of so many bytes and its size; -1 where there is none.
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

// newCell returns a cell of n bytes of any content, which the caller holds.
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

func keep(c *cell) {
	if class, size := classOf(len(c.memory)); class >= 0 && size == len(c.memory) {
		kept[class].Put(c)
	}
}

func aligned(n int) []byte {
	b := make([]byte, n+63)
	at := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 63)
	return b[at : at+n : at+n]
}

// nothingDrawn is what is drawn where nothing is.
var nothingDrawn = []byte("[]")

// describe notes what a program said of its result.
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

// appendJSON appends a text or a number; null for a number that JSON has none of.
func appendJSON(b []byte, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		return append(b, "null"...)
	}
	return append(b, text...)
}
