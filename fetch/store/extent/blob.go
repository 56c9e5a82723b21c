package extent

import "bowstring/schema"

// framed is memory whose allocations the Go runtime aligns to pages, as a disk takes it.
const framed = 32 << 10

// newBlob returns a blob and the memory of its bytes, which are to be filled in before it is handed out.
func newBlob(size int64) (schema.Blob, []byte) {
	if n := schema.FrameSize(size); n > framed {
		f := frame(make([]byte, n))
		data := f[schema.FrameMargin : schema.FrameMargin+size : schema.FrameMargin+size]
		return schema.NewBlob(data, f), data
	}
	data := make([]byte, size)
	return schema.NewBlob(data, nil), data
}

// frame is a schema.Framer; the garbage collector owns its memory.
type frame []byte

func (frame) Unpin()          {}
func (f frame) Frame() []byte { return f }
