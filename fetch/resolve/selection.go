package resolve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch/manifest"
	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// selection intersects what the request names: a split, an uploaded or listed selection,
// a where expression, and the samples that the caller may see (all if sees is nil). The
// result keeps the selection in memory, with a hold for the caller. It is nil if the
// selection takes next to no memory.
func (rv *Resolver) selection(ctx context.Context, snap *openSnapshot, req schema.Request,
	sees *plan.Bitmap) (plan.Selection, *result, error) {
	if sees != nil {
		if err := checkSplit(snap.manifest.Snapshot(), req.Split, sees); err != nil {
			return nil, nil, err
		}
	}
	split, err := snap.split(req.Split)
	if err != nil {
		return nil, nil, err
	}
	ref := req.Selection
	if ref != nil && ref.Name != "" {
		if err := rv.renewals.use(ctx, snap.key.dataset, ref.Name); err != nil {
			return nil, nil, err
		}
	}
	var r *result
	switch {
	// Cases with one bitmap share its result with other requests; only real intersections
	// have their own.
	case req.Where == "" && ref == nil && sees == nil:
		return split, nil, nil
	case req.Where == "" && ref != nil && ref.Name == "":
		sel, err := listed(snap.manifest.Rows(), ref.Positions, sees, split)
		return sel, nil, err
	case req.Where == "" && ref == nil && req.Split == "":
		r, err = rv.visible(ctx, snap, req.Within)
	case req.Split == "" && ref == nil:
		r, err = rv.matches(ctx, snap, req.Within, sees, req.Where)
	case req.Split == "" && req.Where == "" && sees == nil:
		r, err = rv.saved(ctx, snap, ref.Name)
	default:
		what := schema.Request{Split: req.Split, Where: req.Where, Selection: ref}
		r, err = rv.derive(ctx, snap.key, string(within(req, "all of\x00"+string(what.Marshal()))), snap,
			func(ctx context.Context) (*result, error) {
				return rv.intersect(ctx, snap, req, sees, split)
			})
	}
	if err != nil {
		return nil, nil, err
	}
	return r.selection, r, nil
}

// intersect computes the intersection of a split, a selection, the matches of an
// expression and the visible samples.
func (rv *Resolver) intersect(ctx context.Context, snap *openSnapshot, req schema.Request, sees *plan.Bitmap,
	split plan.Selection) (*result, error) {
	var parts []*plan.Bitmap
	if sees != nil {
		parts = append(parts, sees)
	}
	if req.Where != "" {
		r, err := rv.matches(ctx, snap, req.Within, sees, req.Where)
		if err != nil {
			return nil, err
		}
		defer r.Release()
		parts = append(parts, r.selection.(*plan.Bitmap))
	}
	rows := snap.manifest.Rows()
	if ref := req.Selection; ref != nil {
		if ref.Name == "" {
			others := []plan.Selection{split}
			for _, b := range parts {
				others = append(others, b)
			}
			sel, err := listed(rows, ref.Positions, sees, others...)
			return &result{selection: sel}, err
		}
		r, err := rv.saved(ctx, snap, ref.Name)
		if err != nil {
			return nil, err
		}
		defer r.Release()
		parts = append(parts, r.selection.(*plan.Bitmap))
	}
	return rv.results.within(ctx, plan.BitmapSize(rows), 0, func() (sel plan.Selection, err error) {
		err = rv.turn(ctx, func() error {
			sel = split
			for _, b := range parts {
				sel = b.And(sel)
			}
			return nil
		})
		return sel, err
	})
}

// matches evaluates an expression over the samples that a caller may see: the rows of
// sees (all if it is nil), with the columns that the restriction shows. The result's
// selection is a bitmap.
func (rv *Resolver) matches(ctx context.Context, snap *openSnapshot, restriction *schema.Restriction, sees *plan.Bitmap,
	text string) (*result, error) {
	what := string(within(schema.Request{Within: restriction}, "where\x00"+text))
	return rv.derive(ctx, snap.key, what, snap, func(ctx context.Context) (*result, error) {
		m := snap.manifest
		expr, err := where.Compile(ctx, text, restriction.Visible(m.Snapshot().Schema), rv.turn)
		if err == nil {
			err = checkHidden(expr, m.Snapshot(), restriction)
		}
		if err != nil {
			return nil, err
		}
		return rv.results.within(ctx, plan.BitmapSize(m.Rows()), where.Scratch, func() (plan.Selection, error) {
			found, err := expr.EvalWithin(ctx, m, sees, rv.turn)
			if err != nil {
				return nil, fmt.Errorf("evaluating where over snapshot %s: %w", snap.key, err)
			}
			return found, nil
		})
	})
}

