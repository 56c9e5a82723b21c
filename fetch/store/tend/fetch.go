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
	// Attached is what is made of cells of other programs' tables; ByValue if empty.
	Attached Attached
	// Through is where cells are read through that are copied by reference, so that it is seen to reach them.
	Through Source
}

// Fetch brings every blob of a scope, each once, to where it is to go: what there
// reports to be there already is not read, anything else is read, checked, and
// given to take, which must not keep data. Both are called from several goroutines.
// A blob that is damaged is a schema.ErrDataLoss.
//
// It returns the snapshots of the scope as they are there: those that have cells of other
// programs' tables have manifests of their own where these are copied by value.
func Fetch(
	ctx context.Context, scope Scope, opts FetchOptions,
	there func(ctx context.Context, ref schema.BlobRef) (bool, error),
	take func(ctx context.Context, ref schema.BlobRef, data []byte) error,
) ([]*schema.Snapshot, error) {
	f := &fetching{
		scope: &scope, opts: opts, there: there, take: take,
		crew: newCrew(opts.Workers), pace: newPace(opts.Rate), hashed: hashedIn(scope.Source),
	}
	a, err := scope.attached(ctx)
	if err != nil {
		return nil, err
	}
	snaps := scope.Snapshots
	if len(a.chunks) > 0 && opts.Attached != ByReference {
		d := &detacher{scope: &scope, crew: f.crew, cell: f.value, put: f.put, made: map[schema.Key]schema.Chunk{}}
		if snaps, err = d.snapshots(ctx, a); err != nil {
			return nil, err
		}
		rest := scope.rest(a)
		f.scope = &rest
	}
	return snaps, f.blobs(ctx)
}

// fetching is one run of Fetch.
type fetching struct {
	scope  *Scope
	opts   FetchOptions
	there  func(ctx context.Context, ref schema.BlobRef) (bool, error)
	take   func(ctx context.Context, ref schema.BlobRef, data []byte) error
	crew   *crew
	pace   pace
	hashed func(schema.Key) bool
}

// blobs fetches what the scope refers to.
func (f *fetching) blobs(ctx context.Context) error {
	passes := f.scope.Passes()
	for n := range lists(passes) {
		refs, err := f.scope.list(ctx, n, passes, nil)
		if err != nil {
			return err
		}
		if err := f.crew.each(ctx, refs, 0, f.visit, nil); err != nil {
			return err
		}
	}
	return nil
}

func (f *fetching) visit(ctx context.Context, ref schema.BlobRef) error {
	hashed, src := f.hashed(ref.Key), f.scope.Source
	switch {
	case hashed:
		if ok, err := f.there(ctx, ref); ok || err != nil {
			return err
		}
	case f.opts.Attached != ByReference:
		return fmt.Errorf("%w: a manifest chunk has cells of attached tables after blobs of the store",
			schema.ErrInvalid)
	default:
		src = f.opts.Through
	}
	b, err := f.read(ctx, src, ref, hashed)
	if err != nil {
		return err
	}
	defer b.Release()
	if !hashed {
		return nil
	}
	return f.take(ctx, ref, b.Bytes())
}

// read reads a blob and checks it. The caller releases it.
func (f *fetching) read(ctx context.Context, src Source, ref schema.BlobRef, hashed bool) (schema.Blob, error) {
	if err := f.pace.wait(ctx, ref.Size); err != nil {
		return schema.Blob{}, err
	}
	b, err := get(ctx, src, ref)
	if err != nil {
		return schema.Blob{}, err
	}
	if err := check(ref, b.Bytes(), hashed); err != nil {
		b.Release()
		return schema.Blob{}, fmt.Errorf("%w: bowstring verify says what else is damaged there, and can repair it", err)
	}
	return b, nil
}

// value brings the bytes of a cell to where they are to go, and returns what they are there.
func (f *fetching) value(ctx context.Context, cell schema.BlobRef) (schema.BlobRef, error) {
	b, err := f.read(ctx, f.scope.Source, cell, f.hashed(cell.Key))
	if err != nil {
		return schema.BlobRef{}, err
	}
	defer b.Release()
	return f.put(ctx, b.Bytes())
}

func (f *fetching) put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	ref := schema.RefOf(data)
	ok, err := f.there(ctx, ref)
	if err == nil && !ok {
		err = f.take(ctx, ref, data)
	}
	return ref, err
}
