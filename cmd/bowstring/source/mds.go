package source

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/apache/arrow/go/v17/arrow"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"bowstring/schema"
)

// mds is a directory of MosaicML MDS shards, format version 2, or one such
// directory per split. What is here was learned from the library that defines
// the format, mosaicml-streaming:
//
// index.json lists the shards, each with the names, encodings and fixed sizes (or
// null) of its columns. A shard is, in little-endian uint32: the number n of
// samples, n+1 offsets into the file, JSON of no further use, then the samples.
// A sample is the uint32 size of each column that has no fixed one, then the
// columns. A compressed shard is compressed as a whole.
//
// Shards are read front to back, so that a compressed one needs no room.
type mds struct {
	about
	parts   []mdsPart // one per split, or one
	columns []mdsColumn
	meta    []arrow.Field
	blobs   []arrow.Field
}

// mdsPart is a directory with an index.
type mdsPart struct {
	split  string
	dir    string
	shards []mdsShard
}

type mdsIndex struct {
	Version int        `json:"version"`
	Shards  []mdsShard `json:"shards"`
}

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
}

type mdsFile struct {
	Basename string `json:"basename"`
	Bytes    int64  `json:"bytes"`
}

// mdsColumn says how a column is read: decode makes a metadata value; without
// it the bytes are a blob.
type mdsColumn struct {
	name, encoding string
	size           int64 // fixed, or -1
	blob           int   // ordinal, or -1
	decode         func([]byte) (any, error)
}

func openMDS(ctx context.Context, root string, opts Options) (Source, error) {
	if filepath.Base(root) == "index.json" {
		root = filepath.Dir(root)
	}
	s := &mds{about: about{format: "mds", path: absolute(root)}}
	if err := s.findParts(opts.Split); err != nil {
		return nil, err
	}
	for _, p := range s.parts {
		for _, sh := range p.shards {
			if err := s.addColumns(p, sh); err != nil {
				return nil, err
			}
			s.rows += sh.Samples
		}
	}
	return s, s.makeFields(s.firstSample(ctx))
}

// Bounds of what an index and a shard may claim. A shard that the library writes has 64 MB.
const (
	maxIndex        = 256 << 20
	maxShardSamples = 1 << 24
	snappyRatio     = 64 // a copy of 64 bytes takes 2 at least
)

