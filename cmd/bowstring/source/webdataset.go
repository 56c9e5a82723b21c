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
	// maxText bounds a value that becomes metadata, in bytes.
	maxText = 16 << 20
)

// webDataset is a set of tars whose consecutive members with the same name up to the
// first dot behind the last slash make a sample, the rest of the name saying what each
// is:
//
//	jpg, png and other images      blob column image, also of members mask.png: mask
//	wav, flac and other audio      blob column audio
//	cls                            label, an int64; other whole numbers: cls2, index, inx
//	txt, text, caption, transcript a utf8 column of that name
//	json, jsn                      a column for each key of an object, see parseObject; anything else: json
//	note.txt, count.cls, info.json a column note or count, columns info_KEY or info
//	anything else                  a blob column of that name
//
// A key whose members are apart is a bad sample, wherever they are: read as they come,
// they would be samples that lack what the others have. So is one with a member whose
// name does not show where its key ends; see isExtension and survey.refused.
//
// Columns and their types depend on all members, so the tars are read twice, the
// first time only as far as that takes. Which keys were met is kept in memory.
type webDataset struct {
	about
	shards []shard
	choice *choice

	blobs   []arrow.Field
	meta    []arrow.Field
	members map[string]member // by extension
	json    map[jsonKey]*inferred
	jsonAt  map[jsonKey]int      // metadata column
	label   bool                 // there are cls members, so each sample must have one
	pathAt  int                  // metadata column of the name of the first blob's member, or -1
	refused map[string]string    // extensions that become no column, and why
	keys    map[string]*foundKey // of all samples
	kept    *keptTars            // headers that were read for the columns, where tars are walked
	run     int32                // how often the samples were read
}

// member says what becomes of the members with an extension.
type member struct {
	kind   memberKind
	column int
}

type memberKind int

const (
	memberLeft memberKind = iota // out: it is not read
	memberBlob
	memberInt
	memberText
	memberJSON
)

var (
	intExtensions  = []string{"cls", "cls2", "index", "inx"}
	textExtensions = []string{"txt", "text", "caption", "transcript"}
	jsonExtensions = []string{"json", "jsn"}
)

// kindOf finds by the last word of an extension what members with it hold, and by the
// words before, what they name.
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

