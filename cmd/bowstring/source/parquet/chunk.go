package parquet

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/metadata"
)

const (
	// headerBytes is how much of a page header is looked at first.
	headerBytes = 16 << 10
	// padding is what older writers left out of the size of a chunk: the header of the dictionary.
	padding = 100
	// maxPeeks is how often a header is looked at before it is read. The library doubles what it looks at each time.
	maxPeeks = 64
)

// openChunk opens a leaf in a row group.
func (l *leaf) openChunk(group int) (file.ColumnChunkReader, error) {
	g := l.file.RowGroup(group)
	chunk, err := g.MetaData().ColumnChunk(l.node.first)
	if err != nil {
		return nil, err
	}
	if chunk.CryptoMetadata() != nil {
		return nil, errors.New("it is encrypted")
	}
	start, size := chunk.DataPageOffset(), chunk.TotalCompressedSize()
	if dict := chunk.DictionaryPageOffset(); chunk.HasDictionaryPage() && dict > 0 && dict < start {
		start = dict
	}
	if start < 0 || size < 0 || start > l.in.size || size > l.in.size-start {
		return nil, fmt.Errorf("%d bytes from %d on, in a file of %d", size, start, l.in.size)
	}
	if l.file.MetaData().WriterVersion().LessThan(metadata.Parquet816FixedVersion) {
		size += min(padding, l.in.size-start-size)
	}
	from := io.NewSectionReader(l.in.from, start, size)
	pages, err := file.NewPageReader(&stream{from: from, r: bufio.NewReaderSize(from, headerBytes)}, chunk.NumValues(),
		chunk.Compression(), l.in.mem, nil)
	if err != nil {
		return nil, err
	}
	return file.NewColumnReader(l.node.column, &plainPages{PageReader: pages, column: l.node.column}, l.in.mem,
		l.file.BufferPool()), nil
}

// stream is the bytes of a chunk, as the library reads them.
type stream struct {
	from  io.Reader
	r     *bufio.Reader
	peeks int // since bytes were taken
}

// Peek returns the next bytes, fewer at the end. The library looks at pages of a kind that it does not know again and
// again, without taking their bytes: that is an error.
func (s *stream) Peek(n int) ([]byte, error) {
	if s.peeks++; s.peeks > maxPeeks {
		return nil, errors.New("a page header without an end")
	}
	if n > s.r.Size() {
		have, _ := s.r.Peek(s.r.Buffered())
		s.r = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(slices.Clone(have)), s.from), n)
	}
	return s.r.Peek(n)
}

// Discard takes bytes.
func (s *stream) Discard(n int) (int, error) {
	if n > 0 {
		s.peeks = 0
	}
	return s.r.Discard(n)
}

// Read takes bytes.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if n > 0 {
		s.peeks = 0
	}
	return n, err
}
