package source

import (
	"cmp"
	"context"
	"iter"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// Kept is what a snapshot before has of files that have not changed since: rows of theirs need not be read.
type Kept interface {
	// Schema is that of the rows.
	Schema() *arrow.Schema
	// Rows is how many rows of a file there are, and the split they are in; false of a file that has to be read.
	Rows(file string) (n int64, split string, ok bool)
	// Is reports whether a row of a file, by its number, is that of the sample with a key.
	Is(file string, row int64, key string) bool
	// Has reports whether a row of any of the files is that of the sample with a key.
	Has(key string) bool
	// All yields the rows of a file in their order.
	All(ctx context.Context, file string) iter.Seq2[KeptRow, error]
}

// KeptRow is a row of a snapshot before.
type KeptRow struct {
	ID schema.ID
	Known
}

// knownRows marks the shards whose rows are known. split is that of samples whose source
// has no splits. keyOf, if it is not nil, makes the key of a row of a shard, by its
// number: rows with other keys are not those of now.
func (f *Files) knownRows(shards []shard, split string, keyOf func(sh *shard, row int64) string) {
	if f.kept == nil {
		return
	}
	for i := range shards {
		sh := &shards[i]
		if sh.missing != "" {
			continue
		}
		file := f.name(sh.path)
		n, in, ok := f.kept.Rows(file)
		if want := cmp.Or(sh.split, split); !ok || in != want && want != "" {
			continue
		}
		if keyOf == nil || f.kept.Is(file, 0, keyOf(sh, 0)) && f.kept.Is(file, n-1, keyOf(sh, n-1)) {
			sh.known = n
		}
	}
}

// forget has all shards be read.
func forget(shards []shard) {
	for i := range shards {
		shards[i].known = 0
	}
}

// allKnown reports whether there is nothing to read, and how many rows there are.
func allKnown(shards []shard) (rows int64, all bool) {
	for i := range shards {
		if shards[i].known == 0 {
			return 0, false
		}
		rows += shards[i].known
	}
	return rows, len(shards) > 0
}

// yieldKnown yields the rows of a shard that is not read; false if that is to end.
func (f *Files) yieldKnown(ctx context.Context, sh *shard, yield func(Sample, error) bool) bool {
	file := f.name(sh.path)
	_, split, _ := f.kept.Rows(file)
	for row, err := range f.kept.All(ctx, file) {
		if err != nil {
			yield(Sample{}, err)
			return false
		}
		if !yield(Sample{Key: sh.rel, Split: split, ID: &row.ID, Known: &row.Known}, nil) {
			return false
		}
	}
	return true
}

// knownSource is shards that need not be read.
type knownSource struct {
	about
	shards []shard
}

func newKnownSource(of about, shards []shard) *knownSource {
	of.rows, _ = allKnown(shards)
	of.exact = true
	return &knownSource{of, shards}
}

// Fields implements Source.
func (s *knownSource) Fields() (meta, blobs []arrow.Field) {
	columns := s.place.kept.Schema()
	return schema.MetaFields(columns), schema.BlobFields(columns)
}

// Samples implements Source.
func (s *knownSource) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		for i := range s.shards {
			if !s.place.yieldKnown(ctx, &s.shards[i], yield) {
				return
			}
		}
	}
}
