package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

const (
	// maxText bounds a value that becomes metadata, in bytes. Metadata is stored in
	// pages, which are read whole.
	maxText = 16 << 20
)

// webDataset is a set of tars. Consecutive members with the same name up to the first dot
// after the last slash are a sample. The rest of the name says what each is:
//
//	jpg, png and other images      blob column image, also of members mask.png: mask
//	wav, flac and other audio      blob column audio
//	cls                            label, an int64; other whole numbers: cls2, index, inx
//	txt, text, caption, transcript a utf8 column of that name
//	json, jsn                      a column for each key of an object, see parseObject; anything else: json
//	note.txt, count.cls, info.json a column note or count, columns info_KEY or info
//	anything else                  a blob column of that name
//
// A key whose members do not follow each other is a bad sample, wherever they are. Read
// as they come, they would be several samples, each without what the others have. A key
// with a member whose name does not show where the key ends is a bad sample as well; see
// isExtension and survey.refused.
//
// Columns and their types depend on all members. The tars are therefore read twice, the
// first time only as far as that needs. All keys are kept in memory.
type webDataset struct {
	about
	shards []shard
	choice *choice

	blobs   []arrow.Field
	meta    []arrow.Field
	members map[string]member // by extension
	// json has the type of each value of JSON members, and jsonAt its metadata column.
	json    map[jsonKey]*inferred
	jsonAt  map[jsonKey]int
	label   bool                 // some sample has a cls member, so each must have one
	pathAt  int                  // metadata column of the name of the first blob's member, or -1
	refused map[string]string    // extensions that become no column, with the reason
	keys    map[string]*foundKey // keys of all samples
	kept    *keptTars            // headers of the first pass, if the tars are walked
	run     int32                // number of times that the samples were read
}

// member is what becomes of the members with an extension.
type member struct {
	kind   memberKind
	column int
}

// memberKind is what a member's content becomes.
type memberKind int

const (
	memberLeft memberKind = iota // left out: not read
	memberBlob
	memberInt
	memberText
	memberJSON
)

// The endings that WebDataset's default decoders take for numbers, texts and JSON.
var (
	intExtensions  = []string{"cls", "cls2", "index", "inx"}
	textExtensions = []string{"txt", "text", "caption", "transcript"}
	jsonExtensions = []string{"json", "jsn"}
)

// kindOf returns what members with an extension contain, by its last word, and the name
// of their column, by the words before.
func kindOf(ext string) (kind memberKind, words string) {
	words = strings.ReplaceAll(firstWords(ext), ".", "_")
	switch last := ext[strings.LastIndexByte(ext, '.')+1:]; {
	case slices.Contains(intExtensions, last):
		return memberInt, words
	case slices.Contains(textExtensions, last):
		return memberText, words
	case slices.Contains(jsonExtensions, last):
		return memberJSON, words
	}
	return memberBlob, words
}