// saved reads an uploaded selection. The result's selection is a bitmap.
func (rv *Resolver) saved(ctx context.Context, snap *openSnapshot, name string) (*result, error) {
	return rv.derive(ctx, snap.key, "selection\x00"+name, snap, func(ctx context.Context) (*result, error) {
		saved, err := rv.store.Selection(ctx, snap.key.dataset, name)
		if err != nil {
			return nil, err
		}
		if saved.Snapshot != snap.key.number {
			return nil, &schema.FieldError{Field: "selection.name", Got: name,
				Want: fmt.Sprintf("a selection of snapshot %d: this one was made on snapshot %d, where positions "+
					"mean other samples", snap.key.number, saved.Snapshot)}
		}
		rows := snap.manifest.Rows()
		return rv.results.within(ctx, plan.BitmapSize(rows), 0, func() (plan.Selection, error) {
			b, err := rv.readBitmap(ctx, rows, saved.Bitmap)
			if errors.Is(err, schema.ErrDataLoss) {
				// If it was dropped and collected since it was looked up, it is missing,
				// and nothing is damaged.
				if _, gone := rv.store.Selection(ctx, snap.key.dataset, name); errors.Is(gone, schema.ErrNotFound) {
					return nil, gone
				}
			}
			if err != nil {
				return nil, fmt.Errorf("reading selection %s: %w", schema.Shown(name), err)
			}
			return b, nil
		})
	})
}

// readBitmap reads and decodes the bitmap of an uploaded selection.
func (rv *Resolver) readBitmap(ctx context.Context, rows int64, ref schema.BlobRef) (bitmap *plan.Bitmap, err error) {
	b, err := rv.read(ctx, ref, manifest.Place{})
	if err != nil {
		return nil, err
	}
	defer b.Release()
	err = rv.turn(ctx, func() (err error) {
		bitmap, err = plan.BitmapFromBytes(rows, b.Bytes())
		return err
	})
	return bitmap, err
}

// split returns a split's positions. They are made from its ranges once, because there
// may be many ranges.
func (s *openSnapshot) split(name string) (plan.Selection, error) {
	s.splitsMu.Lock()
	defer s.splitsMu.Unlock()
	if sel := s.splits[name]; sel != nil {
		return sel, nil
	}
	sel, err := splitSelection(s.manifest.Snapshot(), name)
	if err != nil {
		return nil, err
	}
	if s.splits == nil {
		s.splits = map[string]plan.Selection{}
	}
	s.splits[name] = sel
	return sel, nil
}

// splitSelection makes a split's positions; "" is the whole snapshot.
func splitSelection(snap *schema.Snapshot, name string) (plan.Selection, error) {
	if name == "" {
		return plan.All(snap.Rows()), nil
	}
	var have []string
	for _, s := range snap.Splits {
		if s.Name == name {
			return plan.FromRanges(s.Ranges)
		}
		have = append(have, s.Name)
	}
	return nil, noSplit(snap, name, have)
}

// listed selects those positions that all of others select too. positions ascend from 0
// on. A position beyond the snapshot is an error, unless rows are hidden from the caller:
// then it is left out like a hidden one, so that the number of rows is not revealed.
func listed(rows int64, positions []int64, sees *plan.Bitmap, others ...plan.Selection) (plan.Selection, error) {
	var ranges []schema.Range
next:
	for _, p := range positions {
		if sees != nil && !sees.Has(p) {
			continue
		}
		if p >= rows {
			return nil, &schema.FieldError{Field: "selection.positions", Got: fmt.Sprint(p),
				Want: fmt.Sprintf("0 to %d, the positions of the snapshot", rows-1)}
		}
		for _, other := range others {
			if _, ok := other.Index(p); !ok {
				continue next
			}
		}
		ranges = append(ranges, schema.Range{Start: p, End: p + 1})
	}
	return plan.FromRanges(ranges)
}

// bitmapOf makes a bitmap of positions in [0, rows), given in any order.
func bitmapOf(rows int64, positions []int64) (*plan.Bitmap, error) {
	b := plan.NewBitmap(rows)
	for i, p := range positions {
		if p < 0 || p >= rows {
			return nil, &schema.FieldError{Field: fmt.Sprintf("selection.positions[%d]", i), Got: fmt.Sprint(p),
				Want: fmt.Sprintf("0 to %d, the positions of the snapshot", rows-1)}
		}
		b.Set(p)
	}
	if b.Freeze().Len() != int64(len(positions)) {
		return nil, &schema.FieldError{Field: "selection.positions", Got: fmt.Sprintf("%d positions of which %d differ",
			len(positions), b.Len()), Want: "each position once: a selection is a set"}
	}
	return b, nil
}

