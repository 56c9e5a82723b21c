package resolve

import (
	"context"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch/admission"
	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// fillBuckets checks bucket_by_length against the columns of a snapshot, and fills its window in. The
// request has its batch.
func fillBuckets(snap *schema.Snapshot, req schema.Request) (schema.Request, error) {
	if req.BucketByLength == nil {
		return req, nil
	}
	if _, _, err := lengthColumn(snap, req.Within, req.BucketByLength.Column); err != nil {
		return req, err
	}
	b := *req.BucketByLength
	if b.Window == 0 {
		b.Window = max(min(schema.DefaultBucketWindow, schema.MaxBucketRows/req.Batch), 1)
	}
	req.BucketByLength = &b
	return req, req.Check() // the batch may be the default
}

// lengthColumn finds the column that says how long samples are. ordinal is that of a blob column.
func lengthColumn(snap *schema.Snapshot, within *schema.Restriction, name string) (ordinal int, blob bool, err error) {
	var have []string
	for _, f := range schema.MetaFields(snap.Schema) {
		if !measures(f.Type) || within.Hides(snap.Schema, f.Name) {
			continue
		}
		if f.Name == name {
			return 0, false, nil
		}
		have = append(have, f.Name)
	}
	for i, f := range schema.BlobFields(snap.Schema) {
		if within.Hides(snap.Schema, f.Name) {
			continue
		}
		if f.Name == name {
			return i, true, nil
		}
		have = append(have, f.Name)
	}
	return 0, false, &schema.FieldError{Field: "bucket_by_length.column", Got: schema.Quote(name),
		Want: "a column of integers or floating point, or of blobs: " + schema.ShownList(have)}
}

// measures reports whether values of a type can be lengths.
func measures(t arrow.DataType) bool { return arrow.IsInteger(t.ID()) || arrow.IsFloating(t.ID()) }

// buckets returns the buckets of a request that has its defaults filled in; nil if it has none. The
// result, which has the lengths, and the memory are for the job to hold.
func (rv *Resolver) buckets(ctx context.Context, snap *openSnapshot,
	req schema.Request) (*plan.Buckets, *result, *admission.Hold, error) {
	by := req.BucketByLength
	if by == nil {
		return nil, nil, nil, nil
	}
	lengths, err := rv.lengths(ctx, snap, req.Within, by.Column)
	if err != nil {
		return nil, nil, nil, err
	}
	rows := by.Window * req.Batch
	memory, err := rv.results.reserve(store.CallerFrom(ctx).Tenant, plan.BucketsBytes(rows))
	if err == nil {
		var b *plan.Buckets
		if b, err = plan.NewBuckets(lengths.lengths, rows); err == nil {
			return b, lengths, memory, nil
		}
		memory.Release()
	}
	lengths.Release()
	return nil, nil, nil, fmt.Errorf("bucket_by_length: %w", err)
}

// lengths returns how long the samples of a snapshot are, with a hold for the caller.
func (rv *Resolver) lengths(ctx context.Context, snap *openSnapshot, within *schema.Restriction,
	name string) (*result, error) {
	ordinal, blob, err := lengthColumn(snap.manifest.Snapshot(), within, name)
	if err != nil {
		return nil, err
	}
	if !blob {
		if ordinal, err = snap.manifest.Form().ColumnIndex(name); err != nil {
			return nil, err
		}
	}
	return rv.derive(ctx, snap.key, fmt.Sprintf("lengths\x00%t\x00%d", blob, ordinal), snap,
		func(ctx context.Context) (*result, error) {
			rows := snap.manifest.Rows()
			// On nobody's account: whoever reads the snapshot by length uses it.
			memory, err := rv.results.reserve("", 4*rows)
			if err != nil {
				return nil, fmt.Errorf("bucket_by_length keeps four bytes for each of %d rows: %w", rows, err)
			}
			found := make(plan.Lengths, rows)
			err = snap.manifest.Walk(ctx, 0, rows, nil, func(_ context.Context, start int64, p *schema.Page) error {
				return rv.turn(ctx, func() error {
					return schema.Guard(func() error {
						to := found[start : start+int64(p.Rows())] // pages are visited at once, each has its own rows
						if blob {
							for row := range to {
								if ref, ok := p.Blob(ordinal, row); ok {
									to[row] = uint32(min(ref.Size, math.MaxUint32))
								}
							}
							return nil
						}
						return measure(p.Column(ordinal), to)
					})
				})
			})
			if err != nil {
				memory.Release()
				return nil, fmt.Errorf("reading column %q for bucket_by_length: %w", name, err)
			}
			return &result{lengths: found, memory: memory}, nil
		})
}

// measure puts values as lengths into to: numbers in the same order. Null, what is below 0, and what is
// no number, are 0; whole numbers of 2^32 and more are all alike.
func measure(a arrow.Array, to plan.Lengths) error {
	switch a := a.(type) {
	case *array.Int8:
		measureInts(a.Int8Values(), to)
	case *array.Int16:
		measureInts(a.Int16Values(), to)
	case *array.Int32:
		measureInts(a.Int32Values(), to)
	case *array.Int64:
		measureInts(a.Int64Values(), to)
	case *array.Uint8:
		measureInts(a.Uint8Values(), to)
	case *array.Uint16:
		measureInts(a.Uint16Values(), to)
	case *array.Uint32:
		measureInts(a.Uint32Values(), to)
	case *array.Uint64:
		for i, v := range a.Uint64Values() {
			to[i] = uint32(min(v, math.MaxUint32))
		}
	case *array.Float16:
		for i, v := range a.Values() {
			to[i] = measureFloat(v.Float32())
		}
	case *array.Float32:
		for i, v := range a.Float32Values() {
			to[i] = measureFloat(v)
		}
	case *array.Float64:
		for i, v := range a.Float64Values() {
			to[i] = measureFloat(float32(v))
		}
	default:
		return fmt.Errorf("a defect of the server: lengths of type %s", a.DataType())
	}
	if a.NullN() > 0 {
		for i := range to {
			if a.IsNull(i) {
				to[i] = 0
			}
		}
	}
	return nil
}

func measureInts[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32](values []T, to plan.Lengths) {
	for i, v := range values {
		to[i] = uint32(min(max(int64(v), 0), math.MaxUint32))
	}
}

// measureFloat is a number's bits, which are in the order of the numbers from 0 on.
func measureFloat(v float32) uint32 {
	if !(v > 0) {
		return 0
	}
	return math.Float32bits(v)
}
