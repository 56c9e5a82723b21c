// Package parquet reads the rows of Parquet files as arrays of Arrow. Arrow's own library decodes most pages. This
// package adds the codecs and the encoding that it lacks, and puts the arrays together from levels and values: the
// library's reader of Arrow arrays loses durations and wraps timestamps, fails on lists of fixed size that are null, and
// decodes in goroutines of its own.
//
// The files are not trusted. The decoder panics about malformed pages, so all of it runs in the goroutine of the
// caller, where the panics are recovered and become errors.
package parquet

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"
	pq "github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/file"

	"bowstring/schema/ipc"
)

// Column is a column of a file.
type Column struct {
	arrow.Field
	// Err says why the column cannot be read, nil if it can. Field has no type then.
	Err error
	// Times says what INT96 timestamps in the column hold.
	Times Times
	// Micro is the type of the column if its INT96 timestamps are read as microseconds.
	Micro arrow.DataType
}

// input is where the bytes of a file come from.
type input struct {
	from io.ReaderAt
	size int64
	mem  memory.Allocator // for what is decoded
}

// File is an open file. Its methods are for one goroutine at a time.
type File struct {
	reader  *file.Reader
	in      input
	columns []*node
	leaves  []*node // by number of the leaf
}

// Input is a file to read.
type Input interface {
	io.ReaderAt
	io.Seeker
	io.Closer
}

// Open reads the metadata of a file. The file is closed by Close, or here if there is an error.
func Open(in Input) (f *File, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, in.Close())
		}
	}()
	defer caught(&err)
	size, err := in.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	mem := boundedBy(size)
	props := pq.NewReaderProperties(mem)
	props.BufferedStreamEnabled = true
	r, err := file.NewParquetReader(in, file.WithReadProps(props))
	if err != nil {
		return nil, err
	}
	f = &File{reader: r, in: input{in, size, mem}}
	if err := f.grow(); err != nil {
		return nil, err
	}
	return f, nil
}

// Close closes the file.
func (f *File) Close() error { return f.reader.Close() }

// NumRows is the number of rows, as the metadata says.
func (f *File) NumRows() int64 { return f.reader.NumRows() }

// Metadata is a value of the metadata of the file, or of the Arrow schema in it; "" if there is none.
func (f *File) Metadata(key string) string {
	if v := f.reader.MetaData().KeyValueMetadata().FindValue(key); v != nil {
		return *v
	}
	s, err := f.origin()
	if err != nil || s == nil {
		return ""
	}
	md := s.Metadata()
	v, _ := md.GetValue(key)
	return v
}

// Columns lists the columns. The timestamps of type INT96 in those that wanted says are read for that: their type
// follows from what they hold.
func (f *File) Columns(wanted func(name string) bool) (_ []Column, err error) {
	defer caught(&err)
	columns := make([]Column, len(f.columns))
	for i, n := range f.columns {
		c := &columns[i]
		if c.Err = n.problem(); c.Err == nil && wanted(n.name) {
			if c.Times, c.Err = f.times(n); c.Err != nil {
				return nil, fmt.Errorf("column %q: %w", n.name, c.Err)
			}
		}
		c.Field = arrow.Field{Name: n.name, Nullable: true}
		if c.Err == nil {
			c.Type, c.Micro = n.dataType(false), n.dataType(true)
		}
	}
	return columns, nil
}

// RowBytes is how many bytes a row has in the row group whose rows have most.
func (f *File) RowBytes() int64 {
	most := int64(0)
	for i := range f.reader.NumRowGroups() {
		g := f.reader.MetaData().RowGroup(i)
		if n, size := g.NumRows(), g.TotalByteSize(); n > 0 && size > 0 {
			most = max(most, size/n+1)
		}
	}
	return most
}

// grow makes the trees of the columns.
func (f *File) grow() error {
	s := f.reader.MetaData().Schema
	was, err := f.origin()
	if err != nil {
		return err
	}
	root := s.Root()
	if was != nil && was.NumFields() != root.NumFields() {
		was = nil // of another file
	}
	g := grower{schema: s}
	for i := range root.NumFields() {
		var as arrow.DataType
		if was != nil {
			as = was.Field(i).Type
		}
		n := g.node(root.Field(i), level{}, as)
		f.columns = append(f.columns, n)
	}
	f.leaves = g.leaves
	if len(f.columns) == 0 {
		return errors.New("it has no columns")
	}
	return nil
}

// caught makes an error of a panic of the decoder.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("malformed Parquet: %v", r)
	}
}

const (
	// leastPage is how many bytes the decoder may ask for at once, whatever the size of a file.
	leastPage = 256 << 20
	// mostPage is how many it may ask for of any file: one value of 2 GiB, and what stands around it.
	mostPage = 2<<30 + 64<<20
	// pageRatio is how much smaller than its content a page is taken to be at most.
	pageRatio = 1024
)

// bounded gives memory to the decoder, which asks for as much as a file claims that it needs.
type bounded struct {
	memory.Allocator
	most int
}