// SaveSelection stores a set of positions of a snapshot, and returns its name, a hash of
// both, by which requests select it. The caller in ctx is recorded as the first uploader,
// which gives no rights. The selection expires Options.SelectionLifetime after its last
// use. Saving it again only moves that.
func (rv *Resolver) SaveSelection(ctx context.Context, dataset string, snapshot int64,
	positions []int64) (name string, err error) {
	snap, err := rv.snapshots.get(ctx, dataset, snapshot)
	if err != nil {
		return "", err
	}
	defer snap.Release()
	// The positions are checked before anything is stored.
	b, err := bitmapOf(snap.manifest.Rows(), positions)
	if err != nil {
		return "", err
	}
	in, err := rv.store.Begin(ctx, dataset)
	if err != nil {
		return "", err
	}
	defer func() {
		if cerr := in.Close(); err == nil {
			err = cerr
		}
	}()
	ref, err := in.Put(ctx, b.Bytes())
	if err != nil {
		return "", err
	}
	// The name is a hash of the snapshot and the bitmap, so saving the same set twice
	// gives the same selection.
	sel := schema.Selection{Dataset: dataset, Snapshot: snap.key.number, Rows: b.Len(),
		Created: time.Now().UTC(),
		Owner:   store.CallerFrom(ctx).Principal, Expires: rv.renewals.expiry(), Most: rv.renewals.most}
	sel.SetBitmap(ref, b.Bytes())
	if err := in.SaveSelection(ctx, sel); err != nil {
		return "", fmt.Errorf("saving a selection of %s: %w", snap.key, err)
	}
	return sel.Name(), nil
}

const (
	// renewEvery is the shortest time between two renewals of a used selection. Renewals
	// are the only writes that reading causes.
	renewEvery = 24 * time.Hour
	// maxDue is how many selections are known not to need renewal. When there are more,
	// all are forgotten, which costs one look-up each.
	maxDue = 4096
)

// renewals moves the expiry of selections that are used. It is safe for concurrent use.
type renewals struct {
	store    store.Store
	logger   *slog.Logger
	lifetime time.Duration
	most     int // unexpired selections of an owner in a dataset; 0 is no limit

	mu  sync.Mutex
	due map[string]time.Time // when to look at a selection again, by dataset and name; guarded by mu
}

// expiry is when a selection that is used now expires.
func (r *renewals) expiry() time.Time {
	return time.Now().Add(r.lifetime).UTC().Truncate(time.Second)
}

