package tend

import (
	"context"
	"slices"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Numbering is what a dataset's numbers mean besides its snapshots.
type Numbering struct {
	Dataset string `json:"dataset"`
	// Last is the greatest number given out, which may be of a snapshot that was
	// dropped; 0 where that is not known.
	Last int64 `json:"last"`
	// Tags are those of the snapshots looked at.
	Tags []store.Tag `json:"tags"`
}

// Numberings reads those of the datasets of some snapshots, by name. The last
// number is known where all snapshots of a dataset are among them.
func Numberings(ctx context.Context, src Source, snaps []*schema.Snapshot) ([]Numbering, error) {
	all, err := src.Datasets(ctx)
	if err != nil {
		return nil, err
	}
	of := map[Name]bool{}
	for _, snap := range snaps {
		of[nameOf(snap)] = true
	}
	var list []Numbering
	for _, d := range all {
		n := Numbering{Dataset: d.Name, Tags: []store.Tag{}}
		covered := 0
		for _, number := range d.Snapshots {
			if of[Name{Dataset: d.Name, Number: number}] {
				covered++
			}
		}
		if covered == 0 {
			continue
		}
		for _, tag := range d.Tags {
			if of[Name{Dataset: d.Name, Number: tag.Snapshot}] {
				n.Tags = append(n.Tags, tag)
			}
		}
		if numberer, ok := src.(store.Numberer); ok && covered == len(d.Snapshots) {
			if n.Last, err = numberer.LastNumber(ctx, d.Name); err != nil {
				return nil, err
			}
		}
		list = append(list, n)
	}
	return list, nil
}

// numbering gives the target the tags of what was copied, under the numbers that it has
// there, and has it give out greater numbers than the source has.
func (c *copier) numbering(ctx context.Context, snaps []*schema.Snapshot, as map[Name]int64) error {
	list, err := Numberings(ctx, c.from, snaps)
	if err != nil {
		return err
	}
	there, err := c.to.Datasets(ctx)
	if err != nil {
		return err
	}
	for _, n := range list {
		if r, ok := c.to.(store.Restorer); ok && n.Last > 0 && c.opts.Numbers && !c.opts.Renumber {
			if err := r.Advance(ctx, n.Dataset, n.Last); err != nil {
				return err
			}
		}
		if len(n.Tags) == 0 {
			continue
		}
		tagger, err := store.TaggerOf(c.to)
		if err != nil {
			return err
		}
		var have []store.Tag
		if i := slices.IndexFunc(there, func(d store.Dataset) bool { return d.Name == n.Dataset }); i >= 0 {
			have = there[i].Tags
		}
		for _, tag := range n.Tags {
			number := as[Name{Dataset: n.Dataset, Number: tag.Snapshot}]
			if i := slices.IndexFunc(have, func(t store.Tag) bool { return t.Name == tag.Name }); i >= 0 {
				if have[i].Snapshot != number {
					c.done.KeptTags = append(c.done.KeptTags, KeptTag{n.Dataset, tag.Name, have[i].Snapshot, number})
				}
				continue
			}
			if err := tagger.Tag(ctx, n.Dataset, tag.Name, number); err != nil {
				return err
			}
			c.done.Tags++
		}
	}
	return nil
}
