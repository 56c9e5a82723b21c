package source

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow"
	"google.golang.org/protobuf/encoding/protowire"

	"bowstring/schema"
)

// tfRecords are files of TensorFlow's records. Each record is a tf.train.Example:
// features by name, each a list of bytes, of floats or of integers.
//
// A record is its length (uint64), the checksum of the length, its bytes, and their
// checksum. Numbers are little-endian, checksums are masked CRC-32C. A file may be
// compressed as a whole by gzip.
//
// No record states what the others contain. All are therefore read when the source is
// opened.
type tfRecords struct {
	about
	opts   Options
	shards []tfShard
	// features are those of all records, by name; columns are what they become.
	features map[string]*tfFeature
	columns  []tfColumn
	meta     []arrow.Field
	blobs    []arrow.Field
}

// tfShard is a file of records.
type tfShard struct {
	shard
	unit *schema.Unit // the file, if it is compressed; its Size is 0 until it was read to its end
}

// tfKind is the kind of a feature's list, by its field number in tf.train.Feature.
type tfKind int

const (
	tfBytes tfKind = 1 + iota // numbers of the fields in Feature
	tfFloats
	tfInts
)

// String returns the name of the field.
func (k tfKind) String() string {
	switch k {
	case tfBytes:
		return "bytes_list"
	case tfFloats:
		return "float_list"
	case tfInts:
		return "int64_list"
	}
	return "an unknown list"
}

// tfFeature is what is known of a feature over all records.
type tfFeature struct {
	kind    tfKind
	other   tfKind // a second kind in another record, or 0
	records int64  // records that have a value of it
	least   int    // fewest and most values in one such record
	most    int
	binary  bool   // some value is not text
	first   []byte // first value of bytes, at most sniffed bytes of it
}

// tfColumn is a column that a feature becomes.
type tfColumn struct {
	feature string
	element int  // index of the value; -1 if all values are in one cell
	last    bool // last of the columns of Options.Spread
	blob    bool
}

// tfValues are the values of a feature in one record.
type tfValues struct {
	kind    tfKind
	parts   []span // values of bytes, as offsets in the record
	numbers []any  // int64 or float32
}

// span is a range of bytes of a record.
type span struct{ at, size int }

// maxValues bounds the values of bytes of a feature in one record.
const maxValues = 1 << 16

// detectTFRecord reports whether the layout has files of records.
func (l *layout) detectTFRecord() bool {
	return l.any(func(name string) bool { return isTFRecord(filepath.Base(name)) })
}

// isTFRecord reports whether a file has records, by its name: x.tfrecord, x.tfrecords.gz,
// x.tfrecord-00000-of-00010.
func isTFRecord(name string) bool {
	for part := range strings.SplitSeq(strings.ToLower(name), ".") {
		part, _, _ = strings.Cut(part, "-")
		if part == "tfrecord" || part == "tfrecords" || part == "tfrec" {
			return true
		}
	}
	return false
}

// openTFRecords opens the files. If the rows of all are known from the previous snapshot,
// it reads none.
func openTFRecords(ctx context.Context, path string, opts Options) (Source, error) {
	all, err := opts.files.findShards(path, opts, isTFRecord)
	if err != nil {
		return nil, err
	}
	s := &tfRecords{about: about{place: opts.files, format: "tfrecord", path: opts.files.absolute(path)}, opts: opts,
		features: map[string]*tfFeature{}}
	shards, splits := arrangeShards(all, opts.Split)
	if len(shards) == 0 {
		return nil, fmt.Errorf("%w: there is no *.tfrecord file", schema.ErrInvalid)
	}
	s.splits = splits
	s.place.knownRows(shards, opts.Split, tfKey)
	if _, all := allKnown(shards); all {
		return newKnownSource(s.about, shards), nil
	}
	// Known shards stay in the list, because samples keep the order of the shards.
	known := int64(0)
	for _, sh := range shards {
		known += sh.known
		s.shards = append(s.shards, tfShard{shard: sh})
	}
	// Each file is read twice: for its features, and for its samples.
	if err := s.begin(opts, s.place.estimateWhole(s.paths(), 2)); err != nil {
		return nil, err
	}
	if err := s.survey(ctx); err != nil {
		return nil, err
	}
	s.rows += known
	return s, s.makeColumns()
}

