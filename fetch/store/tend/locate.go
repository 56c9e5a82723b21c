package tend

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"bowstring/schema"
)

// mostRows is how many positions an occurrence lists.
const mostRows = 100

// hit is a cell of a manifest chunk with a damaged blob.
type hit struct {
	column int
	row    int64
	damage int // index in Verification.Damaged
}

// locate finds out what refers to the damaged blobs. What nothing refers to any
// more, because its snapshots were dropped meanwhile, is no damage.
func (v *verifier) locate(ctx context.Context) error {
	if len(v.report.Damaged) == 0 {
		return nil
	}
	index := map[schema.Key]int{}
	for i, d := range v.report.Damaged {
		index[d.Key] = i
		v.report.Damaged[i].In = []Occurrence{}
	}
	hits := map[schema.Key][]hit{} // by chunk
	for _, snap := range v.scope.Snapshots {
		if _, err := v.scope.Source.Snapshot(ctx, snap.Dataset, snap.Number); errors.Is(err, schema.ErrNotFound) {
			continue
		} else if err != nil {
			return err
		}
		if err := v.locateIn(ctx, snap, index, hits); err != nil {
			return err
		}
	}
	gone := int64(0)
	v.report.Damaged = slices.DeleteFunc(v.report.Damaged, func(d Damage) bool {
		if len(d.In) == 0 && d.Repaired {
			gone++
		}
		return len(d.In) == 0
	})
	v.report.Repaired -= gone
	return nil
}

// locateIn finds the damaged blobs of one snapshot.
func (v *verifier) locateIn(
	ctx context.Context, snap *schema.Snapshot, index map[schema.Key]int, hits map[schema.Key][]hit,
) error {
	for _, sel := range v.scope.Selections {
		if i, ok := index[sel.Bitmap.Key]; ok && sel.Dataset == snap.Dataset && sel.Snapshot == snap.Number {
			v.occurs(i, snap, "selection "+sel.Name(), nil)
		}
	}
	columns := schema.BlobFields(snap.Schema)
	start := int64(0)
	for c := range snap.Chunks {
		chunk := chunkOf{snap, c}
		rows, key := chunk.chunk().Rows, chunk.chunk().Key
		if i, ok := index[key]; ok {
			v.occurs(i, snap, "manifest", []int64{start, start + rows - 1})
		}
		if chunk.chunk().Pages > 0 && !v.broken[key] {
			pages, err := v.scope.pages(ctx, chunk)
			if err != nil {
				return err
			}
			for _, p := range pages {
				if i, ok := index[p.page.Key]; ok {
					first := start + p.start
					v.occurs(i, snap, "manifest", []int64{first, first + p.page.Rows - 1})
				}
			}
		}
		found, known := hits[key]
		if !known && !v.broken[key] {
			err := v.scope.cells(ctx, chunk, v.broken, func(column int, row int64, ref schema.BlobRef) {
				if i, ok := index[ref.Key]; ok {
					found = append(found, hit{column, row, i})
				}
			})
			if err != nil {
				return err
			}
			hits[key] = found
		}
		for _, h := range found {
			v.occurs(h.damage, snap, fmt.Sprintf("column %s", columns[h.column].Name), []int64{start + h.row})
		}
		start += rows
	}
	return nil
}

// occurs adds rows to what refers to a damaged blob.
func (v *verifier) occurs(i int, snap *schema.Snapshot, what string, rows []int64) {
	d := &v.report.Damaged[i]
	n := len(d.In)
	same := func(o Occurrence) bool {
		return o.Dataset == snap.Dataset && o.Snapshot == snap.Number && o.What == what
	}
	at := slices.IndexFunc(d.In, same)
	if at < 0 {
		d.In = append(d.In, Occurrence{Dataset: snap.Dataset, Snapshot: snap.Number, What: what, Rows: []int64{}})
		at = n
	}
	o := &d.In[at]
	if what == "manifest" {
		o.Count += rows[1] - rows[0] + 1
	} else {
		o.Count += int64(len(rows))
	}
	o.Rows = append(o.Rows, rows[:min(len(rows), max(0, mostRows-len(o.Rows)))]...)
}
