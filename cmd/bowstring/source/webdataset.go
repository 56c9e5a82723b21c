package source

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"bowstring/schema"
)

const (
	// maxText bounds a member that becomes metadata.
	maxText = 16 << 20
	// maxJSONColumns bounds the columns made of keys of JSON members.
	maxJSONColumns = 1000
)

// webDataset is a set of tars whose consecutive members with the same name up to
// the first dot make a sample, the rest of the name saying what each is:
//
//	jpg, png and other images      blob column image, also of members mask.png: mask
//	wav, flac and other audio      blob column audio
//	cls                            label, an int64; other whole numbers: cls2, index, inx
//	txt, text, caption, transcript a utf8 column of that name
//	json                           a column for each key, see parseObject
//	anything else                  a blob column of that name
//
// Columns and their types depend on all members, so the tars are read twice, the
// first time only as far as that takes. Which keys were met is kept in memory.
type webDataset struct {
	about
	shards []shard

	blobs   []arrow.Field
	meta    []arrow.Field
	members map[string]member    // by extension
	json    map[string]*inferred // by key
	jsonAt  map[string]int       // metadata column of a key
	label   bool                 // there are cls members, so each sample must have one
}

// member says what becomes of the members with an extension.
type member struct {
	kind   memberKind
	column int
}

type memberKind int

const (
	memberBlob memberKind = iota
	memberInt
	memberText
	memberJSON
)

var (
	intExtensions  = []string{"cls", "cls2", "index", "inx"}
	textExtensions = []string{"txt", "text", "caption", "transcript"}
)

