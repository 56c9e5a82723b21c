package source

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"path"
	"path/filepath"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// megatron is pairs of files as the IndexedDatasetBuilder of Megatron-LM writes them.
// NAME.bin has the token ids of all sequences without gaps, and NAME.idx has their
// places. An index is, in little-endian:
//
//	"MMIDIDX" and two zero bytes
//	u64 version, 1
//	u8  the number of the type of the token ids
//	u64 number S of sequences
//	u64 number D of borders of documents, one more than there are documents
//	i32 S sizes of sequences, in tokens
//	i64 S places of sequences, in bytes of NAME.bin
//	i64 D borders: document d has the sequences from border d to border d+1
//	i8  S modes, of data that is not text alone
//
// A sample is a document. An index may be larger than memory, so that it is read along
// with the documents.
type megatron struct {
	about
	choice *choice
	shards []shard // the indexes; rel has no ending
	// heads has the head of each shard's index; zero for a missing shard.
	heads []megatronHead
	ids   arrow.FixedWidthDataType
	// The columns that are wanted: the tokens; whether they are blobs; their number; the
	// sizes of sequences.
	tokens, asBlobs, count, sizes bool
}

// megatronHead is the head of an index.
type megatronHead struct {
	ids                  string // type
	sequences, documents int64
}

const (
	// The magic includes the two zero bytes.
	megatronMagic = "MMIDIDX\x00\x00"
	megatronFront = int64(len(megatronMagic)) + 8 + 1 + 8 + 8
	// megatronLeast is how much of an index in a bucket one request reads.
	megatronLeast = 1 << 20
	// sizesColumn has the sizes of a document's sequences. It exists only if some
	// document has several.
	sizesColumn = "sequences"
)

// megatronTypes are the types of token ids by number. 9 and 10 come from fairseq, whose
// files have the same format otherwise.
var megatronTypes = map[byte]string{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16", 9: "uint32",
	10: "uint64"}

// isMegatron reports whether a file is an index, by its name.
func isMegatron(name string) bool { return strings.HasSuffix(name, ".idx") }

// detectMegatron reports whether the layout has an index with its tokens. An .idx alone
// may be of another format.
func (l *layout) detectMegatron() bool {
	if !l.dir { // either of the two names stands for both
		stem := megatronStem(l.path)
		return stem != l.path && l.opts.files.know(l.ctx, []string{stem + ".idx", stem + ".bin"}) == nil &&
			!l.opts.files.missing(stem+".idx") && !l.opts.files.missing(stem+".bin")
	}
	there := map[string]bool{}
	for _, name := range l.files {
		if strings.HasSuffix(name, ".bin") {
			there[megatronStem(name)] = true
		}
	}
	return l.any(func(name string) bool { return isMegatron(name) && there[megatronStem(name)] })
}

// megatronStem returns the common part of the names of an index and its tokens.
func megatronStem(name string) string {
	return strings.TrimSuffix(strings.TrimSuffix(name, ".idx"), ".bin")
}

// openMegatron opens a pair of files, or all pairs in a folder.
func openMegatron(ctx context.Context, root string, opts Options) (Source, error) {
	if info, err := opts.files.stat(root); err == nil && !info.IsDir() {
		stem := megatronStem(root)
		root = stem + ".idx"
		if err := opts.files.know(ctx, []string{root, stem + ".bin"}); err != nil {
			return nil, err
		}
	}
	all, err := opts.files.findShards(root, opts, isMegatron)
	if err != nil {
		return nil, err
	}
	shards, splits := arrangeShards(all, opts.Split)
	if len(shards) == 0 {
		return nil, fmt.Errorf("%w: there is no *.idx file", schema.ErrInvalid)
	}
	s := &megatron{about: about{place: opts.files, format: "megatron", path: opts.files.absolute(root), splits: splits},
		choice: opts.choice, shards: shards, heads: make([]megatronHead, len(shards)), asBlobs: opts.TokenBlobs}
	return s, s.find(ctx, opts)
}

