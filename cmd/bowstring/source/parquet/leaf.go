package parquet

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	pq "github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/metadata"
)

const (
	// headerBytes is how many bytes of a page header are peeked first. Headers with
	// statistics of short values fit.
	headerBytes = 16 << 10
	// padding is what writers before PARQUET-816 left out of the total_compressed_size of
	// a chunk: the header of the dictionary page. The library allows the same 100 bytes.
	padding = 100
	// maxPeeks is how often a header is peeked before it counts as endless. The library
	// doubles its peek each time, so that 64 is beyond any header.
	maxPeeks = 64
)

// openChunk opens the column chunk of a leaf in a row group. Offsets and sizes come from
// the file: they are checked against its length before anything is read.
func (l *leaf) openChunk(group int) (file.ColumnChunkReader, error) {
	g := l.file.RowGroup(group)
	chunk, err := g.MetaData().ColumnChunk(l.node.first)
	if err != nil {
		return nil, err
	}
	if chunk.CryptoMetadata() != nil {
		return nil, errors.New("it is encrypted")
	}
	// A chunk starts at its dictionary page if it has one. An offset that is 0, or not
	// before the data, is ignored.
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
	in := &stream{from: from, r: bufio.NewReaderSize(from, headerBytes), start: start}
	pages, err := file.NewPageReader(in, chunk.NumValues(), chunk.Compression(), l.in.mem, nil)
	if err != nil {
		return nil, err
	}
	if l.where != nil {
		l.where.begin(in, chunk.Compression())
	}
	return file.NewColumnReader(l.node.column, &plainPages{PageReader: pages, column: l.node.column, where: l.where},
		l.in.mem, l.file.BufferPool()), nil
}

// stream is the bytes of a chunk, as the library's page reader reads them. It replaces
// the library's own reader to stop endless peeks, and to know where each page begins: the
// library does not report page offsets.
type stream struct {
	from io.Reader
	r    *bufio.Reader
	// peeks counts calls of Peek since bytes were last taken.
	peeks int
	start int64 // offset of the chunk in the file
	// at is the number of bytes taken. mark is its value at the end of the last page
	// header: the library takes headers with Discard and bodies with Read.
	at   int64
	mark int64
}

// Peek returns the next n bytes, fewer at the end. If the library meets a page of an
// unknown type, it peeks at the page forever without taking bytes. Peek turns that into
// an error.
func (s *stream) Peek(n int) ([]byte, error) {
	if s.peeks++; s.peeks > maxPeeks {
		return nil, errors.New("a page header without an end")
	}
	// A larger header needs a larger buffer. The old buffer comes first: the file was
	// read past it.
	if n > s.r.Size() {
		have, _ := s.r.Peek(s.r.Buffered())
		s.r = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(slices.Clone(have)), s.from), n)
	}
	return s.r.Peek(n)
}

// Discard skips bytes. The library calls it at the end of each page header, and so the
// mark is set here.
func (s *stream) Discard(n int) (int, error) {
	if n > 0 {
		s.peeks = 0
	}
	n, err := s.r.Discard(n)
	s.at += int64(n)
	s.mark = s.at
	return n, err
}

// Read takes the bytes of a page body.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.at += int64(n)
	if n > 0 {
		s.peeks = 0
	}
	return n, err
}

// leaf reads the levels and values of one leaf, row group by row group. It buffers what
// was read and is not yet part of an array. Dremel's encoding stores for each slot a
// definition level, which says how many optional or repeated ancestors exist, and a
// repetition level, which says at which list it continues. Only slots with the maximal
// definition level have a value.
type leaf struct {
	node *node
	file *file.Reader
	in   input
	// group is the row group that is opened next; chunk is the open one, nil before the
	// first and between two.
	group int
	chunk file.ColumnChunkReader
	// def has a level for each buffered slot, also if the leaf is required: then all are
	// 0. rep is empty if no list contains the leaf.
	def    []int16
	rep    []int16
	values values
	// rows counts the zeros in rep: each begins a row.
	rows  int
	where *locator // records extents; nil if none are wanted
	// ended is set when the last row group has been read.
	ended bool
}