// openWebDataset opens the tars. If the rows of all are known from the previous snapshot,
// it reads none.
func openWebDataset(ctx context.Context, pattern string, opts Options) (Source, error) {
	all, err := opts.files.findTars(ctx, pattern, opts)
	if err != nil {
		return nil, err
	}
	s := &webDataset{about: about{place: opts.files, format: "webdataset", path: opts.files.absolute(pattern)},
		choice: opts.choice}
	s.shards, s.splits = arrangeShards(all, opts.Split)
	s.walked = opts.Walk
	// A key does not contain the name of its tar, so stored rows stay valid if tars are
	// renamed.
	s.place.knownRows(s.shards, opts.Split, nil)
	if _, all := allKnown(s.shards); all {
		return newKnownSource(s.about, s.shards), nil
	}
	if s.place.bucket() != nil {
		if err := s.begin(opts, s.place.estimateTars(ctx, s.shards)); err != nil {
			return nil, err
		}
	}
	err = s.survey(ctx)
	if errors.Is(err, errKnownAlso) { // only all members show which samples are bad
		forget(s.shards)
		err = s.survey(ctx)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// errKnownAlso means that shards with known rows must be read as well.
var errKnownAlso = errors.New("what the samples are depends on shards that were not read")

// survey reads the tars for the columns of their samples.
func (s *webDataset) survey(ctx context.Context) error {
	found := newSurvey(s.shards, s.choice)
	// Other tools' counts of samples show an upload that is not complete.
	counts, err := s.place.counts(ctx, s.shards)
	if err != nil {
		return err
	}
	if !s.walked {
		defer s.place.readTwice(paths(s.shards))()
	}
	from := newFeed(ctx, s.place, s.shards, s.walked, func(m tarMember) bool {
		kind, _ := kindOf(m.ext)
		// A small member comes with its header at no cost, and is used in the second
		// pass.
		return kind == memberJSON || s.walked && kind != memberBlob && m.size <= windowBytes
	})
	// The headers are kept for the second pass, as far as memory allows.
	defer from.close()
	if s.walked {
		s.kept = newKeptTars()
		from.kept = s.kept
	}
	for n, sh := range s.shards {
		found.samples += sh.known
		if !sh.read() {
			continue
		}
		before := found.samples
		if err := found.read(ctx, n, from.shard(n)); err != nil {
			return err
		}
		// An unreachable bucket would look like tars that break off.
		if err := s.place.broken(); err != nil {
			return err
		}
		if err := found.checkExtensions(); err != nil {
			return err
		}
		counts[n].compare(s.place, sh, found.samples-before)
	}
	if found.samples == 0 {
		return fmt.Errorf("%w: the tars hold no samples: members named KEY.EXTENSION", schema.ErrInvalid)
	}
	// The rows of unread shards must fit what was read: with labels all samples need one,
	// and no key may occur in both.
	if slices.ContainsFunc(s.shards, func(sh shard) bool { return sh.known > 0 }) {
		if !found.extensions["cls"] && s.place.kept.Schema().HasField("label") {
			return errKnownAlso // a sample without a label is bad
		}
		for key := range found.keys {
			if s.place.kept.Has(key) {
				return errKnownAlso
			}
		}
	}
	s.rows, s.json, s.keys = found.samples, found.json, found.keys
	s.refused = found.refused()
	return s.makeColumns(found)
}

// makeColumns decides on the columns: label first, then texts and numbers, then the keys
// of JSON. It depends on the set of extensions only, not on the order of members.
func (s *webDataset) makeColumns(found *survey) error {
	s.members, s.jsonAt = map[string]member{}, map[jsonKey]int{}
	blobAt := map[string]int{}
	var taken []string
	extensions := slices.DeleteFunc(slices.Sorted(maps.Keys(found.extensions)), func(ext string) bool {
		return s.refused[ext] != ""
	})
	// Blob columns come first: metadata must not take their names.
	for _, ext := range extensions {
		if kind, _ := kindOf(ext); kind != memberBlob {
			continue
		}
		name, media := blobName(ext, found.manyImages)
		if !s.choice.wants(name, ext) {
			s.members[ext] = member{kind: memberLeft}
			continue
		}
		// Several extensions can share a column: jpg and png are both image.
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
	// Well-known extensions have a fixed order, so that two data sets have equal columns.
	for _, ext := range slices.Concat(intExtensions, textExtensions) {
		if !slices.Contains(extensions, ext) {
			continue
		}
		if ext == "cls" {
			s.addMember(ext, "label", addMeta)
			s.label = s.members[ext].kind != memberLeft
			continue
		}
		s.addMember(ext, ext, addMeta)
	}
	s.pathAt = -1
	if s.choice.keeps(schema.PathColumn) {
		s.pathAt = addMeta(arrow.Field{Name: schema.PathColumn, Type: arrow.BinaryTypes.String, Nullable: true})
	}
	for _, ext := range extensions {
		switch kind, words := kindOf(ext); {
		case kind == memberJSON:
			s.members[ext] = member{memberJSON, 0}
		case kind != memberBlob && words != "":
			s.addMember(ext, freeName(words, taken), addMeta)
		}
	}
	// Keys of JSON come last. Their names must avoid those of all columns before.
	keys := slices.SortedFunc(maps.Keys(s.json), jsonKey.compare)
	var columns []string
	for _, k := range keys {
		columns = append(columns, k.column())
	}
	names := freeNames("json_", columns, taken)
	for i, k := range keys {
		if names[i] != columns[i] {
			s.notes = append(s.notes, keptAs("the JSON key", columns[i], names[i]))
		}
		if s.choice.isText(columns[i], names[i]) {
			s.json[k].observe(textOf(""))
		}
		s.jsonAt[k] = addMeta(arrow.Field{Name: names[i], Type: s.json[k].dataType(), Nullable: true})
	}
	// With a single blob column, a sample without it is bad. With several, each may be
	// null.
	if len(s.blobs) == 1 {
		s.blobs[0].Nullable = false
	}
	return nil
}

// addMember adds the column of members with a number or a text.
func (s *webDataset) addMember(ext, name string, add func(arrow.Field) int) {
	if !s.choice.wants(name, ext) {
		s.members[ext] = member{kind: memberLeft}
		return
	}
	f := arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Int64, Nullable: true}
	kind, _ := kindOf(ext)
	if kind == memberText {
		f.Type = arrow.BinaryTypes.String
	}
	s.members[ext] = member{kind, add(f)}
}

// blobName returns the column of members with an extension, and its media. If samples
// have several images, such as jpg and png, each extension becomes a column of its own.
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
	// A column that the Reader adds, or that another member has, keeps its name.
	return freeName(name, slices.Concat([]string{"label", schema.PathColumn, "width", "height", "format", "orientation"},
		intExtensions, textExtensions, jsonExtensions)), media
}

// Fields implements Source.
func (s *webDataset) Fields() (meta, blobs []arrow.Field) { return s.meta, s.blobs }

// Samples implements Source.
func (s *webDataset) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		// A key that occurs twice in one pass is a duplicate, and begin compares this
		// number.
		s.run++
		in := s.place.inOrder(ctx, paths(s.shards))
		defer in.close()
		from := s.headers(ctx)
		defer from.close()
		for n, sh := range s.shards {
			if sh.missing != "" {
				if !yield(sh.asMissing(), nil) {
					return
				}
				continue
			}
			if sh.known > 0 {
				if !s.place.yieldKnown(ctx, &sh, yield) {
					return
				}
				continue
			}
			r := &tarSamples{source: s, file: s.place.name(sh.path), in: in, shard: sh, yield: yield}
			var err error
			if shard := from.shard(n); shard == nil {
				err = r.read(ctx)
			} else {
				err = r.walk(ctx, shard)
			}
			if errors.Is(err, errStop) {
				return
			}
			if end := s.place.ended(ctx, err); end != nil {
				yield(Sample{}, end)
				return
			}
			if err != nil && !yield(Sample{Key: sh.rel, Split: sh.split, Bad: r.describe(err)}, nil) {
				return
			}
		}
	}
}

