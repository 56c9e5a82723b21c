package tend

import (
	"context"
	"fmt"

	"bowstring/schema"
)

// FetchOptions tunes Fetch.
type FetchOptions struct {
	// Rate is how many bytes a second are read at most; 0 for no limit.
	Rate int64
	// Workers is how many blobs are under way at once; 32 if 0.
	Workers int
}

// Fetch brings every blob of a scope, each once, to where it is to go: what there
// reports to be there already is not read, anything else is read, checked, and
// given to take, which must not keep data. Both are called from several goroutines.
//
// A blob whose key is no hash, such as a cell of an attached table, is a
// schema.ErrInvalid, and one that is damaged a schema.ErrDataLoss.
func Fetch(
	ctx context.Context, scope Scope, opts FetchOptions,
	there func(ctx context.Context, ref schema.BlobRef) (bool, error),
	take func(ctx context.Context, ref schema.BlobRef, data []byte) error,
) error {
	crew, pace, hashed := newCrew(opts.Workers), newPace(opts.Rate), hashedIn(scope.Source)
	visit := func(ctx context.Context, ref schema.BlobRef) error {
		if !hashed(ref.Key) {
			return fmt.Errorf("%w: the blobs lie in a table of another program, under the keys of its rows, which no copy could have: "+
				"import them to have them in a store", schema.ErrInvalid)
		}
		if ok, err := there(ctx, ref); ok || err != nil {
			return err
		}
		if err := pace.wait(ctx, ref.Size); err != nil {
			return err
		}
		b, err := get(ctx, scope.Source, ref)
		if err != nil {
			return err
		}
		defer b.Release()
		if err := check(ref, b.Bytes(), true); err != nil {
			return fmt.Errorf("%w: bowstring verify says what else is damaged there, and can repair it", err)
		}
		return take(ctx, ref, b.Bytes())
	}
	passes := scope.Passes()
	for n := range lists(passes) {
		refs, err := scope.list(ctx, n, passes, nil)
		if err != nil {
			return err
		}
		if err := crew.each(ctx, refs, 0, visit, nil); err != nil {
			return err
		}
	}
	return nil
}