func openWebDataset(ctx context.Context, pattern string, opts Options) (Source, error) {
	all, err := findTars(pattern)
	if err != nil {
		return nil, err
	}
	s := &webDataset{about: about{format: "webdataset", path: absolute(pattern)}}
	s.shards, s.splits = arrangeShards(all, opts.Split)
	if err := s.survey(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func isTarName(name string) bool {
	for _, suffix := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd"} {
		if strings.HasSuffix(strings.ToLower(name), suffix) {
			return true
		}
	}
	return false
}

func isPattern(path string) bool { return strings.ContainsAny(path, "*?[{") }

// findTars lists the tars in a directory, of a pattern, or the one file.
func findTars(pattern string) ([]shard, error) {
	var found []shard
	if _, err := os.Stat(pattern); err == nil || !isPattern(pattern) {
		if found, err = findShards(pattern, isTarName); err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%w: there is no *.tar file", schema.ErrInvalid)
		}
		return found, nil
	}
	expanded, err := expandBraces(pattern)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, p := range expanded {
		matches := []string{p}
		if strings.ContainsAny(p, "*?[") {
			if matches, err = filepath.Glob(p); err != nil {
				return nil, fmt.Errorf("%w: pattern %q: %w", schema.ErrInvalid, p, err)
			}
		} else if _, err := os.Stat(p); err != nil {
			return nil, fmt.Errorf("%w: %w", schema.ErrNotFound, err)
		}
		for _, m := range matches {
			if !seen[m] {
				seen[m] = true
				found = append(found, shard{path: m})
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: no file matches %q", schema.ErrNotFound, pattern)
	}
	// Relative to the folder that all are in.
	common := filepath.Dir(found[0].path)
	for _, f := range found {
		for !strings.HasPrefix(f.path, common+string(filepath.Separator)) && common != "." && common != string(filepath.Separator) {
			common = filepath.Dir(common)
		}
	}
	for i := range found {
		rel, err := filepath.Rel(common, found[i].path)
		if err != nil {
			return nil, err
		}
		found[i].rel = filepath.ToSlash(rel)
	}
	return found, nil
}

// maxExpanded bounds the paths that a pattern with braces stands for.
const maxExpanded = 1 << 20

// expandBraces expands {0000..0011} and {a,b} as a shell does.
func expandBraces(pattern string) ([]string, error) {
	open := strings.IndexByte(pattern, '{')
	if open < 0 {
		return []string{pattern}, nil
	}
	end := strings.IndexByte(pattern[open:], '}')
	if end < 0 || strings.IndexByte(pattern[open+1:open+end], '{') >= 0 {
		return nil, fmt.Errorf("%w: pattern %q: want braces as in {0000..0011} or {a,b}, not within each other", schema.ErrInvalid, pattern)
	}
	inner, rest := pattern[open+1:open+end], pattern[open+end+1:]
	choices := strings.Split(inner, ",")
	if from, to, ok := strings.Cut(inner, ".."); ok {
		a, errA := strconv.Atoi(from)
		b, errB := strconv.Atoi(to)
		if errA != nil || errB != nil || a > b || b-a >= maxExpanded {
			return nil, fmt.Errorf("%w: pattern %q: %q is no range such as 0000..0011", schema.ErrInvalid, pattern, inner)
		}
		choices = nil
		for i := a; i <= b; i++ {
			choices = append(choices, fmt.Sprintf("%0*d", len(from), i))
		}
	}
	tails, err := expandBraces(rest)
	if err != nil {
		return nil, err
	}
	if len(choices)*len(tails) > maxExpanded {
		return nil, fmt.Errorf("%w: pattern %q stands for more than %d paths", schema.ErrLimit, pattern, maxExpanded)
	}
	var all []string
	for _, c := range choices {
		for _, t := range tails {
			all = append(all, pattern[:open]+c+t)
		}
	}
	return all, nil
}

// tarReader reads a tar, compressed or not.
type tarReader struct {
	*tar.Reader
	zeros trailingZeros
	close func() error
}

// openTar opens a tar. If seek is set and the tar is not compressed, members
// that are not read are passed over without reading; its end is then not checked.
func openTar(name string, seek bool) (*tarReader, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	t := &tarReader{close: f.Close}
	var in io.Reader = bufio.NewReaderSize(f, 32<<10)
	switch {
	case strings.HasSuffix(strings.ToLower(name), "gz"):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		in = z
		t.close = func() error { return errors.Join(z.Close(), f.Close()) }
	case strings.HasSuffix(strings.ToLower(name), "zst"), strings.HasSuffix(strings.ToLower(name), "zstd"):
		z, err := zstd.NewReader(in)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		in = z
		t.close = func() error { z.Close(); return f.Close() }
	case seek:
		t.Reader = tar.NewReader(f)
		return t, nil
	}
	t.zeros.r = in
	t.Reader = tar.NewReader(&t.zeros)
	return t, nil
}

// checkEnd reads on to the end of the file and looks whether there was the mark at which
// a tar ends, two blocks of zeros. tar.Reader does without.
func (t *tarReader) checkEnd() error {
	if _, err := io.Copy(io.Discard, &t.zeros); err != nil {
		return err
	}
	if t.zeros.n < 1024 {
		return fmt.Errorf("%w: no end-of-archive mark", errCut)
	}
	return nil
}

// trailingZeros counts the zeros that what was read ends with.
type trailingZeros struct {
	r io.Reader
	n int
}

func (t *trailingZeros) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if rest := len(bytes.TrimRight(p[:n], "\x00")); rest > 0 {
		t.n = n - rest
	} else {
		t.n += n
	}
	return n, err
}

// next returns the next member that belongs to a sample: its key and extension.
func (t *tarReader) next() (h *tar.Header, key, ext string, err error) {
	for {
		h, err := t.Next()
		if err != nil {
			return nil, "", "", err
		}
		name := strings.TrimPrefix(path.Clean(filepath.ToSlash(h.Name)), "/")
		dir, base := path.Split(name)
		stem, ext, dotted := strings.Cut(base, ".")
		if h.Typeflag != tar.TypeReg || stem == "" || !dotted || strings.HasPrefix(base, "__") || strings.HasPrefix(dir, "__MACOSX") {
			continue
		}
		return h, dir + stem, strings.ToLower(ext), nil
	}
}

// survey reads the tars for the columns of their samples.
func (s *webDataset) survey(ctx context.Context) error {
	found := surveyed{extensions: map[string]int64{}, json: map[string]*inferred{}}
	for _, sh := range s.shards {
		if err := found.read(ctx, sh); err != nil {
			return err
		}
	}
	if found.samples == 0 {
		return fmt.Errorf("%w: the tars hold no samples: members named KEY.EXTENSION", schema.ErrInvalid)
	}
	s.rows = found.samples
	s.json = found.json
	return s.makeColumns(&found)
}

// surveyed is what a first reading of tars found.
type surveyed struct {
	samples    int64
	extensions map[string]int64
	manyImages bool // some sample has members jpg and png, say
	json       map[string]*inferred
}

// read reads one tar. What is wrong with it shows again, and is reported, when
// its samples are read.
func (f *surveyed) read(ctx context.Context, sh shard) error {
	t, err := openTar(sh.path, true)
	if err != nil {
		return nil
	}
	defer func() { _ = t.close() }()
	last, image := "", "" // key and image extension of the sample
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h, key, ext, err := t.next()
		if err != nil {
			return nil
		}
		if key != last || f.samples == 0 {
			f.samples++
			last, image = key, ""
		}
		f.extensions[ext]++
		if slices.Contains(imageExtensions, ext) {
			f.manyImages = f.manyImages || image != "" && image != ext
			image = ext
		}
		if ext != "json" || h.Size > maxText {
			continue
		}
		data, err := io.ReadAll(t)
		if err != nil {
			return nil
		}
		object, err := parseObject(data)
		if err != nil {
			continue
		}
		for k, v := range object {
			if f.json[k] == nil {
				f.json[k] = &inferred{}
			}
			f.json[k].observe(v)
		}
		if len(f.json) > maxJSONColumns {
			return fmt.Errorf("%w: the JSON members have more than %d different keys, which would each be a column", schema.ErrLimit, maxJSONColumns)
		}
	}
}