// tfKey returns the key of a record, by its number in the file.
func tfKey(sh *shard, n int64) string { return fmt.Sprintf("%s#%d", sh.rel, n) }

// survey reads all records for their features. Errors of a file or a record are ignored
// here, because they occur again when the samples are read. They are returned only if no
// record can be read at all.
func (s *tfRecords) survey(ctx context.Context) error {
	defer s.place.readTwice(s.paths())()
	in := s.place.inOrder(ctx, s.paths())
	defer in.close()
	var firsts []error
	for i := range s.shards {
		sh := &s.shards[i]
		if !sh.shard.read() {
			continue
		}
		err := s.read(ctx, in, sh, func(_, _ int64, buf []byte, err error) error {
			defer buffers.put(buf)
			s.rows++
			if err == nil {
				err = s.observe(buf)
			}
			if err != nil && firsts == nil {
				firsts = append(firsts, fmt.Errorf("%s: %w", Quoted(sh.rel), err))
			}
			// Too many features are a defect of the data set and not of one record.
			if errors.Is(err, schema.ErrLimit) {
				return err
			}
			return nil
		})
		if end := s.place.ended(ctx, err); end != nil {
			return end
		}
		if errors.Is(err, schema.ErrLimit) {
			return err
		}
		if err != nil && firsts == nil {
			firsts = append(firsts, fmt.Errorf("%s: %w", Quoted(sh.rel), err))
		}
	}
	if len(s.features) == 0 {
		return fmt.Errorf("%w: no record can be read: %w", schema.ErrInvalid,
			errors.Join(append(firsts, errors.New("none has a feature"))...))
	}
	// A feature that some record lacks has 0 values there.
	for _, f := range s.features {
		if f.records < s.rows {
			f.least = 0
		}
	}
	return nil
}

// observe records the features of a record.
func (s *tfRecords) observe(record []byte) error {
	values, err := parseExample(record)
	if err != nil {
		return err
	}
	for name, v := range values {
		f := s.features[name]
		if f == nil {
			if len(s.features) >= maxColumns {
				return fmt.Errorf("%w: the records have more than %d different features, which would each be a column",
					schema.ErrLimit, maxColumns)
			}
			f = &tfFeature{kind: v.kind, least: math.MaxInt}
			s.features[name] = f
		}
		n := len(v.parts) + len(v.numbers)
		// A list without values says nothing about the feature.
		if n == 0 {
			continue
		}
		if f.kind != v.kind && f.other == 0 {
			f.other = v.kind
		}
		f.records++
		f.least, f.most = min(f.least, n), max(f.most, n)
		for _, p := range v.parts {
			b := record[p.at : p.at+p.size]
			f.binary = f.binary || !isPlainText(b)
			if f.first == nil {
				f.first = bytes.Clone(b[:min(len(b), sniffed)])
			}
		}
	}
	return nil
}

// sniffed is how many bytes of a value are kept to recognise its media.
const sniffed = 1 << 20

// isPlainText reports whether bytes are text: valid UTF-8 without control characters, and
// short enough for metadata. TensorFlow has no type for text.
func isPlainText(b []byte) bool {
	return len(b) <= maxText && utf8.Valid(b) && !slices.ContainsFunc(b, func(c byte) bool {
		return c < ' ' && c != '\t' && c != '\n' && c != '\r' || c == 0x7f
	})
}

