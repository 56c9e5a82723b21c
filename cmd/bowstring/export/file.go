package export

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"bowstring/cmd/bowstring/storedtype"
	"bowstring/schema"
)

// A row group of a Parquet file ends at this many rows or bytes of content, whichever
// comes first. Readers hold a row group in memory, and so does the writer.
const (
	RowGroupRows  = 64 << 10
	RowGroupBytes = 64 << 20
)

// bufferBytes joins the small writes of the encoders to writes of 1 MiB.
const bufferBytes = 1 << 20

// file is a sink for one file. f is nil after Commit has closed it.
type file struct {
	staged
	f      *os.File
	buffer *bufio.Writer
	format encoder
}

// onlyWriter hides the other methods of a writer, such as Close.
type onlyWriter struct{ io.Writer }

// encoder turns record batches into the bytes of a file. close writes the footer, but
// does not close the file.
type encoder interface {
	write(rec arrow.Record) error
	close() error
}

// newFile opens the temporary file and the encoder for it. If it fails, the temporary
// file is removed.
func newFile(path string, opts Options, open func(w io.Writer) (encoder, error)) (_ Sink, err error) {
	s, err := stage(path, opts)
	if err != nil {
		return nil, err
	}
	out := &file{staged: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close())
		}
	}()
	if info, err := os.Lstat(s.path); err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a folder, want the name of a file", s.path)
	}
	// O_EXCL: the file must be new, or another export would be overwritten.
	if out.f, err = os.OpenFile(s.temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666); err != nil {
		return nil, err
	}
	out.buffer = bufio.NewWriterSize(out.f, bufferBytes)
	// The encoders close what they are given if it can be closed.
	out.format, err = open(onlyWriter{out.buffer})
	return out, err
}

// Write implements Sink.
func (o *file) Write(rec arrow.Record) error { return o.format.write(rec) }

// Commit implements Sink. The file is synced before the rename, and its directory after
// it.
func (o *file) Commit() error {
	err := errors.Join(o.format.close(), o.buffer.Flush(), o.f.Sync(), o.f.Close())
	o.f = nil
	if err != nil {
		return err
	}
	if err := os.Rename(o.temp, o.path); err != nil {
		return err
	}
	o.done = true
	return syncDir(filepath.Dir(o.path))
}

// Close implements Sink.
func (o *file) Close() error {
	var err error
	if o.f != nil {
		err = o.f.Close()
	}
	return errors.Join(err, o.remove())
}

// Arrow returns a sink that writes an Arrow IPC file, which is also Feather version 2.
func Arrow(path string, s *arrow.Schema, opts Options) (Sink, error) {
	return newFile(path, opts, func(w io.Writer) (encoder, error) {
		out, err := ipc.NewFileWriter(&positioned{w: w}, ipc.WithSchema(s))
		return arrowEncoder{out}, err
	})
}

// arrowEncoder writes Arrow IPC files.
type arrowEncoder struct{ out *ipc.FileWriter }

func (e arrowEncoder) write(rec arrow.Record) error {
	columns := make([]arrow.Array, 0, rec.NumCols())
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for _, c := range rec.Columns() {
		if _, nested := c.DataType().(arrow.NestedType); !nested {
			c.Retain()
			columns = append(columns, c)
			continue
		}
		// The library panics on a slice of a list column whose own lists are empty, if
		// later lists of the column are not. A copy of the slice has no later lists.
		whole, err := array.Concatenate([]arrow.Array{c}, memory.DefaultAllocator)
		if err != nil {
			return err
		}
		columns = append(columns, whole)
	}
	out := array.NewRecord(rec.Schema(), columns, rec.NumRows())
	defer out.Release()
	return e.out.Write(out)
}

func (e arrowEncoder) close() error { return e.out.Close() }

// positioned counts the bytes written. The encoder of Arrow files wants a Seeker only for
// its position.
type positioned struct {
	w io.Writer
	n int64
}

func (p *positioned) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	p.n += int64(n)
	return n, err
}

// Seek supports only the question for the current position.
func (p *positioned) Seek(offset int64, whence int) (int64, error) {
	if offset != 0 || whence != io.SeekCurrent {
		return 0, errors.ErrUnsupported
	}
	return p.n, nil
}