// findParts reads the index of the directory, or those of its folders.
func (s *mds) findParts(asked string) error {
	dirs := map[string]string{}
	if _, err := os.Stat(filepath.Join(s.path, "index.json")); err == nil {
		dirs[""] = s.path
	} else {
		indices, err := filepath.Glob(filepath.Join(s.path, "*", "index.json"))
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
	slices.SortFunc(s.splits, func(a, b string) int {
		if d := splitRank(a) - splitRank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for _, split := range append(slices.Clone(s.splits), "") {
		dir, ok := dirs[split]
		if !ok || slices.Contains(s.splits, asked) && split != asked {
			continue
		}
		p := mdsPart{split: split, dir: dir}
		data, err := readWhole(filepath.Join(dir, "index.json"), maxIndex)
		if err != nil {
			return fmt.Errorf("%w: %s: %s", schema.ErrInvalid, Quoted(filepath.Join(dir, "index.json")), reason(err))
		}
		var index mdsIndex
		if err := json.Unmarshal(data, &index); err != nil {
			return fmt.Errorf("%w: %s: %w", schema.ErrInvalid, Quoted(filepath.Join(dir, "index.json")), err)
		}
		seen := map[string]bool{}
		for _, sh := range index.Shards {
			if seen[sh.Raw.Basename] {
				return fmt.Errorf("%w: %s lists %s twice", schema.ErrInvalid, Quoted(filepath.Join(dir, "index.json")),
					Quoted(sh.Raw.Basename))
			}
			seen[sh.Raw.Basename] = true
		}
		p.shards = index.Shards
		s.parts = append(s.parts, p)
	}
	return nil
}

// addColumns checks a shard's entry in the index.
func (s *mds) addColumns(p mdsPart, sh mdsShard) error {
	at := filepath.Join(p.dir, sh.Raw.Basename)
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: %s", schema.ErrInvalid, Quoted(at), fmt.Sprintf(format, args...))
	}
	switch {
	case sh.Format != "mds" || sh.Version != 2:
		return fail("format %q, version %d; want mds, version 2", sh.Format, sh.Version)
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
		c := mdsColumn{name: name, encoding: sh.Encodings[i], size: -1, blob: -1}
		if sh.Sizes[i] != nil {
			c.size = *sh.Sizes[i]
		}
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

// firstSample returns the columns of the first sample, to see what its bytes hold.
func (s *mds) firstSample(ctx context.Context) (found [][]byte) {
	for _, p := range s.parts {
		for _, sh := range p.shards {
			_ = s.readShard(ctx, p, sh, func(_ int64, _ []byte, columns [][]byte, err error) bool {
				if err == nil {
					for _, c := range columns {
						found = append(found, slices.Clone(c))
					}
				}
				return false
			})
			if found != nil {
				return found
			}
		}
	}
	return make([][]byte, len(s.columns))
}

// makeFields decides what each column becomes.
func (s *mds) makeFields(samples [][]byte) error {
	if s.columns == nil {
		return fmt.Errorf("%w: the index lists no shards", schema.ErrInvalid)
	}
	for i := range s.columns {
		c := &s.columns[i]
		name := freeName(c.name, nil)
		if name != c.name {
			s.notes = append(s.notes, fmt.Sprintf("column %q is kept as %q", c.name, name))
		}
		typ, decode, err := mdsDecoder(c.encoding)
		if err != nil {
			return fmt.Errorf("%w: column %q: %w", schema.ErrInvalid, c.name, err)
		}
		if typ != nil {
			c.decode = decode
			s.meta = append(s.meta, arrow.Field{Name: name, Type: typ, Nullable: true})
			continue
		}
		c.blob = len(s.blobs)
		media := schema.MediaImage
		if c.encoding == "bytes" {
			media = mediaOf("", samples[i])
		}
		s.blobs = append(s.blobs, schema.BlobField(name, media, false))
	}
	return nil
}

func (s *mds) Fields() (meta, blobs []arrow.Field) { return s.meta, s.blobs }

// Samples names a sample by its split and its number there.
func (s *mds) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		for _, p := range s.parts {
			var first int64 // number of the shard's first sample
			for _, sh := range p.shards {
				stopped := false
				err := s.readShard(ctx, p, sh, func(i int64, buf []byte, columns [][]byte, err error) bool {
					sample := s.sample(path.Join(p.split, strconv.FormatInt(first+i, 10)), p.split, buf, columns, err)
					stopped = !yield(sample, nil)
					return !stopped
				})
				if stopped {
					return
				}
				if ctx.Err() != nil {
					yield(Sample{}, context.Cause(ctx))
					return
				}
				if err != nil {
					key := filepath.ToSlash(filepath.Join(p.split, sh.Raw.Basename))
					if !yield(Sample{Key: key, Split: p.split, Bad: err.Error()}, nil) {
						return
					}
				}
				first += sh.Samples
			}
		}
	}
}

// sample makes a sample of its columns, which lie in buf.
func (s *mds) sample(key, split string, buf []byte, columns [][]byte, err error) Sample {
	out := Sample{Key: key, Split: split, Size: int64(len(buf)), Release: func() { buffers.put(buf) }}
	if err != nil {
		out.Bad = err.Error()
		return out
	}
	for i, c := range s.columns {
		if c.decode == nil {
			out.Blobs = append(out.Blobs, columns[i])
			continue
		}
		if strings.HasPrefix(c.encoding, "ndarray") {
			out.Size += valueBytes(columns[i])
		}
		v, err := c.decode(columns[i])
		if err != nil && out.Bad == "" {
			out.Bad = fmt.Sprintf("%s: %v", Quoted(c.name), err)
		}
		out.Meta = append(out.Meta, v)
	}
	return out
}

// openShard opens a shard for reading front to back, compressed or not.
func openShard(p mdsPart, sh mdsShard) (r io.Reader, close func() error, err error) {
	name, compressed := sh.Raw, false
	if _, err := os.Stat(filepath.Join(p.dir, name.Basename)); err != nil && sh.Zip != nil {
		name, compressed = *sh.Zip, true
	}
	f, err := openFile(filepath.Join(p.dir, name.Basename))
	if err != nil {
		return nil, nil, errors.New(reason(err))
	}
	if info, err := f.Stat(); err != nil || info.Size() != name.Bytes {
		if err == nil {
			err = fmt.Errorf("%s has %d bytes, the index says %d", Quoted(name.Basename), info.Size(), name.Bytes)
			if info.Size() < name.Bytes {
				err = fmt.Errorf("%w: %w", errCut, err)
			}
		}
		return nil, nil, errors.Join(err, f.Close())
	}
	in := bufio.NewReaderSize(f, 32<<10)
	if !compressed {
		return in, f.Close, nil
	}
	algorithm, _, _ := strings.Cut(sh.Compression, ":")
	switch algorithm {
	case "zstd":
		z, err := zstd.NewReader(in, zstdOptions...)
		if err != nil {
			return nil, nil, errors.Join(err, f.Close())
		}
		return z, func() error { z.Close(); return f.Close() }, nil
	case "gz":
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, errors.Join(err, f.Close())
		}
		return z, f.Close, nil
	case "br":
		return brotli.NewReader(in), f.Close, nil
	case "bz2":
		return bzip2.NewReader(in), f.Close, nil
	case "snappy": // one block, which has to be in memory
		if name.Bytes > maxBlob || sh.Raw.Bytes > maxBlob {
			return nil, nil, errors.Join(fmt.Errorf("a snappy shard of %d bytes is too large, more than %d",
				sh.Raw.Bytes, int64(maxBlob)), f.Close())
		}
		block, err := io.ReadAll(in)
		if err == nil {
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
			return nil, nil, errors.Join(fmt.Errorf("snappy: %w", err), f.Close())
		}
		return bytes.NewReader(block), f.Close, nil
	}
	return nil, nil, errors.Join(fmt.Errorf("compression %q; want zstd, gz, br, bz2 or snappy", sh.Compression),
		f.Close())
}

// readShard hands each sample of a shard to visit: its number there, a buffer that then is visit's,
// and the columns in it; or what is wrong with it. It returns what is wrong with the shard.
func (s *mds) readShard(ctx context.Context, p mdsPart, sh mdsShard, visit func(i int64, buf []byte, columns [][]byte,
	err error) bool) error {
	r, shut, err := openShard(p, sh)
	if err != nil {
		return err
	}
	defer func() { _ = shut() }()
	var count [4]byte
	if _, err := io.ReadFull(r, count[:]); err != nil {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	if n := int64(binary.LittleEndian.Uint32(count[:])); n != sh.Samples {
		return fmt.Errorf("it holds %d samples, the index says %d", n, sh.Samples)
	}
	table, err := readBuffer(r, 4*(sh.Samples+1))
	if err != nil {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	defer buffers.put(table)
	offset := func(i int64) int64 { return int64(binary.LittleEndian.Uint32(table[4*i:])) }
	at := 4 + int64(len(table))
	for i := range sh.Samples {
		begin, end := offset(i), offset(i+1)
		if begin < at || end < begin || end-begin > maxBlob {
			return fmt.Errorf("sample %d lies at bytes %d to %d, the one before ends at %d", i, begin, end, at)
		}
		if i > 0 && begin != at {
			return fmt.Errorf("sample %d begins at byte %d, the one before ends at %d", i, begin, at)
		}
		if _, err := io.CopyN(io.Discard, r, begin-at); err != nil {
			return fmt.Errorf("%w at sample %d of %d: %w", errCut, i, sh.Samples, err)
		}
		buf, err := readBuffer(r, end-begin)
		if err != nil {
			return fmt.Errorf("%w at sample %d of %d: %w", errCut, i, sh.Samples, err)
		}
		at = end
		columns, err := s.cut(buf)
		if !visit(i, buf, columns, err) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// cut divides a sample into its columns.
func (s *mds) cut(buf []byte) ([][]byte, error) {
	sizes := make([]int64, len(s.columns))
	rest := buf
	for i, c := range s.columns {
		if c.size > 0 { // the library takes 0 for not fixed, too
			sizes[i] = c.size
			continue
		}
		if len(rest) < 4 {
			return nil, fmt.Errorf("%w: %d bytes do not hold the sizes of its columns", errCut, len(buf))
		}
		sizes[i] = int64(binary.LittleEndian.Uint32(rest))
		rest = rest[4:]
	}
	columns := make([][]byte, len(s.columns))
	for i, n := range sizes {
		if s.columns[i].decode != nil && n > maxText {
			return nil, fmt.Errorf("column %s has %d bytes, more than the %d that metadata may have",
				Quoted(s.columns[i].name), n, maxText)
		}
		if n > int64(len(rest)) {
			return nil, fmt.Errorf("column %s has %d bytes and only %d are left", Quoted(s.columns[i].name), n,
				len(rest))
		}
		columns[i] = rest[:n:n]
		rest = rest[n:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes lie behind its columns", len(rest))
	}
	return columns, nil
}

func (l *layout) looksMDS() bool {
	if !l.dir {
		return filepath.Base(l.path) == "index.json"
	}
	return l.any(func(name string) bool {
		return filepath.Base(name) == "index.json" && strings.Count(name, string(filepath.Separator)) <= 1
	})
}
