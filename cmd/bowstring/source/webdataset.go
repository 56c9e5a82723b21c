package source

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

const (
	// maxText bounds a value that becomes metadata, in bytes.
	maxText = 16 << 20
)

// webDataset is a set of tars whose consecutive members with the same name up to
// the first dot behind the last slash make a sample, the rest of the name saying what each is:
//
//	jpg, png and other images      blob column image, also of members mask.png: mask
//	wav, flac and other audio      blob column audio
//	cls                            label, an int64; other whole numbers: cls2, index, inx
//	txt, text, caption, transcript a utf8 column of that name
//	json, jsn                      a column for each key of an object, see parseObject; anything else: json
//	note.txt, count.cls, info.json a column note or count, columns info_KEY or info
//	anything else                  a blob column of that name
//
// A key whose members lie apart is a bad sample, wherever they lie: read as they come, they would
// be samples that lack what the others have. So is one with a member whose name does not tell where
// its key ends; see isExtension and survey.refused.
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

// kindOf tells by the last word of an extension what members with it hold, and by the words before, what they name.
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
	all, err := findTars(pattern, opts)
	if err != nil {
		return nil, err
	}
	s := &webDataset{about: about{format: "webdataset", path: absolute(pattern)}, choice: opts.choice}
	s.shards, s.splits = arrangeShards(all, opts.Split)
	if err := s.survey(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// survey reads the tars for the columns of their samples.
func (s *webDataset) survey(ctx context.Context) error {
	found := newSurvey(s.shards, s.choice)
	for n, sh := range s.shards {
		if sh.missing != "" {
			continue
		}
		if err := found.read(ctx, n); err != nil {
			return err
		}
		if err := found.checkExtensions(); err != nil {
			return err
		}
	}
	if found.samples == 0 {
		return fmt.Errorf("%w: the tars hold no samples: members named KEY.EXTENSION", schema.ErrInvalid)
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
		for _, sh := range s.shards {
			if sh.missing != "" {
				if !yield(sh.asMissing(), nil) {
					return
				}
				continue
			}
			r := &tarSamples{source: s, shard: sh, yield: yield}
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

func (l *layout) looksWebDataset() bool { return l.any(isTarName) }