// find reads the heads of the indexes. All must have the same type of token ids, because
// a column has one type.
func (s *megatron) find(ctx context.Context, opts Options) error {
	in, err := s.place.boundsOf(filepath.Dir(s.shards[0].path), opts)
	if info, e := s.place.stat(s.path); e == nil && info.IsDir() {
		in, err = s.place.boundsOf(s.path, opts)
	}
	if err != nil {
		return err
	}
	var bins []string
	var first string // first pair, which decides the type
	for i := range s.shards {
		sh := &s.shards[i]
		sh.rel = megatronStem(sh.rel)
		if sh.missing != "" {
			continue
		}
		if err := in.check(binOf(sh)); err != nil {
			return err
		}
		bins = append(bins, binOf(sh))
		// A pair whose head is wrong is reported when its samples are read.
		head, err := s.readHead(ctx, sh)
		if broken := s.place.broken(); broken != nil {
			return broken
		}
		if err != nil {
			sh.missing = err.Error()
			continue
		}
		if s.ids == nil {
			s.ids, first = tokenTypes[head.ids], sh.rel
		}
		if head.ids != s.ids.Name() {
			return fmt.Errorf("%w: %s has token ids of %s, and %s of %s: a column has one type; import each into a dataset "+
				"of its own", schema.ErrInvalid, Quoted(sh.rel), head.ids, Quoted(first), s.ids.Name())
		}
		s.heads[i] = head
		s.rows += head.documents
	}
	if s.ids == nil {
		return fmt.Errorf("%w: %s: %s", schema.ErrInvalid, Quoted(s.shards[0].rel), s.shards[0].missing)
	}
	s.tokens = s.choice.wants(tokenColumn)
	s.count = s.choice.keeps(countColumn)
	for i := range s.shards {
		if !s.sizes && s.shards[i].missing == "" {
			s.sizes = !s.plain(ctx, i)
		}
	}
	s.sizes = s.choice.keeps(sizesColumn) && s.sizes
	s.asBlobs = s.asBlobs && s.tokens
	s.walked = opts.Walk && s.asBlobs
	return s.begin(opts, s.estimates(bins))
}

// plain reports whether each document of an index is one sequence. For an index that
// cannot be read it returns true: the defect is reported when the documents are read.
func (s *megatron) plain(ctx context.Context, i int) bool {
	h := s.heads[i]
	if h.sequences != h.documents {
		return false
	}
	f, err := s.place.openParts(ctx, s.shards[i].path, min(megatronLeast, 8*(h.documents+1)))
	if err != nil {
		return true
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReaderSize(io.NewSectionReader(f, megatronFront+12*h.sequences, 8*(h.documents+1)), 64<<10)
	for d := range h.documents + 1 {
		if border, err := read64(in); err != nil || border != d {
			return err != nil
		}
		if ctx.Err() != nil {
			return true
		}
	}
	return true
}

// estimates returns the cost of reading the tokens and the indexes, and that of the
// indexes alone.
func (s *megatron) estimates(bins []string) Estimate {
	var indexes []string
	for i := range s.shards {
		if s.shards[i].read() {
			indexes = append(indexes, s.shards[i].path)
		}
	}
	e, walked := s.place.estimateWhole(append(bins, indexes...), 1), s.place.estimateWhole(indexes, 1)
	if s.asBlobs {
		e.Walked = walked.Through
	}
	return e
}

// binOf returns the path of the tokens of an index.
func binOf(sh *shard) string { return megatronStem(sh.path) + ".bin" }

// readHead reads the head of an index and compares the sizes of its lists with the size
// of the file.
func (s *megatron) readHead(ctx context.Context, sh *shard) (megatronHead, error) {
	var h megatronHead
	f, err := s.place.openParts(ctx, sh.path, windowBytes)
	if err != nil {
		return h, errors.New(reason(err))
	}
	defer func() { _ = f.Close() }()
	front := make([]byte, megatronFront)
	if n, err := f.ReadAt(front, 0); err != nil {
		if int64(n) < min(megatronFront, f.Size()) {
			return h, errors.New(reason(err))
		}
		return h, fmt.Errorf("%w: an index has %d bytes at least, and this one %d", errCut, megatronFront+8, f.Size())
	}
	at := len(megatronMagic)
	version, code := binary.LittleEndian.Uint64(front[at:]), front[at+8]
	sequences, borders := binary.LittleEndian.Uint64(front[at+9:]), binary.LittleEndian.Uint64(front[at+17:])
	switch {
	case string(front[:at]) != megatronMagic:
		return h, errors.New("it is no index of Megatron's: it does not begin with MMIDIDX")
	case version != 1:
		return h, fmt.Errorf("an index of version %d; want 1", version)
	case code == 6 || code == 7:
		return h, errors.New("its values are floating-point numbers, and no token ids")
	case megatronTypes[code] == "":
		return h, fmt.Errorf("values of unknown type %d; want 1 to 5 or 8 to 10, which are integers", code)
	}
	// Neither count exceeds the size of the file, so that their sums do not overflow.
	rest := uint64(f.Size() - megatronFront)
	if sequences > rest || borders > rest || borders == 0 {
		return h, fmt.Errorf("%w: it counts %d sequences and %d borders of documents in %d bytes", errCut, sequences,
			borders, f.Size())
	}
	switch want := 12*sequences + 8*borders; {
	case rest < want:
		return h, fmt.Errorf("%w: %d sequences and %d borders of documents take %d bytes behind the header, and there "+
			"are %d", errCut, sequences, borders, want, rest)
	case rest == want+sequences && sequences > 0:
		return h, errors.New("its sequences have modes, of data that is not text alone, and are not read")
	case rest > want:
		return h, fmt.Errorf("%w: %d bytes", errJunk, rest-want)
	}
	return megatronHead{megatronTypes[code], int64(sequences), int64(borders) - 1}, nil
}

// Fields implements Source.
func (s *megatron) Fields() (meta, blobs []arrow.Field) {
	switch {
	case s.asBlobs:
		blobs = append(blobs, tokenBlobField(tokenColumn, s.ids))
	case s.tokens:
		meta = append(meta, arrow.Field{Name: tokenColumn, Type: arrow.ListOf(s.ids), Nullable: true})
	}
	if s.count {
		meta = append(meta, arrow.Field{Name: countColumn, Type: arrow.PrimitiveTypes.Int64, Nullable: true})
	}
	if s.sizes {
		meta = append(meta, arrow.Field{Name: sizesColumn, Type: arrow.ListOf(arrow.PrimitiveTypes.Int32),
			Nullable: true})
	}
	return meta, blobs
}

// Samples implements Source. The key of a sample is its pair of files and its number.
func (s *megatron) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		var bins []string
		for i := range s.shards {
			if s.shards[i].read() {
				bins = append(bins, binOf(&s.shards[i]))
			}
		}
		in := s.place.inOrder(ctx, bins)
		defer in.close()
		s.place.yieldParts(ctx, s.shards, s.walked, func(ctx context.Context, i int, put func(Sample) bool) error {
			return s.read(ctx, in, i, put)
		}, yield)
	}
}