// detectWebDataset reports whether the layout has tars.
func (l *layout) detectWebDataset() bool { return l.any(isTarName) }

// jsonKey identifies a value of JSON members: a key of the objects that members with an
// extension have, or, with whole, a value that is not an object.
type jsonKey struct {
	ext, key string
	whole    bool
}

// column returns the name that the column of the values should have.
func (k jsonKey) column() string {
	_, words := kindOf(k.ext)
	switch {
	case k.whole:
		return cmp.Or(words, k.ext)
	case words != "":
		return words + "_" + k.key
	}
	return k.key
}

// compare orders columns: plain extensions first, and a whole value before keys.
func (k jsonKey) compare(other jsonKey) int {
	whole := func(k jsonKey) int {
		if k.whole {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(firstWords(k.ext), firstWords(other.ext)), cmp.Compare(k.ext, other.ext),
		whole(k)-whole(other), cmp.Compare(k.key, other.key))
}

// parseJSONMember parses a JSON member: the keys of an object as parseObject returns
// them, or any other value as one. null has no value.
func parseJSONMember(ext, text string) (map[jsonKey]written, error) {
	values := map[jsonKey]written{}
	p := jsonParser{in: text}
	// An empty member is an error like any text that is no JSON; parseObject reports it.
	if c := p.peek(); c == 0 || c == '{' {
		object, err := parseObject(text)
		for _, m := range object {
			values[jsonKey{ext: ext, key: m.name}] = m.value
		}
		return values, err
	}
	v, err := p.whole()
	if err != nil {
		return nil, fmt.Errorf("bad JSON: %w", err)
	}
	if v.form != formNull {
		values[jsonKey{ext: ext, whole: true}] = v
	}
	return values, nil
}

// maxExtensions bounds the number of different extensions, because each one becomes a column.
const maxExtensions = 1000

// survey is what the first pass over the tars has found. One goroutine uses it.
type survey struct {
	shards     []shard
	choice     *choice
	samples    int64
	extensions map[string]bool
	prefixes   map[string]*surveyed // what precedes the last dot of an extension
	manyImages bool                 // some sample has several images, such as jpg and png
	json       map[jsonKey]*inferred

	keys map[string]*foundKey // by split and key
	sets map[string]string    // sets of extensions, each stored once
}

// surveyed is what was found about the first words of extensions.
type surveyed struct {
	samples  int64 // samples that have a member with them
	hasPlain bool  // some sample also has a member with a one-word extension, so that its key certainly ends there
}

// foundKey is where the members of a key are. There is one for each sample, so it is
// small.
type foundKey struct {
	shard int32  // first shard
	run   int32  // last pass that met it
	set   string // extensions of its members
	apart string // how its members are apart; "" if they are not
}

// group is consecutive members with one key and distinct extensions. It is a sample if no
// other group has that key.
type group struct {
	key string
	has map[string]bool // extensions
}

// takes reports whether a member belongs to the group. A repeated extension begins
// another group: it is a second sample with the same key.
func (g *group) takes(m tarMember) bool { return g.has != nil && g.key == m.key && !g.has[m.ext] }

// newSurvey returns an empty survey of shards.
func newSurvey(shards []shard, choice *choice) *survey {
	return &survey{shards: shards, choice: choice, extensions: map[string]bool{},
		prefixes: map[string]*surveyed{}, json: map[jsonKey]*inferred{}, keys: map[string]*foundKey{}, sets: map[string]string{}}
}

// read reads one tar. Its errors occur again, and are reported, when its samples are
// read.
func (f *survey) read(ctx context.Context, n int, from *feedShard) error {
	var g group
	for m := range from.members {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// A member of another key ends the group, as in WebDataset's own reader.
		if !g.takes(m.tarMember) {
			f.place(n, g, f.note(g))
			g = group{key: m.key, has: map[string]bool{}}
		}
		if m.problem != "" {
			from.taken(m)
			continue
		}
		g.has[m.ext] = true
		var err error
		if kind, _ := kindOf(m.ext); kind == memberJSON && m.data != nil && m.err == nil { // otherwise reading failed, and the next member fails as well
			err = f.readJSON(m.ext, m.data)
		}
		if from.taken(m); err != nil {
			return err
		}
	}
	exts := f.note(g)
	if errors.Is(from.end, io.EOF) || errors.Is(from.end, errJunk) { // a group that the tar breaks off may lack members
		f.place(n, g, exts)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// readJSON records the types of a JSON member's values. An invalid member makes its
// sample bad later.
func (f *survey) readJSON(ext string, data []byte) error {
	values, _ := parseJSONMember(ext, string(data)) // its sample reports the error
	for k, v := range values {
		if f.json[k] == nil {
			if !f.choice.wants(k.column(), "json_"+k.column()) {
				continue
			}
			f.json[k] = &inferred{}
		}
		f.json[k].observe(v)
	}
	if len(f.json) > maxColumns {
		return fmt.Errorf("%w: the JSON members have more than %d different keys, which would each be a column",
			schema.ErrLimit, maxColumns)
	}
	return nil
}

// note records the extensions of a complete group, and returns them.
func (f *survey) note(g group) []string {
	if g.has == nil {
		return nil
	}
	f.samples++
	exts := slices.Sorted(maps.Keys(g.has))
	plain := slices.ContainsFunc(exts, func(ext string) bool { return firstWords(ext) == "" })
	images, last := 0, ""
	for _, ext := range exts { // sorted, so that extensions with equal first words are neighbours
		f.extensions[ext] = true
		if slices.Contains(imageExtensions, ext) {
			images++
		}
		words := firstWords(ext)
		if words == "" || words == last {
			continue
		}
		last = words
		p := f.prefixes[words]
		if p == nil {
			p = &surveyed{}
			f.prefixes[words] = p
		}
		p.samples++
		p.hasPlain = p.hasPlain || plain
	}
	f.manyImages = f.manyImages || images > 1
	return exts
}

// firstWords returns what precedes the last dot of an extension.
func firstWords(ext string) string { return ext[:max(strings.LastIndexByte(ext, '.'), 0)] }

// place records where a group is, and whether its key occurred before.
func (f *survey) place(n int, g group, exts []string) {
	if g.has == nil {
		return
	}
	set := "." + strings.Join(exts, ", .")
	if len(exts) == 0 {
		set = "nothing"
	}
	// Millions of samples share a few sets, so each text is stored once.
	if known, ok := f.sets[set]; ok {
		set = known
	} else {
		f.sets[set] = set
	}
	sh := f.shards[n]
	key := sampleKey(sh, g.key)
	first, ok := f.keys[key]
	switch {
	// The same set of extensions twice is a duplicate, which Samples reports. Different
	// sets are parts of one sample.
	case !ok:
		f.keys[key] = &foundKey{shard: int32(n), set: set}
	case first.apart == "" && first.set != set:
		first.apart = fmt.Sprintf("its members are apart or come twice: %s in %s, and %s in %s; those of a key must "+
			"follow each other",
			first.set, Quoted(f.shards[first.shard].rel), set, Quoted(sh.rel))
	}
}

// sampleKey returns the key of a sample. It contains the split, but not the name of the
// tar: samples may be moved to other shards.
func sampleKey(sh shard, key string) string { return path.Join(sh.split, key) }

// refused returns the extensions whose members cannot be imported, with the reason. Words
// before the last dot may be the end of a key, as in john.smith.jpg. They are taken for
// the name of a column only if several samples have them, or one sample has them in
// addition to a plain extension.
func (f *survey) refused() map[string]string {
	out := map[string]string{}
	for ext := range f.extensions {
		if p := f.prefixes[firstWords(ext)]; p != nil && p.samples < 2 && !p.hasPlain {
			out[ext] = fmt.Sprintf("no other sample has a member .%s, and this one has none with a plain extension: "+
				".%s may be a column, or belong to the key; "+
				"name it without that dot", ext, firstWords(ext))
		}
	}
	return out
}

// checkExtensions returns an error if there are too many extensions. Dots in keys are the
// usual cause.
func (f *survey) checkExtensions() error {
	if n := len(f.extensions); n > maxExtensions {
		return fmt.Errorf("%w: the members have more than %d different extensions, which would each be a column, "+
			"such as %s; "+
			"a key ends at the first dot of a name, as WebDataset has it: are there dots in the keys?", schema.ErrLimit,
			maxExtensions,
			quotedList(slices.Sorted(maps.Keys(f.extensions))[:3]))
	}
	return nil
}

// tarSamples groups the members of one tar into samples. One goroutine uses it.
type tarSamples struct {
	source *webDataset
	file   string // name of the shard
	in     sequence
	shard  shard
	yield  func(Sample, error) bool

	group // the sample being built, if has is not nil
	// sample is the sample being built. buffers are its blobs, which go back to the pool
	// with it.
	sample  Sample
	buffers [][]byte
	filled  []bool // blob columns that have a member
	done    int    // samples yielded
}

// describe returns what is wrong with the tar, and after how many samples.
func (r *tarSamples) describe(err error) string {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", errCut, err)
	}
	what := fmt.Sprintf("after %d samples", r.done)
	if r.has != nil {
		what += ", at " + Quoted(r.key)
	}
	return what + ": " + err.Error()
}

// read reads a tar from start to end.
func (r *tarSamples) read(ctx context.Context) (err error) {
	t, err := readTar(r.in.open(r.shard.path))
	if err != nil {
		return errors.New(reason(err))
	}
	defer func() {
		if cerr := t.close(); err == nil {
			err = cerr
		}
	}()
	defer func() {
		// The tar has ended within a sample, which may lack members and is dropped.
		buffers.putAll(r.buffers)
	}()
	for ctx.Err() == nil {
		// Members are grouped as the survey has grouped them.
		m, err := t.next()
		if errors.Is(err, io.EOF) {
			if err := t.checkEnd(); err != nil {
				return err
			}
			return r.end()
		}
		if errors.Is(err, errJunk) { // after an end mark, so that the sample is complete
			return cmp.Or(r.end(), err)
		}
		if err != nil {
			return err
		}
		if !r.takes(m) {
			if err := r.end(); err != nil {
				return err
			}
			r.begin(m.key)
		}
		if err := r.member(t, m); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// headers returns a feed of the tars' headers and metadata; nil if everything is read.
func (s *webDataset) headers(ctx context.Context) *feed {
	if !s.walked {
		return nil
	}
	from := newFeed(ctx, s.place, s.shards, true, func(m tarMember) bool {
		kind := s.members[m.ext].kind
		return kind != memberLeft && kind != memberBlob
	})
	from.unpacked, from.kept, from.again = true, s.kept, true
	return from
}

// walk makes the samples from the headers. A compressed tar cannot be walked, and is
// read.
func (r *tarSamples) walk(ctx context.Context, shard *feedShard) error {
	for m := range shard.members {
		if !r.takes(m.tarMember) {
			if err := r.end(); err != nil {
				return err
			}
			r.begin(m.key)
			r.sample.Blobs = nil
		}
		// Blobs have no content here; only their extents are used.
		err := r.member(&feedContent{bytes.NewReader(m.data), m.err}, m.tarMember)
		if shard.taken(m); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case shard.packed:
		return r.read(ctx)
	case errors.Is(shard.end, io.EOF):
		return cmp.Or(shard.cut, r.end())
	case errors.Is(shard.end, errJunk):
		return cmp.Or(r.end(), shard.end)
	}
	return shard.end
}

// feedContent is the content of a member from a feed, and the error of reading it.
type feedContent struct {
	*bytes.Reader
	err error
}

// Read implements io.Reader.
func (c *feedContent) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if errors.Is(err, io.EOF) && c.err != nil {
		err = c.err
	}
	return n, err
}

// begin starts a sample, and checks its key against the survey.
func (r *tarSamples) begin(key string) {
	s := r.source
	r.group = group{key: key, has: map[string]bool{}}
	// filled and not Blobs shows which members exist: a walked blob has no content.
	r.filled = make([]bool, len(s.blobs))
	r.sample = Sample{Key: sampleKey(r.shard, key), Split: r.shard.split,
		Meta: make([]any, len(s.meta)), Blobs: make([][]byte, len(s.blobs)), At: make([]Extent, len(s.blobs))}
	switch found := s.keys[r.sample.Key]; {
	case found == nil:
		r.bad("the tar changed while it was read")
	case found.apart != "":
		r.bad("%s", found.apart)
	// The first sample of a key is valid; later ones are bad.
	case found.run == s.run:
		r.bad("duplicate: the key is in %s already", Quoted(s.shards[found.shard].rel))
	default:
		found.run = s.run
	}
}

// end yields the sample that is complete.
func (r *tarSamples) end() error {
	if r.has == nil {
		return nil
	}
	s, buf := r.source, r.buffers
	r.buffers = nil
	r.sample.Release = func() { buffers.putAll(buf) }
	// A sample needs one blob at least, unless the data set has none at all.
	missing := !slices.Contains(r.filled, true)
	switch {
	case r.sample.Bad != "":
	case s.label && !r.has["cls"]:
		r.sample.Bad = "label missing: it has no cls member"
	case missing && len(s.blobs) == 1:
		r.sample.Bad = s.blobs[0].Name + " missing"
	case missing && len(s.blobs) > 1:
		r.sample.Bad = "it has none of " + quotedList(fieldNames(s.blobs))
	}
	r.has = nil
	r.done++
	if !r.yield(r.sample, nil) {
		return errStop
	}
	return nil
}

// member adds a member to the sample. A defect of the member makes the sample bad; an
// error is about the tar.
func (r *tarSamples) member(t io.Reader, found tarMember) error {
	s := r.source
	if found.problem != "" {
		r.bad("%s", found.problem)
		return nil
	}
	r.has[found.ext] = true
	if why := s.refused[found.ext]; why != "" {
		r.bad("member %s: %s", Quoted(found.name), why)
		return nil
	}
	// The size is checked before the content is read.
	m, ok := s.members[found.ext]
	switch {
	case !ok:
		r.bad("unknown member %s: the tar changed while it was read", Quoted(found.name))
		return nil
	case m.kind == memberLeft:
		return nil
	case m.kind != memberBlob && found.size > maxText:
		r.bad("member %s has %d bytes, more than the %d that metadata may have", Quoted(found.name), found.size,
			maxText)
		return nil
	case m.kind == memberBlob && r.filled[m.column]:
		r.bad("two members for column %s", Quoted(s.blobs[m.column].Name))
		return nil
	case found.size > maxBlob-r.sample.Size:
		r.bad("with member %s it has %d bytes, more than the %d that a sample may have", Quoted(found.name),
			r.sample.Size+found.size, int64(maxBlob))
		return nil
	}
	if m.kind != memberBlob {
		data, err := io.ReadAll(t)
		if err != nil {
			return err
		}
		r.sample.Size += int64(len(data))
		r.metadata(m, found.ext, data)
		return nil
	}
	if r.sample.Blobs != nil {
		buf, err := readBuffer(t, found.size)
		if err != nil {
			return err
		}
		r.buffers = append(r.buffers, buf)
		r.sample.Blobs[m.column] = buf
	}
	r.filled[m.column] = true
	// In a compressed tar found.at is -1, and the blob has no extent.
	if found.at >= 0 && r.file != "" {
		r.sample.At[m.column] = Extent{File: r.file, Offset: found.at, Length: found.size}
	}
	r.sample.Size += found.size
	if m.column == 0 && r.source.pathAt >= 0 {
		r.sample.Meta[s.pathAt] = found.name
	}
	return nil
}

// bad makes the sample bad. The first reason wins.
func (r *tarSamples) bad(format string, args ...any) {
	if r.sample.Bad == "" {
		r.sample.Bad = fmt.Sprintf(format, args...)
	}
}

// metadata sets the columns of a member that is not a blob.
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
		values, err := parseJSONMember(ext, string(data))
		if err != nil {
			r.bad("%s", err)
			return
		}
		// The parsed values take more memory than the text, and are counted with the
		// sample.
		r.sample.Size += valueBytes(data)
		for k, v := range values {
			if at, ok := r.source.jsonAt[k]; ok {
				r.sample.Meta[at] = r.source.json[k].convert(v)
			}
		}
	}
}
