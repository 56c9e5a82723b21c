package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// parquetSource is a directory or a file of Parquet, as the `datasets` library
// writes it or not. Columns of binary and of struct<bytes, path> are blobs,
// the others metadata. A split is told by the name of the file or its folder.
type parquetSource struct {
	about
	opts   Options
	shards []shard
	layout *parquetLayout
	keys   []folderKey
	broken map[string]error // shards that cannot be opened, by rel
	meta   []metaColumn
	blobs  []blobColumn
	paths  int         // blob column whose paths are the column file_name, or -1
	own    *ownColumns // of files that Bowstring wrote, or nil
}

func openParquet(ctx context.Context, path string, opts Options) (Source, error) {
	if err := checkNoLake(path); err != nil {
		return nil, err
	}
	all, err := findShards(path, opts, isParquetData)
	if err != nil {
		return nil, err
	}
	s := &parquetSource{about: about{format: "parquet", path: absolute(path)}, opts: opts,
		layout: newParquetLayout(opts.choice), broken: map[string]error{}, paths: -1}
	s.shards, s.splits = arrangeShards(withoutPrivate(all), opts.Split)
	if len(s.shards) == 0 {
		return nil, fmt.Errorf("%w: there is no *.parquet file", schema.ErrInvalid)
	}
	if err := s.readSchemas(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// readSchemas opens each file for its columns and its number of rows.
func (s *parquetSource) readSchemas(ctx context.Context) error {
	rows := map[string]int64{}
	for _, sh := range s.shards {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if sh.missing != "" {
			s.broken[sh.rel] = errors.New(sh.missing)
			continue
		}
		f, err := openParquetFile(sh.path)
		if err == nil {
			rows[sh.rel] = max(f.NumRows(), 0)
			err = errors.Join(s.layout.add(sh.rel, f), f.Close())
		}
		if err != nil {
			s.broken[sh.rel] = err
		}
	}
	for name, err := range s.layout.settle() {
		s.broken[name] = err
	}
	first := ""
	for _, sh := range s.shards {
		if s.broken[sh.rel] == nil {
			first = cmp.Or(first, sh.path)
			s.rows += rows[sh.rel]
		}
	}
	if first == "" {
		var errs []error
		for _, sh := range s.shards {
			errs = append(errs, fmt.Errorf("%s: %w", Quoted(sh.rel), s.broken[sh.rel]))
		}
		return fmt.Errorf("%w: no file can be read: %w", schema.ErrInvalid, errors.Join(errs...))
	}
	var err error
	if s.own, err = ownColumnsOf(first, s.layout.fields); err != nil {
		return err
	}
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
	for i := range s.meta {
		rename(&s.meta[i].field, taken)
	}
}

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

func (s *parquetSource) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		for _, sh := range s.shards {
			more, err := s.readShard(ctx, sh, yield)
			if ctx.Err() != nil {
				yield(Sample{}, context.Cause(ctx))
				return
			}
			if err != nil && !yield(Sample{Key: sh.rel, Split: sh.split, Bad: err.Error()}, nil) || !more {
				return
			}
		}
	}
}

// readShard yields the rows of a file. Its error is what is wrong with the file.
func (s *parquetSource) readShard(ctx context.Context, sh shard,
	yield func(Sample, error) bool) (more bool, err error) {
	if err := s.broken[sh.rel]; err != nil {
		return true, err
	}
	records, err := s.layout.openRecords(sh.path)
	if err != nil {
		return true, err
	}
	defer func() { _ = records.close() }()
	for row := int64(0); ; {
		rec, bad, err := records.next(ctx)
		if errors.Is(err, io.EOF) {
			if want := records.file.NumRows(); row != want {
				return true, fmt.Errorf("it ends after %d of %d rows", row, want)
			}
			return true, nil
		}
		if err != nil {
			return true, fmt.Errorf("after %d of %d rows: %w", row, records.file.NumRows(), err)
		}
		if rec, err = s.own.restore(rec); err != nil {
			return true, fmt.Errorf("after %d of %d rows: %w", row, records.file.NumRows(), err)
		}
		share := recordBytes(rec) / max(rec.NumRows(), 1)
		for i := range int(rec.NumRows()) {
			sample := s.sample(sh, row, rec, i)
			sample.Bad = cmp.Or(bad[i], sample.Bad)
			sample.Size = max(sample.Size, share) // of the record, which stays as long as a row of it does
			row++
			if s.own.leavesOut(sample.Split, s.opts.Split) {
				sample.Release()
				continue
			}
			if !yield(sample, nil) {
				rec.Release()
				return false, nil
			}
		}
		rec.Release()
	}
}

func (s *parquetSource) sample(sh shard, row int64, rec arrow.Record, i int) Sample {
	rec.Retain()
	out := Sample{Key: fmt.Sprintf("%s#%d", sh.rel, row), Split: sh.split, Release: rec.Release}
	for _, m := range s.meta {
		column := rec.Column(m.index)
		if column.IsNull(i) && schema.Classes(m.field) != nil && s.own == nil {
			out.Bad = m.field.Name + " missing"
		}
		out.Meta = append(out.Meta, Cell{column, i})
	}
	for _, k := range s.keys {
		out.Meta = append(out.Meta, k.value(sh.rel))
	}
	var file any
	for c, b := range s.blobs {
		data, path, bad := b.cell(rec.Column(b.index), i)
		out.Size += int64(len(data))
		out.Bad = cmp.Or(out.Bad, bad)
		if c == s.paths && path != "" {
			file = path
		}
		out.Blobs = append(out.Blobs, data)
	}
	if s.paths >= 0 {
		out.Meta = append(out.Meta, file)
	}
	if s.own != nil {
		s.own.tell(&out, func(column int) Cell { return Cell{rec.Column(column), i} })
	}
	return out
}

func (l *layout) looksParquet() bool {
	if !l.dir {
		return extension(l.path) == "parquet" && !l.looksList()
	}
	return l.any(func(name string) bool { return isParquetData(filepath.Base(name)) })
}