// makeColumns decides what each feature becomes: bytes that are text and numbers become
// metadata, other bytes blobs. A feature with several values in some record becomes a
// list.
func (s *tfRecords) makeColumns() error {
	var names []string // names of the columns
	var fields []arrow.Field
	spread := map[string]bool{}
	// The map of features has no order, so columns are sorted by name.
	for _, name := range slices.Sorted(maps.Keys(s.features)) {
		f := s.features[name]
		if !s.opts.choice.wants(name, freeName(name, nil)) {
			continue
		}
		// TensorFlow allows another kind in each record. A column has one type.
		if f.other != 0 {
			return fmt.Errorf("%w: feature %s is %s in one record and %s in another; --leave-out leaves it out",
				schema.ErrInvalid, Quoted(name), f.kind, f.other)
		}
		// One value that is not text makes the whole feature blobs.
		if f.kind == tfBytes && f.binary && !s.opts.choice.isText(name, freeName(name, nil)) {
			n, asked := s.opts.Spread[name]
			spread[name] = asked
			made, err := f.blobColumns(name, n, asked)
			if err != nil {
				return err
			}
			for _, c := range made {
				names = append(names, c.name)
				fields = append(fields, schema.BlobField(c.name, mediaOf("", f.first), f.least == 0 || asked))
				s.columns = append(s.columns, c.tfColumn)
			}
			continue
		}
		var t arrow.DataType = arrow.BinaryTypes.String
		switch f.kind {
		case tfFloats:
			t = arrow.PrimitiveTypes.Float32
		case tfInts:
			t = arrow.PrimitiveTypes.Int64
		}
		element := 0
		// A feature with one value in each record is a plain column.
		if f.most > 1 {
			t, element = arrow.ListOf(t), -1
		}
		names = append(names, name)
		fields = append(fields, arrow.Field{Name: name, Type: t, Nullable: true})
		s.columns = append(s.columns, tfColumn{feature: name, element: element})
	}
	for _, name := range slices.Sorted(maps.Keys(s.opts.Spread)) {
		if n := s.opts.Spread[name]; n < 1 || n > maxSpread {
			return fmt.Errorf("%w: --spread %s=%d: want 1 to %d columns", schema.ErrInvalid, Quoted(name), n, maxSpread)
		}
		if !spread[name] {
			return fmt.Errorf("%w: --spread %s: there is no feature of several blobs of that name", schema.ErrInvalid,
				Quoted(name))
		}
	}
	for i, name := range freeNames("source_", names, nil) {
		f := fields[i]
		if name != f.Name {
			s.notes = append(s.notes, keptAs("feature", f.Name, name))
			f.Name = name
		}
		if s.columns[i].blob {
			s.blobs = append(s.blobs, f)
		} else {
			s.meta = append(s.meta, f)
		}
	}
	return nil
}

// namedColumn is a column with its name before freeNames.
type namedColumn struct {
	tfColumn
	name string
}

// blobColumns returns the columns for a feature of blobs: one, or one for each value. A
// row has one blob in a column, so the number of values must be the same in all records,
// or be given by Options.Spread.
func (f *tfFeature) blobColumns(name string, n int, asked bool) ([]namedColumn, error) {
	if !asked {
		n = f.most
	}
	switch {
	case f.most <= 1 && !asked:
		return []namedColumn{{tfColumn{feature: name, blob: true}, name}}, nil
	case n < 1 || n > maxSpread || !asked && f.least != f.most:
		return nil, fmt.Errorf("%w: feature %s holds between %d and %d blobs a record, and a row has one blob in a column: "+
			"--spread %s=N makes N columns of it, up to %d; --leave-out leaves it out", schema.ErrInvalid, Quoted(name),
			f.least, f.most, Quoted(name), maxSpread)
	}
	var columns []namedColumn
	for i := range n {
		c := tfColumn{feature: name, element: i, last: asked && i == n-1, blob: true}
		columns = append(columns, namedColumn{c, fmt.Sprintf("%s_%d", name, i)})
	}
	return columns, nil
}

// Fields implements Source.
func (s *tfRecords) Fields() (meta, blobs []arrow.Field) { return s.meta, s.blobs }

