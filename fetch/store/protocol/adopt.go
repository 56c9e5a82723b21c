package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"bowstring/schema"
)

// Foundation is what a store begins with.
type Foundation struct {
	// Epoch is the first one. Where it is a write time, it is greater than that
	// of everything that was written before the store was made or adopted.
	Epoch Epoch
	// Blobs and Bytes are what it holds.
	Blobs, Bytes int64
}

// Found makes the state of collections, unless there is one. It may be
// interrupted, and made again.
func Found(ctx context.Context, db Database, f Foundation) error {
	state := control{
		Epoch: max(firstEpoch, f.Epoch), Whole: true, Ended: time.Now().UTC().Truncate(time.Microsecond),
		Blobs: f.Blobs, Bytes: f.Bytes,
	}
	value, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return once(ctx, db, Control, Change{Put: map[string][]byte{rowState: value}})
}

// Adopted is a dataset of a store of an older format.
type Adopted struct {
	Name string
	// Last is the greatest number that was given out.
	Last int64
	// Snapshots are those that were not dropped, by ascending numbers. What they
	// refer to is stored.
	Snapshots iter.Seq2[*schema.Snapshot, error]
	// Selections are of these snapshots.
	Selections []*schema.Selection
}

// Adopt makes the partition of a dataset, unless there is one, by one swap. The
// store must have been founded, and nobody else may work on it. It may be
// interrupted, and made again.
func Adopt(ctx context.Context, db Database, a Adopted) error {
	p, err := db.Load(ctx, Control)
	if err != nil {
		return err
	}
	state, err := decodeControl(p)
	if err != nil {
		return err
	}
	if p, err = db.Load(ctx, a.Name); err != nil || p.Version > 0 {
		return err
	}
	e := &edit{}
	h := head{Last: a.Last}
	for snap, err := range a.Snapshots {
		if err != nil {
			return err
		}
		if snap.Number <= h.Newest || snap.Number > a.Last {
			return fmt.Errorf("%w: snapshot %s after %d, and of %d", schema.ErrDataLoss,
				snapshotName(a.Name, snap.Number), h.Newest, a.Last)
		}
		h.Newest = snap.Number
		row := snapshotRecord{Commit: fmt.Sprintf("adopted/%d", snap.Number), Created: snap.Created, Rows: snap.Rows()}
		if row.Record, err = encodeRecord(*snap); err != nil {
			return err
		}
		if len(row.Record) > inlineRecord {
			ref := schema.RefOf(row.Record)
			if err = db.Touch(ctx, ref, state.Epoch); err == nil {
				err = db.Write(ctx, ref, row.Record, state.Epoch)
			}
			if err != nil {
				return fmt.Errorf("the record of snapshot %s: %w", snapshotName(a.Name, snap.Number), err)
			}
			row.Record, row.Blob = nil, &ref
		}
		e.put(snapshotRow(snap.Number), row)
	}
	for _, sel := range a.Selections {
		e.put(rowSelection+sel.Name(), sel)
	}
	e.put(rowHead, h)
	if e.err != nil {
		return e.err
	}
	if err := db.Sync(ctx); err != nil {
		return err
	}
	return once(ctx, db, a.Name, e.change)
}

// once makes a swap of a partition that was never written, unless somebody has
// written it.
func once(ctx context.Context, db Database, name string, change Change) error {
	for try := 0; ; try++ {
		p, err := db.Load(ctx, name)
		if err != nil || p.Version > 0 {
			return err
		}
		err = db.Swap(ctx, name, 0, change)
		if err == nil || ctx.Err() != nil || !errors.Is(err, ErrMoved) && !errors.Is(err, ErrUncertain) ||
			try == uncertainTries {
			return err
		}
	}
}

// Ready does what the first reader would otherwise wait for.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.done()
	return s.ensureReading(ctx)
}

// Counted is how many blobs the last collection of the whole store left, or the
// store began with, and when that was; zero while a collection runs, or if the
// last one did not come to its end.
func (s *Store) Counted(ctx context.Context) (blobs, bytes int64, at time.Time, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, 0, time.Time{}, err
	}
	defer s.calls.done()
	s.member.mu.Lock()
	seen := s.member.seen
	s.member.mu.Unlock()
	if seen == 0 {
		p, err := s.db.Peek(ctx, Control)
		if err == nil {
			err = s.learn(p)
		}
		if err != nil {
			return 0, 0, time.Time{}, err
		}
	}
	c := s.member.current()
	if !c.Whole {
		c.Ended = time.Time{}
	}
	return c.Blobs, c.Bytes, c.Ended, nil
}