// Parquet returns a sink that writes a Parquet file. Metadata columns are compressed;
// blobs are not, because images and audio are compressed already. The metadata of the
// schema, such as that of Hugging Face, becomes the metadata of the file.
func Parquet(path string, s *arrow.Schema, opts Options) (Sink, error) {
	properties := []parquet.WriterProperty{
		parquet.WithVersion(parquet.V2_LATEST),
		parquet.WithCreatedBy("bowstring"),
		parquet.WithCompression(compress.Codecs.Snappy),
		parquet.WithMaxRowGroupLength(RowGroupRows),
	}
	for _, f := range s.Fields() {
		if !isBlob(f) {
			continue
		}
		// The writer checks the size of a page once for each batch of values. Batches of
		// the default size would make huge pages of large values.
		properties = append(properties, parquet.WithBatchSize(16))
		leaf := f.Name
		if f.Type.ID() == arrow.STRUCT {
			leaf += ".bytes"
		}
		// A dictionary or statistics of blobs would only repeat them.
		properties = append(properties,
			parquet.WithCompressionFor(leaf, compress.Codecs.Uncompressed),
			parquet.WithDictionaryFor(leaf, false),
			parquet.WithStatsFor(leaf, false))
	}
	return newFile(path, opts, func(w io.Writer) (encoder, error) {
		return newParquetEncoder(s, w, parquet.NewWriterProperties(properties...))
	})
}

// parquetEncoder writes Parquet files.
type parquetEncoder struct {
	out    *pqarrow.FileWriter
	stored *arrow.Schema // schema of the file
	bytes  int64         // size of the open row group
}

// newParquetEncoder opens a writer for schema s. Types that Parquet lacks are stored as
// others, see storedtype.
func newParquetEncoder(s *arrow.Schema, w io.Writer, properties *parquet.WriterProperties) (encoder, error) {
	fields := slices.Clone(s.Fields())
	for i := range fields {
		fields[i].Type = storedtype.Stored(fields[i].Type)
	}
	meta := s.Metadata()
	e := &parquetEncoder{stored: arrow.NewSchema(fields, &meta)}
	var err error
	if e.out, err = pqarrow.NewFileWriter(e.stored, w, properties, pqarrow.DefaultWriterProps()); err != nil {
		return nil, err
	}
	// Readers restore the types that Parquet lacks from this schema.
	serialized := flight.SerializeSchema(s, memory.DefaultAllocator)
	return e, e.out.AppendKeyValueMetadata("ARROW:schema", base64.StdEncoding.EncodeToString(serialized))
}

// converted returns the record with the types that the file stores. The caller releases
// it.
func (e *parquetEncoder) converted(rec arrow.Record) (arrow.Record, error) {
	columns := make([]arrow.Array, 0, rec.NumCols())
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i, f := range e.stored.Fields() {
		c, err := storedtype.Convert(rec.Column(i), f.Type)
		if err != nil {
			return nil, fmt.Errorf("%w: column %q cannot be written as Parquet: %w", schema.ErrInvalid, f.Name, err)
		}
		columns = append(columns, c)
	}
	return array.NewRecord(e.stored, columns, rec.NumRows()), nil
}

// write adds a record to the open row group, or to a new one if the record would not fit.
func (e *parquetEncoder) write(rec arrow.Record) error {
	rec, err := e.converted(rec)
	if err != nil {
		return err
	}
	defer rec.Release()
	// A record is small compared with a row group, unless a single row is large. A group
	// therefore exceeds its bound by little.
	size := recordBytes(rec)
	if e.bytes > 0 && e.bytes+size > RowGroupBytes {
		e.out.NewBufferedRowGroup()
		e.bytes = 0
	}
	e.bytes += size
	return e.out.WriteBuffered(rec)
}

func (e *parquetEncoder) close() error { return e.out.Close() }

// recordBytes returns the size of a record's buffers. It is an estimate of the encoded
// size: metadata compresses, blobs do not.
func recordBytes(rec arrow.Record) int64 {
	var n int64
	for _, c := range rec.Columns() {
		n += dataBytes(c.Data())
	}
	return n
}

// dataBytes adds up the buffers of an array and its children.
func dataBytes(d arrow.ArrayData) int64 {
	var n int64
	for _, b := range d.Buffers() {
		if b != nil {
			n += int64(b.Len())
		}
	}
	for _, c := range d.Children() {
		n += dataBytes(c)
	}
	return n
}
