package schema

// A frame is memory that a disk takes as it lies: whole blocks, from a multiple of FrameBlock on, in which a blob
// begins behind FrameMargin bytes. Who stores the blob fills in what is before and behind it, and needs no copy.
const (
	FrameBlock  = 4 << 10
	FrameMargin = 64
)

// FrameSize is the size of the frame of a blob of n bytes.
func FrameSize(n int64) int64 { return (FrameMargin + n + FrameBlock - 1) / FrameBlock * FrameBlock }

// Framer is an Owner whose blob lies in a frame.
type Framer interface {
	Owner
	// Frame returns the frame; nil if there is none. It stays in place as long as the blob does. What is around the
	// blob is undefined, and is written to by the one who stores the blob, and read by nobody else.
	Frame() []byte
}

// Frame returns the frame that the blob lies in; nil if there is none.
func (b *Blob) Frame() []byte {
	if f, ok := b.owner.(Framer); ok {
		return f.Frame()
	}
	return nil
}
