// Package parquet reads the rows of Parquet files as Arrow arrays. It also finds the
// extents of values in the file.
//
// Arrow's own library decodes most pages. This package adds the codecs and the encoding
// that the library lacks, and assembles the arrays from levels and values itself. The
// library's reader of Arrow arrays does not fit: it loses durations, wraps timestamps,
// fails on null lists of fixed size, and decodes in goroutines of its own.
//
// The files are not trusted. The library's decoder panics on malformed pages. All of it
// therefore runs in the goroutine of the caller, where the panics are recovered and
// become errors.
//
// Begin with Open in file.go, then Records in records.go. tree.go turns the schema of a
// file into nodes, leaf.go and pages.go read the pages of one leaf, and places.go finds
// where values are. Which columns become which columns of a dataset is decided in package
// source.
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

// Column is a top-level column of a file.
type Column struct {
	arrow.Field
	// Err says why the column cannot be read; nil if it can. If it is set, Field has no
	// type.
	Err error
	// Times describes the INT96 timestamps of the column. It is filled only for columns
	// that the caller of Columns wanted.
	Times Times
	// Micro is the type of the column if its INT96 timestamps are read as microseconds.
	// For a column without INT96 it equals Type.
	Micro arrow.DataType
}

// input is the source of a file's bytes. Each leaf reads its own sections of it,
// independently of the others.
type input struct {
	from io.ReaderAt
	size int64
	// mem is the allocator for decoded data. It refuses sizes that the file cannot need;
	// see bounded.
	mem memory.Allocator
}

// File is an open file. One goroutine at a time may call its methods, and those of its
// Records.
type File struct {
	reader  *file.Reader
	in      input
	columns []*node
	// leaves are in the order of the schema, which numbers them depth first.
	leaves []*node
}

// Input is a file to read. Open takes it over.
type Input interface {
	io.ReaderAt
	io.Seeker
	io.Closer
}

// Open reads the metadata at the end of a file. Close closes in; if Open returns an
// error, Open has closed it. Malformed metadata is an error, never a panic.
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

// Close closes the file. Records of it must not be used afterwards.
func (f *File) Close() error { return f.reader.Close() }

// NumRows is the number of rows that the metadata states. A damaged file may hold fewer.
func (f *File) NumRows() int64 { return f.reader.NumRows() }

// Metadata returns a value of the file's key-value metadata. If the key is absent there,
// it looks in the stored Arrow schema, where Arrow's writers put the metadata of a
// schema. It returns "" if neither has the key.
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

// Columns lists the columns. wanted selects columns by name: the INT96 timestamps in them
// are read from start to end, because their Arrow type depends on their range. The type
// of other columns follows from the schema alone.
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

// RowBytes returns the largest mean size of a row, in uncompressed bytes, among the row
// groups. Callers size their batches by it. The mean over the file would be too small for
// a group of large rows.
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

// grow makes the trees of the columns. If the stored Arrow schema has another number of
// fields, it belongs to another file and is ignored.
func (f *File) grow() error {
	s := f.reader.MetaData().Schema
	was, err := f.origin()
	if err != nil {
		return err
	}
	root := s.Root()
	if was != nil && was.NumFields() != root.NumFields() {
		was = nil // the schema is of another file
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

// caught turns a panic of the decoder into an error. It is deferred by every exported
// method that decodes.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("malformed Parquet: %v", r)
	}
}

const (
	// leastPage is the allocation limit in bytes for small files. A few bytes can
	// legitimately decode to a large page, such as a run of one value.
	leastPage = 256 << 20
	// mostPage is the allocation limit for any file: one value of 2 GiB and its overhead.
	// Sizes in page headers are 32-bit, so no page is larger.
	mostPage = 2<<30 + 64<<20
	// pageRatio is the largest ratio of a page's decoded size to the size of the file
	// that is believed.
	pageRatio = 1024
)

