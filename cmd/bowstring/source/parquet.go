package source

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/cmd/bowstring/source/parquet"
	"bowstring/schema"
)

// parquetSource is a directory or a file of Parquet, from Hugging Face's library datasets
// or any other program. Columns of binary and of struct<bytes, path> are blobs, all
// others metadata. The name of a file or of its folder decides the split.
type parquetSource struct {
	about
	opts   Options
	shards []shard
	layout *parquetLayout
	// keys are columns whose values are in the names of folders.
	keys   []folderKey
	broken map[string]error // files that cannot be opened, by rel
	meta   []metaColumn
	blobs  []blobColumn
	paths  int         // blob column whose paths become the column file_name, or -1
	own    *ownColumns // columns of a file that Bowstring wrote; nil for other files
}

// openParquet opens a data set of Parquet files. If the rows of all files are known from
// the previous snapshot, it opens none.
func openParquet(ctx context.Context, path string, opts Options) (Source, error) {
	if err := opts.files.checkNoLake(path); err != nil {
		return nil, err
	}
	all, err := opts.files.findShards(path, opts, isParquetData)
	if err != nil {
		return nil, err
	}
	s := &parquetSource{about: about{place: opts.files, format: "parquet", path: opts.files.absolute(path)}, opts: opts,
		layout: newParquetLayout(opts.files, opts.choice), broken: map[string]error{}, paths: -1}
	s.shards, s.splits = arrangeShards(withoutPrivate(all), opts.Split)
	if len(s.shards) == 0 {
		return nil, fmt.Errorf("%w: there is no *.parquet file", schema.ErrInvalid)
	}
	// Rows of unchanged files come from the previous snapshot, if their keys are still
	// the same.
	s.place.knownRows(s.shards, opts.Split, parquetKey)
	if _, all := allKnown(s.shards); all {
		return newKnownSource(s.about, s.shards), nil
	}
	if err := s.begin(opts, s.place.estimateWhole(paths(s.shards), 1)); err != nil {
		return nil, err
	}
	if err := s.readSchemas(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// readSchemas opens each file for its columns and its number of rows. All footers are
// read before the first row: the type of a column must hold the values of all files. A
// file that cannot be opened becomes a bad sample.
func (s *parquetSource) readSchemas(ctx context.Context) error {
	rows := map[string]int64{}
	files := s.openAll(ctx)
	for n, sh := range s.shards {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if sh.missing != "" {
			s.broken[sh.rel] = errors.New(sh.missing)
			continue
		}
		if sh.known > 0 {
			s.rows += sh.known
			continue
		}
		f, err := files(n)
		if err == nil {
			rows[sh.rel] = max(f.NumRows(), 0)
			err = errors.Join(s.layout.add(sh.rel, f), f.Close())
		}
		if err != nil {
			s.broken[sh.rel] = err
		}
	}
	// If the bucket became unreachable, the files are not to blame.
	if err := s.place.broken(); err != nil {
		return err
	}
	// Files whose columns do not fit are bad as a whole: their rows would lack values.
	for name, err := range s.layout.settle() {
		s.broken[name] = err
	}
	first := ""
	for _, sh := range s.shards {
		if s.broken[sh.rel] == nil && sh.known == 0 {
			first = cmp.Or(first, sh.path)
			s.rows += rows[sh.rel]
		}
	}
	// If no file can be read, there is no schema, and the reasons are the error.
	if first == "" {
		var errs []error
		for _, sh := range s.shards {
			if err := s.broken[sh.rel]; err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", Quoted(sh.rel), err))
			}
		}
		return fmt.Errorf("%w: no file can be read: %w", schema.ErrInvalid, errors.Join(errs...))
	}
	var err error
	if s.own, err = s.place.ownColumnsOf(ctx, first, s.layout.fields); err != nil {
		return err
	}
	// A file that Bowstring wrote becomes the same dataset again: no column is renamed or
	// added.
	if s.own != nil {
		s.exact = true
		s.notes = append(s.notes, s.layout.notes...)
		for i := range s.own.fields {
			s.addOwn(i)
		}
		return s.checkSpread()
	}
	if err := s.classify(s.sniffColumns(ctx, first)); err != nil {
		return err
	}
	s.addFolderKeys()
	s.rename()
	return nil
}

// openAll returns a function that opens the files in order. In a bucket it opens several
// in advance, because each footer costs a round trip.
func (s *parquetSource) openAll(ctx context.Context) func(n int) (*parquet.File, error) {
	if s.place.bucket() == nil {
		return func(n int) (*parquet.File, error) { return s.place.openParquet(ctx, s.shards[n].path) }
	}
	type opened struct {
		file *parquet.File
		err  error
	}
	done := make([]opened, len(s.shards))
	end := 0 // end of the files that were opened
	return func(n int) (*parquet.File, error) {
		if n >= end {
			var all sync.WaitGroup
			for end = n; end < min(n+atTheSameTime, len(s.shards)); end++ {
				if i := end; s.shards[i].read() {
					all.Go(func() { done[i].file, done[i].err = s.place.openParquet(ctx, s.shards[i].path) })
				}
			}
			all.Wait()
		}
		f, err := done[n].file, done[n].err
		done[n] = opened{}
		return f, err
	}
}

// rename gives columns other names if their own are not allowed in a dataset. Blob
// columns come first: a metadata column with the name of a blob column is renamed.
func (s *parquetSource) rename() {
	rename := func(f *arrow.Field, taken []string) {
		if name := freeName(f.Name, taken); name != f.Name {
			s.notes = append(s.notes, fmt.Sprintf("column %q is kept as %q", f.Name, name))
			f.Name = name
		}
	}
	var taken []string
	for i := range s.blobs {
		taken = append(taken, s.blobs[i].field.Name)
		rename(&s.blobs[i].field, nil)
	}
	// Metadata must not take the name of a blob column, with which clients fetch content.
	for i := range s.meta {
		rename(&s.meta[i].field, taken)
	}
}

// Fields implements Source.
func (s *parquetSource) Fields() (meta, blobs []arrow.Field) {
	for _, m := range s.meta {
		meta = append(meta, m.field)
	}
	for _, k := range s.keys {
		meta = append(meta, k.field)
	}
	if s.paths >= 0 {
		meta = append(meta, arrow.Field{Name: schema.PathColumn, Type: arrow.BinaryTypes.String, Nullable: true})
	}
	for _, b := range s.blobs {
		blobs = append(blobs, b.field)
	}
	return meta, blobs
}

// Samples implements Source. The key of a row is its file and its number there.
func (s *parquetSource) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		in := s.place.inOrder(ctx, paths(s.shards))
		defer in.close()
		s.place.yieldParts(ctx, s.shards, false, func(ctx context.Context, i int, put func(Sample) bool) error {
			return s.readShard(ctx, in, s.shards[i], put)
		}, yield)
	}
}