// makeColumns decides on the columns: label first, then text and numbers, then JSON keys.
func (s *webDataset) makeColumns(found *surveyed) error {
	s.members, s.jsonAt = map[string]member{}, map[string]int{}
	blobAt := map[string]int{}
	var taken []string
	for _, ext := range slices.Sorted(maps.Keys(found.extensions)) {
		if slices.Contains(intExtensions, ext) || slices.Contains(textExtensions, ext) || ext == "json" {
			continue
		}
		name, media := blobName(ext, found.manyImages)
		at, ok := blobAt[name]
		if !ok {
			at = len(s.blobs)
			blobAt[name] = at
			s.blobs = append(s.blobs, schema.BlobField(name, media, true))
			taken = append(taken, name)
		}
		s.members[ext] = member{memberBlob, at}
	}
	addMeta := func(f arrow.Field) int {
		s.meta = append(s.meta, f)
		taken = append(taken, f.Name)
		return len(s.meta) - 1
	}
	for _, ext := range slices.Concat(intExtensions, textExtensions) {
		if found.extensions[ext] == 0 {
			continue
		}
		f, kind := arrow.Field{Name: ext, Type: arrow.PrimitiveTypes.Int64, Nullable: true}, memberInt
		switch {
		case ext == "cls":
			f.Name, s.label = "label", true
		case slices.Contains(textExtensions, ext):
			f.Type, kind = arrow.BinaryTypes.String, memberText
		}
		s.members[ext] = member{kind, addMeta(f)}
	}
	addMeta(arrow.Field{Name: schema.PathColumn, Type: arrow.BinaryTypes.String, Nullable: true})
	if found.extensions["json"] > 0 {
		s.members["json"] = member{memberJSON, 0}
	}
	for _, k := range slices.Sorted(maps.Keys(s.json)) {
		name := k
		if name == "" || freeName(name, taken) != name {
			name = "json_" + k
			s.notes = append(s.notes, fmt.Sprintf("the JSON key %q is kept as %q", k, name))
		}
		s.jsonAt[k] = addMeta(arrow.Field{Name: name, Type: s.json[k].dataType(), Nullable: true})
	}
	if len(s.blobs) == 1 {
		s.blobs[0].Nullable = false
	}
	return nil
}