// use is called before a selection is used, and renews it if that is due. If the
// selection does not exist or has expired, the error is a schema.ErrNotFound.
func (r *renewals) use(ctx context.Context, dataset, name string) error {
	key := dataset + "\x00" + name
	r.mu.Lock()
	due := r.due[key]
	r.mu.Unlock()
	if time.Now().Before(due) {
		return nil
	}
	sel, err := r.store.Selection(ctx, dataset, name)
	if err != nil {
		return err
	}
	// A renewal is due when the expiry would move by more than a day, or by half of a
	// short lifetime.
	every := min(renewEvery, r.lifetime/2)
	next := time.Now().Add(every)
	if until := r.expiry(); !sel.Expires.IsZero() && until.Sub(sel.Expires) > every {
		if err := r.store.RenewSelection(ctx, dataset, name, until); err != nil {
			if errors.Is(err, schema.ErrNotFound) || ctx.Err() != nil {
				return err
			}
			// The selection has not expired, so it can be used. The next use tries again.
			r.logger.WarnContext(ctx, "a selection could not be renewed", "dataset", dataset, "selection", name,
				"expires", sel.Expires, "error", err)
			return nil
		}
	} else if !sel.Expires.IsZero() && sel.Expires.Before(next) {
		next = sel.Expires
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// due is a cache. Losing it costs a look-up, and no selection expires because of it.
	if len(r.due) >= maxDue {
		clear(r.due)
	}
	r.due[key] = next
	return nil
}

// fillBlocks sets the rows of the blocks of a shuffle in blocks. If the request gives a
// size in bytes, it divides by the mean size of a row's visible blobs.
func fillBlocks(snap *schema.Snapshot, req schema.Request) *schema.Shuffle {
	if !req.Shuffle.InBlocks() {
		return req.Shuffle
	}
	sh := *req.Shuffle
	if sh.Blocks == 0 {
		sh.Blocks = schema.DefaultBlocks
	}
	if want, ok := sh.BlockBytes(); ok {
		var bytes int64
		for i, f := range schema.BlobFields(snap.Schema) {
			for _, c := range snap.Chunks {
				if i < len(c.BlobBytes) && !req.Within.Hides(snap.Schema, f.Name) {
					bytes += c.BlobBytes[i]
				}
			}
		}
		mean := max(bytes/max(snap.Rows(), 1), 1)
		sh.Block, sh.BlockRows = "", max(min(want/mean, schema.MaxBlockRows), 1)
	}
	return &sh
}

// fillBuckets checks bucket_by_length against the columns of a snapshot, and sets its
// window. The request has its batch.
func fillBuckets(snap *schema.Snapshot, req schema.Request) (schema.Request, error) {
	if req.BucketByLength == nil {
		return req, nil
	}
	if column := req.BucketByLength.Column; column != "" {
		if _, _, err := lengthColumn(snap, req.Within, column); err != nil {
			return req, err
		}
	}
	b := *req.BucketByLength
	if b.Window == 0 {
		b.Window = max(min(schema.DefaultBucketWindow, schema.MaxBucketRows/req.Batch), 1)
	}
	req.BucketByLength = &b
	return req, req.Check() // the batch may be the default
}

// lengthColumn finds the column with the lengths of samples. For a blob column, blob is
// true and ordinal is its ordinal; otherwise only its existence is checked.
func lengthColumn(snap *schema.Snapshot, within *schema.Restriction, name string) (ordinal int, blob bool, err error) {
	var have []string
	for _, f := range schema.MetaFields(snap.Schema) {
		if !measures(f.Type) && f.Type.ID() != arrow.LIST || within.Hides(snap.Schema, f.Name) {
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
		Want: "a column of integers, floating point or lists, or of blobs: " + schema.ShownList(have)}
}

// measures reports whether values of a type are numbers.
func measures(t arrow.DataType) bool { return arrow.IsInteger(t.ID()) || arrow.IsFloating(t.ID()) }

// buckets returns the buckets of a request that has its defaults filled in; nil if it has
// none. has gets the results and the memory that they use.
func (rv *Resolver) buckets(ctx context.Context, snap *openSnapshot, req schema.Request, selection plan.Selection,
	has *holdings) (b *plan.Buckets, err error) {
	by := req.BucketByLength
	if by == nil {
		return nil, nil //nolint:nilnil // there are none
	}
	var costs plan.Costs
	if by.Balance != nil && selection.Len() > 0 {
		if has.costs, err = rv.costs(ctx, snap, req, selection); err != nil {
			return nil, err
		}
		costs = has.costs.costs
	}
	lengths := plan.Lengths(costs) // bits of numbers from 0 on are in their order
	if by.Column != "" {
		if has.lengths, err = rv.lengths(ctx, snap, req.Within, by.Column); err != nil {
			return nil, err
		}
		lengths = has.lengths.lengths
	}
	rows := by.Window * req.Batch
	if has.windows, err = rv.results.reserve(store.CallerFrom(ctx).Tenant, plan.BucketsBytes(rows)); err != nil {
		return nil, fmt.Errorf("bucket_by_length: %w", err)
	}
	return plan.NewBuckets(lengths, costs, rows)
}

// lengths returns the lengths of a snapshot's samples, with a hold for the caller.
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
	return rv.measured(ctx, snap, "bucket_by_length", name, blob, ordinal)
}

// measured returns the lengths of a snapshot's samples by a column, with a hold for the
// caller. The ordinal is that of a blob column, or the index of another column. The text
// what is the request's field, for errors.
func (rv *Resolver) measured(ctx context.Context, snap *openSnapshot, what, name string, blob bool,
	ordinal int) (*result, error) {
	return rv.derive(ctx, snap.key, fmt.Sprintf("lengths\x00%t\x00%d", blob, ordinal), snap,
		func(ctx context.Context) (*result, error) {
			rows := snap.manifest.Rows()
			// Charged to no tenant: all jobs that read the snapshot by length use it.
			memory, err := rv.results.reserve("", 4*rows)
			if err != nil {
				return nil, fmt.Errorf("%s keeps four bytes for each of %d rows: %w", what, rows, err)
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
				return nil, fmt.Errorf("reading column %q for %s: %w", name, what, err)
			}
			return &result{lengths: found, memory: memory}, nil
		})
}

// measure writes values into to as lengths, in the same order of size. Nulls, negative
// values and NaN become 0. Integers of 2^32 or more become 2^32-1.
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
	case *array.List:
		for i := range to {
			from, end := a.ValueOffsets(i)
			to[i] = uint32(end - from)
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

// measureInts is measure for integers that fit into 64 bits with a sign.
func measureInts[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32](values []T, to plan.Lengths) {
	for i, v := range values {
		to[i] = uint32(min(max(int64(v), 0), math.MaxUint32))
	}
}

// measureFloat returns the bits of a float. For floats from 0 on, bits have the order of
// the values.
func measureFloat(v float32) uint32 {
	if !(v > 0) {
		return 0
	}
	return math.Float32bits(v)
}