// Samples implements Source. The key of a sample is its file and number.
func (s *tfRecords) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		in := s.place.inOrder(ctx, s.paths())
		defer in.close()
		shards := make([]shard, len(s.shards))
		for i := range s.shards {
			shards[i] = s.shards[i].shard
		}
		s.place.yieldParts(ctx, shards, false, func(ctx context.Context, i int, put func(Sample) bool) error {
			sh := &s.shards[i]
			err := s.read(ctx, in, sh, func(n, at int64, buf []byte, err error) error {
				if !put(s.sample(sh, n, at, buf, err)) {
					return errStop
				}
				return nil
			})
			if errors.Is(err, errStop) {
				return nil
			}
			return err
		}, yield)
	}
}

// paths returns the paths of the files that are read.
func (s *tfRecords) paths() (all []string) {
	for _, sh := range s.shards {
		if sh.shard.read() {
			all = append(all, sh.path)
		}
	}
	return all
}

// sample makes the sample of a record whose bytes begin at an offset of the decoded file.
// err is what is wrong with the record.
func (s *tfRecords) sample(sh *tfShard, n, at int64, buf []byte, err error) Sample {
	out := Sample{Key: tfKey(&sh.shard, n), Split: sh.split, Size: int64(len(buf)),
		Release: func() { buffers.put(buf) }}
	var values map[string]tfValues
	if err == nil {
		values, err = parseExample(buf)
	}
	if err != nil {
		out.Bad = err.Error()
		return out
	}
	for _, c := range s.columns {
		v := values[c.feature]
		// The survey has seen one kind in all records, so the file has changed since.
		if v.kind != 0 && v.kind != s.features[c.feature].kind {
			out.Bad = fmt.Sprintf("%s changed while it was read", Quoted(c.feature))
			return out
		}
		if c.blob {
			blob, e := []byte(nil), Extent{}
			if c.element < len(v.parts) {
				p := v.parts[c.element]
				blob, e = buf[p.at:p.at+p.size:p.at+p.size], sh.extent(s.place, at+int64(p.at), int64(p.size))
			}
			out.Blobs, out.At = append(out.Blobs, blob), append(out.At, e)
			if c.last && len(v.parts) > c.element+1 {
				out.Bad = fmt.Sprintf("%s has %d values, more than the %d that --spread takes", Quoted(c.feature),
					len(v.parts), c.element+1)
			}
			continue
		}
		out.Meta = append(out.Meta, v.cell(c, buf))
		out.Size += 24 * int64(len(v.numbers)+len(v.parts))
	}
	return out
}

// cell returns the value of a metadata column.
func (v tfValues) cell(c tfColumn, record []byte) any {
	all := v.numbers
	for _, p := range v.parts {
		all = append(all, string(record[p.at:p.at+p.size]))
	}
	switch {
	case c.element < 0 && v.kind != 0:
		return append([]any{}, all...)
	case c.element >= 0 && len(all) > 0:
		return all[0]
	}
	return nil
}

// extent returns the extent of bytes of a file's records.
func (s *tfShard) extent(files *Files, at, size int64) Extent {
	file := files.name(s.path)
	if s.unit == nil {
		return Extent{File: file, Offset: at, Length: size}
	}
	return inUnit(file, s.unit, at, size)
}

// errNoRecord means that no record begins where one should.
var errNoRecord = errors.New("no record of TensorFlow")

