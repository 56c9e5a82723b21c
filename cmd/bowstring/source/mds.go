package source

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

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
	choice  *choice
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

func openMDS(ctx context.Context, root string, opts Options) (Source, error) {
	if filepath.Base(root) == "index.json" {
		root = filepath.Dir(root)
	}
	s := &mds{about: about{format: "mds", path: absolute(root)}, choice: opts.choice}
	in, err := boundsOf(s.path, opts)
	if err != nil {
		return nil, err
	}
	if err := s.findParts(opts.Split, in); err != nil {
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
	if err := s.survey(ctx); err != nil {
		return nil, err
	}
	return s, s.makeFields(s.firstSample(ctx))
}

// findParts reads the index of the directory, or those of its folders.
func (s *mds) findParts(asked string, in *bounds) error {
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
		if err := in.check(filepath.Join(dir, "index.json")); err != nil {
			return err
		}
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
			for _, f := range []*mdsFile{&sh.Raw, sh.Zip} {
				if f == nil || !filepath.IsLocal(f.Basename) { // which addColumns refuses
					continue
				}
				if err := in.check(filepath.Join(dir, f.Basename)); err != nil {
					return err
				}
			}
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
		c := mdsColumn{name: name, encoding: sh.Encodings[i], size: -1}
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
		if c.left = !s.choice.wants(c.name, name); c.left {
			continue
		}
		if name != c.name {
			s.notes = append(s.notes, fmt.Sprintf("column %q is kept as %q", c.name, name))
		}
		typ, decode, err := mdsDecoder(c.encoding)
		if c.survey != nil {
			typ, decode, c.images, err = c.survey.decide()
		}
		if err != nil {
			return fmt.Errorf("%w: column %q: %w", schema.ErrInvalid, c.name, err)
		}
		if typ != nil {
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
		if c.left {
			continue
		}
		if c.survey != nil && c.decode == nil {
			images, err := mdsImages(c.encoding, columns[i])
			if err == nil && len(images) != c.images {
				err = fmt.Errorf("%d images, not %d as before", len(images), c.images)
			}
			if err != nil {
				out.Bad = cmp.Or(out.Bad, fmt.Sprintf("%s: %v", Quoted(c.name), err))
				images = make([][]byte, c.images)
			}
			out.Blobs = append(out.Blobs, images...)
			continue
		}
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

func (l *layout) looksMDS() bool {
	if !l.dir {
		return filepath.Base(l.path) == "index.json"
	}
	return l.any(func(name string) bool {
		return filepath.Base(name) == "index.json" && strings.Count(name, string(filepath.Separator)) <= 1
	})
}