// readShard yields the rows of a file. Its error is about the file: the rows before it
// are valid.
func (s *parquetSource) readShard(ctx context.Context, in sequence, sh shard, yield func(Sample) bool) error {
	if err := s.broken[sh.rel]; err != nil {
		return err
	}
	records, err := s.layout.recordsOf(in.open(sh.path))
	if err != nil {
		return err
	}
	defer func() { _ = records.close() }()
	file := s.place.name(sh.path)
	// Extents must be asked for before the first page is read.
	for _, b := range s.blobs {
		records.records.Locate(b.index)
	}
	for row := int64(0); ; {
		rec, bad, err := records.next(ctx)
		if errors.Is(err, io.EOF) {
			// A file with fewer rows than its footer states is damaged.
			if want := records.file.NumRows(); row != want {
				return fmt.Errorf("it ends after %d of %d rows", row, want)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %d of %d rows: %w", row, records.file.NumRows(), err)
		}
		// Types that Parquet lacks are restored per record, not per row.
		if rec, err = s.own.restore(rec); err != nil {
			return fmt.Errorf("after %d of %d rows: %w", row, records.file.NumRows(), err)
		}
		// A sample retains the whole record, which is therefore divided among its rows.
		share := recordBytes(rec) / max(rec.NumRows(), 1)
		for i := range int(rec.NumRows()) {
			sample := s.sample(sh, row, rec, i, func(column, element int) Extent {
				return placed(file, records.records.Places(column).At(i, element))
			})
			sample.Bad = cmp.Or(bad[i], sample.Bad)
			sample.Size = max(sample.Size, share) // of the record's memory, which stays as long as one of its rows
			row++
			if s.own.leavesOut(sample.Split, s.opts.Split) {
				sample.Release()
				continue
			}
			if !yield(sample) {
				rec.Release()
				return nil
			}
		}
		rec.Release()
	}
}

// sample makes the sample of a row. The sample retains the record, so that its cells and
// blobs stay valid until Release.
func (s *parquetSource) sample(sh shard, row int64, rec arrow.Record, i int,
	where func(column, element int) Extent) Sample {
	rec.Retain()
	out := Sample{Key: parquetKey(&sh, row), Split: sh.split, Release: rec.Release}
	for _, m := range s.meta {
		column := rec.Column(m.index)
		// A row without a class is bad, unless Bowstring wrote the file: a dataset may
		// have null classes.
		if column.IsNull(i) && schema.Classes(m.field) != nil && s.own == nil {
			out.Bad = m.field.Name + " missing"
		}
		out.Meta = append(out.Meta, Cell{column, i})
	}
	// Keys of folders follow the columns of the file, as in Fields.
	for _, k := range s.keys {
		out.Meta = append(out.Meta, k.value(sh.rel))
	}
	var file any
	for c, b := range s.blobs {
		data, path, bad := b.cell(rec.Column(b.index), i)
		out.Size += int64(len(data))
		out.Bad = cmp.Or(out.Bad, bad)
		// The path in struct<bytes, path> is the name of the file at its origin.
		if c == s.paths && path != "" {
			file = path
		}
		var at Extent
		if data != nil {
			at = where(b.index, max(b.element, 0))
		}
		out.Blobs, out.At = append(out.Blobs, data), append(out.At, at)
	}
	if s.paths >= 0 {
		out.Meta = append(out.Meta, file)
	}
	if s.own != nil {
		s.own.identify(&out, func(column int) Cell { return Cell{rec.Column(column), i} })
	}
	return out
}

// parquetKey returns the key of a row by its number. The number counts all rows of the
// file, also those left out.
func parquetKey(sh *shard, row int64) string { return fmt.Sprintf("%s#%d", sh.rel, row) }

// placed returns the extent for a place in a file.
func placed(file string, p parquet.Place) Extent {
	switch {
	case p.Why != "":
		return Extent{Why: p.Why}
	case p.Unit != nil:
		return inUnit(file, p.Unit, p.Offset, p.Length)
	}
	return Extent{File: file, Offset: p.Offset, Length: p.Length}
}

// detectParquet reports whether the layout is a Parquet file with content, or has Parquet
// files.
func (l *layout) detectParquet() bool {
	if !l.dir {
		return extension(l.path) == "parquet" && !l.detectList()
	}
	return l.any(func(name string) bool { return isParquetData(filepath.Base(name)) })
}

// maxSpread bounds the blob columns that one column of lists becomes with --spread.
const maxSpread = 256

// feature is the description of a column by the library datasets, in the metadata
// "huggingface" of a file.
type feature struct {
	Type    string   `json:"_type"`
	Names   []string `json:"names"`
	Feature *feature `json:"feature"` // feature of a list's elements
}

// UnmarshalJSON also reads a list of one feature, as older versions wrote for a list.
func (f *feature) UnmarshalJSON(b []byte) error {
	var list []*feature
	if json.Unmarshal(b, &list) == nil {
		*f = feature{Type: "List"}
		if len(list) > 0 {
			f.Feature = list[0]
		}
		return nil
	}
	type plain feature
	return json.Unmarshal(b, (*plain)(f))
}

// features parses that metadata. It is only a hint: what cannot be parsed is ignored.
func features(text string) map[string]feature {
	var info struct {
		Info struct {
			Features map[string]json.RawMessage `json:"features"`
		} `json:"info"`
	}
	if text == "" || json.Unmarshal([]byte(text), &info) != nil {
		return nil
	}
	found := map[string]feature{}
	// Each feature is parsed on its own, so that one of an unknown form does not hide the
	// others.
	for name, raw := range info.Info.Features {
		var f feature // a feature of another form is ignored
		if json.Unmarshal(raw, &f) == nil {
			found[name] = f
		}
	}
	return found
}

// metaColumn is a metadata column.
type metaColumn struct {
	field arrow.Field
	index int // index in the layout
}

// blobColumn is a blob column, and its place in the rows of a file.
type blobColumn struct {
	field   arrow.Field
	index   int  // index in the layout
	nested  bool // struct<bytes, path>
	element int  // index of the element in lists; -1 for a column without lists
	last    bool // the last of the columns over which the lists are spread
}

// cell returns the blob of a row and its path; a nil blob is a null. bad is why the row
// has no blob although it should. data refers to the memory of the column.
func (b *blobColumn) cell(column arrow.Array, row int) (data []byte, path, bad string) {
	if column.IsNull(row) {
		return nil, "", ""
	}
	// A column of lists is spread over several blob columns. Each of these columns takes
	// one element.
	if list, ok := column.(array.ListLike); ok {
		start, end := list.ValueOffsets(row)
		if n := int(end - start); n > b.element+1 && b.last {
			return nil, "", fmt.Sprintf("%s has %d elements, more than the %d that --spread takes",
				Quoted(b.field.Name), n, b.element+1)
		} else if n <= b.element {
			return nil, "", ""
		}
		if column, row = list.ListValues(), int(start)+b.element; column.IsNull(row) {
			return nil, "", ""
		}
	}
	content, paths := blobArrays(column)
	if paths != nil {
		path = text(paths, row)
	}
	switch {
	// An empty value is not a null, so data must not be nil.
	case content.IsValid(row):
		if data = content.Value(row); data == nil {
			data = []byte{}
		}
	case path != "":
		bad = fmt.Sprintf("%s: the file holds its path only (%s), not its bytes", Quoted(b.field.Name), Quoted(path))
	}
	return data, path, bad
}

// bytesArray is an array of type binary or large_binary.
type bytesArray interface {
	arrow.Array
	Value(int) []byte
}

// blobArrays returns the arrays of content and of paths in a blob column. path is nil if
// there is none, and both are for another type.
func blobArrays(a arrow.Array) (content bytesArray, path arrow.Array) {
	switch a := a.(type) {
	case *array.Binary:
		return a, nil
	case *array.LargeBinary:
		return a, nil
	case *array.Struct:
		if !isBlobStruct(a.DataType()) {
			return nil, nil
		}
		t := a.DataType().(*arrow.StructType)
		i, _ := t.FieldIdx("bytes")
		if j, ok := t.FieldIdx("path"); ok {
			path = a.Field(j)
		}
		content, _ := blobArrays(a.Field(i))
		return content, path
	}
	return nil, nil
}

// isBlobStruct reports whether a type is struct<bytes, path> or struct<bytes>, the
// layouts of Hugging Face.
func isBlobStruct(t arrow.DataType) bool {
	st, ok := t.(*arrow.StructType)
	if !ok {
		return false
	}
	// The order of the fields does not matter, and path may be absent.
	content, ok := st.FieldByName("bytes")
	path, pathed := st.FieldByName("path")
	switch {
	case !ok || !isBytes(content.Type) || st.NumFields() > 2 || st.NumFields() == 2 && !pathed:
		return false
	}
	return !pathed || isText(path.Type)
}

// isBytes reports whether t is binary or large_binary.
func isBytes(t arrow.DataType) bool { return t.ID() == arrow.BINARY || t.ID() == arrow.LARGE_BINARY }

// isBlob reports whether a column of type t can be a blob column.
func isBlob(t arrow.DataType) bool { return isBytes(t) || isBlobStruct(t) }

// classify sorts the columns into metadata and blobs.
func (s *parquetSource) classify(samples map[int][]byte) error {
	// The features of Hugging Face decide media and classes, if the first file has them.
	known := features(s.layout.info())
	s.notes = append(s.notes, s.layout.notes...)
	for i, f := range s.layout.fields {
		list, isList := f.Type.(arrow.ListLikeType)
		n, spread := s.opts.Spread[f.Name]
		switch {
		case isBlob(f.Type):
			b := blobColumn{field: schema.BlobField(f.Name, mediaOf(known[f.Name].Type, samples[i]), true), index: i,
				nested: !isBytes(f.Type), element: -1}
			s.blobs = append(s.blobs, b)
		case spread && isList && isBlob(list.Elem()):
			var of string
			if e := known[f.Name].Feature; e != nil {
				of = e.Type
			}
			for e := range n {
				s.blobs = append(s.blobs, blobColumn{
					field: schema.BlobField(fmt.Sprintf("%s_%d", f.Name, e), mediaOf(of, samples[i]), true), index: i,
					nested: !isBytes(list.Elem()), element: e, last: e == n-1})
			}
			if !isBytes(list.Elem()) {
				s.notes = append(s.notes, fmt.Sprintf("of the paths in column %s, the first of a row is kept at most",
					Quoted(f.Name)))
			}
		// Bytes within other values need a decision of the user; see refuseBytes.
		case schema.HoldsBytes(f.Type) && !slices.Contains(s.opts.AsMetadata, f.Name):
			return s.refuseBytes(f, isList && isBlob(list.Elem()))
		default:
			if names := known[f.Name].Names; known[f.Name].Type == "ClassLabel" && f.Type.ID() == arrow.INT64 {
				f = schema.ClassField(f.Name, names)
			}
			s.meta = append(s.meta, metaColumn{f, i})
		}
	}
	if err := s.checkSpread(); err != nil {
		return err
	}
	// The paths of the first struct column become file_name, unless a column has that
	// name.
	nested := slices.IndexFunc(s.blobs, func(b blobColumn) bool { return b.nested })
	named := slices.ContainsFunc(s.meta, func(m metaColumn) bool { return m.field.Name == schema.PathColumn })
	if !named && nested >= 0 && s.layout.choice.keeps(schema.PathColumn) {
		s.paths = nested
	}
	return nil
}

// refuseBytes returns the error for a column of bytes within other values. A row has one
// blob in a column, so the user must choose what becomes of it.
func (s *parquetSource) refuseBytes(f arrow.Field, spreads bool) error {
	name, advice := Quoted(f.Name), ""
	if spreads {
		advice = fmt.Sprintf("--spread %s=N makes N blob columns of it, %s_0 and so on; ", name, name)
	}
	return fmt.Errorf("%w: column %s of type %s holds several blobs a row, or blobs within other values: %s--as-metadata "+
		"%s keeps it in the rows of the manifest, without checksums, the spill and operators; --leave-out %s leaves it out",
		schema.ErrInvalid, name, schema.ShownType(f.Type), advice, name, name)
}

// checkSpread returns an error for names in Options.Spread and Options.AsMetadata that no
// suitable column has.
func (s *parquetSource) checkSpread() error {
	for _, name := range slices.Sorted(maps.Keys(s.opts.Spread)) {
		if n := s.opts.Spread[name]; n < 1 || n > maxSpread {
			return fmt.Errorf("%w: --spread %s=%d: want 1 to %d columns", schema.ErrInvalid, Quoted(name), n, maxSpread)
		}
		if !slices.ContainsFunc(s.blobs, func(b blobColumn) bool {
			return b.element >= 0 && s.layout.fields[b.index].Name == name
		}) {
			return fmt.Errorf("%w: --spread %s: there is no column of lists of blobs of that name", schema.ErrInvalid,
				Quoted(name))
		}
	}
	for _, name := range s.opts.AsMetadata {
		if !slices.ContainsFunc(s.meta, func(m metaColumn) bool { return m.field.Name == name }) {
			return fmt.Errorf("%w: --as-metadata: there is no column %s of bytes within lists or structs",
				schema.ErrInvalid, Quoted(name))
		}
	}
	return nil
}

// sniffColumns returns the first content of each blob column, as far as the first record
// has one. It decides the media of columns without a feature.
func (s *parquetSource) sniffColumns(ctx context.Context, path string) map[int][]byte {
	found := map[int][]byte{}
	records, err := s.layout.openRecords(ctx, path)
	if err != nil {
		return nil
	}
	defer func() { _ = records.close() }()
	rec, _, err := records.next(ctx)
	if err != nil {
		return nil
	}
	defer rec.Release()
	for c, column := range rec.Columns() {
		// Any element of a list shows the media of all of them.
		if list, ok := column.(array.ListLike); ok {
			column = list.ListValues()
		}
		content, _ := blobArrays(column)
		for row := 0; content != nil && row < content.Len() && found[c] == nil; row++ {
			if content.IsValid(row) {
				found[c] = slices.Clone(content.Value(row))
			}
		}
	}
	return found
}

// mediaOf returns the media of a blob column, by its feature, or by a sample if it has
// none.
func mediaOf(feature string, sample []byte) string {
	switch feature {
	case "Image":
		return schema.MediaImage
	case "Audio":
		return schema.MediaAudio
	case "":
		if _, err := inspect(sample, VerifyNone); err == nil {
			return schema.MediaImage
		}
	}
	return ""
}

// nullFolder is the name of the folder for a null value, as Hive and Spark write it.
const nullFolder = "__HIVE_DEFAULT_PARTITION__"

// folderKey is a column whose values are in the names of folders, such as
// year=2024/month=1/part-00000.parquet. Hive partitions tables so.
type folderKey struct {
	name  string
	field arrow.Field
	whole bool // the values of all folders are integers
}

// value returns the value for the rows of a file.
func (k *folderKey) value(rel string) any {
	v, ok := folderValues(rel)[k.name]
	if !ok || v == nullFolder {
		return nil
	}
	if k.whole {
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			return n
		}
	}
	return v
}