// read passes each record of a file to visit: its number, the offset of its bytes, and
// the bytes, or what is wrong with it. visit owns the buffer. The error is about the
// file, or that of visit.
//
// A wrong checksum of the bytes makes one bad record. A wrong checksum of the length ends
// the file, because the next record cannot be found.
func (s *tfRecords) read(ctx context.Context, from sequence, sh *tfShard,
	visit func(i, at int64, buf []byte, err error) error) error {
	f, err := from.open(sh.path)
	if err != nil {
		return errors.New(reason(err))
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReaderSize(f, 64<<10)
	var r io.Reader = in
	packed := false
	// The checksum of the first length decides: a length may begin with the magic of a
	// compression.
	if head, _ := in.Peek(12); len(head) == 12 && !isRecordHead(head) {
		switch algorithm := compressionOf(in); {
		case algorithm == "gz":
			packed = true
		case algorithm != "":
			return fmt.Errorf("it is compressed by %s; TensorFlow reads gzip", algorithm)
		case head[0]&0x0f == 8 && binary.BigEndian.Uint16(head)%31 == 0:
			return errors.New("it is compressed by zlib, and is not read; write it with GZIP or without compression")
		}
	}
	if packed {
		z, stop, err := decompress(in, "gz")
		if err != nil {
			return err
		}
		defer stop()
		r = z
		if sh.unit == nil {
			sh.unit = &schema.Unit{Length: f.Size(), Codec: schema.CodecGzip}
		}
	}
	// Offsets count decoded bytes. In a compressed file they are offsets in the unit.
	at := int64(0)
	for i := int64(0); ; i++ {
		var head [12]byte
		switch n, err := io.ReadFull(r, head[:]); {
		case errors.Is(err, io.EOF):
			if packed && sh.unit.Size == 0 { // afterwards it does not change, because samples refer to it
				sh.unit.Size = at
			}
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("%w: %d bytes at the end, after %d records", errCut, n, i)
		case err != nil:
			return fmt.Errorf("after %d records: %w", i, err)
		}
		if !isRecordHead(head[:]) {
			return fmt.Errorf("%w: at byte %d, after %d records, the checksum of a length is wrong", errNoRecord, at, i)
		}
		// The checksum is that of the length, which may be any number all the same.
		size := binary.LittleEndian.Uint64(head[:])
		if size > maxBlob {
			return fmt.Errorf("record %d has %d bytes, more than the %d that a sample may have", i, size, int64(maxBlob))
		}
		buf, err := readBuffer(r, int64(size))
		if err != nil {
			return fmt.Errorf("%w at record %d: %w", errCut, i, err)
		}
		var tail [4]byte
		if _, err := io.ReadFull(r, tail[:]); err != nil {
			buffers.put(buf)
			return fmt.Errorf("%w at record %d: %w", errCut, i, err)
		}
		var bad error
		if maskedCRC(buf) != binary.LittleEndian.Uint32(tail[:]) {
			bad = errors.New("its checksum is wrong")
		}
		if err := visit(i, at+12, buf, bad); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		at += 12 + int64(size) + 4
	}
}

// isRecordHead reports whether 12 bytes are a length and its checksum.
func isRecordHead(head []byte) bool {
	return maskedCRC(head[:8]) == binary.LittleEndian.Uint32(head[8:])
}

// castagnoli is the polynomial of CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskedCRC returns the checksum of the format: CRC-32C, rotated right by 15 bits, plus a
// constant. TensorFlow masks it because a CRC of data that contains CRCs is weak.
func maskedCRC(b []byte) uint32 {
	sum := crc32.Checksum(b, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

// Errors for records that are protocol buffers of another type.
var (
	errNoExample = errors.New("it is no tf.train.Example")
	errSequence  = errors.New("it is a tf.train.SequenceExample, whose lists of features have no place in a row; " +
		"write each step, or each sequence as a list, as a tf.train.Example")
)

// parseExample parses a record. The values are offsets in it. A generated decoder would
// copy each value, and not report its offset.
//
// Example has the field 1, features; Features has the field 1, a map from names to
// Feature. A SequenceExample has a field 2 in addition.
func parseExample(record []byte) (map[string]tfValues, error) {
	values := map[string]tfValues{}
	err := eachField(record, 0, func(num protowire.Number, typ protowire.Type, at int, b []byte, _ uint64) error {
		switch {
		case num == 2 && typ == protowire.BytesType:
			return errSequence
		case num != 1 || typ != protowire.BytesType:
			return errNoExample
		}
		return eachField(b, at, func(num protowire.Number, typ protowire.Type, at int, b []byte, _ uint64) error {
			if num != 1 || typ != protowire.BytesType {
				return errNoExample
			}
			name, v, err := parseFeature(b, at)
			if err != nil {
				return fmt.Errorf("feature %s: %w", Quoted(name), err)
			}
			if len(values) >= maxColumns {
				return fmt.Errorf("%w: it has more than %d features", schema.ErrLimit, maxColumns)
			}
			values[name] = v
			return nil
		})
	})
	return values, err
}

// parseFeature parses an entry of the map of features, which begins at an offset of the
// record: field 1 is the name, field 2 the Feature, a oneof of three lists.
func parseFeature(entry []byte, begin int) (name string, v tfValues, err error) {
	err = eachField(entry, begin, func(num protowire.Number, typ protowire.Type, at int, b []byte, _ uint64) error {
		switch {
		case typ != protowire.BytesType:
			return errNoExample
		case num == 1:
			if name = string(b[:min(len(b), maxMemberName)]); len(b) > maxMemberName || !utf8.ValidString(name) {
				return errors.New("its name is too long, or not valid UTF-8")
			}
			return nil
		case num != 2:
			return errNoExample
		}
		return eachField(b, at, func(num protowire.Number, typ protowire.Type, at int, b []byte, _ uint64) error {
			if num < 1 || num > 3 || typ != protowire.BytesType {
				return errNoExample
			}
			if kind := tfKind(num); v.kind != kind { // of several in a oneof, the last counts
				v = tfValues{kind: kind}
			}
			return v.parse(b, at)
		})
	})
	return name, v, err
}

// parse parses a list of values, field 1. Numbers may be packed in one field, or repeated
// one by one: parsers must accept both.
func (v *tfValues) parse(list []byte, begin int) error {
	if v.kind != tfBytes && len(list) > maxText {
		return fmt.Errorf("its numbers have %d bytes, more than the %d that metadata may have", len(list), maxText)
	}
	return eachField(list, begin, func(num protowire.Number, typ protowire.Type, at int, b []byte, n uint64) error {
		switch {
		case num != 1:
			return errNoExample
		case v.kind == tfBytes && typ == protowire.BytesType:
			if len(v.parts) >= maxValues {
				return fmt.Errorf("it has more than %d values", maxValues)
			}
			v.parts = append(v.parts, span{at, len(b)})
		case v.kind == tfFloats && typ == protowire.Fixed32Type:
			v.numbers = append(v.numbers, math.Float32frombits(uint32(n)))
		case v.kind == tfFloats && typ == protowire.BytesType && len(b)%4 == 0:
			for ; len(b) > 0; b = b[4:] {
				v.numbers = append(v.numbers, math.Float32frombits(binary.LittleEndian.Uint32(b)))
			}
		case v.kind == tfInts && typ == protowire.VarintType:
			v.numbers = append(v.numbers, int64(n))
		case v.kind == tfInts && typ == protowire.BytesType:
			for len(b) > 0 {
				n, size := protowire.ConsumeVarint(b)
				if size < 0 {
					return errNoExample
				}
				v.numbers = append(v.numbers, int64(n))
				b = b[size:]
			}
		default:
			return errNoExample
		}
		return nil
	})
}

// eachField calls f for each field of a message that begins at an offset of the record. A
// length-delimited field comes with its bytes and their offset, any other with its
// number.
func eachField(message []byte, begin int, f func(num protowire.Number, typ protowire.Type, at int, b []byte,
	n uint64) error) error {
	for rest := message; len(rest) > 0; {
		num, typ, size := protowire.ConsumeTag(rest)
		if size < 0 {
			return errNoExample
		}
		rest = rest[size:]
		var (
			b []byte
			n uint64
		)
		switch typ {
		case protowire.BytesType:
			b, size = protowire.ConsumeBytes(rest)
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(rest)
		case protowire.Fixed32Type:
			var four uint32
			four, size = protowire.ConsumeFixed32(rest)
			n = uint64(four)
		default:
			return errNoExample
		}
		if size < 0 {
			return errNoExample
		}
		rest = rest[size:]
		if err := f(num, typ, begin+len(message)-len(rest)-len(b), b, n); err != nil {
			return err
		}
	}
	return nil
}
