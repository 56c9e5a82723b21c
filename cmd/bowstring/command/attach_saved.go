package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/cmd/bowstring/attach"
	"bowstring/cmd/bowstring/source"
	"bowstring/fetch/ingest"
	"bowstring/schema"
)

const (
	// savedSuffix makes the name of the dataset in which an attachment puts down what it has read.
	savedSuffix = ".attaching"
	// savedShare is how much of the time may be spent on putting down.
	savedShare = 20
)

// saved is what an attachment has saved so far, as a dataset of its own. If the
// attachment is interrupted, the next one keeps these rows, in the same way as an update
// keeps those of the snapshot before. It has whole objects only: if it has an object, it
// has all rows of it. Otherwise an object with half its rows would look complete.
type saved struct {
	of   *attachment
	name string
	snap *schema.Snapshot // left by an interrupted attachment; nil for none
	rows *attach.Rows     // of snap

	opts ingest.Options
	// w is nil between two snapshots. due is when the next one may be made.
	w     *ingest.Writer
	due   time.Time
	last  []schema.ObjectAddress // the objects of the row before
	ended bool                   // nothing more is saved
}

// findSaved looks for what an interrupted attachment has saved, and adds its sets to
// those of the base. The result is nil if saving is off, or if the dataset's name leaves
// no room for the suffix.
func (a *attachment) findSaved(ctx context.Context) (*saved, error) {
	s := &saved{of: a, name: a.cmd.Dataset + savedSuffix}
	if a.cmd.SaveEvery <= 0 || len(s.name) > schema.MaxNameLen {
		return nil, nil //nolint:nilnil // there is none
	}
	snap, err := a.store.Snapshot(ctx, s.name, 0)
	if errors.Is(err, schema.ErrNotFound) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.snap = snap
	if s.rows, err = attach.ReadRows(ctx, a.store, snap, source.AddedColumns()); err != nil {
		return nil, err
	}
	// The saved sets have keys for objects, as the base has. Rows are found by them.
	sets, err := readSets(ctx, a.store, snap)
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		set.Rows = []*attach.Rows{s.rows}
		i := slices.IndexFunc(a.sets, func(b attach.Base) bool { return b.Ref.Prefix == set.Ref.Prefix })
		if i < 0 {
			a.sets = append(a.sets, set)
			// Both datasets can refer to one set. Its blobs then belong to rows of both.
		} else {
			a.sets[i].Rows = append(a.sets[i].Rows, s.rows)
		}
	}
	return s, nil
}

// begin prepares for rows with the given schema. Rows with other columns cannot be kept,
// so that they are dropped.
func (s *saved) begin(ctx context.Context, app *App, src source.Source, columns *arrow.Schema) error {
	if s.snap != nil && !s.snap.Schema.Equal(columns) { // cannot be kept
		if err := s.of.store.Drop(ctx, s.name, 0); err != nil {
			return err
		}
		s.snap, s.rows = nil, nil
	}
	if s.snap != nil {
		app.Notef("an attachment of %s was interrupted, and has read %s: what has not changed of them is not read again",
			s.of.cmd.Dataset, plural(s.snap.Rows(), "row"))
	}
	s.opts = ingest.Options{Dataset: s.name, Source: src.Describe(), Schema: columns, Mode: ingest.Append}
	if s.snap == nil {
		s.opts.Mode = ingest.Create
	}
	s.due = time.Now().Add(s.of.cmd.SaveEvery)
	// If the listing alone gives the rows, reading them again costs nothing.
	s.ended = src.Walked() && src.Estimate().Walked.Requests == 0
	return nil
}

// write saves the rows of a batch that are not saved yet. If a snapshot is due, it
// commits the rows so far at the next boundary between two objects.
func (s *saved) write(ctx context.Context, b *source.Batch, refs [][]*schema.BlobRef) error {
	if s.ended {
		return nil
	}
	// The time is read once for a batch: batches are short.
	due := time.Now().After(s.due)
	begin := 0 // first row that is not written yet
	// put writes the rows from begin to end. The writer is opened by the first of them.
	put := func(end int) error {
		if begin == end {
			return nil
		}
		if s.w == nil {
			w, err := ingest.New(ctx, s.of.store, s.opts)
			if err != nil {
				return err
			}
			s.w = w
		}
		part := make([][]*schema.BlobRef, len(refs))
		for c := range refs {
			part[c] = refs[c][begin:end]
		}
		meta := b.Meta.NewSlice(int64(begin), int64(end))
		defer meta.Release()
		return s.w.WriteRefs(ctx, b.Split, b.IDs[begin:end], meta, part)
	}
	for i := range b.IDs {
		at := objectsOf(refs, i)
		// A boundary is where a row shares no object with the row before. Within an
		// object the snapshot would have half of it.
		if due && len(at) > 0 && len(s.last) > 0 && !slices.ContainsFunc(at, func(a schema.ObjectAddress) bool {
			return slices.Contains(s.last, a)
		}) {
			err := put(i)
			if err == nil {
				err = s.commit(ctx)
			}
			if err != nil {
				return fmt.Errorf("put down what was read in %s: %w", s.name, err)
			}
			begin, due = i, false
		}
		s.last = at
		if s.rows != nil && s.rows.Has(b.IDs[i]) {
			if !s.rows.Same(b.IDs[i], func(c int) *schema.BlobRef { return refs[c][i] }) {
				// The row has changed. A dataset cannot have it twice, and without it the
				// object's rows would be incomplete. Saving ends here.
				s.ended = true
				return s.Close()
			}
			if err := put(i); err != nil {
				return err
			}
			begin = i + 1
		}
	}
	return put(len(b.IDs))
}

// objectsOf returns the objects that have the blobs of a row.
func objectsOf(refs [][]*schema.BlobRef, row int) (all []schema.ObjectAddress) {
	for c := range refs {
		if refs[c][row] != nil {
			a, _ := schema.ParseObjectAddress(refs[c][row].Key)
			all = append(all, schema.ObjectAddress{Prefix: a.Prefix, Object: a.Object})
		}
	}
	return all
}

// commit makes a snapshot of the rows written so far, and sets when the next one is due.
// It closes the writer also after an error.
func (s *saved) commit(ctx context.Context) error {
	if s.w == nil {
		return nil
	}
	begun := time.Now()
	err := s.of.putSets(ctx, s.w)
	if err == nil {
		_, _, err = s.w.Commit(ctx)
	}
	err = errors.Join(err, s.Close())
	s.opts.Mode = ingest.Append
	s.due = time.Now().Add(max(s.of.cmd.SaveEvery, savedShare*time.Since(begun)))
	return err
}

// drop removes the saved rows after the attachment has committed.
func (s *saved) drop(ctx context.Context) error {
	if err := s.Close(); err != nil {
		return err
	}
	// The dataset was never created.
	if s.snap == nil && s.opts.Mode == ingest.Create {
		return nil
	}
	if err := s.of.store.Drop(ctx, s.name, 0); err != nil {
		return fmt.Errorf("the dataset is attached; drop %s, which has what was read on the way: %w", s.name, err)
	}
	return nil
}

// Close closes the writer, if one is open. Rows since the last commit are lost.
func (s *saved) Close() error {
	if s.w == nil {
		return nil
	}
	w := s.w
	s.w = nil
	return w.Close()
}