// blobName returns the column of members with an extension, and its media.
func blobName(ext string, manyImages bool) (name, media string) {
	prefix, last := "", ext
	if i := strings.LastIndexByte(ext, '.'); i >= 0 {
		prefix, last = ext[:i], ext[i+1:]
	}
	name = strings.ReplaceAll(prefix, ".", "_")
	switch {
	case slices.Contains(imageExtensions, last):
		media = schema.MediaImage
	case slices.Contains(audioExtensions, last):
		media = schema.MediaAudio
	}
	switch {
	case media == "" || name == "" && media == schema.MediaImage && manyImages:
		name = strings.ReplaceAll(ext, ".", "_")
	case name == "":
		name = media
	}
	return freeName(name, []string{"label", schema.PathColumn}), media
}

func (s *webDataset) Fields() (meta, blobs []arrow.Field) { return s.meta, s.blobs }

func (s *webDataset) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		seen := map[string]string{} // split and key to the tar
		for _, sh := range s.shards {
			r := &tarSamples{source: s, shard: sh, seen: seen, yield: yield}
			err := r.read(ctx)
			if errors.Is(err, errStop) {
				return
			}
			if ctx.Err() != nil {
				yield(Sample{}, context.Cause(ctx))
				return
			}
			if err != nil && !yield(Sample{Key: sh.rel, Split: sh.split, Bad: r.describe(err)}, nil) {
				return
			}
		}
	}
}

// tarSamples groups the members of a tar into samples.
type tarSamples struct {
	source *webDataset
	shard  shard
	seen   map[string]string
	yield  func(Sample, error) bool

	open    bool // there is a sample being put together
	key     string
	sample  Sample
	has     map[string]bool // extensions of the sample
	buffers [][]byte
	done    int // samples yielded
}

func (r *tarSamples) describe(err error) string {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", errCut, err)
	}
	what := fmt.Sprintf("after %d samples", r.done)
	if r.key != "" {
		what += ", at " + Quoted(r.key)
	}
	return what + ": " + err.Error()
}

