package segment

import "bowstring/schema"

// Model stands for a disk in a simulation. Segments of a Set with a model have numbers, offsets, space that is
// allocated and given back, seals and pins like any others, by the same code; they have no files, and keep no byte.
type Model struct {
	// Bytes returns what a blob of n bytes is read as. The slice is not written to, and must stay as it is.
	Bytes func(n int64) []byte
	// Wait is called for each read and each write with the number of bytes. It returns when the disk is done, and may
	// be called by many goroutines at once.
	Wait func(op Op, n int64)
}

// segment returns a segment without a file.
func (m *Model) segment(path string, id uint32, capacity int64) *Segment {
	s := &Segment{id: id, path: path, capacity: capacity, model: m}
	s.written.L = &s.mu
	s.refs.Store(1)
	s.end.Store(HeaderSize)
	return s
}

// read is Segment.read; the pin of its caller passes to the blob.
func (m *Model) read(s *Segment, n int64) schema.Blob {
	m.Wait(OpRead, n)
	return schema.NewBlob(m.Bytes(n), s)
}

// write is Segment.write of a run of blobs.
func (m *Model) write(run []Write) {
	var n int64
	for i := range run {
		n += run[i].n
	}
	m.Wait(OpWrite, n)
}