// megatronReader reads a pair of files. One goroutine uses it.
type megatronReader struct {
	*megatron
	sh   *shard
	head megatronHead
	bin  *File
	file string // name of bin in Files
	open []*File
	// The lists of the index. Each has its own reader, because they are read in parallel
	// from front to back.
	counts, places, borders *bufio.Reader
	// next is the number of the next sequence, place its offset. end is where the
	// sequences read so far end.
	next, place, end int64
}

// close closes the tokens and the readers of the index.
func (r *megatronReader) close() {
	for _, f := range r.open {
		_ = f.Close()
	}
}

// list opens the index again, at one of its lists.
func (r *megatronReader) list(ctx context.Context, at, size int64) (*bufio.Reader, error) {
	f, err := r.megatron.place.openParts(ctx, r.sh.path, min(megatronLeast, max(size, 1)))
	if err != nil {
		return nil, errors.New(reason(err))
	}
	r.open = append(r.open, f)
	return bufio.NewReaderSize(io.NewSectionReader(f, at, size), 64<<10), nil
}

// read yields the documents of a pair of files. Its error is about the pair.
func (s *megatron) read(ctx context.Context, in sequence, i int, put func(Sample) bool) (err error) {
	r := &megatronReader{megatron: s, sh: &s.shards[i], head: s.heads[i]}
	defer r.close()
	bin := binOf(r.sh)
	r.file = s.place.name(bin)
	if s.walked {
		r.bin, err = s.place.openParts(ctx, bin, 1) // only for its size
	} else {
		r.bin, err = in.open(bin)
	}
	if err != nil {
		return fmt.Errorf("%s: %s", path.Base(filepath.ToSlash(bin)), reason(err))
	}
	r.open = append(r.open, r.bin)
	n := r.head.sequences
	at := megatronFront
	if r.counts, err = r.list(ctx, at, 4*n); err != nil {
		return err
	}
	if r.places, err = r.list(ctx, at+4*n, 8*n); err != nil {
		return err
	}
	if r.borders, err = r.list(ctx, at+12*n, 8*(r.head.documents+1)); err != nil {
		return err
	}
	if n > 0 {
		if r.place, err = read64(r.places); err != nil {
			return err
		}
	}
	return r.documents(ctx, put)
}

// read64 reads a little-endian 64-bit number.
func read64(in io.Reader) (int64, error) {
	var b [8]byte
	if _, err := io.ReadFull(in, b[:]); err != nil {
		return 0, fmt.Errorf("%w: %w", errCut, err)
	}
	return int64(binary.LittleEndian.Uint64(b[:])), nil
}