// bounded limits the allocations of the decoder. The decoder allocates what a page header
// claims before it reads the page, so that a few damaged bytes could claim 2 GiB for each
// column.
type bounded struct {
	memory.Allocator
	most int
}

// boundedBy returns the allocator for a file of a given size. The limit is on each
// allocation, not on their sum.
func boundedBy(fileSize int64) memory.Allocator {
	most := min(max(leastPage, min(fileSize, mostPage)*pageRatio), mostPage)
	return bounded{memory.DefaultAllocator, int(most)}
}

// Allocate panics if n exceeds the limit. The interface has no error, and the decoder
// itself panics on malformed input; caught recovers both.
func (b bounded) Allocate(n int) []byte {
	b.check(n)
	return b.Allocator.Allocate(n)
}

// Reallocate panics as Allocate does.
func (b bounded) Reallocate(n int, old []byte) []byte {
	b.check(n)
	return b.Allocator.Reallocate(n, old)
}

// check panics if an allocation of n bytes exceeds the limit.
func (b bounded) check(n int) {
	if n < 0 || n > b.most {
		panic(fmt.Errorf("a part of %d bytes, more than the %d that a file of its size may have", n, b.most))
	}
}

// origin returns the Arrow schema that Arrow's writers store under the key ARROW:schema;
// nil if there is none. It has types that Parquet lacks, such as durations, fixed-size
// lists and time zones.
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

// originLimits bound a stored schema. A FlatBuffers table can refer to one field many
// times, so that a few bytes would decode to any number of fields.
var originLimits = ipc.SchemaLimits{Bytes: math.MaxInt32, Tables: 1 << 16, Depth: maxDepth, Dictionaries: maxDepth}

// Origin decodes the ARROW:schema of a file's metadata: a Base64 text of an encapsulated
// IPC message, with or without padding. Messages before Arrow 0.15 lack the four bytes of
// the continuation marker.
func Origin(text string) (*arrow.Schema, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		if b, err = base64.RawStdEncoding.DecodeString(text); err != nil {
			return nil, err
		}
	}
	if continuation := ipc.EndOfStream[:4]; !bytes.HasPrefix(b, continuation) { // Arrow before 0.15
		b = slices.Concat(continuation, b)
	}
	header, _, err := ipc.NextMessage(b)
	if err != nil {
		return nil, err
	}
	s, _, err := ipc.DecodeSchema(header, originLimits, ipc.Unbounded{})
	return s, err
}

// Times describes the INT96 timestamps of a column. INT96 covers any nanosecond in 2^32
// days, and an Arrow timestamp of 64 bits covers either the range or the resolution.
type Times struct {
	Far  bool // one is outside the range of nanoseconds, 1677-09-21 to 2262-04-11
	Fine bool // one has a fraction of a microsecond
}

// Or combines the descriptions of two files, whose column must become one type.
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

// int96 converts an INT96 timestamp to a unit: nanoseconds or microseconds since the
// epoch. An INT96 has eight bytes for the nanoseconds of the day and four bytes for the
// Julian day, both little-endian. The error is errFar if the unit cannot hold the value
// exactly, and errDay for an invalid time of day.
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
	// Days before the epoch are counted from the end of the day. Otherwise days*per would
	// overflow for the lowest timestamps although the sum fits.
	if days < 0 {
		days, rest = days+1, rest-per
	}
	whole, ok := multiplied(days, per)
	if !ok || rest > 0 && whole > math.MaxInt64-rest || rest < 0 && whole < math.MinInt64-rest {
		return 0, errFar
	}
	return whole + rest, nil
}

// multiplied returns a*b and whether it fits an int64. b is positive.
func multiplied(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(max(a, -a)), uint64(b))
	if a == math.MinInt64 || hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	return a * b, true
}

// times reads all INT96 timestamps of a column, nested ones as well. It decodes the
// column once more than Records does: the type must be known before the first record is
// built.
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
