package source

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/float16"
	"github.com/klauspost/compress/snappy"

	"bowstring/schema"
)

// mds is a directory of MosaicML MDS shards, format version 2, or one such directory for
// each split. It follows the library that defines the format, mosaicml-streaming:
//
//	index.json lists the shards, each with the names, encodings and fixed sizes (or
//	null) of its columns. A shard is, in little-endian uint32: the number n of
//	samples, n+1 offsets into the file, JSON of no further use, then the samples.
//	A sample is the uint32 size of each column that has no fixed one, then the
//	columns. A compressed shard is compressed as a whole.
//
// Shards are read from front to back, so that a compressed shard is never decoded to
// disk. The same reader serves LitData, whose shards differ only in index, encodings and
// compression: see mdsKind.
type mds struct {
	about
	choice  *choice
	tokens  asTokens
	parts   []mdsPart // one per split, or one
	columns []mdsColumn
	// meta and blobs are the fields that makeFields has decided on.
	meta  []arrow.Field
	blobs []arrow.Field
	kind  mdsKind
	// open opens a shard.
	open func(in sequence, p mdsPart, sh mdsShard) (*shardReader, error)
}

// mdsKind is what differs between MDS and LitData. index parses index.json. decoder
// returns the type and decoder of an encoding, survey the survey that the encoding needs,
// or nil. media returns the media of a blob column by the first sample.
type mdsKind struct {
	format  string
	index   func(data []byte) ([]mdsShard, error)
	decoder func(encoding string) (arrow.DataType, func([]byte) (any, error), error)
	survey  func(encoding string) mdsSurvey
	media   func(encoding string, sample []byte) string
}

// mosaicML is MDS itself.
var mosaicML = mdsKind{"mds", readMDSIndex, mdsDecoder, newMDSSurvey, func(encoding string, sample []byte) string {
	if encoding == "bytes" {
		return mediaOf("", sample)
	}
	return schema.MediaImage
}}

// mdsPart is a directory with an index: the whole data set or one split.
type mdsPart struct {
	split  string
	dir    string
	shards []mdsShard
}

// mdsIndex is index.json of MDS.
type mdsIndex struct {
	Version int        `json:"version"`
	Shards  []mdsShard `json:"shards"`
}

// readMDSIndex parses index.json of MDS.
func readMDSIndex(data []byte) ([]mdsShard, error) {
	var index mdsIndex
	err := json.Unmarshal(data, &index)
	return index.Shards, err
}

// openMDS opens a directory, or the index.json in it.
func openMDS(ctx context.Context, root string, opts Options) (Source, error) {
	if filepath.Base(root) == "index.json" {
		root = filepath.Dir(root)
		if err := opts.files.know(ctx, nil); err != nil {
			return nil, err
		}
	}
	s := &mds{about: about{place: opts.files, format: "mds", path: opts.files.absolute(root)}, choice: opts.choice,
		tokens: asTokens{types: opts.Tokens}, kind: mosaicML}
	s.open = s.openShard
	return s, s.find(ctx, opts)
}

// find reads the indexes and decides about the columns. It checks the shards' entries,
// marks known shards, surveys the columns that need it, and reads the first sample.
func (s *mds) find(ctx context.Context, opts Options) error {
	in, err := s.place.boundsOf(s.path, opts)
	if err != nil {
		return err
	}
	if err := s.findParts(ctx, opts.Split, in); err != nil {
		return err
	}
	for _, p := range s.parts {
		for _, sh := range p.shards {
			if err := s.addColumns(p, sh); err != nil {
				return err
			}
			s.rows += sh.Samples
		}
	}
	s.findKnown(opts.Split)
	for i := range s.columns {
		s.columns[i].survey = s.kind.survey(s.columns[i].encoding)
	}
	s.walked = opts.Walk && s.walkable()
	if err := s.begin(opts, s.estimates()); err != nil {
		return err
	}
	// The survey comes after begin: it reads all shards, and the caller may decline.
	if err := s.survey(ctx); err != nil {
		return err
	}
	first := s.firstSample(ctx)
	if err := s.place.broken(); err != nil {
		return err
	}
	return s.makeFields(first)
}

// findKnown marks the shards whose rows are known from the previous snapshot. One shard
// is always read, because only samples show which media a blob column has.
func (s *mds) findKnown(split string) {
	all := true
	for _, p := range s.parts {
		first := int64(0)
		for i := range p.shards {
			sh := &p.shards[i]
			of := []shard{s.asShard(p, *sh)}
			s.place.knownRows(of, split, func(_ *shard, row int64) string { return mdsKey(p, first+row) })
			sh.known = of[0].known
			first += sh.Samples
			all = all && sh.known > 0
		}
	}
	for _, p := range s.parts {
		if all && len(p.shards) > 0 {
			p.shards[0].known, all = 0, false
		}
	}
}

// asShard returns a shard in the form that the functions for all formats take.
func (s *mds) asShard(p mdsPart, sh mdsShard) shard {
	name, _ := s.file(p, sh)
	return shard{path: filepath.Join(p.dir, name.Basename), rel: filepath.ToSlash(filepath.Join(p.split, sh.Raw.Basename)),
		split: p.split, known: sh.known}
}

// mdsKey returns the key of a sample: its split and its number in the split.
func mdsKey(p mdsPart, number int64) string { return path.Join(p.split, strconv.FormatInt(number, 10)) }

