package flight

import (
	"cmp"
	"context"
	"slices"
	"time"

	"bowstring/fetch"
	"bowstring/flight/catalog"
)

// maxLineageJobs is how many jobs are listed at once: those that began last.
const maxLineageJobs = 4096

// tallyKey is a job of a snapshot.
type tallyKey struct {
	job string
	ref catalog.Ref
}

// tally sums up what is on record of a job of a snapshot.
type tally struct {
	tallyKey
	rows        int64
	streams     map[int64]struct{}
	first, last int64 // stream
	plan, order string
	world       int64
}

// tallies are those of the jobs that a caller may know of, at most maxLineageJobs.
type tallies struct {
	byKey map[tallyKey]*tally
	order []*tally // as they were found: the oldest files of the record come first
}

// of takes the head of a piece in, and returns where its rows are added.
func (l *tallies) of(h *fetch.PieceHead) *int64 {
	key := tallyKey{h.Job, catalog.Ref{Dataset: h.Ticket.Dataset, Snapshot: h.Ticket.Snapshot}}
	t := l.byKey[key]
	if t == nil {
		if len(l.order) == maxLineageJobs {
			delete(l.byKey, l.order[0].tallyKey)
			l.order = slices.Delete(l.order, 0, 1)
		}
		t = &tally{tallyKey: key, streams: map[int64]struct{}{}, first: h.Stream}
		l.byKey[key], l.order = t, append(l.order, t)
	}
	t.streams[h.Stream] = struct{}{}
	if t.first = min(t.first, h.Stream); h.Stream >= t.last {
		t.last, t.plan, t.world = h.Stream, h.Plan, h.Ticket.WorldSize()
		t.order, _ = h.Ticket.OrderOf()
	}
	return &t.rows
}

// lineageJobs lists the jobs on record, or one.
func (s *Server) lineageJobs(ctx context.Context, cat *catalog.Catalog, name string, send func([]byte) error) error {
	var one *catalog.Course
	if name != "" {
		var err error
		if one, err = cat.Course(ctx, name); err != nil {
			return err
		}
	}
	found := &tallies{byKey: map[tallyKey]*tally{}}
	err := cat.RecordedRows(ctx, func(h *fetch.PieceHead) *int64 {
		if one != nil && !one.Has(h.Job) {
			return nil
		}
		return found.of(h)
	})
	if err != nil {
		return err
	}
	if err := sendJSON(send, s.lineageHeader(cat)); err != nil {
		return err
	}
	slices.SortStableFunc(found.order, func(a, b *tally) int { return cmp.Compare(a.first, b.first) })
	byName, list := map[string]*lineageJob{}, []*lineageJob{}
	look := cat.Shown(ctx)
	for _, t := range found.order {
		exists, whole, err := look(t.ref)
		if err != nil {
			return err
		}
		if !exists {
			continue
		}
		j := byName[t.job]
		if j == nil {
			j = &lineageJob{Job: t.job, Dataset: t.ref.Dataset, Snapshot: t.ref.Snapshot, First: opened(t.first)}
			byName[t.job], list = j, append(list, j)
		}
		if at := opened(t.last); !at.Before(j.Last) {
			j.Order, j.Plan, j.World, j.Last = t.order, t.plan, t.world, at
		}
		if whole {
			j.Rows += t.rows
		}
		j.Streams += len(t.streams)
	}
	for _, j := range list {
		if err := sendJSON(send, j); err != nil {
			return err
		}
	}
	return nil
}

func opened(stream int64) time.Time { return (&fetch.PieceHead{Stream: stream}).Opened() }
