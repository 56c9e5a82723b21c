package tend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// CopyOptions tunes Copy.
type CopyOptions struct {
	// Rate is how many bytes a second are sent at most; 0 for no limit.
	Rate int64
	// Workers is how many blobs are under way at once; 32 if 0.
	Workers int
	// Memory is that of Scope.
	Memory int64
	// Selections also copies the selections of the snapshots.
	Selections bool
	// Numbers also has each dataset that is copied whole give out no number that it has given
	// out in the source.
	Numbers bool
	// Renumber commits each snapshot as the next one of its dataset, in place of under its own number.
	Renumber bool
	// Attached is what is made of cells of other programs' tables; ByValue if empty. The target has to be a
	// store.Referrer for them to be copied by reference.
	Attached Attached
	// Progress, if not nil, is called after each blob, never twice at once.
	Progress func(Copied)
}

// Copied is what Copy has done so far.
type Copied struct {
	Snapshots []CopiedSnapshot `json:"snapshots"`
	// Blobs were seen to, of which Sent were not there and went over.
	Blobs     int64 `json:"blobs"`
	Bytes     int64 `json:"bytes"`
	Sent      int64 `json:"sent"`
	SentBytes int64 `json:"sent_bytes"`
	// OfBytes is what there is to be seen to, at most.
	OfBytes    int64 `json:"of_bytes"`
	Selections int64 `json:"selections"`
	// Tags were set in the target. KeptTags it has for other snapshots, and were left.
	Tags     int64     `json:"tags"`
	KeptTags []KeptTag `json:"kept_tags,omitempty"`
}

// KeptTag is a tag that the target has for another snapshot than the copy of the source's.
type KeptTag struct {
	Dataset  string `json:"dataset"`
	Tag      string `json:"tag"`
	Snapshot int64  `json:"snapshot"`
	Copied   int64  `json:"copied"`
}

// CopiedSnapshot is a snapshot that is in the target now.
type CopiedSnapshot struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	// As is its number in the target.
	As   int64 `json:"as"`
	Rows int64 `json:"rows"`
	// There: it was there before.
	There bool `json:"there"`
}

// copier is one run of Copy.
type copier struct {
	from Source
	to   store.Store
	opts CopyOptions

	attached attachment
	made     map[schema.Key]schema.Chunk // in the target, of chunks that were copied by value, by the keys of those

	mu   sync.Mutex
	done Copied
}

// Copy copies snapshots into a store, in the order given, which should be that of
// their numbers: ids, manifests, keys and rows are the same there. Each blob is
// checked on its way. The tags of the snapshots are copied but for those that the
// target has for others. What the target has already is not sent, so a copy that was
// stopped goes on where it was when it is made again.
//
// A snapshot that the target has already is left as it is; where snapshots get numbers of their own, those that the
// target's newest are copies of. A schema.ErrConflict says that
// it has another one of that number, or has given out greater ones.
func Copy(ctx context.Context, from Source, to store.Store, snaps []*schema.Snapshot,
	opts CopyOptions) (Copied, error) {
	c := &copier{from: from, to: to, opts: opts, made: map[schema.Key]schema.Chunk{}}
	if err := c.attach(ctx, snaps); err != nil {
		return c.done, err
	}
	numbers := map[Name]int64{}
	if opts.Renumber {
		if err := c.renumbered(ctx, snaps, numbers); err != nil {
			return c.done, err
		}
	}
	var missing []*schema.Snapshot
	for _, snap := range snaps {
		as, there := numbers[nameOf(snap)]
		if !there && !opts.Renumber {
			var err error
			if there, err = c.standing(ctx, snap); err != nil {
				return c.done, err
			}
			as = snap.Number
		}
		if there {
			c.done.Snapshots = append(c.done.Snapshots, CopiedSnapshot{snap.Dataset, snap.Number, as, snap.Rows(),
				true})
			numbers[nameOf(snap)] = as
		} else {
			missing = append(missing, snap)
		}
	}
	for _, snap := range missing {
		scope := Scope{Source: from, Snapshots: []*schema.Snapshot{snap}}
		_, size := scope.Size()
		c.done.OfBytes += size
	}
	for _, snap := range snaps {
		as := numbers[nameOf(snap)]
		if slices.Contains(missing, snap) {
			var err error
			there := false
			if as, err = c.snapshot(ctx, snap); errors.Is(err, schema.ErrConflict) && !opts.Renumber {
				// Somebody may have made the same copy at the same time.
				if there, _ = c.standing(ctx, snap); there {
					as, err = snap.Number, nil
				}
			}
			if err != nil {
				return c.done, fmt.Errorf("copy %s@%d: %w", snap.Dataset, snap.Number, err)
			}
			c.done.Snapshots = append(c.done.Snapshots, CopiedSnapshot{snap.Dataset, snap.Number, as, snap.Rows(),
				there})
		}
		numbers[nameOf(snap)] = as
		if opts.Selections {
			if err := c.selections(ctx, snap, as); err != nil {
				return c.done, fmt.Errorf("copy the selections of %s@%d: %w", snap.Dataset, snap.Number, err)
			}
		}
	}
	if err := c.numbering(ctx, snaps, numbers); err != nil {
		return c.done, fmt.Errorf("copy the tags: %w", err)
	}
	return c.done, nil
}