// values are the buffered non-null values of a leaf, in the order of the file. They may
// refer to memory of the page that was read last.
type values interface {
	// read reads at most n levels and the values that they have.
	read(chunk file.ColumnChunkReader, n int64, def, rep []int16) (levels, read int, err error)
	// drop removes the first n values.
	drop(n int)
}

// dense are values of one Go type. batchOf returns the ReadBatch method of a chunk
// reader; the library has a reader type for each physical type, without a common
// interface.
type dense[T any] struct {
	v       []T
	batchOf func(file.ColumnChunkReader) func(int64, []T, []int16, []int16) (int64, int, error)
}

// drop clears what is behind the rest: byte slices there would keep whole pages alive.
func (d *dense[T]) drop(n int) {
	rest := copy(d.v, d.v[n:])
	clear(d.v[rest:])
	d.v = d.v[:rest]
}

func (d *dense[T]) read(chunk file.ColumnChunkReader, n int64, def, rep []int16) (int, int, error) {
	have := len(d.v)
	d.v = append(d.v, make([]T, n)...)
	levels, read, err := d.batchOf(chunk)(n, d.v[have:], def, rep)
	// The library takes these numbers from the page, so they are checked too.
	if read < 0 || read > int(n) || levels < int64(read) || levels > n {
		return 0, 0, fmt.Errorf("%d values for %d levels of %d", read, levels, n)
	}
	clear(d.v[have+read:])
	d.v = d.v[:have+read]
	return int(levels), read, err
}

// newValues returns the buffer for a physical type.
func newValues(t pq.Type) (values, error) {
	switch t {
	case pq.Types.Boolean:
		return &dense[bool]{batchOf: func(c file.ColumnChunkReader) func(int64, []bool, []int16, []int16) (int64, int,
			error) {
			return c.(*file.BooleanColumnChunkReader).ReadBatch
		}}, nil
	case pq.Types.Int32:
		return &dense[int32]{batchOf: func(c file.ColumnChunkReader) func(int64, []int32, []int16, []int16) (int64,
			int, error) {
			return c.(*file.Int32ColumnChunkReader).ReadBatch
		}}, nil
	case pq.Types.Int64:
		return &dense[int64]{batchOf: func(c file.ColumnChunkReader) func(int64, []int64, []int16, []int16) (int64,
			int, error) {
			return c.(*file.Int64ColumnChunkReader).ReadBatch
		}}, nil
	case pq.Types.Int96:
		return &dense[pq.Int96]{batchOf: func(c file.ColumnChunkReader) func(int64, []pq.Int96, []int16,
			[]int16) (int64, int, error) {
			return c.(*file.Int96ColumnChunkReader).ReadBatch
		}}, nil
	case pq.Types.Float:
		return &dense[float32]{batchOf: func(c file.ColumnChunkReader) func(int64, []float32, []int16,
			[]int16) (int64, int, error) {
			return c.(*file.Float32ColumnChunkReader).ReadBatch
		}}, nil
	case pq.Types.Double:
		return &dense[float64]{batchOf: func(c file.ColumnChunkReader) func(int64, []float64, []int16,
			[]int16) (int64, int, error) {
			return c.(*file.Float64ColumnChunkReader).ReadBatch
		}}, nil
	case pq.Types.ByteArray:
		return &dense[pq.ByteArray]{batchOf: func(c file.ColumnChunkReader) func(int64, []pq.ByteArray, []int16,
			[]int16) (int64, int, error) {
			return c.(*file.ByteArrayColumnChunkReader).ReadBatch
		}}, nil
	case pq.Types.FixedLenByteArray:
		return &dense[pq.FixedLenByteArray]{batchOf: func(c file.ColumnChunkReader) func(int64,
			[]pq.FixedLenByteArray, []int16, []int16) (int64, int, error) {
			return c.(*file.FixedLenByteArrayColumnChunkReader).ReadBatch
		}}, nil
	}
	return nil, fmt.Errorf("it has the physical type %s", t)
}