func boundedBy(fileSize int64) memory.Allocator {
	most := min(max(leastPage, min(fileSize, mostPage)*pageRatio), mostPage)
	return bounded{memory.DefaultAllocator, int(most)}
}

// Allocate panics where a file claims too much, as the decoder does about what is malformed.
func (b bounded) Allocate(n int) []byte {
	b.check(n)
	return b.Allocator.Allocate(n)
}

// Reallocate panics as Allocate does.
func (b bounded) Reallocate(n int, old []byte) []byte {
	b.check(n)
	return b.Allocator.Reallocate(n, old)
}

func (b bounded) check(n int) {
	if n < 0 || n > b.most {
		panic(fmt.Errorf("a part of %d bytes, more than the %d that a file of its size may have", n, b.most))
	}
}

// origin is the Arrow schema that writers put into the metadata: it says more of types than Parquet does. It is nil if
// there is none.
func (f *File) origin() (*arrow.Schema, error) {
	text := f.reader.MetaData().KeyValueMetadata().FindValue("ARROW:schema")
	if text == nil {
		return nil, nil //nolint:nilnil // none
	}
	s, err := Origin(*text)
	if err != nil {
		return nil, fmt.Errorf("its ARROW:schema: %w", err)
	}
	return s, nil
}

// originLimits bound a stored schema: a few bytes can name one field many times.
var originLimits = ipc.SchemaLimits{Bytes: math.MaxInt32, Tables: 1 << 16, Depth: maxDepth, Dictionaries: maxDepth}

// Origin decodes the ARROW:schema of a file's metadata.
func Origin(text string) (*arrow.Schema, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		if b, err = base64.RawStdEncoding.DecodeString(text); err != nil {
			return nil, err
		}
	}
	if continuation := ipc.EndOfStream[:4]; !bytes.HasPrefix(b, continuation) { // as the format was at first
		b = slices.Concat(continuation, b)
	}
	header, _, err := ipc.NextMessage(b)
	if err != nil {
		return nil, err
	}
	s, _, err := ipc.DecodeSchema(header, originLimits, ipc.Unbounded{})
	return s, err
}

// Times says what INT96 timestamps hold.
type Times struct {
	Far  bool // one is before 1677-09-21 or after 2262-04-11, where nanoseconds do not reach
	Fine bool // one has more than whole microseconds
}

// Or puts together what is known of two files.
func (t Times) Or(other Times) Times { return Times{t.Far || other.Far, t.Fine || other.Fine} }

const (
	epochDay    = 2_440_588 // the Julian day of 1970-01-01
	nanosOfDay  = 24 * int64(time.Hour)
	microsOfDay = nanosOfDay / 1000
)

var (
	errFar = errors.New("a timestamp that neither nanoseconds nor microseconds hold exactly")
	errDay = errors.New("an INT96 timestamp whose time of day has more than 24 hours")
)

// int96 is the timestamp of an INT96: eight bytes of nanoseconds of the day, four of the Julian day.
func int96(v pq.Int96, unit arrow.TimeUnit) (int64, error) {
	nanos, days := binary.LittleEndian.Uint64(v[:8]), int64(int32(binary.LittleEndian.Uint32(v[8:])))-epochDay
	if nanos >= uint64(nanosOfDay) {
		return 0, errDay
	}
	per, rest := nanosOfDay, int64(nanos)
	if unit == arrow.Microsecond {
		if rest%1000 != 0 {
			return 0, errFar
		}
		per, rest = microsOfDay, rest/1000
	}
	// The day before the epoch is counted back from its end, so that the lowest timestamp is reached.
	if days < 0 {
		days, rest = days+1, rest-per
	}
	whole, ok := multiplied(days, per)
	if !ok || rest > 0 && whole > math.MaxInt64-rest || rest < 0 && whole < math.MinInt64-rest {
		return 0, errFar
	}
	return whole + rest, nil
}

// multiplied is a product and whether it is one of int64; b is positive.
func multiplied(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(max(a, -a)), uint64(b))
	if a == math.MinInt64 || hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	return a * b, true
}

// times reads the INT96 timestamps of a column.
func (f *File) times(n *node) (t Times, err error) {
	for _, c := range n.children {
		below, err := f.times(c)
		if err != nil {
			return t, err
		}
		t = t.Or(below)
	}
	if n.kind != kindLeaf || n.column.PhysicalType() != pq.Types.Int96 {
		return t, nil
	}
	l := f.leaf(n)
	for {
		more, err := l.read(4096)
		if err != nil {
			return t, err
		}
		values := l.values.(*dense[pq.Int96])
		for _, v := range values.v {
			if _, err := int96(v, arrow.Nanosecond); errors.Is(err, errFar) {
				t.Far = true
			} else if err != nil {
				return t, fmt.Errorf("%w", err)
			}
			t.Fine = t.Fine || binary.LittleEndian.Uint64(v[:8])%1000 != 0
		}
		l.drop(len(l.def), len(values.v))
		if !more {
			return t, nil
		}
	}
}