// findParts reads the index of the directory, or those of its folders. Paths in an index
// come from the author of the data and are checked against the bounds.
func (s *mds) findParts(ctx context.Context, asked string, in *bounds) error {
	dirs := map[string]string{}
	// An index in the directory itself wins over those in its folders.
	if _, err := s.place.stat(filepath.Join(s.path, "index.json")); err == nil {
		dirs[""] = s.path
	} else {
		indices, err := s.place.glob(filepath.Join(s.path, "*", "index.json"))
		if err != nil {
			return err
		}
		for _, index := range indices {
			dir := filepath.Dir(index)
			if hidden(filepath.Base(dir)) {
				continue
			}
			dirs[filepath.Base(dir)] = dir
			s.splits = append(s.splits, filepath.Base(dir))
		}
	}
	if len(dirs) == 0 {
		return fmt.Errorf("%w: there is no index.json, nor one in a folder", schema.ErrInvalid)
	}
	slices.SortFunc(s.splits, compareSplits)
	for _, split := range append(slices.Clone(s.splits), "") {
		dir, ok := dirs[split]
		if !ok || slices.Contains(s.splits, asked) && split != asked {
			continue
		}
		p := mdsPart{split: split, dir: dir}
		if err := in.check(filepath.Join(dir, "index.json")); err != nil {
			return err
		}
		data, err := s.place.readWhole(ctx, filepath.Join(dir, "index.json"), maxIndex)
		if err != nil {
			return fmt.Errorf("%w: %s: %s", schema.ErrInvalid, Quoted(filepath.Join(dir, "index.json")), reason(err))
		}
		shards, err := s.kind.index(data)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", schema.ErrInvalid, Quoted(filepath.Join(dir, "index.json")), err)
		}
		// A shard that is listed twice would make each of its samples a duplicate.
		seen := map[string]bool{}
		for _, sh := range shards {
			if seen[sh.Raw.Basename] {
				return fmt.Errorf("%w: %s lists %s twice", schema.ErrInvalid, Quoted(filepath.Join(dir, "index.json")),
					Quoted(sh.Raw.Basename))
			}
			seen[sh.Raw.Basename] = true
			for _, f := range []*mdsFile{&sh.Raw, sh.Zip} {
				if f == nil || !filepath.IsLocal(f.Basename) { // addColumns rejects it
					continue
				}
				if err := in.check(filepath.Join(dir, f.Basename)); err != nil {
					return err
				}
			}
		}
		p.shards = shards
		s.parts = append(s.parts, p)
	}
	return nil
}

// addColumns checks a shard's entry in the index. All shards must have the same columns:
// one snapshot has one schema.
func (s *mds) addColumns(p mdsPart, sh mdsShard) error {
	at := filepath.Join(p.dir, sh.Raw.Basename)
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: %s", schema.ErrInvalid, Quoted(at), fmt.Sprintf(format, args...))
	}
	switch {
	case sh.Format != s.kind.format || sh.Version != 2:
		return fail("format %q, version %d; want %s, version 2", sh.Format, sh.Version, s.kind.format)
	case len(sh.Names) == 0 || len(sh.Names) != len(sh.Encodings) || len(sh.Names) != len(sh.Sizes):
		return fail("%d names, %d encodings and %d sizes of columns", len(sh.Names), len(sh.Encodings), len(sh.Sizes))
	case sh.Samples > maxShardSamples:
		return fail("%d samples, more than the %d that a shard may have", sh.Samples, maxShardSamples)
	case sh.Samples < 0 || sh.Raw.Basename == "" || !filepath.IsLocal(sh.Raw.Basename):
		return fail("%d samples in file %q", sh.Samples, sh.Raw.Basename)
	case sh.Zip != nil && !filepath.IsLocal(sh.Zip.Basename):
		return fail("compressed file %q", sh.Zip.Basename)
	}
	var columns []mdsColumn
	for i, name := range sh.Names {
		c := mdsColumn{name: name, encoding: sh.Encodings[i], size: -1}
		if sh.Sizes[i] != nil {
			c.size = *sh.Sizes[i]
		}
		// Encodings are checked later by makeFields, after unwanted columns were left
		// out.
		columns = append(columns, c)
	}
	if s.columns == nil {
		s.columns = columns
		return nil
	}
	same := slices.EqualFunc(columns, s.columns, func(a, b mdsColumn) bool {
		return a.name == b.name && a.encoding == b.encoding && a.size == b.size
	})
	if !same {
		return fail("its columns are not those of the shards before")
	}
	return nil
}

// firstSample returns the columns of the first readable sample. Their content decides the
// media of blob columns.
func (s *mds) firstSample(ctx context.Context) (found [][]byte) {
	in := alone{s.place, ctx}
	for _, p := range s.parts {
		for _, sh := range p.shards {
			if sh.known > 0 {
				continue
			}
			_ = s.readShard(ctx, in, p, sh, func(item mdsItem) bool {
				for _, c := range item.columns {
					found = append(found, slices.Clone(c))
				}
				buffers.put(item.buf)
				return false
			})
			if found != nil {
				return found
			}
		}
	}
	return make([][]byte, len(s.columns))
}

// makeFields decides for each column whether it becomes metadata or blobs, and under
// which name.
func (s *mds) makeFields(samples [][]byte) error {
	if s.columns == nil {
		return fmt.Errorf("%w: the index lists no shards", schema.ErrInvalid)
	}
	for i := range s.columns {
		c := &s.columns[i]
		name := freeName(c.name, nil)
		if c.left = !s.choice.wants(c.name, name); c.left {
			continue
		}
		if name != c.name {
			s.notes = append(s.notes, fmt.Sprintf("column %q is kept as %q", c.name, name))
		}
		// A survey overrides the encoding, and Options.Tokens makes lists of plain bytes.
		typ, decode, err := s.kind.decoder(c.encoding)
		if c.survey != nil {
			typ, decode, c.images, err = c.survey.decide()
		} else if typ == nil && err == nil {
			typ, decode, err = s.tokens.decoder(c.name)
		}
		if err != nil {
			return fmt.Errorf("%w: column %q: %w", schema.ErrInvalid, c.name, err)
		}
		if typ != nil {
			// A column with a type is metadata. Without one its bytes are a blob, or with
			// a survey several images.
			c.decode = decode
			s.meta = append(s.meta, arrow.Field{Name: name, Type: typ, Nullable: true})
			continue
		}
		if c.survey != nil {
			for n := range c.images {
				s.blobs = append(s.blobs, schema.BlobField(fmt.Sprintf("%s_%d", name, n), schema.MediaImage, false))
			}
			continue
		}
		s.blobs = append(s.blobs, schema.BlobField(name, s.kind.media(c.encoding, samples[i]), false))
	}
	return s.tokens.check()
}

