package source

import (
	"cmp"
	"context"
	"iter"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// Kept has the rows of files that have not changed since the previous snapshot. Such
// files are not read. One goroutine uses it.
type Kept interface {
	// Schema is the schema of the rows.
	Schema() *arrow.Schema
	// Rows returns the number of rows of a file and their split. ok is false for a file
	// that must be read.
	Rows(file string) (n int64, split string, ok bool)
	// Is reports whether row number row of a file is the sample with a key.
	Is(file string, row int64, key string) bool
	// Has reports whether a row of any file is the sample with a key. It finds duplicates
	// of rows that are not read.
	Has(key string) bool
	// All yields the rows of a file in their order. An error is the last element.
	All(ctx context.Context, file string) iter.Seq2[KeptRow, error]
}

// KeptRow is a row of the previous snapshot.
type KeptRow struct {
	ID schema.ID
	Known
}

// knownRows marks the shards whose rows are known. split is the split of samples if the
// source has none.
//
// keyOf makes the key of a row of a shard by its number, or is nil. A key may contain the
// name or number of a shard. If the shards were renamed, the stored rows have other keys,
// and the shard is read. Comparing the first and last row suffices: the rows of a shard
// follow each other.
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

// forget makes all shards be read.
func forget(shards []shard) {
	for i := range shards {
		shards[i].known = 0
	}
}

// allKnown reports whether no shard must be read, and the number of rows.
func allKnown(shards []shard) (rows int64, all bool) {
	for i := range shards {
		if shards[i].known == 0 {
			return 0, false
		}
		rows += shards[i].known
	}
	return rows, len(shards) > 0
}

// yieldKnown yields the stored rows of a shard. It returns false if iteration must end.
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

// knownSource is a source of shards whose rows are all known. Nothing is opened, not even
// for the schema.
type knownSource struct {
	about
	shards []shard
}

// newKnownSource makes the source from of, which keeps its format and notes.
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
