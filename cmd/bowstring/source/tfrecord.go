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
// features by name, each a list of bytes, of floats or of integers. A record is its
// length, the checksum of that, its bytes and their checksum; the checksums are CRC-32C,
// masked. A file may be compressed as a whole by gzip.
//
// No record says what the others hold, so all are read when the source is opened.
type tfRecords struct {
	about
	opts     Options
	shards   []tfShard
	features map[string]*tfFeature
	columns  []tfColumn
	meta     []arrow.Field
	blobs    []arrow.Field
}

// tfShard is a file of records.
type tfShard struct {
	shard
	unit *schema.Unit // the file, if it is compressed; of size 0 until it was read to its end
}

type tfKind int

const (
	tfBytes tfKind = 1 + iota // as Feature numbers them
	tfFloats
	tfInts
)

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

// tfFeature is what is known of a feature of all records.
type tfFeature struct {
	kind    tfKind
	other   tfKind // that another record has, or 0
	records int64  // that have a value of it
	least   int    // values of those
	most    int
	binary  bool   // some value is no text
	first   []byte // value, of bytes
}

// tfColumn is a column that a feature becomes.
type tfColumn struct {
	feature string
	element int  // of the feature's values; -1 if all of them are in one cell
	last    bool // of those that Options.Spread asks for
	blob    bool
}

// tfValues are the values of a feature in a record.
type tfValues struct {
	kind    tfKind
	parts   []span // of bytes, and their offsets in the record
	numbers []any  // int64 or float32
}

// span is a part of a record.
type span struct{ at, size int }

// maxValues bounds the values of bytes of a feature in a record.
const maxValues = 1 << 16

func (l *layout) detectTFRecord() bool {
	return l.any(func(name string) bool { return isTFRecord(filepath.Base(name)) })
}

// isTFRecord says whether a file holds records, by its name: x.tfrecord, x.tfrecords.gz,
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
	known := int64(0)
	for _, sh := range shards {
		known += sh.known
		s.shards = append(s.shards, tfShard{shard: sh})
	}
	if err := s.begin(opts, s.place.estimateWhole(s.paths(), 2)); err != nil {
		return nil, err
	}
	if err := s.survey(ctx); err != nil {
		return nil, err
	}
	s.rows += known
	return s, s.makeColumns()
}

// tfKey is that of a record, by its number.
func tfKey(sh *shard, n int64) string { return fmt.Sprintf("%s#%d", sh.rel, n) }

// survey reads all records for their features. Errors in a file or a record occur again,
// and are reported, when the samples are read.
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
	for _, f := range s.features {
		if f.records < s.rows {
			f.least = 0
		}
	}
	return nil
}

// observe notes the features of a record.
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

// sniffed is how much of a value is kept to see what it holds.
const sniffed = 1 << 20

// isPlainText says whether bytes are text as people write it.
func isPlainText(b []byte) bool {
	return len(b) <= maxText && utf8.Valid(b) && !slices.ContainsFunc(b, func(c byte) bool {
		return c < ' ' && c != '\t' && c != '\n' && c != '\r' || c == 0x7f
	})
}

// makeColumns decides what each feature becomes.
func (s *tfRecords) makeColumns() error {
	var names []string // of the columns
	var fields []arrow.Field
	spread := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(s.features)) {
		f := s.features[name]
		if !s.opts.choice.wants(name, freeName(name, nil)) {
			continue
		}
		if f.other != 0 {
			return fmt.Errorf("%w: feature %s is %s in one record and %s in another; --leave-out leaves it out",
				schema.ErrInvalid, Quoted(name), f.kind, f.other)
		}
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

// namedColumn is a column before it has a name that is free.
type namedColumn struct {
	tfColumn
	name string
}

// blobColumns are those that a feature of blobs becomes: one, or one for each of its
// values.
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

func (s *tfRecords) Fields() (meta, blobs []arrow.Field) { return s.meta, s.blobs }

// Samples names a sample by its file and its number there.
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

// paths are those of the files that are read.
func (s *tfRecords) paths() (all []string) {
	for _, sh := range s.shards {
		if sh.shard.read() {
			all = append(all, sh.path)
		}
	}
	return all
}

// sample makes a sample of a record, whose bytes begin at a byte of the file, or of what
// that is decoded.
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

// cell returns the value of a column of metadata.
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

// extent is the place of bytes of the records of a file.
func (s *tfShard) extent(files *Files, at, size int64) Extent {
	file := files.name(s.path)
	if s.unit == nil {
		return Extent{File: file, Offset: at, Length: size}
	}
	return inUnit(file, s.unit, at, size)
}

// errNoRecord is what stands where a record should.
var errNoRecord = errors.New("no record of TensorFlow")

// read hands each record of a file to visit: its number, where its bytes begin, and
// these, in a buffer that then is visit's; or what is wrong with it. It returns what is
// wrong with the file, or the error of visit.
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
	at := int64(0)
	for i := int64(0); ; i++ {
		var head [12]byte
		switch n, err := io.ReadFull(r, head[:]); {
		case errors.Is(err, io.EOF):
			if packed && sh.unit.Size == 0 { // which is then not changed, as samples have it
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

// isRecordHead says whether bytes are a length and its checksum.
func isRecordHead(head []byte) bool {
	return maskedCRC(head[:8]) == binary.LittleEndian.Uint32(head[8:])
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskedCRC is the checksum that records have.
func maskedCRC(b []byte) uint32 {
	sum := crc32.Checksum(b, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

var (
	errNoExample = errors.New("it is no tf.train.Example")
	errSequence  = errors.New("it is a tf.train.SequenceExample, whose lists of features have no place in a row; " +
		"write each step, or each sequence as a list, as a tf.train.Example")
)

// parseExample reads a record. The result is a slice of it.
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

// parseFeature reads an entry of the map of features, which begins at a byte of the
// record.
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
			if kind := tfKind(num); v.kind != kind { // of several, the last counts
				v = tfValues{kind: kind}
			}
			return v.parse(b, at)
		})
	})
	return name, v, err
}

// parse reads a list of values.
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

// eachField calls f for the fields of a message that begins at a byte of the record: with
// the bytes of one that has them, and where these begin, or with the number of another.
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