// standing reports whether the target has the snapshot, and a schema.ErrConflict
// if it cannot have it.
func (c *copier) standing(ctx context.Context, snap *schema.Snapshot) (there bool, err error) {
	const advice = "drop what is there, take another store, or copy it as the next snapshot with --renumber"
	old, err := c.to.Snapshot(ctx, snap.Dataset, snap.Number)
	switch {
	case err == nil:
		if same, err := equal(old, snap); same || err != nil {
			return same, err
		}
		if same, err := sameButAttached(old, snap, c.attached); same || err != nil {
			c.note(old, snap)
			return same, err
		}
		return false, fmt.Errorf("%w: the target has another snapshot %s@%d, of %d rows from %s: %s",
			schema.ErrConflict, snap.Dataset, snap.Number, old.Rows(), schema.Quote(old.Source), advice)
	case !errors.Is(err, schema.ErrNotFound):
		return false, err
	}
	restorer, ok := c.to.(store.Restorer)
	if !ok {
		return false, fmt.Errorf("%w: the target cannot take in a snapshot under a given number: copy it as the next "+
			"one with --renumber",
			schema.ErrInvalid)
	}
	if err := restorer.Restorable(ctx, snap); err != nil {
		return false, fmt.Errorf("%w: %s", err, advice)
	}
	return false, nil
}

// equal compares snapshots as stores record them.
func equal(a, b *schema.Snapshot) (bool, error) {
	x, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	y, err := json.Marshal(b)
	return bytes.Equal(x, y), err
}

// snapshot copies one snapshot, and returns its number in the target.
func (c *copier) snapshot(ctx context.Context, snap *schema.Snapshot) (number int64, err error) {
	in, err := c.to.Begin(ctx, snap.Dataset)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if snap, err = c.put(ctx, in, snap); err != nil {
		return 0, err
	}
	if !c.opts.Renumber {
		return snap.Number, c.to.(store.Restorer).Restore(ctx, in, snap) // checked by standing
	}
	next := *snap
	next.Number, next.Parent = 0, 0
	if newest, err := c.to.Snapshot(ctx, snap.Dataset, 0); err == nil {
		next.Parent = newest.Number
	} else if !errors.Is(err, schema.ErrNotFound) {
		return 0, err
	}
	made, err := in.Commit(ctx, next)
	if err != nil {
		return 0, err
	}
	return made.Number, nil
}

// blobs sees to it that the target has all blobs of a scope, and returns its snapshots as they are there.
func (c *copier) blobs(ctx context.Context, in store.Ingest, scope Scope) ([]*schema.Snapshot, error) {
	there := func(context.Context, schema.BlobRef) (bool, error) { return false, nil }
	if a, ok := in.(store.Adopter); ok {
		there = func(ctx context.Context, ref schema.BlobRef) (bool, error) {
			ok, err := a.Adopt(ctx, ref)
			if ok {
				c.count(ref, false)
			}
			return ok, err
		}
	}
	opts := FetchOptions{Rate: c.opts.Rate, Workers: c.opts.Workers, Attached: c.opts.Attached, Through: c.to}
	return Fetch(ctx, scope, opts, there,
		func(ctx context.Context, ref schema.BlobRef, data []byte) error {
			got, err := in.Put(ctx, data)
			if err == nil && got != ref {
				err = fmt.Errorf("%w: blob %s was put as %s", schema.ErrDataLoss, ref.Key, got.Key)
			}
			if err == nil {
				c.count(ref, true)
			}
			return err
		})
}

func (c *copier) count(ref schema.BlobRef, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done.Blobs++
	c.done.Bytes += ref.Size
	if sent {
		c.done.Sent++
		c.done.SentBytes += ref.Size
	}
	if c.opts.Progress != nil {
		c.opts.Progress(c.done)
	}
}

// selections copies those of a snapshot, which has another number in the target perhaps.
func (c *copier) selections(ctx context.Context, snap *schema.Snapshot, as int64) (err error) {
	list, err := Selections(ctx, c.from, []*schema.Snapshot{snap})
	if err != nil || len(list) == 0 {
		return err
	}
	in, err := c.to.Begin(ctx, snap.Dataset)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if _, err := c.blobs(ctx, in, Scope{Source: c.from, Selections: list}); err != nil {
		return err
	}
	for _, sel := range list {
		moved := *sel
		moved.Snapshot = as
		if err := c.to.SaveSelection(ctx, in, moved); err != nil {
			return err
		}
		c.done.Selections++
	}
	return nil
}