func (r *tarSamples) read(ctx context.Context) (err error) {
	t, err := openTar(r.shard.path, false)
	if err != nil {
		return errors.New(reason(err))
	}
	defer func() {
		if cerr := t.close(); err == nil {
			err = cerr
		}
	}()
	defer func() {
		// What was being put together when the tar broke off may lack members.
		if r.open {
			buffers.putAll(r.buffers)
		}
	}()
	for ctx.Err() == nil {
		h, key, ext, err := t.next()
		if errors.Is(err, io.EOF) {
			if err := t.checkEnd(); err != nil {
				return err
			}
			return r.end()
		}
		if err != nil {
			return err
		}
		if !r.open || key != r.key || r.has[ext] {
			if err := r.end(); err != nil {
				return err
			}
			r.begin(key)
		}
		if err := r.member(t, h, ext); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

func (r *tarSamples) begin(key string) {
	s := r.source
	r.open, r.key, r.has, r.buffers = true, key, map[string]bool{}, nil
	r.sample = Sample{Key: path.Join(r.shard.split, key), Split: r.shard.split,
		Meta: make([]any, len(s.meta)), Blobs: make([][]byte, len(s.blobs))}
	if other, ok := r.seen[r.sample.Key]; ok {
		r.sample.Bad = "duplicate: the key is in " + Quoted(other) + " already"
	} else {
		r.seen[r.sample.Key] = r.shard.rel
	}
}

// end yields the sample that was put together.
func (r *tarSamples) end() error {
	if !r.open {
		return nil
	}
	s, buf := r.source, r.buffers
	r.sample.Release = func() { buffers.putAll(buf) }
	missing := !slices.ContainsFunc(r.sample.Blobs, func(b []byte) bool { return b != nil })
	switch {
	case r.sample.Bad != "":
	case s.label && !r.has["cls"]:
		r.sample.Bad = "label missing: it has no cls member"
	case missing && len(s.blobs) == 1:
		r.sample.Bad = s.blobs[0].Name + " missing"
	case missing && len(s.blobs) > 1:
		r.sample.Bad = "it has none of " + strings.Join(fieldNames(s.blobs), ", ")
	}
	r.open = false
	r.done++
	if !r.yield(r.sample, nil) {
		return errStop
	}
	return nil
}

// member adds a member to the sample. An error is one of the tar.
func (r *tarSamples) member(t *tarReader, h *tar.Header, ext string) error {
	r.has[ext] = true
	s := r.source
	m, ok := s.members[ext]
	if !ok {
		r.bad("unknown member .%s: the tar changed while it was read", ext)
		return nil
	}
	if m.kind != memberBlob {
		if h.Size > maxText {
			r.bad("member .%s has %d bytes, more than the %d that metadata may have", ext, h.Size, maxText)
			return nil
		}
		data, err := io.ReadAll(t)
		if err != nil {
			return err
		}
		r.metadata(m, ext, data)
		return nil
	}
	if r.sample.Blobs[m.column] != nil {
		r.bad("two members for column %s", s.blobs[m.column].Name)
		return nil
	}
	if int64(int(h.Size)) != h.Size || h.Size > maxBlob {
		r.bad("member .%s has %d bytes, more than the %d that a blob may have", ext, h.Size, int64(maxBlob))
		return nil
	}
	buf, err := readBuffer(t, h.Size)
	if err != nil {
		return err
	}
	r.buffers = append(r.buffers, buf)
	r.sample.Blobs[m.column] = buf
	r.sample.Size += h.Size
	if m.column == 0 {
		r.sample.Meta[slices.IndexFunc(s.meta, func(f arrow.Field) bool { return f.Name == schema.PathColumn })] = path.Clean(h.Name)
	}
	return nil
}

func (r *tarSamples) bad(format string, args ...any) {
	if r.sample.Bad == "" {
		r.sample.Bad = fmt.Sprintf(format, args...)
	}
}

func (r *tarSamples) metadata(m member, ext string, data []byte) {
	switch m.kind {
	case memberInt:
		n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			r.bad("member .%s holds %.40q, want a whole number", ext, data)
			return
		}
		r.sample.Meta[m.column] = n
	case memberText:
		r.sample.Meta[m.column] = string(data)
	case memberJSON:
		object, err := parseObject(data)
		if err != nil {
			r.bad("%s", err)
			return
		}
		for k, v := range object {
			r.sample.Meta[r.source.jsonAt[k]] = r.source.json[k].convert(v)
		}
	}
}

// maxBlob bounds a blob read from within a larger file, whose sizes may be nonsense.
const maxBlob = 2 << 30

// readBuffer reads n bytes into a buffer of the pool. It is never nil. Large
// ones are read step by step, so that a false size does not claim memory.
func readBuffer(r io.Reader, n int64) ([]byte, error) {
	const step = 16 << 20
	buf := buffers.get(min(n, step))
	for have := int64(0); ; {
		if _, err := io.ReadFull(r, buf[have:]); err != nil {
			buffers.put(buf)
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		have = int64(len(buf))
		if have == n {
			return buf, nil
		}
		larger := buffers.get(min(n, 2*have))
		copy(larger, buf)
		buffers.put(buf)
		buf = larger
	}
}

func (l *layout) looksWebDataset() bool { return l.any(isTarName) }
