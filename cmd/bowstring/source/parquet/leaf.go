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

// stream is the bytes of a chunk, as the library reads them.
type stream struct {
	from  io.Reader
	r     *bufio.Reader
	peeks int   // since bytes were taken
	start int64 // of the chunk in the file
	at    int64 // bytes taken
	mark  int64 // of them, where the last header ends
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
	n, err := s.r.Discard(n)
	s.at += int64(n)
	s.mark = s.at
	return n, err
}

// Read takes bytes.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.at += int64(n)
	if n > 0 {
		s.peeks = 0
	}
	return n, err
}

// leaf reads the levels and the values of a leaf, row group by row group. It holds those that were read and are not
// yet part of an array.
type leaf struct {
	node   *node
	file   *file.Reader
	in     input
	group  int // that is read next
	chunk  file.ColumnChunkReader
	def    []int16
	rep    []int16 // empty if there is no list around the leaf
	values values
	rows   int      // that begin in rep
	where  *locator // of the values; nil if that is not asked for
	ended  bool
}

// values are the values of a leaf that are not null, in the order of the file.
type values interface {
	// read reads n levels at most, with the values that they have.
	read(chunk file.ColumnChunkReader, n int64, def, rep []int16) (levels, read int, err error)
	drop(n int)
}

// dense are values of one type.
type dense[T any] struct {
	v       []T
	batchOf func(file.ColumnChunkReader) func(int64, []T, []int16, []int16) (int64, int, error)
}

func (d *dense[T]) drop(n int) {
	rest := copy(d.v, d.v[n:])
	clear(d.v[rest:])
	d.v = d.v[:rest]
}

func (d *dense[T]) read(chunk file.ColumnChunkReader, n int64, def, rep []int16) (int, int, error) {
	have := len(d.v)
	d.v = append(d.v, make([]T, n)...)
	levels, read, err := d.batchOf(chunk)(n, d.v[have:], def, rep)
	if read < 0 || read > int(n) || levels < int64(read) || levels > n {
		return 0, 0, fmt.Errorf("%d values for %d levels of %d", read, levels, n)
	}
	clear(d.v[have+read:])
	d.v = d.v[:have+read]
	return int(levels), read, err
}

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

// leaf opens a leaf at its first row. It is called for leaves that can be read.
func (f *File) leaf(n *node) *leaf {
	v, err := newValues(n.column.PhysicalType())
	if err != nil {
		panic(err) // leafType has refused it
	}
	return &leaf{node: n, file: f.reader, in: f.in, values: v}
}

// read reads n levels, fewer at the end of a row group. It says whether there may be more.
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
	if levels == 0 {
		l.chunk = nil
	}
	return true, l.check(have, read)
}

// check looks whether the levels from one on are possible, and as many values were read as they say.
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

// fill reads until n rows are there, or all that there are. It returns how many levels they have.
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
	if l.node.at.rep == 0 {
		return min(n, len(l.def)), nil
	}
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

// drop forgets the first levels and values.
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