func openWebDataset(ctx context.Context, pattern string, opts Options) (Source, error) {
	all, err := opts.files.findTars(ctx, pattern, opts)
	if err != nil {
		return nil, err
	}
	s := &webDataset{about: about{place: opts.files, format: "webdataset", path: opts.files.absolute(pattern)},
		choice: opts.choice}
	s.shards, s.splits = arrangeShards(all, opts.Split)
	s.walked = opts.Walk
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
	if errors.Is(err, errKnownAlso) { // which of them are bad is known when all were met
		forget(s.shards)
		err = s.survey(ctx)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// errKnownAlso is why no shard can be left unread.
var errKnownAlso = errors.New("what the samples are depends on shards that were not read")

// survey reads the tars for the columns of their samples.
func (s *webDataset) survey(ctx context.Context) error {
	found := newSurvey(s.shards, s.choice)
	counts, err := s.place.counts(ctx, s.shards)
	if err != nil {
		return err
	}
	if !s.walked {
		defer s.place.readTwice(paths(s.shards))()
	}
	from := newFeed(ctx, s.place, s.shards, s.walked, func(m tarMember) bool {
		kind, _ := kindOf(m.ext)
		// A small member comes with its header, and is used when samples are made.
		return kind == memberJSON || s.walked && kind != memberBlob && m.size <= windowBytes
	})
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
	if slices.ContainsFunc(s.shards, func(sh shard) bool { return sh.known > 0 }) {
		if !found.extensions["cls"] && s.place.kept.Schema().HasField("label") {
			return errKnownAlso // a sample without one is bad
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

// makeColumns decides on the columns: label first, then text and numbers, then JSON keys.
func (s *webDataset) makeColumns(found *survey) error {
	s.members, s.jsonAt = map[string]member{}, map[jsonKey]int{}
	blobAt := map[string]int{}
	var taken []string
	extensions := slices.DeleteFunc(slices.Sorted(maps.Keys(found.extensions)), func(ext string) bool {
		return s.refused[ext] != ""
	})
	for _, ext := range extensions {
		if kind, _ := kindOf(ext); kind != memberBlob {
			continue
		}
		name, media := blobName(ext, found.manyImages)
		if !s.choice.wants(name, ext) {
			s.members[ext] = member{kind: memberLeft}
			continue
		}
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
	if len(s.blobs) == 1 {
		s.blobs[0].Nullable = false
	}
	return nil
}

// addMember adds the column of members that hold a number or a text.
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
	return freeName(name, slices.Concat([]string{"label", schema.PathColumn, "width", "height", "format", "orientation"},
		intExtensions, textExtensions, jsonExtensions)), media
}

func (s *webDataset) Fields() (meta, blobs []arrow.Field) { return s.meta, s.blobs }

func (s *webDataset) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
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

func (l *layout) detectWebDataset() bool { return l.any(isTarName) }

// jsonKey names a value of JSON members: a key of the objects that members with an
// extension hold, or the whole of those that hold something else.
type jsonKey struct {
	ext, key string
	whole    bool
}

// column is what the column of the values would be called.
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

// parseJSONMember reads a member that holds JSON: the keys of an object as parseObject
// has them, or a list, a text, a number or a truth value as one. null holds nothing.
func parseJSONMember(ext, text string) (map[jsonKey]written, error) {
	values := map[jsonKey]written{}
	p := jsonParser{in: text}
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

// maxExtensions bounds the different extensions, which would each be a column.
const maxExtensions = 1000

// survey is what a first reading of tars found.
type survey struct {
	shards     []shard
	choice     *choice
	samples    int64
	extensions map[string]bool
	prefixes   map[string]*surveyed // what comes before the last dot of an extension
	manyImages bool                 // some sample has members jpg and png, say
	json       map[jsonKey]*inferred

	keys map[string]*foundKey // by split and key
	sets map[string]string    // of extensions, each held once
}

// surveyed is what was found of the first words of extensions.
type surveyed struct {
	samples  int64 // that have a member with them
	hasPlain bool  // some sample also has a member with one word as its extension: its key ends there for certain
}

// foundKey has the places of the members of a key.
type foundKey struct {
	shard int32  // the first
	run   int32  // the last reading that met it
	set   string // extensions of its members
	apart string // how its members are apart, "" if they do not
}

// group is a run of members with one key and different extensions: a sample, if there is
// no other of that key.
type group struct {
	key string
	has map[string]bool // extensions
}

// takes says whether a member belongs to the group.
func (g *group) takes(m tarMember) bool { return g.has != nil && g.key == m.key && !g.has[m.ext] }

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
		if kind, _ := kindOf(m.ext); kind == memberJSON && m.data != nil && m.err == nil { // else the next member shows it as well
			err = f.readJSON(m.ext, m.data)
		}
		if from.taken(m); err != nil {
			return err
		}
	}
	exts := f.note(g)
	if errors.Is(from.end, io.EOF) || errors.Is(from.end, errJunk) { // what breaks off is not read
		f.place(n, g, exts)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (f *survey) readJSON(ext string, data []byte) error {
	values, _ := parseJSONMember(ext, string(data)) // what is wrong with it, its sample says
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

// note notes the extensions of a group whose members are all known, and returns them.
func (f *survey) note(g group) []string {
	if g.has == nil {
		return nil
	}
	f.samples++
	exts := slices.Sorted(maps.Keys(g.has))
	plain := slices.ContainsFunc(exts, func(ext string) bool { return firstWords(ext) == "" })
	images, last := 0, ""
	for _, ext := range exts { // sorted, so that those that begin alike are next to each other
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

// firstWords is what comes before the last dot of an extension.
func firstWords(ext string) string { return ext[:max(strings.LastIndexByte(ext, '.'), 0)] }

// place records the place of a group, and whether its key was met before.
func (f *survey) place(n int, g group, exts []string) {
	if g.has == nil {
		return
	}
	set := "." + strings.Join(exts, ", .")
	if len(exts) == 0 {
		set = "nothing"
	}
	if known, ok := f.sets[set]; ok {
		set = known
	} else {
		f.sets[set] = set
	}
	sh := f.shards[n]
	key := sampleKey(sh, g.key)
	first, ok := f.keys[key]
	switch {
	case !ok:
		f.keys[key] = &foundKey{shard: int32(n), set: set}
	case first.apart == "" && first.set != set:
		first.apart = fmt.Sprintf("its members are apart or come twice: %s in %s, and %s in %s; those of a key must "+
			"follow each other",
			first.set, Quoted(f.shards[first.shard].rel), set, Quoted(sh.rel))
	}
}

// sampleKey names a sample.
func sampleKey(sh shard, key string) string { return path.Join(sh.split, key) }

// refused says of extensions why their members cannot be imported. Words before the last
// dot of an extension may be the end of a key, as in john.smith.jpg: they are taken for a
// column's name only where several samples have it, or one has it beside a plain
// extension.
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

// checkExtensions bounds the columns.
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

// tarSamples groups the members of a tar into samples.
type tarSamples struct {
	source *webDataset
	file   string // the shard's name
	in     sequence
	shard  shard
	yield  func(Sample, error) bool

	group          // the sample being put together, if has is not nil
	sample  Sample // it
	buffers [][]byte
	filled  []bool // blob columns that it has
	done    int    // samples yielded
}

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
		// The sample that was incomplete when the tar broke off may lack members.
		buffers.putAll(r.buffers)
	}()
	for ctx.Err() == nil {
		m, err := t.next()
		if errors.Is(err, io.EOF) {
			if err := t.checkEnd(); err != nil {
				return err
			}
			return r.end()
		}
		if errors.Is(err, errJunk) { // behind an end mark, so that the sample is whole
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

// headers begins to read the headers of the tars, and what is metadata in them; nil where
// all is read.
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

// walk is read by the headers of the tar.
func (r *tarSamples) walk(ctx context.Context, shard *feedShard) error {
	for m := range shard.members {
		if !r.takes(m.tarMember) {
			if err := r.end(); err != nil {
				return err
			}
			r.begin(m.key)
			r.sample.Blobs = nil
		}
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

// feedContent is the content of a member, and what is wrong with it.
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

func (r *tarSamples) begin(key string) {
	s := r.source
	r.group = group{key: key, has: map[string]bool{}}
	r.filled = make([]bool, len(s.blobs))
	r.sample = Sample{Key: sampleKey(r.shard, key), Split: r.shard.split,
		Meta: make([]any, len(s.meta)), Blobs: make([][]byte, len(s.blobs)), At: make([]Extent, len(s.blobs))}
	switch found := s.keys[r.sample.Key]; {
	case found == nil:
		r.bad("the tar changed while it was read")
	case found.apart != "":
		r.bad("%s", found.apart)
	case found.run == s.run:
		r.bad("duplicate: the key is in %s already", Quoted(s.shards[found.shard].rel))
	default:
		found.run = s.run
	}
}

// end yields the sample that was put together.
func (r *tarSamples) end() error {
	if r.has == nil {
		return nil
	}
	s, buf := r.source, r.buffers
	r.buffers = nil
	r.sample.Release = func() { buffers.putAll(buf) }
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

// member adds a member to the sample. An error is one of the tar.
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
	if found.at >= 0 && r.file != "" {
		r.sample.At[m.column] = Extent{File: r.file, Offset: found.at, Length: found.size}
	}
	r.sample.Size += found.size
	if m.column == 0 && r.source.pathAt >= 0 {
		r.sample.Meta[s.pathAt] = found.name
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
		values, err := parseJSONMember(ext, string(data))
		if err != nil {
			r.bad("%s", err)
			return
		}
		// The parsed form takes more memory than the text; it is released before the
		// sample ends.
		r.sample.Size += valueBytes(data)
		for k, v := range values {
			if at, ok := r.source.jsonAt[k]; ok {
				r.sample.Meta[at] = r.source.json[k].convert(v)
			}
		}
	}
}
