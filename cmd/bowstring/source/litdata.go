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
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/klauspost/compress/zstd"

	"bowstring/schema"
)

// LitData's optimised directories resemble MDS. index.json lists the chunks. It has the
// formats of the leaves of a sample, and, as a tree, their names; both hold for all
// chunks.
//
// A chunk is, in little-endian uint32: the number n of samples, n+1 offsets into the
// file, then the samples. A sample is the uint32 size of each leaf, then the leaves.
//
// With compression, a chunk is compressed as a whole, or each sample by itself, or
// samples in batches. A chunk of batches is a header, the offsets of the samples as if
// nothing were compressed, and the offset of each batch.
var litData = mdsKind{litFormat, readLitIndex, litDecoder, newLitSurvey, litMedia}

// litFormat is the name of the format, and what readLitIndex gives its shards as format.
const litFormat = "litdata"

// detectLitData reports whether the layout is an optimised directory of LitData.
func (l *layout) detectLitData() bool { return l.indexKind() == litFormat }

// indexKind returns the format of the index.json in the directory or in one of its
// folders: mds or litdata; "" if there is none. An index.json that cannot be read counts
// as MDS, whose reader reports what is wrong with it.
func (l *layout) indexKind() string {
	if !l.sniffed {
		l.index, l.sniffed = l.sniffIndex(), true
	}
	return l.index
}

// sniffIndex reads the first key of the index only: an index may have hundreds of
// megabytes.
func (l *layout) sniffIndex() string {
	name := ""
	if !l.dir {
		if filepath.Base(l.path) != "index.json" {
			return ""
		}
	} else {
		for _, f := range l.files {
			if filepath.Base(f) == "index.json" && strings.Count(f, string(filepath.Separator)) <= 1 {
				name = f
				break
			}
		}
		if name == "" {
			return ""
		}
	}
	path := filepath.Join(l.path, name)
	if err := l.opts.files.know(l.ctx, []string{path}); err != nil {
		return mosaicML.format
	}
	in, err := l.opts.files.openParts(l.ctx, path, 4096)
	if err != nil {
		return mosaicML.format
	}
	defer func() { _ = in.Close() }()
	d := json.NewDecoder(bufio.NewReaderSize(in, 4096))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return mosaicML.format
	}
	// LitData sorts the keys, so that the first is chunks or config. MDS has neither of
	// them.
	if key, err := d.Token(); err == nil && (key == "chunks" || key == "config") {
		return litFormat
	}
	return mosaicML.format
}

// openLitData opens an optimised directory with the reader of MDS. It differs in how a
// shard is opened.
func openLitData(ctx context.Context, root string, opts Options) (Source, error) {
	if filepath.Base(root) == "index.json" {
		root = filepath.Dir(root)
		if err := opts.files.know(ctx, nil); err != nil {
			return nil, err
		}
	}
	s := &mds{about: about{place: opts.files, format: litFormat, path: opts.files.absolute(root)},
		choice: opts.choice, tokens: asTokens{types: opts.Tokens}, kind: litData}
	s.open = s.openChunk
	return s, s.find(ctx, opts)
}

// litIndex is index.json.
type litIndex struct {
	Chunks []struct {
		// Older versions omit the table of offsets from chunk_bytes. The size is
		// therefore not checked.
		Bytes    int64  `json:"chunk_bytes"`
		Samples  int64  `json:"chunk_size"`
		Filename string `json:"filename"`
	} `json:"chunks"`
	Config *struct {
		Compression string          `json:"compression"`
		Level       string          `json:"compression_level"` // chunk, batch or sample
		Formats     []string        `json:"data_format"`
		Spec        string          `json:"data_spec"`
		Encryption  json.RawMessage `json:"encryption"`
		Loader      string          `json:"item_loader"`
	} `json:"config"`
}

