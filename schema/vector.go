package schema

import "github.com/apache/arrow/go/v17/arrow"

// Buffer is the content of one Arrow buffer, in pieces that are sent one after
// the other. The pieces may point into mapped files; they are read-only, and
// live as long as the Batch that they belong to.
type Buffer struct {
	Pieces [][]byte
	Len    int64 // the sum of the pieces' lengths, in bytes
	// Unchecked says of each piece what it has to be, where blobs are among them that nobody has compared with their
	// references yet; nil if there are none. Whoever sends the buffer compares what is sent.
	Unchecked []Unchecked
}

// Unchecked is a piece of a buffer that is a blob which has to be compared with its reference.
type Unchecked struct {
	Row int // of the batch
	Ref BlobRef
}

// Vector is one column of a batch in Arrow's physical layout, with offset 0.
type Vector struct {
	Type  arrow.DataType
	Len   int // rows
	Nulls int // null rows; 0 goes with an empty validity buffer
	// Buffers are those of the columnar format for Type, in its order. The first
	// is always the validity bitmap, empty where there are no nulls.
	Buffers  []Buffer
	Children []Vector
	// Blobs are those of the rows of a column that has them one after another in its last buffer; else nil. They are
	// the batch's, of which each may be taken over in its place.
	Blobs []Blob
}

// Bytes is the space of the vector's buffers in the body of a message, each
// padded to a multiple of 8 bytes.
func (v *Vector) Bytes() int64 {
	var n int64
	for i := range v.Buffers {
		n += (v.Buffers[i].Len + 7) &^ 7
	}
	for i := range v.Children {
		n += v.Children[i].Bytes()
	}
	return n
}

// pieces makes a buffer of b, empty for no bytes.
func pieces(b ...[]byte) Buffer {
	var n int64
	for _, p := range b {
		n += int64(len(p))
	}
	if n == 0 {
		return Buffer{}
	}
	return Buffer{Pieces: b, Len: n}
}
