package tend

import (
	"context"
	"errors"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// renumbered finds what a copy that was stopped has made already: of each dataset, as many of the first
// snapshots as the newest of the target are copies of, in that order. It adds the numbers that they have there.
// Older ones of the same content are none of this copy's: to make one the newest again is what it may be for.
func (c *copier) renumbered(ctx context.Context, snaps []*schema.Snapshot, numbers map[Name]int64) error {
	there, err := c.to.Datasets(ctx)
	if err != nil {
		return err
	}
	of := map[string][]*schema.Snapshot{}
	for _, snap := range snaps {
		of[snap.Dataset] = append(of[snap.Dataset], snap)
	}
	for _, d := range there {
		wanted := of[d.Name]
		newest, err := c.newest(ctx, d, len(wanted))
		if err != nil {
			return err
		}
		for n := len(newest); n > 0; n-- {
			made := newest[len(newest)-n:]
			if same, err := c.copies(made, wanted[:n]); err != nil {
				return err
			} else if !same {
				continue
			}
			for i, snap := range made {
				numbers[nameOf(wanted[i])] = snap.Number
			}
			break
		}
	}
	return nil
}

// newest reads the newest snapshots of a dataset of the target, so many if there are, in ascending order.
func (c *copier) newest(ctx context.Context, d store.Dataset, most int) ([]*schema.Snapshot, error) {
	var list []*schema.Snapshot
	for _, number := range d.Snapshots[max(0, len(d.Snapshots)-most):] {
		snap, err := c.to.Snapshot(ctx, d.Name, number)
		if errors.Is(err, schema.ErrNotFound) {
			continue // dropped meanwhile
		} else if err != nil {
			return nil, err
		}
		list = append(list, snap)
	}
	return list, nil
}

// copies says whether snapshots have the content of others, whatever their numbers.
func (c *copier) copies(made, from []*schema.Snapshot) (bool, error) {
	for i := range made {
		x, y := *made[i], *from[i]
		for _, snap := range []*schema.Snapshot{&x, &y} {
			snap.Number, snap.Parent, snap.Created = 0, 0, time.Time{}
		}
		same, err := equal(&x, &y)
		if err == nil && !same {
			same, err = sameButAttached(&x, &y, c.attached)
		}
		if !same || err != nil {
			return false, err
		}
	}
	return true, nil
}