// Fields implements Source.
func (s *mds) Fields() (meta, blobs []arrow.Field) { return s.meta, s.blobs }

// Samples implements Source. The key of a sample is its split and number.
func (s *mds) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	type numbered struct {
		mdsPart
		shard mdsShard
		first int64 // number of the shard's first sample
	}
	var all []numbered
	var shards []shard
	for _, p := range s.parts {
		// Samples are numbered over all shards of a split, in the order of the index.
		first := int64(0)
		for _, sh := range p.shards {
			all, shards = append(all, numbered{p, sh, first}), append(shards, s.asShard(p, sh))
			first += sh.Samples
		}
	}
	return func(yield func(Sample, error) bool) {
		in := s.place.inOrder(ctx, s.paths())
		defer in.close()
		s.place.yieldParts(ctx, shards, s.walked, func(ctx context.Context, i int, put func(Sample) bool) error {
			at := all[i]
			visit := func(item mdsItem) bool {
				return put(s.sample(mdsKey(at.mdsPart, at.first+item.number), at.split, item))
			}
			if s.walked {
				return s.walkShard(ctx, at.mdsPart, at.shard, visit)
			}
			return s.readShard(ctx, in, at.mdsPart, at.shard, visit)
		}, yield)
	}
}

// sample makes a sample from what was read. Blobs are slices of the item's buffer, which
// Release returns to the pool.
func (s *mds) sample(key, split string, item mdsItem) Sample {
	buf, columns := item.buf, item.columns
	out := Sample{Key: key, Split: split, Size: int64(len(buf)), Release: func() { buffers.put(buf) }}
	if item.err != nil {
		out.Bad = item.err.Error()
		return out
	}
	end := item.whole // end of the current column; the columns fill the end of the sample
	for _, n := range item.sizes {
		end -= n
	}
	for i, c := range s.columns {
		end += item.sizes[i]
		if c.left {
			continue
		}
		// A list of images becomes several blobs, each with an extent of its own.
		if c.survey != nil && c.decode == nil {
			images, err := mdsImages(c.encoding, columns[i])
			if err == nil && len(images) != c.images {
				err = fmt.Errorf("%d images, not %d as before", len(images), c.images)
			}
			if err != nil {
				out.Bad = cmp.Or(out.Bad, fmt.Sprintf("%s: %v", Quoted(c.name), err))
				images = make([][]byte, c.images)
			}
			at := end // start of the first image; the images fill the end of the column
			for _, image := range images {
				at -= int64(len(image))
			}
			for _, image := range images {
				out.Blobs, out.At = append(out.Blobs, image), append(out.At, item.extent(at, int64(len(image))))
				at += int64(len(image))
			}
			continue
		}
		if n := item.sizes[i]; c.decode == nil {
			out.At = append(out.At, item.extent(end-n, n))
			if !item.walked {
				out.Blobs = append(out.Blobs, columns[i])
			}
			continue
		}
		// Decoded lists take more memory than their bytes, and count for the budget.
		v, err := c.decode(columns[i])
		if _, plain := v.(Numbers); plain {
			out.Size += 2 * int64(len(columns[i])) // once here and once in the batch
		} else if c.survey != nil || strings.HasPrefix(c.encoding, "ndarray") ||
			strings.HasPrefix(c.encoding, "no_header_") {
			out.Size += valueBytes(columns[i])
		}
		if err != nil && out.Bad == "" {
			out.Bad = fmt.Sprintf("%s: %v", Quoted(c.name), err)
		}
		out.Meta = append(out.Meta, v)
	}
	return out
}

// detectMDS reports whether the layout has an index.json of MDS.
func (l *layout) detectMDS() bool { return l.indexKind() == mosaicML.format }

// mdsShard is the entry of a shard in index.json. Sizes has nil for a column of variable
// size. Raw is the decoded shard, Zip the compressed one; a directory may have either.
type mdsShard struct {
	Format      string   `json:"format"`
	Version     int      `json:"version"`
	Names       []string `json:"column_names"`
	Encodings   []string `json:"column_encodings"`
	Sizes       []*int64 `json:"column_sizes"`
	Compression string   `json:"compression"`
	Samples     int64    `json:"samples"`
	Raw         mdsFile  `json:"raw_data"`
	Zip         *mdsFile `json:"zip_data"`
	level       string   // compression level of LitData: chunk, batch or sample
	known       int64    // rows known from the previous snapshot, so that the shard is not read; 0 if it is read
}

// mdsFile is a file of a shard and its size in bytes.
type mdsFile struct {
	Basename string `json:"basename"`
	Bytes    int64  `json:"bytes"`
}

// mdsColumn says how a column is read. decode makes a metadata value of its bytes. If
// decode is nil, the bytes are a blob.
type mdsColumn struct {
	name, encoding string
	size           int64 // fixed, or -1
	decode         func([]byte) (any, error)
	survey         mdsSurvey // nil unless all values together decide what the column becomes
	images         int       // images of each sample, in a column of lists of images
	left           bool      // left out: not read
}

// Bounds for what an index and a shard may claim. The library writes shards of 64 MB by
// default.
const (
	maxIndex        = 256 << 20
	maxShardSamples = 1 << 24
	snappyRatio     = 64 // a copy of at most 64 bytes takes 2 bytes or more
)

// shardReader reads the decoded bytes of a shard from front to back. close frees it.
type shardReader struct {
	io.Reader
	close func() error
	// extent returns the extent of bytes of the decoded shard.
	extent func(at, size int64) Extent
	unit   *schema.Unit // the shard, if it is compressed as a whole
	each   bool         // each sample is compressed by zstd on its own
	file   string       // name in Files
}

// mdsItem is a sample as it was read. The visitor owns it, and returns buf to the pool.
type mdsItem struct {
	number  int64                       // number in the shard
	buf     []byte                      // the sample's bytes
	whole   int64                       // size of the sample, also if it was not read
	sizes   []int64                     // sizes of the columns
	columns [][]byte                    // slices of buf; nil for a blob that was not read
	walked  bool                        // the blobs were not read
	extent  func(at, size int64) Extent // the extent of bytes of buf
	err     error                       // what is wrong with the sample
}

