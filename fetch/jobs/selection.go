package jobs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"bowstring/fetch/plan"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// maxDerived is how many results are kept for each open snapshot.
const maxDerived = 64

// derivedCache keeps what was computed from a manifest's rows, the matches of
// a where expression above all, so that the ranks of a job and its resumed
// streams do not each scan the rows again.
type derivedCache struct {
	computing singleflight.Group

	mu    sync.Mutex
	kept  map[string]any // guarded by mu
	order []string       // keys of kept, oldest first; guarded by mu
}

func (d *derivedCache) init() { d.kept = map[string]any{} }

// get returns the value kept under key, or computes and keeps it.
func (d *derivedCache) get(ctx context.Context, key string, compute func(context.Context) (any, error)) (any, error) {
	d.mu.Lock()
	v, ok := d.kept[key]
	d.mu.Unlock()
	if ok {
		return v, nil
	}
	// Not ended by the first caller's context: others wait for it too.
	ch := d.computing.DoChan(key, func() (any, error) {
		v, err := compute(context.WithoutCancel(ctx))
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if _, ok := d.kept[key]; !ok {
			if len(d.order) == maxDerived {
				delete(d.kept, d.order[0])
				d.order = slices.Delete(d.order, 0, 1)
			}
			d.kept[key], d.order = v, append(d.order, key)
		}
		return v, nil
	})
	select {
	case r := <-ch:
		return r.Val, r.Err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// selection intersects what the request names: a split, an uploaded or listed
// selection, a where expression.
func (js *Jobs) selection(ctx context.Context, snap *openSnapshot, req schema.Request) (plan.Selection, error) {
	m := snap.manifest
	sel, err := splitSelection(m.Snapshot(), req.Split)
	if err != nil {
		return nil, err
	}
	if req.Selection != nil {
		listed, err := js.listed(ctx, snap, req.Selection)
		if err != nil {
			return nil, err
		}
		if req.Split == "" {
			sel = listed
		} else {
			sel = listed.And(sel)
		}
	}
	if req.Where != "" {
		// Compiled each time: it is cheap, and a mistake is the caller's own.
		expr, err := where.Compile(req.Where, m.Snapshot().Schema)
		if err != nil {
			return nil, err
		}
		v, err := snap.derived.get(ctx, "where\x00"+req.Where, func(ctx context.Context) (any, error) {
			return expr.Eval(ctx, m)
		})
		if err != nil {
			return nil, fmt.Errorf("evaluating where over snapshot %s: %w", snap.key, err)
		}
		matches := v.(*plan.Bitmap)
		if req.Split == "" && req.Selection == nil {
			sel = matches
		} else {
			sel = matches.And(sel)
		}
	}
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
	return nil, fmt.Errorf("%w: dataset %s@%d has no split %q; it has %s", schema.ErrNotFound, snap.Dataset, snap.Number, name, strings.Join(have, ", "))
}

// listed returns the bitmap of a selection, whether spelled out or saved.
func (js *Jobs) listed(ctx context.Context, snap *openSnapshot, ref *schema.SelectionRef) (*plan.Bitmap, error) {
	rows := snap.manifest.Rows()
	if ref.Name == "" {
		return bitmapOf(rows, ref.Positions)
	}
	v, err := snap.derived.get(ctx, "selection\x00"+ref.Name, func(ctx context.Context) (any, error) {
		saved, err := js.store.Selection(ctx, snap.key.dataset, ref.Name)
		if err != nil {
			return nil, err
		}
		if saved.Snapshot != snap.key.number {
			return nil, &schema.FieldError{Field: "selection.name", Got: ref.Name,
				Want: fmt.Sprintf("a selection of snapshot %d: this one was made on snapshot %d, where positions mean other samples", snap.key.number, saved.Snapshot)}
		}
		b, err := js.read(ctx, saved.Bitmap)
		if err != nil {
			return nil, fmt.Errorf("reading selection %s: %w", ref.Name, err)
		}
		defer b.Release()
		return plan.BitmapFromBytes(rows, b.Bytes())
	})
	if err != nil {
		return nil, err
	}
	return v.(*plan.Bitmap), nil
}

// bitmapOf makes a bitmap of positions in [0, rows), given in any order.
func bitmapOf(rows int64, positions []int64) (*plan.Bitmap, error) {
	b := plan.NewBitmap(rows)
	for i, p := range positions {
		if p < 0 || p >= rows {
			return nil, &schema.FieldError{Field: fmt.Sprintf("selection.positions[%d]", i), Got: fmt.Sprint(p), Want: fmt.Sprintf("0 to %d, the positions of the snapshot", rows-1)}
		}
		b.Set(p)
	}
	if b.Freeze().Len() != int64(len(positions)) {
		return nil, &schema.FieldError{Field: "selection.positions", Got: fmt.Sprintf("%d positions of which %d differ", len(positions), b.Len()), Want: "each position once: a selection is a set"}
	}
	return b, nil
}

// SaveSelection stores a set of positions of a snapshot under the hash of its
// content, which it returns: the name by which requests select it. Saving it
// again changes nothing.
func (js *Jobs) SaveSelection(ctx context.Context, dataset string, snapshot int64, positions []int64) (name string, err error) {
	snap, err := js.snapshots.get(ctx, dataset, snapshot)
	if err != nil {
		return "", err
	}
	defer snap.release()
	b, err := bitmapOf(snap.manifest.Rows(), positions)
	if err != nil {
		return "", err
	}
	in, err := js.store.Begin(ctx, dataset)
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
	sel := schema.Selection{Dataset: dataset, Snapshot: snap.key.number, Rows: b.Len(), Bitmap: ref, Created: time.Now().UTC()}
	if err := js.store.SaveSelection(ctx, in, sel); err != nil {
		return "", fmt.Errorf("saving a selection of %s: %w", snap.key, err)
	}
	return sel.Name(), nil
}