// leaf opens a leaf at its first row. Callers must have checked that the leaf can be
// read; see node.problem.
func (f *File) leaf(n *node) *leaf {
	v, err := newValues(n.column.PhysicalType())
	if err != nil {
		panic(err) // leafType has rejected the type
	}
	return &leaf{node: n, file: f.reader, in: f.in, values: v}
}

// read reads at most n levels, and fewer at the end of a row group. more says whether
// another call may return further ones. After an error the leaf must not be used.
func (l *leaf) read(n int) (more bool, err error) {
	for l.chunk == nil {
		if l.group >= l.file.NumRowGroups() {
			l.ended = true
			return false, nil
		}
		if l.chunk, err = l.openChunk(l.group); err != nil {
			return false, err
		}
		l.group++
	}
	have := len(l.def)
	l.def = append(l.def, make([]int16, n)...)
	var def, rep []int16
	if l.node.def > 0 {
		def = l.def[have:]
	}
	if l.node.at.rep > 0 {
		l.rep = append(l.rep, make([]int16, n)...)
		rep = l.rep[have:]
	}
	// The values of a batch come out dense, whatever the levels.
	levels, read, err := l.values.read(l.chunk, int64(n), def, rep)
	if err == nil {
		err = l.chunk.Err()
	}
	if err != nil {
		return false, err
	}
	l.def = l.def[:have+levels]
	if rep != nil {
		l.rep = l.rep[:have+levels]
	}
	// The chunk is at its end; the next call opens the next row group.
	if levels == 0 {
		l.chunk = nil
	}
	return true, l.check(have, read)
}

// check verifies the levels from index from on: each is in range, a list does not begin
// in the middle of a row, and there are as many maximal definition levels as values were
// read. build relies on all three.
func (l *leaf) check(from, read int) error {
	there := 0
	for i, d := range l.def[from:] {
		if d < 0 || d > l.node.def {
			return fmt.Errorf("a definition level of %d, where there are %d", d, l.node.def)
		}
		if d == l.node.def {
			there++
		}
		if len(l.rep) == 0 {
			continue
		}
		switch r := l.rep[from+i]; {
		case r < 0 || r > l.node.at.rep:
			return fmt.Errorf("a repetition level of %d, where there are %d", r, l.node.at.rep)
		case r == 0:
			l.rows++
		case from+i == 0:
			return errors.New("a row that begins within a list")
		}
	}
	if there != read {
		return fmt.Errorf("%d values, where the levels say %d", read, there)
	}
	return nil
}

// fill reads until n rows are complete, or the file is at its end. It returns the number
// of levels of these rows.
func (l *leaf) fill(n int) (levels int, err error) {
	for !l.ended {
		want := 0
		if l.node.at.rep == 0 {
			want = n - len(l.def)
		} else if l.rows <= n { // the end of a row is where the next one begins
			want = max(n, len(l.def))
		}
		if want <= 0 {
			break
		}
		if _, err := l.read(want); err != nil {
			return 0, err
		}
	}
	// A leaf without lists has one level a row.
	if l.node.at.rep == 0 {
		return min(n, len(l.def)), nil
	}
	// With lists, n rows end where row n+1 begins.
	seen := 0
	for i, r := range l.rep {
		if r != 0 {
			continue
		}
		if seen++; seen > n {
			return i, nil
		}
	}
	return len(l.rep), nil
}

// drop removes the first levels and values, once they are part of an array. The rest
// moves to the front, so that the buffers do not grow over the file.
func (l *leaf) drop(levels, values int) {
	if len(l.rep) > 0 {
		for _, r := range l.rep[:levels] {
			if r == 0 {
				l.rows--
			}
		}
		l.rep = l.rep[:copy(l.rep, l.rep[levels:])]
	}
	l.def = l.def[:copy(l.def, l.def[levels:])]
	l.values.drop(values)
	if l.where != nil {
		l.where.drop(values)
	}
}