// file returns the file of a shard, and whether it is the compressed one. The decoded
// file is preferred: its blobs need no decoding.
func (s *mds) file(p mdsPart, sh mdsShard) (name mdsFile, compressed bool) {
	if sh.Zip != nil {
		if _, err := s.place.stat(filepath.Join(p.dir, sh.Raw.Basename)); err != nil {
			return *sh.Zip, true
		}
	}
	return sh.Raw, false
}

// paths returns the paths of the shards that are read.
func (s *mds) paths() (all []string) {
	for _, p := range s.parts {
		for _, sh := range p.shards {
			if sh.known == 0 {
				all = append(all, s.asShard(p, sh).path)
			}
		}
	}
	return all
}

// openShard opens a shard, compressed or not. A file of another size than the index
// states is an error: it is incomplete, or of another version of the data set.
func (s *mds) openShard(from sequence, p mdsPart, sh mdsShard) (_ *shardReader, err error) {
	name, compressed := s.file(p, sh)
	f, err := from.open(filepath.Join(p.dir, name.Basename))
	if err != nil {
		return nil, errors.New(reason(err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := name.check(f); err != nil {
		return nil, err
	}
	// Extents name the file that is actually read, compressed or not.
	file := s.place.name(filepath.Join(p.dir, name.Basename))
	in := bufio.NewReaderSize(f, 32<<10)
	if !compressed {
		return &shardReader{Reader: in, close: f.Close, extent: func(at, size int64) Extent {
			return Extent{File: file, Offset: at, Length: size}
		}}, nil
	}
	z, stop, err := s.inflate(in, name, sh)
	if err != nil {
		return nil, err
	}
	r := &shardReader{Reader: z, close: func() error { stop(); return f.Close() }}
	r.unit = &schema.Unit{Length: name.Bytes, Size: sh.Raw.Bytes, Codec: unitCodec(sh.Compression)}
	r.extent = func(at, size int64) Extent { return inUnit(file, r.unit, at, size) }
	return r, nil
}

// inflate decodes a shard that is compressed as a whole.
func (s *mds) inflate(in *bufio.Reader, name mdsFile, sh mdsShard) (io.Reader, func(), error) {
	// All other algorithms are streams.
	if algorithm, _, _ := strings.Cut(sh.Compression, ":"); algorithm != "snappy" {
		return decompress(in, sh.Compression)
	}
	// Snappy without frames is one block, which must be in memory. Its claimed size is
	// checked before memory is taken for it.
	if name.Bytes > maxBlob || sh.Raw.Bytes > maxBlob {
		return nil, nil, fmt.Errorf("a snappy shard of %d bytes is too large, more than %d", sh.Raw.Bytes,
			int64(maxBlob))
	}
	block, err := io.ReadAll(in)
	if err == nil {
		// The block states its decoded size itself, which must be that of the index.
		var n int
		if n, err = snappy.DecodedLen(block); err == nil && int64(n) != sh.Raw.Bytes {
			err = fmt.Errorf("it holds %d bytes, the index says %d", n, sh.Raw.Bytes)
		} else if err == nil && n > snappyRatio*len(block) {
			err = fmt.Errorf("%d bytes cannot hold the %d that they claim", len(block), n)
		}
	}
	if err == nil {
		block, err = snappy.Decode(nil, block)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("snappy: %w", err)
	}
	return bytes.NewReader(block), func() {}, nil
}

// readTable32 reads the head of a shard: the number of samples, which must be that of the
// index, and their offsets. The caller returns the table to the pool.
func readTable32(r io.Reader, sh mdsShard) ([]byte, error) {
	var count [4]byte
	if _, err := io.ReadFull(r, count[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errCut, err)
	}
	if n := int64(binary.LittleEndian.Uint32(count[:])); n != sh.Samples {
		return nil, fmt.Errorf("it holds %d samples, the index says %d", n, sh.Samples)
	}
	table, err := readBuffer(r, 4*(sh.Samples+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCut, err)
	}
	return table, nil
}

// sampleAt returns the offsets of sample i. at is where the sample before ends. Samples
// must follow each other; only before the first there are other bytes.
func sampleAt(table []byte, i, at int64) (begin, end int64, err error) {
	begin, end = int64(binary.LittleEndian.Uint32(table[4*i:])), int64(binary.LittleEndian.Uint32(table[4*i+4:]))
	switch {
	case begin < at || end < begin || end-begin > maxBlob:
		return 0, 0, fmt.Errorf("sample %d is at bytes %d to %d, the one before ends at %d", i, begin, end, at)
	case i > 0 && begin != at:
		return 0, 0, fmt.Errorf("sample %d begins at byte %d, the one before ends at %d", i, begin, at)
	}
	return begin, end, nil
}

// check returns an error if an open file does not have the size in the index.
func (m mdsFile) check(f *File) error {
	if f.Size() == m.Bytes {
		return nil
	}
	err := fmt.Errorf("%s has %d bytes, the index says %d", Quoted(m.Basename), f.Size(), m.Bytes)
	if f.Size() < m.Bytes {
		err = fmt.Errorf("%w: %w", errCut, err)
	}
	return err
}

// readShard passes each sample of a shard to visit, until visit returns false. Its error
// is about the shard; what is wrong with a single sample is in the item.
func (s *mds) readShard(ctx context.Context, in sequence, p mdsPart, sh mdsShard, visit func(mdsItem) bool) error {
	r, err := s.open(in, p, sh)
	if err != nil {
		return err
	}
	defer func() { _ = r.close() }()
	table, err := readTable32(r, sh)
	if err != nil {
		return err
	}
	defer buffers.put(table)
	offset := func(i int64) int64 { return int64(binary.LittleEndian.Uint32(table[4*i:])) }
	// LitData does not state the decoded size; the last offset is it. If MDS states
	// another size than the last offset, units would be rejected later, so the blobs get
	// no extent.
	if u := r.unit; u != nil && u.Size < 0 {
		u.Size = offset(sh.Samples)
	} else if u != nil && offset(sh.Samples) != u.Size {
		r.extent = func(int64, int64) Extent {
			return Extent{Why: fmt.Sprintf("its shard has %d bytes decoded, and the index says %d", offset(sh.Samples),
				u.Size)}
		}
	}
	at := 4 + int64(len(table))
	for i := range sh.Samples {
		// Offsets come from the file. A wrong one ends the shard, because later samples
		// cannot be trusted.
		begin, end, err := sampleAt(table, i, at)
		if err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, r, begin-at); err != nil {
			return fmt.Errorf("%w at sample %d of %d: %w", errCut, i, sh.Samples, err)
		}
		buf, err := readBuffer(r, end-begin)
		if err != nil {
			return fmt.Errorf("%w at sample %d of %d: %w", errCut, i, sh.Samples, err)
		}
		at = end
		// The extents of a sample are relative to its beginning.
		item := mdsItem{number: i, buf: buf, extent: func(at, size int64) Extent { return r.extent(begin+at, size) }}
		if r.each {
			if err := item.inflate(r, begin); err != nil {
				return fmt.Errorf("sample %d of %d: %w", i, sh.Samples, err)
			}
		}
		item.columns, item.sizes, item.err = s.cut(item.buf)
		item.whole = int64(len(item.buf))
		if !visit(item) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	// Only at the end of a compressed stream its checksum is verified.
	switch n, err := io.CopyN(io.Discard, r, 1); {
	case n > 0:
		return fmt.Errorf("%w: bytes follow the last of %d samples, which ends at byte %d", errJunk, sh.Samples, at)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("behind the last of %d samples: %w", sh.Samples, err)
	}
	return nil
}

// cut divides a sample into its columns, which are slices of buf.
func (s *mds) cut(buf []byte) (columns [][]byte, sizes []int64, err error) {
	sizes, rest, err := s.sizes(buf, int64(len(buf)))
	if err != nil {
		return nil, nil, err
	}
	columns = make([][]byte, len(sizes))
	for i, n := range sizes {
		columns[i] = rest[:n:n]
		rest = rest[n:]
	}
	return columns, sizes, nil
}

// sizes reads the sizes of a sample's columns from its first bytes. whole is the size of
// the sample. It also returns the bytes after the sizes. The columns must fill the sample
// exactly.
func (s *mds) sizes(head []byte, whole int64) (sizes []int64, rest []byte, err error) {
	sizes, rest = make([]int64, len(s.columns)), head
	left := whole
	for i, c := range s.columns {
		if c.size > 0 { // the library takes 0 for variable, too
			sizes[i] = c.size
			continue
		}
		if len(rest) < 4 {
			return nil, nil, fmt.Errorf("%w: %d bytes do not hold the sizes of its columns", errCut, whole)
		}
		sizes[i] = int64(binary.LittleEndian.Uint32(rest))
		rest, left = rest[4:], left-4
	}
	// Sizes are checked before any byte of a column is used.
	for i, n := range sizes {
		if s.columns[i].decode != nil && n > maxText {
			return nil, nil, fmt.Errorf("column %s has %d bytes, more than the %d that metadata may have",
				Quoted(s.columns[i].name), n, maxText)
		}
		if n > left {
			return nil, nil, fmt.Errorf("column %s has %d bytes and only %d are left", Quoted(s.columns[i].name), n, left)
		}
		left -= n
	}
	if left > 0 {
		return nil, nil, fmt.Errorf("%d bytes follow its columns", left)
	}
	return sizes, rest, nil
}

// walkable reports whether the extents of blobs can be found without reading them: from
// the tables at the front of uncompressed shards, and the sizes at the front of samples.
func (s *mds) walkable() bool {
	if s.kind.format != mosaicML.format || s.surveyed() {
		return false
	}
	for _, p := range s.parts {
		for _, sh := range p.shards {
			if _, compressed := s.file(p, sh); compressed {
				return false
			}
		}
	}
	return true
}

// estimates returns the cost of reading the shards, and that of walking them.
func (s *mds) estimates() Estimate {
	times := int64(1)
	if s.surveyed() {
		times++
	}
	e := s.place.estimateWhole(s.paths(), times)
	if s.walkable() { // one request for the table, and one for each sample or window
		e.Walked.Requests = e.Files + min(s.rows, e.Bytes/windowBytes+e.Files)
		e.Walked.Bytes = min(e.Through.Bytes, e.Walked.Requests*windowBytes)
	}
	return e
}

// walkShard is readShard without reading blobs.
func (s *mds) walkShard(ctx context.Context, p mdsPart, sh mdsShard, visit func(mdsItem) bool) error {
	path := filepath.Join(p.dir, sh.Raw.Basename)
	f, err := s.place.openParts(ctx, path, windowBytes)
	if err != nil {
		return errors.New(reason(err))
	}
	defer func() { _ = f.Close() }()
	if err := sh.Raw.check(f); err != nil {
		return err
	}
	table, err := readTable32(f, sh)
	if err != nil {
		return err
	}
	defer buffers.put(table)
	file, at := s.place.name(path), 4+int64(len(table))
	head := make([]byte, 4*len(s.columns))
	for i := range sh.Samples {
		begin, end, err := sampleAt(table, i, at)
		if err != nil {
			return err
		}
		at = end
		// The shard is not compressed (see walkable), so extents are plain ranges of the
		// file.
		item := mdsItem{number: i, walked: true, extent: func(at, size int64) Extent {
			return Extent{File: file, Offset: begin + at, Length: size}
		}}
		err = io.ErrUnexpectedEOF
		if end <= f.Size() {
			err = s.inspect(f, &item, head[:min(int64(len(head)), end-begin)], begin, end)
		}
		if err != nil {
			return fmt.Errorf("%w at sample %d of %d: %w", errCut, i, sh.Samples, err)
		}
		if !visit(item) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if at != f.Size() {
		return fmt.Errorf("%w: bytes follow the last of %d samples, which ends at byte %d", errJunk, sh.Samples, at)
	}
	return nil
}

// inspect reads the sizes and the metadata of a sample between two offsets of a shard.
// Its error is one of reading; a defect of the sample is in item.
func (s *mds) inspect(f *File, item *mdsItem, head []byte, begin, end int64) error {
	if _, err := f.ReadAt(head, begin); err != nil {
		return err
	}
	var rest []byte
	if item.sizes, rest, item.err = s.sizes(head, end-begin); item.err != nil {
		return nil //nolint:nilerr // it is wrong with the sample
	}
	at := begin + int64(len(head)-len(rest))
	item.columns, item.whole = make([][]byte, len(s.columns)), end-begin
	for i, n := range item.sizes {
		if c := s.columns[i]; c.decode != nil && !c.left {
			item.columns[i] = make([]byte, n)
			if _, err := f.ReadAt(item.columns[i], at); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}

// mdsSurvey looks at all values of a column whose encoding alone does not decide what the
// column becomes.
type mdsSurvey interface {
	// observe looks at one value. It returns an error for a value that cannot be read,
	// which then counts for nothing.
	observe(b []byte) error
	// decide returns the type and the decoder of the values, or how many images each of
	// them has.
	decide() (t arrow.DataType, decode func([]byte) (any, error), images int, err error)
}

// newMDSSurvey returns the survey for an encoding; nil if the encoding suffices.
func newMDSSurvey(encoding string) mdsSurvey {
	name, args, _ := strings.Cut(encoding, ":")
	switch {
	case name == "str_int":
		return &surveyedInts{}
	case name == "ndarray" && !strings.Contains(args, ":"):
		return &surveyedArrays{dtype: args}
	case isMDSImages(name):
		return &surveyedImages{encoding: name}
	}
	return nil
}

// surveyed reports whether the type of any column depends on all its values.
func (s *mds) surveyed() bool {
	return slices.ContainsFunc(s.columns, func(c mdsColumn) bool { return c.survey != nil })
}

// survey reads all samples, if a column needs that. Errors are ignored here: they occur
// again when the samples are read, and are reported then.
func (s *mds) survey(ctx context.Context) error {
	if !s.surveyed() {
		return nil
	}
	// The shards are read again for their samples, so what fits in memory is kept.
	defer s.place.readTwice(s.paths())()
	in := s.place.inOrder(ctx, s.paths())
	defer in.close()
	for _, p := range s.parts {
		for _, sh := range p.shards {
			if sh.known > 0 {
				continue
			}
			_ = s.readShard(ctx, in, p, sh, func(item mdsItem) bool {
				for i, c := range s.columns {
					if item.err == nil && c.survey != nil {
						_ = c.survey.observe(item.columns[i])
					}
				}
				buffers.put(item.buf)
				return true
			})
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// surveyedInts are integers as text, of any size. The type is int64 if all fit, else
// uint64, else text. Python writes integers without a bound.
type surveyedInts struct{ unsigned, signed, text bool }

// observe implements mdsSurvey.
func (s *surveyedInts) observe(b []byte) error {
	text := string(b)
	if _, err := strconv.ParseInt(text, 10, 64); err == nil {
		s.signed = s.signed || strings.HasPrefix(text, "-")
		return nil
	} else if !errors.Is(err, strconv.ErrRange) {
		return err
	}
	if _, err := strconv.ParseUint(text, 10, 64); err == nil {
		s.unsigned = true
	} else {
		s.text = true
	}
	return nil
}

// decide implements mdsSurvey.
func (s *surveyedInts) decide() (arrow.DataType, func([]byte) (any, error), int, error) {
	switch {
	case s.text || s.signed && s.unsigned:
		return arrow.BinaryTypes.String, func(b []byte) (any, error) {
			if text := string(b); isWholeText(text) {
				return text, nil
			}
			return nil, fmt.Errorf("%.40q is no whole number", b)
		}, 0, nil
	case s.unsigned:
		return arrow.PrimitiveTypes.Uint64, func(b []byte) (any, error) {
			return strconv.ParseUint(string(b), 10, 64)
		}, 0, nil
	}
	return arrow.PrimitiveTypes.Int64, func(b []byte) (any, error) {
		return strconv.ParseInt(string(b), 10, 64)
	}, 0, nil
}

// isWholeText reports whether a text is digits after at most one sign.
func isWholeText(text string) bool {
	digits := strings.TrimLeft(text, "+-")
	return digits != "" && len(text)-len(digits) <= 1 && strings.Trim(digits, "0123456789") == ""
}

// isMDSImages reports whether an encoding has several images a sample.
func isMDSImages(encoding string) bool {
	switch encoding {
	case "list[jpeg]", "list[png]", "jpeg_array", "jpegarray":
		return true
	}
	return false
}

// maxImages bounds the images of a sample, because each becomes a column.
const maxImages = 256

// surveyedImages are lists of images. A row has one blob in each column. A list therefore
// becomes as many columns as it has images, which must be the same number in all samples.
type surveyedImages struct {
	encoding    string
	seen        bool
	least, most int
}

// observe implements mdsSurvey.
func (s *surveyedImages) observe(b []byte) error {
	images, err := mdsImages(s.encoding, b)
	if err != nil {
		return err
	}
	if n := len(images); !s.seen {
		s.seen, s.least, s.most = true, n, n
	} else {
		s.least, s.most = min(s.least, n), max(s.most, n)
	}
	return nil
}

// decide implements mdsSurvey.
func (s *surveyedImages) decide() (arrow.DataType, func([]byte) (any, error), int, error) {
	const advice = "write a sample for each image, or a column for each of a fixed number of images"
	switch {
	case s.least != s.most:
		return nil, nil, 0, fmt.Errorf("encoding %s holds between %d and %d images a sample; a row has one image in a "+
			"column: %s", s.encoding, s.least, s.most, advice)
	case s.most > maxImages:
		return nil, nil, 0, fmt.Errorf("encoding %s holds %d images a sample, which would be as many columns; want at "+
			"most %d: %s", s.encoding, s.most, maxImages, advice)
	case s.most == 0:
		return nil, nil, 0, fmt.Errorf("encoding %s holds no image", s.encoding)
	}
	return nil, nil, s.most, nil
}

// mdsImages splits a list of images into slices of b. The format is: four reserved
// bytes for list[…], u32 number of images, u32 size of each, then the images.
func mdsImages(encoding string, b []byte) ([][]byte, error) {
	if strings.HasPrefix(encoding, "list[") {
		if len(b) < 4 {
			return nil, fmt.Errorf("%w: %d bytes hold no list", errCut, len(b))
		}
		b = b[4:] // reserved
	}
	if len(b) < 4 {
		return nil, fmt.Errorf("%w: it does not say how many images there are", errCut)
	}
	n := int64(binary.LittleEndian.Uint32(b))
	// The count is bounded by the bytes before memory is taken for it.
	if n > int64(len(b)-4)/4 {
		return nil, fmt.Errorf("%w: %d bytes do not hold the sizes of %d images", errCut, len(b), n)
	}
	sizes, rest := b[4:4+4*n], b[4+4*n:]
	images := make([][]byte, 0, n)
	for ; len(sizes) > 0; sizes = sizes[4:] {
		size := int64(binary.LittleEndian.Uint32(sizes))
		if size > int64(len(rest)) {
			return nil, fmt.Errorf("%w: image %d has %d bytes and only %d are left", errCut, len(images), size,
				len(rest))
		}
		images = append(images, rest[:size:size])
		rest = rest[size:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes follow its images", len(rest))
	}
	return images, nil
}

// mdsDtypes are the types of an array's values by the number in its first byte.
// mosaicml-streaming defines the numbers: the bits of the type, plus 1 for signed and 2
// for floating point.
var mdsDtypes = map[byte]string{8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32",
	33: "int32", 34: "float32", 64: "uint64", 65: "int64", 66: "float64"}

// surveyedArrays are arrays with a shape of their own, and a type of their own unless
// dtype states it. They become nested lists if all have one type and one number of
// dimensions.
type surveyedArrays struct {
	dtype string // "" if each array states its own
	// split parses an array; nil for the format of MDS.
	split func(b []byte) (dtype string, dims []int, values []byte, err error)
	seen  bool
	// found and ndim are the type and the number of dimensions of the first array. other
	// describes one that differs.
	found string
	ndim  int
	other string
}

// divide parses an array in the format of the column.
func (s *surveyedArrays) divide(b []byte) (dtype string, dims []int, values []byte, err error) {
	if s.split != nil {
		return s.split(b)
	}
	return splitArray(s.dtype, b)
}

// observe implements mdsSurvey.
func (s *surveyedArrays) observe(b []byte) error {
	dtype, dims, _, err := s.divide(b)
	if err != nil {
		return err
	}
	switch {
	case !s.seen:
		s.seen, s.found, s.ndim = true, dtype, len(dims)
	case s.other == "" && (dtype != s.found || len(dims) != s.ndim):
		s.other = fmt.Sprintf("%s of %d dimensions", dtype, len(dims))
	}
	return nil
}

// decide implements mdsSurvey.
func (s *surveyedArrays) decide() (arrow.DataType, func([]byte) (any, error), int, error) {
	if s.other != "" {
		return nil, nil, 0, fmt.Errorf("encoding ndarray holds %s of %d dimensions and %s, and a column has one type; "+
			"write arrays of one type and number of dimensions, or bytes", s.found, s.ndim, s.other)
	}
	if !s.seen {
		return nil, nil, 0, errors.New("encoding ndarray holds no array that can be read")
	}
	scalar := mdsScalars[s.found]
	t := scalar.typ
	for range s.ndim {
		t = arrow.ListOf(t)
	}
	return t, func(b []byte) (any, error) {
		dtype, dims, values, err := s.divide(b)
		if err != nil {
			return nil, err
		}
		if dtype != s.found || len(dims) != s.ndim {
			return nil, fmt.Errorf("%s of %d dimensions, not %s of %d as before", dtype, len(dims), s.found, s.ndim)
		}
		return nest(values, dims, scalar), nil
	}, 0, nil
}

// splitArray splits an array of MDS into type, shape and values. A byte has the type,
// unless dtype states it. The next byte has the number of dimensions times 4, plus the
// power of two that is the width of each dimension. Then come the dimensions and the
// values.
func splitArray(dtype string, b []byte) (string, []int, []byte, error) {
	all := len(b)
	if dtype == "" {
		if len(b) == 0 {
			return "", nil, nil, fmt.Errorf("%w: an array without a type", errCut)
		}
		if dtype = mdsDtypes[b[0]]; dtype == "" {
			return "", nil, nil, fmt.Errorf("an array of unknown type %d", b[0])
		}
		b = b[1:]
	}
	// The type may come from the encoding, in which any text may stand.
	scalar, ok := mdsScalars[dtype]
	if !ok {
		return "", nil, nil, fmt.Errorf("encoding ndarray:%s is of unknown type", dtype)
	}
	if len(b) == 0 {
		return "", nil, nil, fmt.Errorf("%w: an array without a shape", errCut)
	}
	ndim, width := int(b[0]>>2), 1<<(b[0]&3)
	b = b[1:]
	switch {
	case ndim == 0 || ndim > maxDepth:
		return "", nil, nil, fmt.Errorf("an array of %d dimensions; want 1 to %d", ndim, maxDepth)
	case len(b) < ndim*width:
		return "", nil, nil, fmt.Errorf("%w: %d bytes do not hold the shape of %d dimensions", errCut, all, ndim)
	}
	dims, total := make([]int, ndim), uint64(scalar.size)
	for i := range dims {
		var eight [8]byte
		copy(eight[:], b[i*width:(i+1)*width])
		n := binary.LittleEndian.Uint64(eight[:])
		// The product is bounded at each step, so that it cannot overflow.
		if n == 0 || n > math.MaxInt32 || total*n > maxText {
			return "", nil, nil, errors.New("an impossible shape, or more than metadata may have")
		}
		dims[i], total = int(n), total*n
	}
	if b = b[ndim*width:]; uint64(len(b)) != total {
		return "", nil, nil, fmt.Errorf("%d bytes of values, want the %d of shape %v of %s", len(b), total, dims, dtype)
	}
	return dtype, dims, b, nil
}

// mdsDecoder returns the type and the decoder for an encoding of MDS. A nil type means
// that the bytes are a blob.
func mdsDecoder(encoding string) (arrow.DataType, func([]byte) (any, error), error) {
	name, args, _ := strings.Cut(encoding, ":")
	switch name {
	case "bytes", "jpeg", "png":
		return nil, nil, nil
	case "str", "str_decimal":
		return arrow.BinaryTypes.String, func(b []byte) (any, error) { return string(b), nil }, nil
	case "json": // kept as it is written
		return arrow.BinaryTypes.String, func(b []byte) (any, error) {
			if !json.Valid(b) {
				return nil, errors.New("bad JSON")
			}
			return string(b), nil
		}, nil
	case "str_float":
		return arrow.PrimitiveTypes.Float64, func(b []byte) (any, error) {
			return strconv.ParseFloat(string(b), 64)
		}, nil
	case "int":
		name = "int64"
	case "ndarray":
		return mdsArray(args)
	// Unpickling runs code of the data's author, so there is no option to allow it.
	case "pkl":
		return nil, nil, errors.New("encoding pkl is pickle, which runs whatever code it holds, and is refused; " +
			"write the column as json, bytes or ndarray")
	case "pil", "list[pil]":
		return nil, nil, fmt.Errorf("encoding %s is bare pixels; write the column as png or jpeg, or as list[png] or "+
			"list[jpeg]", encoding)
	}
	if s, ok := mdsScalars[name]; ok {
		return s.typ, func(b []byte) (any, error) {
			if len(b) != s.size {
				return nil, fmt.Errorf("%d bytes, want the %d of %s", len(b), s.size, name)
			}
			return s.read(b), nil
		}, nil
	}
	return nil, nil, fmt.Errorf("encoding %q cannot be imported; want bytes, jpeg, png, list[jpeg], list[png], "+
		"jpeg_array, str, json, int, str_int, str_float, str_decimal, int8 to int64, uint8 to uint64, float16 to "+
		"float64, ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE", encoding)
}

// mdsScalar is a numeric type: its Arrow type, its size in bytes, and its decoder.
type mdsScalar struct {
	typ  arrow.DataType
	size int
	read func([]byte) any // little-endian
}

// mdsScalars are the numeric encodings by name.
var mdsScalars = map[string]mdsScalar{
	"int8":   {arrow.PrimitiveTypes.Int8, 1, func(b []byte) any { return int8(b[0]) }},
	"int16":  {arrow.PrimitiveTypes.Int16, 2, func(b []byte) any { return int16(binary.LittleEndian.Uint16(b)) }},
	"int32":  {arrow.PrimitiveTypes.Int32, 4, func(b []byte) any { return int32(binary.LittleEndian.Uint32(b)) }},
	"int64":  {arrow.PrimitiveTypes.Int64, 8, func(b []byte) any { return int64(binary.LittleEndian.Uint64(b)) }},
	"uint8":  {arrow.PrimitiveTypes.Uint8, 1, func(b []byte) any { return b[0] }},
	"uint16": {arrow.PrimitiveTypes.Uint16, 2, func(b []byte) any { return binary.LittleEndian.Uint16(b) }},
	"uint32": {arrow.PrimitiveTypes.Uint32, 4, func(b []byte) any { return binary.LittleEndian.Uint32(b) }},
	"uint64": {arrow.PrimitiveTypes.Uint64, 8, func(b []byte) any { return binary.LittleEndian.Uint64(b) }},
	"float16": {arrow.FixedWidthTypes.Float16, 2, func(b []byte) any {
		return float16.FromBits(binary.LittleEndian.Uint16(b))
	}},
	"float32": {arrow.PrimitiveTypes.Float32, 4, func(b []byte) any {
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	}},
	"float64": {arrow.PrimitiveTypes.Float64, 8, func(b []byte) any {
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	}},
}

// mdsArray returns the decoder for arrays of fixed type and shape, as nested lists of
// fixed size. The values have no header.
func mdsArray(args string) (arrow.DataType, func([]byte) (any, error), error) {
	dtype, shape, fixed := strings.Cut(args, ":")
	s, ok := mdsScalars[dtype]
	if !ok || !fixed {
		return nil, nil, fmt.Errorf("encoding ndarray:%s says no type and shape that all samples have; want "+
			"ndarray:DTYPE:SHAPE, such as ndarray:float32:3,4, or bytes", args)
	}
	var dims []int
	total := s.size
	for d := range strings.SplitSeq(shape, ",") {
		// The shape is bounded at each step as well: the encoding comes from the index.
		n, err := strconv.Atoi(d)
		if err != nil || n < 1 || n > maxText/total {
			return nil, nil, fmt.Errorf("encoding ndarray:%s has an impossible shape, or more than the %d bytes that "+
				"metadata may have", args, maxText)
		}
		dims = append(dims, n)
		total *= n
	}
	typ := s.typ
	for i := len(dims) - 1; i >= 0; i-- {
		typ = arrow.FixedSizeListOf(int32(dims[i]), typ)
	}
	return typ, func(b []byte) (any, error) {
		if len(b) != total {
			return nil, fmt.Errorf("%d bytes, want the %d of ndarray:%s", len(b), total, args)
		}
		return nest(b, dims, s), nil
	}, nil
}

// nest makes nested lists of an array's values. Integers of the innermost dimension stay
// bytes (Numbers), which saves a boxed value for each.
func nest(b []byte, dims []int, s mdsScalar) any {
	if len(dims) == 0 {
		return s.read(b)
	}
	if len(dims) == 1 && arrow.IsInteger(s.typ.ID()) {
		return Numbers(b)
	}
	list := make([]any, dims[0])
	if len(list) == 0 {
		return list
	}
	step := len(b) / dims[0]
	for i := range list {
		list[i] = nest(b[i*step:(i+1)*step], dims[1:], s)
	}
	return list
}
