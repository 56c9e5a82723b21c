package local

import (
	"context"
	"fmt"
	"iter"

	"bowstring/schema"
)

// index yields the index in key order, as of one moment.
func (s *Store) index(ctx context.Context) iter.Seq2[indexed, error] {
	return s.indexFrom(ctx, []byte{prefixBlob})
}

// indexFrom is index from a key of the database on.
func (s *Store) indexFrom(ctx context.Context, from []byte) iter.Seq2[indexed, error] {
	return func(yield func(indexed, error) bool) {
		bounds := within(prefixBlob)
		bounds.LowerBound = from
		it, err := s.db.NewIter(bounds)
		if err != nil {
			yield(indexed{}, dbError("read the index", err))
			return
		}
		defer it.Close()
		n := 0
		for it.First(); it.Valid(); it.Next() {
			if n++; n%1024 == 0 {
				if err := stopped(ctx, s); err != nil {
					yield(indexed{}, err)
					return
				}
			}
			e, err := decodeEntry(it.Value())
			if err == nil && len(it.Key()) != 1+len(schema.Key{}) {
				err = fmt.Errorf("%w: an index key of %d bytes", schema.ErrDataLoss, len(it.Key()))
			}
			if err != nil {
				yield(indexed{}, err)
				return
			}
			if !yield(indexed{schema.Key(it.Key()[1:]), e}, nil) {
				return
			}
		}
		if err := it.Error(); err != nil {
			yield(indexed{}, dbError("read the index", err))
		}
	}
}

type indexed struct {
	key schema.Key
	entry
}