// readLitIndex returns the chunks of an index as shards. It rejects what cannot be read:
// encryption, item loaders without borders between samples, and unknown levels of
// compression.
func readLitIndex(data []byte) ([]mdsShard, error) {
	var index litIndex
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, err
	}
	c := index.Config
	if c == nil {
		return nil, errors.New("it has no config")
	}
	if e := string(c.Encryption); e != "" && e != "null" {
		return nil, errors.New("its chunks are encrypted; write them without encryption")
	}
	switch c.Loader {
	case "", "PyTreeLoader":
	case "TokensLoader":
		return nil, errors.New("its item_loader is TokensLoader: tokens without borders between samples; write each " +
			"sample as a tensor")
	default:
		return nil, fmt.Errorf("its item_loader is %s; want PyTreeLoader", Quoted(c.Loader))
	}
	switch c.Level {
	case "", "chunk", "batch", "sample":
	default:
		return nil, fmt.Errorf("its compression_level is %s; want chunk, batch or sample", Quoted(c.Level))
	}
	// All chunks have the columns of the config.
	names, err := litNames(c.Spec)
	if err != nil {
		return nil, fmt.Errorf("data_spec: %w", err)
	}
	var shards []mdsShard
	for _, chunk := range index.Chunks {
		shards = append(shards, mdsShard{Format: litFormat, Version: 2, Names: names, Encodings: c.Formats,
			Sizes: make([]*int64, len(names)), Samples: chunk.Samples, Compression: c.Compression, level: c.Level,
			Raw: mdsFile{chunk.Filename, chunk.Bytes}})
	}
	return shards, nil
}

// litSpec is a node of the tree of a sample, in the JSON of PyTorch's pytree.
type litSpec struct {
	Type     *string   `json:"type"` // nil for a leaf
	Context  *string   `json:"context"`
	Children []litSpec `json:"children_spec"`
}

// litNames returns the names of the leaves: the keys and indexes on the path to each,
// joined by underscores. A sample that is a single value gets the name "value".
func litNames(spec string) ([]string, error) {
	var versioned []json.RawMessage
	if err := json.Unmarshal([]byte(spec), &versioned); err != nil || len(versioned) != 2 {
		return nil, fmt.Errorf("%.80q is no tree of a known version", spec)
	}
	var root litSpec
	if err := json.Unmarshal(versioned[1], &root); err != nil {
		return nil, err
	}
	if root.Type == nil {
		return []string{"value"}, nil
	}
	names, err := root.leaves("", nil, 0)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("two values for column %s", Quoted(name))
		}
	}
	return names, nil
}

// leaves appends the names of the leaves below a node. Lists and tuples have indexes for
// keys. Any other type has no plain form, because it needs Python code to be rebuilt.
func (s *litSpec) leaves(name string, names []string, depth int) ([]string, error) {
	if s.Type == nil {
		if len(names) >= maxColumns {
			return nil, fmt.Errorf("it has more than %d leaves, which would each be a column", maxColumns)
		}
		return append(names, name), nil
	}
	if depth == maxDepth {
		return nil, fmt.Errorf("it is nested more than %d deep", maxDepth)
	}
	var keys []any
	switch *s.Type {
	case "builtins.dict", "collections.OrderedDict":
		if s.Context == nil || json.Unmarshal([]byte(*s.Context), &keys) != nil || len(keys) != len(s.Children) {
			return nil, fmt.Errorf("%s does not name its keys", *s.Type)
		}
	case "builtins.list", "builtins.tuple":
		for i := range s.Children {
			keys = append(keys, i)
		}
	default:
		return nil, fmt.Errorf("%s has no plain form; want dict, list or tuple", Quoted(*s.Type))
	}
	var err error
	for i := range s.Children {
		below := fmt.Sprint(keys[i])
		if name != "" {
			below = name + "_" + below
		}
		if names, err = s.Children[i].leaves(below, names, depth+1); err != nil {
			return nil, err
		}
	}
	return names, nil
}

const (
	litFramed = "LDFZ01\x00\x00" // first bytes of a chunk whose samples are compressed in batches
	litArrow  = "LDARW01\x00"    // last bytes of a chunk whose rows are stored as Arrow
)