// documents yields the documents. Their borders must ascend and cover all sequences.
func (r *megatronReader) documents(ctx context.Context, put func(Sample) bool) error {
	from, err := read64(r.borders)
	if err == nil && from != 0 {
		err = fmt.Errorf("its first document begins with sequence %d, and sequences before that are in none", from)
	}
	if err != nil {
		return err
	}
	for d := range r.head.documents {
		// Borders count sequences; a document may have none.
		to, err := read64(r.borders)
		if err != nil {
			return err
		}
		if to < from || to > r.head.sequences {
			return fmt.Errorf("document %d has the sequences from %d to %d, of %d", d, from, to, r.head.sequences)
		}
		sample, err := r.document(d, to-from)
		if err != nil {
			return err
		}
		if !put(sample) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		from = to
	}
	if from != r.head.sequences {
		return fmt.Errorf("its documents have %d of %d sequences", from, r.head.sequences)
	}
	if r.head.sequences == 0 && r.bin.Size() > 0 {
		return fmt.Errorf("it has no sequence, and its tokens have %d bytes", r.bin.Size())
	}
	return nil
}

// document makes a sample from the next sequences. A defect of a sequence is in the
// sample; the error is about the index.
func (r *megatronReader) document(number, sequences int64) (Sample, error) {
	s := Sample{Key: fmt.Sprintf("%s#%d", r.sh.rel, number), Split: r.sh.split}
	limit, what := int64(maxText), "a list may have: --token-blobs makes blobs of them"
	if r.asBlobs {
		limit, what = maxBlob, "a sample may have"
	}
	begin, size, sizes := r.place, int64(0), Numbers(nil)
	// All sequences of a bad document are read as well, so that the next document starts
	// at its own.
	for range sequences {
		n, at, err := r.sequence(&s.Bad)
		if err != nil {
			return s, err
		}
		if s.Bad == "" {
			if at != begin+size {
				s.Bad = fmt.Sprintf("sequence %d is at byte %d, and the one before ends at %d", r.next-1, at, begin+size)
			}
			if size += n; size > limit {
				s.Bad = fmt.Sprintf("it has %d bytes of tokens, more than the %d that %s", size, limit, what)
			}
			if len(sizes) > maxText {
				s.Bad = fmt.Sprintf("it has more than %d sequences", maxText/4)
			}
		}
		if r.sizes && s.Bad == "" {
			sizes = binary.LittleEndian.AppendUint32(sizes, uint32(n/int64(r.ids.Bytes())))
		}
	}
	if s.Bad != "" {
		return s, nil
	}
	return s, r.fill(&s, begin, size, sizes)
}

// sequence reads the length and the offset of the next sequence from the index. The first
// defect is stored in bad. A sequence must begin where the one before ends.
func (r *megatronReader) sequence(bad *string) (size, at int64, err error) {
	var b [4]byte
	if _, err := io.ReadFull(r.counts, b[:]); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", errCut, err)
	}
	count := int32(binary.LittleEndian.Uint32(b[:]))
	at = r.place
	behind := r.bin.Size()
	if r.next++; r.next < r.head.sequences {
		if behind, err = read64(r.places); err != nil {
			return 0, 0, err
		}
		r.place = behind
	}
	size = int64(count) * int64(r.ids.Bytes())
	name := fmt.Sprintf("sequence %d", r.next-1)
	why := ""
	switch {
	case count < 0:
		why = fmt.Sprintf("%s has %d tokens", name, count)
	case at < r.end:
		why = fmt.Sprintf("%s begins at byte %d, and one before ends at %d", name, at, r.end)
	case r.next == 1 && at != 0:
		why = fmt.Sprintf("%s begins at byte %d: the bytes before are in none", name, at)
	case at > r.bin.Size() || size > r.bin.Size()-at:
		why = fmt.Sprintf("%s has %d bytes from byte %d on, and the file has %d", name, size, at, r.bin.Size())
	case at+size != behind:
		why = fmt.Sprintf("%s ends at byte %d, and what follows begins at %d", name, at+size, behind)
	}
	if why != "" {
		if *bad == "" {
			*bad = why
		}
		return 0, at, nil
	}
	r.end = at + size
	return size, at, nil
}

// fill reads the tokens of a sample.
func (r *megatronReader) fill(s *Sample, begin, size int64, sizes Numbers) error {
	var tokens []byte
	if r.tokens && !r.walked {
		var err error
		if tokens, err = readBuffer(io.NewSectionReader(r.bin, begin, size), size); err != nil {
			return fmt.Errorf("%w at byte %d: %w", errCut, begin, err)
		}
		s.Release = func() { buffers.put(tokens) }
		s.Size = 2 * size // once here and once in the batch
	}
	switch {
	case r.asBlobs:
		s.Size, s.At = size, []Extent{{File: r.file, Offset: begin, Length: size}}
		if !r.walked {
			s.Blobs = [][]byte{tokens}
		}
	case r.tokens:
		s.Meta = append(s.Meta, Numbers(tokens))
	}
	if r.count {
		s.Meta = append(s.Meta, size/int64(r.ids.Bytes()))
	}
	if r.sizes {
		s.Meta = append(s.Meta, sizes)
	}
	return nil
}
