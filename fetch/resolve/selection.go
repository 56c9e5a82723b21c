package resolve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// selection intersects what the request names: a split, an uploaded or listed
// selection, a where expression; of the samples that its caller may see, all if sees is
// nil. The result, of which the caller gets a hold, keeps the selection in memory; it is
// nil where that takes next to none.
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

// intersect computes what a split, a selection, the matches of an expression and what
// can be seen have in common.
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

// matches evaluates an expression over the samples that a caller may see: the columns
// that a restriction shows, of the rows of sees, all if it is nil. The result's selection
// is a bitmap.
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
				// It may have been dropped since it was looked up, and collected: nothing holds it.
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

func (rv *Resolver) readBitmap(ctx context.Context, rows int64, ref schema.BlobRef) (bitmap *plan.Bitmap, err error) {
	b, err := rv.read(ctx, ref)
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

// split returns a split's positions. They are made of its ranges once, as there
// may be many.
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

// listed selects those of the positions, ascending and in [0, rows), that all of
// the others select too. Where not all samples can be seen, one that there is not is
// left out as one is that is hidden.
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

// SaveSelection stores a set of positions of a snapshot under a hash of both, which it returns: the name by which
// requests select it. It names
// the caller that ctx carries as its first uploader, which gives no right, and expires when it was not used for
// Options.SelectionLifetime. Saving it again only puts that off.
func (rv *Resolver) SaveSelection(ctx context.Context, dataset string, snapshot int64,
	positions []int64) (name string, err error) {
	snap, err := rv.snapshots.get(ctx, dataset, snapshot)
	if err != nil {
		return "", err
	}
	defer snap.Release()
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
	sel := schema.Selection{Dataset: dataset, Snapshot: snap.key.number, Rows: b.Len(), Bitmap: ref,
		Created: time.Now().UTC(),
		Owner:   store.CallerFrom(ctx).Principal, Expires: rv.renewals.expiry(), Most: rv.renewals.most}
	if err := rv.store.SaveSelection(ctx, in, sel); err != nil {
		return "", fmt.Errorf("saving a selection of %s: %w", snap.key, err)
	}
	return sel.Name(), nil
}