// folderValues returns the keys and values in the folders of a file. Hive escapes special
// characters as in URLs.
func folderValues(rel string) map[string]string {
	found := map[string]string{}
	for part := range strings.SplitSeq(path.Dir(rel), "/") {
		key, value, ok := strings.Cut(part, "=")
		if !ok || key == "" {
			continue
		}
		if v, err := url.PathUnescape(value); err == nil {
			value = v
		}
		if k, err := url.PathUnescape(key); err == nil {
			key = k
		}
		found[key] = value
	}
	return found
}

// addFolderKeys makes columns of the keys in the names of folders, unless the files have
// such a column. A key is an int64 if all its values are integers in their shortest form,
// and text otherwise: 01 would not keep its zero. The key split has the split.
func (s *parquetSource) addFolderKeys() {
	for _, sh := range s.shards {
		if sh.missing != "" {
			continue
		}
		values := folderValues(sh.rel)
		for part := range strings.SplitSeq(path.Dir(sh.rel), "/") {
			key, _, _ := strings.Cut(part, "=")
			if k, err := url.PathUnescape(key); err == nil {
				key = k
			}
			value, ok := values[key]
			if !ok || key == schema.SplitColumn || s.hasColumn(key) || !s.layout.choice.wants(key, freeName(key, nil)) {
				continue
			}
			// The columns keep the order in which keys first occur.
			i := slices.IndexFunc(s.keys, func(k folderKey) bool { return k.name == key })
			if i < 0 {
				i = len(s.keys)
				s.keys = append(s.keys, folderKey{name: key, whole: true})
			}
			n, err := strconv.ParseInt(value, 10, 64)
			if value != nullFolder && (err != nil || strconv.FormatInt(n, 10) != value) {
				s.keys[i].whole = false
			}
		}
	}
	for i := range s.keys {
		k := &s.keys[i]
		k.field = arrow.Field{Name: freeName(k.name, nil), Type: arrow.BinaryTypes.String, Nullable: true}
		if k.whole {
			k.field.Type = arrow.PrimitiveTypes.Int64
		}
	}
}