// openChunk opens a chunk, compressed or not, as a reader of its decoded bytes.
func (s *mds) openChunk(from sequence, p mdsPart, sh mdsShard) (_ *shardReader, err error) {
	path := filepath.Join(p.dir, sh.Raw.Basename)
	f, err := from.open(path)
	if err != nil {
		return nil, errors.New(reason(err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	file := s.place.name(path)
	algorithm, _, _ := strings.Cut(sh.Compression, ":")
	if algorithm != "" && algorithm != "zstd" {
		return nil, fmt.Errorf("compression %s; want zstd", Quoted(sh.Compression))
	}
	r := &shardReader{file: file, close: f.Close, extent: func(at, size int64) Extent {
		return Extent{File: file, Offset: at, Length: size}
	}}
	switch {
	// A chunk of lists of dicts has an Arrow file after its samples, which have no
	// content then.
	case algorithm == "" || sh.level == "sample":
		tail := make([]byte, len(litArrow))
		if n, _ := f.ReadAt(tail, max(f.Size()-int64(len(tail)), 0)); string(tail[:n]) == litArrow {
			return nil, errors.New("its rows are kept as Arrow IPC behind the samples, and are not read; " +
				"ingest what litdata reads, or write it with values that are no lists of dicts")
		}
		r.Reader, r.each = bufio.NewReaderSize(f, 32<<10), algorithm != ""
		return r, nil
	case sh.level == "batch":
		return r, r.frame(f)
	}
	z, stop, err := decompress(bufio.NewReaderSize(f, 32<<10), "zstd")
	if err != nil {
		return nil, err
	}
	r.Reader, r.close = z, func() error { stop(); return f.Close() }
	r.unit = &schema.Unit{Length: f.Size(), Size: -1, Codec: schema.CodecZstd} // readShard takes the size from the table
	r.extent = func(at, size int64) Extent { return inUnit(file, r.unit, at, size) }
	return r, nil
}

// litFrame is a compressed batch of samples. at is its beginning in the chunk as if
// nothing were compressed.
type litFrame struct {
	at   int64
	unit *schema.Unit
}

// frame reads the header of a chunk of batches. Afterwards r reads the chunk as if
// nothing were compressed, so that the reader of shards needs no further case.
//
// The header is, in little-endian: 8 bytes of magic, u16 version, u32 number of samples
// at byte 12, u32 number of batches at byte 20. Then come the n+1 offsets and 24 bytes
// for each batch: u32 first sample, u32 number of samples, u64 offset, u32 compressed
// size, u32 decoded size. Batches must be in order, without overlap, and end with the
// file.
func (r *shardReader) frame(f *File) error {
	in := bufio.NewReaderSize(io.NewSectionReader(f, 0, f.Size()), 32<<10)
	head := make([]byte, 24)
	if _, err := io.ReadFull(in, head); err != nil {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	if string(head[:8]) != litFramed || binary.LittleEndian.Uint16(head[8:]) != 1 {
		return errors.New("it is no chunk of version 1 that is compressed in batches")
	}
	n, count := int64(binary.LittleEndian.Uint32(head[12:])), int64(binary.LittleEndian.Uint32(head[20:]))
	if n > maxShardSamples || count > n {
		return fmt.Errorf("%d batches of %d samples, more than there may be", count, n)
	}
	offsets, err := readBuffer(in, 4*(n+1))
	if err != nil {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	defer buffers.put(offsets)
	table, err := readBuffer(in, 24*count)
	if err != nil {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	defer buffers.put(table)
	// Offsets in the header begin after the table; those of a plain chunk begin with the
	// file.
	begin := 4 + int64(len(offsets))
	plain := binary.LittleEndian.AppendUint32(make([]byte, 0, begin), uint32(n))
	for i := range n + 1 {
		at := int64(binary.LittleEndian.Uint32(offsets[4*i:])) + begin
		if at > 1<<32-1 {
			return fmt.Errorf("its samples have %d bytes, more than a chunk may have", at)
		}
		plain = binary.LittleEndian.AppendUint32(plain, uint32(at))
	}
	var frames []litFrame
	first, end, at := int64(0), 24+int64(len(offsets)+len(table)), begin
	for i := range count {
		entry := table[24*i:]
		u := &schema.Unit{Offset: int64(binary.LittleEndian.Uint64(entry[8:])), Codec: schema.CodecZstd,
			Length: int64(binary.LittleEndian.Uint32(entry[16:])), Size: int64(binary.LittleEndian.Uint32(entry[20:]))}
		if int64(binary.LittleEndian.Uint32(entry)) != first || u.Offset < end || u.Length > f.Size()-u.Offset {
			return fmt.Errorf("batch %d is at bytes %d to %d, and begins with sample %d", i, u.Offset,
				u.Offset+u.Length, binary.LittleEndian.Uint32(entry))
		}
		first, end = first+int64(binary.LittleEndian.Uint32(entry[4:])), u.Offset+u.Length
		frames = append(frames, litFrame{at, u})
		at += u.Size
	}
	if first != n || end != f.Size() {
		return fmt.Errorf("its batches hold %d of %d samples, and end at byte %d of %d", first, n, end, f.Size())
	}
	z, err := zstd.NewReader(nil, zstdOptions...)
	if err != nil {
		return err
	}
	r.Reader = io.MultiReader(bytes.NewReader(plain), &litFrames{file: f, frames: frames, z: z})
	r.close = func() error { z.Close(); return f.Close() }
	r.extent = func(at, size int64) Extent {
		i, found := slices.BinarySearchFunc(frames, at, func(f litFrame, at int64) int { return cmp.Compare(f.at, at) })
		if !found {
			i--
		}
		if i < 0 {
			return Extent{Why: "it is in no batch"}
		}
		return inUnit(r.file, frames[i].unit, at-frames[i].at, size)
	}
	return nil
}

// litFrames reads the decoded batches in a row.
type litFrames struct {
	file   *File
	frames []litFrame
	z      *zstd.Decoder
	// left is how many bytes of the open batch are still to be read.
	left int64
	open bool
}

// Read implements io.Reader. A batch must have exactly the decoded size that the header
// states.
func (l *litFrames) Read(p []byte) (int, error) {
	for {
		if l.open && l.left > 0 {
			n, err := l.z.Read(p[:min(int64(len(p)), l.left)])
			if l.left -= int64(n); errors.Is(err, io.EOF) {
				if err = nil; l.left > 0 {
					err = errBatch
				}
			}
			return n, err
		}
		// The batch must be at its end here. This read also verifies zstd's checksum.
		if l.open {
			var more [1]byte
			if n, err := l.z.Read(more[:]); n > 0 {
				return 0, errBatch
			} else if !errors.Is(err, io.EOF) {
				return 0, err
			}
			l.open = false
		}
		if len(l.frames) == 0 {
			return 0, io.EOF
		}
		// The next batch is decoded only when its bytes are needed.
		u := l.frames[0].unit
		if err := l.z.Reset(bufio.NewReader(io.NewSectionReader(l.file, u.Offset, u.Length))); err != nil {
			return 0, err
		}
		l.frames, l.left, l.open = l.frames[1:], u.Size, true
	}
}

var errBatch = errors.New("a batch that has another size decoded than the chunk says")

// inflate decodes a sample that is compressed by itself and begins at byte begin of the
// shard. Its extents are in a unit of its own.
func (i *mdsItem) inflate(r *shardReader, begin int64) error {
	packed := i.buf
	defer buffers.put(packed)
	var head zstd.Header
	if err := head.Decode(packed); err != nil {
		return fmt.Errorf("zstd: %w", err)
	}
	z, err := zstd.NewReader(bytes.NewReader(packed), zstdOptions...)
	if err != nil {
		return err
	}
	defer z.Close()
	// The frame's own size may be false, so the buffer grows while it is filled; see
	// readBuffer.
	if head.HasFCS && head.FrameContentSize <= maxBlob {
		i.buf, err = readBuffer(z, int64(head.FrameContentSize))
	} else {
		i.buf, err = io.ReadAll(io.LimitReader(z, maxBlob+1))
	}
	if err != nil {
		return fmt.Errorf("zstd: %w", err)
	}
	size := int64(len(i.buf))
	switch n, err := io.CopyN(io.Discard, z, 1); {
	case n > 0 || size > maxBlob:
		return fmt.Errorf("zstd: more than the %d bytes that it says, or that a sample may have", min(size, maxBlob))
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("zstd: %w", err)
	}
	u := &schema.Unit{Offset: begin, Length: int64(len(packed)), Size: size, Codec: schema.CodecZstd}
	i.extent = func(at, size int64) Extent { return inUnit(r.file, u, at, size) }
	return nil
}

// litDtypes are LitData's numbers of types: litNumPy for arrays of NumPy, litTorch for
// tensors. Other types have no column type, or different numbers in different versions.
var (
	litNumPy = []string{"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
		"float64"}
	litTorch = []string{0: "float32", 1: "float32", 2: "float64", 3: "float64", 8: "float16", 9: "float16", 11: "uint8",
		12: "int8", 13: "int16", 14: "int16", 15: "int32", 16: "int32", 17: "int64", 18: "int64", 20: "uint16"}
)

// litDtype returns the type of a number.
func litDtype(of []string, number uint64) (string, error) {
	if number >= uint64(len(of)) || of[number] == "" {
		return "", fmt.Errorf("values of the type number %d of litdata, which has no plain form; want whole numbers or "+
			"floats", number)
	}
	return of[number], nil
}

// newLitSurvey returns the survey for a leaf format whose column depends on all values;
// nil for any other.
func newLitSurvey(format string) mdsSurvey {
	switch format {
	case "jpeg_array":
		return &surveyedImages{encoding: format}
	case "numpy":
		return &surveyedArrays{split: func(b []byte) (string, []int, []byte, error) {
			return splitLit(litNumPy, binary.LittleEndian, b)
		}}
	case "tensor":
		return &surveyedArrays{split: func(b []byte) (string, []int, []byte, error) {
			return splitLit(litTorch, binary.BigEndian, b)
		}}
	}
	return nil
}

// splitLit splits an array or tensor into type, shape and values. Its header is u32 type,
// u32 number of dimensions, and u32 for each dimension. Arrays are little-endian, tensors
// big-endian.
func splitLit(of []string, order binary.ByteOrder, b []byte) (string, []int, []byte, error) {
	if len(b) < 8 {
		return "", nil, nil, fmt.Errorf("%w: an array without a type", errCut)
	}
	dtype, err := litDtype(of, uint64(order.Uint32(b)))
	if err != nil {
		return "", nil, nil, err
	}
	ndim := order.Uint32(b[4:])
	if b = b[8:]; ndim > maxDepth || len(b) < 4*int(ndim) {
		return "", nil, nil, fmt.Errorf("%d dimensions in %d bytes; want at most %d", ndim, len(b), maxDepth)
	}
	dims, total := make([]int, ndim), uint64(mdsScalars[dtype].size)
	for i := range dims {
		n := order.Uint32(b[4*i:])
		if dims[i], total = int(n), total*uint64(n); total > maxText || n > maxText {
			return "", nil, nil, errors.New("an impossible shape, or more than metadata may have")
		}
	}
	if b = b[4*ndim:]; uint64(len(b)) != total {
		return "", nil, nil, fmt.Errorf("%d bytes of values, want the %d of shape %v of %s", len(b), total, dims, dtype)
	}
	return dtype, dims, b, nil
}

// litDecoder returns the type and the decoder of a format of leaves. A nil type means
// that the bytes are a blob.
func litDecoder(format string) (arrow.DataType, func([]byte) (any, error), error) {
	name, args, _ := strings.Cut(format, ":")
	switch name {
	case "jpeg", "image", "bytes", "video", "audio", "file", "pdf", "nifti", "mesh", "tiff", "tifffile":
		return nil, nil, nil
	case "str", "string", "text":
		return mdsDecoder("str")
	case "int", "integer":
		return mdsDecoder("int64")
	case "float":
		return mdsDecoder("float64")
	case "bool", "boolean":
		return arrow.FixedWidthTypes.Boolean, func(b []byte) (any, error) {
			if len(b) != 1 {
				return nil, fmt.Errorf("%d bytes, want the 1 of a truth value", len(b))
			}
			return b[0] != 0, nil
		}, nil
	case "no_header_numpy":
		return litVector(litNumPy, args)
	case "no_header_tensor":
		return litVector(litTorch, args)
	case "numpy", "tensor": // a survey decides
		return nil, nil, nil
	case "pickle", "graph":
		return nil, nil, fmt.Errorf("format %s is pickle, which runs whatever code it holds, and is refused; write the "+
			"value as text, bytes or an array", name)
	case "pil":
		return nil, nil, errors.New("format pil is bare pixels; write the image as jpeg, or as bytes of png")
	case "json":
		return nil, nil, errors.New("format json is litdata's own form of lists and dicts, and is not read; write the " +
			"value as text (json.dumps), or its parts as values of their own")
	}
	return nil, nil, fmt.Errorf("format %s of litdata cannot be imported; want str, text, int, float, bool, bytes, jpeg, "+
		"jpeg_array, image, video, audio, file, pdf, nifti, mesh, tiff, numpy or tensor", Quoted(format))
}

// litVector returns the decoder for values of one dimension without a header. number is
// that of their type.
func litVector(of []string, number string) (arrow.DataType, func([]byte) (any, error), error) {
	i, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return nil, nil, fmt.Errorf("%s is no number of a type", Quoted(number))
	}
	dtype, err := litDtype(of, i)
	if err != nil {
		return nil, nil, err
	}
	scalar := mdsScalars[dtype]
	return arrow.ListOf(scalar.typ), func(b []byte) (any, error) {
		if len(b)%scalar.size != 0 {
			return nil, fmt.Errorf("%d bytes do not hold values of %s", len(b), dtype)
		}
		return nest(b, []int{len(b) / scalar.size}, scalar), nil
	}, nil
}

// litMedia returns the media of a blob, by its format, or by a sample for a format that
// may hold anything.
func litMedia(format string, sample []byte) string {
	name, _, _ := strings.Cut(format, ":")
	switch name {
	case "jpeg", "image":
		return schema.MediaImage
	case "audio":
		return schema.MediaAudio
	}
	return mediaOf("", sample)
}