// hasColumn reports whether the files have a column.
func (s *parquetSource) hasColumn(name string) bool {
	return slices.ContainsFunc(s.layout.fields, func(f arrow.Field) bool { return f.Name == name })
}

// isParquetData reports whether a file has rows, by its name. Programs write other files
// next to them, such as _metadata.
func isParquetData(name string) bool {
	return extension(name) == "parquet" && !isMetadata(name) && !strings.HasPrefix(name, "_")
}

// withoutPrivate leaves out files in folders such as _temporary, which Spark ignores as
// well. A folder like _key=1 is a partition.
func withoutPrivate(shards []shard) []shard {
	return slices.DeleteFunc(shards, func(sh shard) bool {
		for part := range strings.SplitSeq(path.Dir(sh.rel), "/") {
			if strings.HasPrefix(part, "_") && !strings.Contains(part, "=") {
				return true
			}
		}
		return false
	})
}

// checkNoLake rejects a table whose log decides which files count. Other files have rows
// that were deleted or replaced, and would become samples.
func (f *Files) checkNoLake(dir string) error {
	kind := ""
	// Each of the three has a folder or file by which its own readers find the log.
	if f.isDir(filepath.Join(dir, "_delta_log")) {
		kind = "Delta Lake"
	} else if found, _ := f.glob(filepath.Join(globQuoted(dir), "metadata", "*.metadata.json")); len(found) > 0 {
		kind = "Iceberg"
	} else if _, err := f.stat(filepath.Join(dir, ".hoodie")); err == nil {
		kind = "Hudi"
	}
	if kind == "" {
		return nil
	}
	return fmt.Errorf("%w: it is a table of %s, whose log says which of its files count; write its rows as plain Parquet "+
		"files first, or ingest what its library reads", schema.ErrInvalid, kind)
}
