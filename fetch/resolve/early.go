package resolve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"bowstring/schema"
)

// ErrSuperseded says that a job that was opened early is not of the snapshot that its request means.
var ErrSuperseded = errors.New("the snapshot is not the one that is meant")

// question is what the catalog is asked while a job that was opened early is at work already.
type question struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when err is there
	err    error
}

// OpenEarly opens a job as Open does, but where the catalog takes long it does not wait for its answer: it takes the
// snapshot that is probably meant, if that one is open, and asks meanwhile. Nothing of the job may be told to anybody
// before Confirm.
func (rv *Resolver) OpenEarly(ctx context.Context, req schema.Request) (*Job, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	req, err := rv.Pin(ctx, req)
	if err != nil {
		return nil, err
	}
	if req.Assign == schema.AssignLocal && req.Owners == "" {
		// Its layout is claimed, which is written for good, and asks the catalog itself.
		return rv.open(ctx, req)
	}
	if snap, asked := rv.snapshots.early(ctx, req.Dataset, req.Snapshot); snap != nil {
		j, err := rv.openOn(ctx, snap, req)
		if err == nil {
			j.asked = asked
			return j, nil
		}
		// It may be wrong of that snapshot alone.
		asked.cancel()
		snap.Release()
	}
	return rv.open(ctx, req)
}

// Confirm waits until it is certain that the job is of the snapshot that its request means. ErrSuperseded if it is not:
// the request is to be opened anew. A job that was not opened early is certain.
func (j *Job) Confirm(ctx context.Context) error {
	if j.asked == nil {
		return nil
	}
	select {
	case <-j.asked.done:
		return j.asked.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Early reports whether Confirm has something to say.
func (j *Job) Early() bool { return j.asked != nil }

// early takes a hold of the open snapshot that is probably meant, and asks the catalog whether it is. It returns nil if
// there is none, if the catalog need not be asked, and if its answers are worth waiting for. The question ends with ctx.
func (c *snapshotCache) early(ctx context.Context, dataset string, number int64) (*openSnapshot, *question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.took < c.worthwhile {
		return nil, nil
	}
	s := c.byKey[snapshotKey{dataset, number}]
	if number == 0 {
		s = c.newestLocked(dataset)
	}
	if s == nil || s.believed.IsZero() || number != 0 && !s.believed.Before(time.Now()) {
		return nil, nil
	}
	s.refs++
	ctx, cancel := context.WithCancelCause(ctx)
	q := &question{cancel: func() { cancel(nil) }, done: make(chan struct{})}
	c.questions.Go(func() {
		defer close(q.done)
		defer q.cancel()
		defer context.AfterFunc(c.closing, func() { cancel(errClosing()) })()
		defer recovered(ctx, c.opening.logger, &q.err)
		q.err = c.isMeant(ctx, s.key, number)
	})
	return s, q
}

// newestLocked is the open snapshot of a dataset that the catalog called its newest last, nil if there is none.
func (c *snapshotCache) newestLocked(dataset string) (found *openSnapshot) {
	for _, s := range c.byKey {
		if s.key.dataset == dataset && !s.newest.IsZero() && (found == nil || s.newest.After(found.newest)) {
			found = s
		}
	}
	return found
}

// isMeant asks the catalog whether a snapshot is what is meant by a number of its dataset.
func (c *snapshotCache) isMeant(ctx context.Context, key snapshotKey, number int64) error {
	s, err := c.get(ctx, key.dataset, number)
	switch {
	case errors.Is(err, schema.ErrNotFound): // who opens it anew is told what there is
		return fmt.Errorf("%w: %w", ErrSuperseded, err)
	case err != nil:
		return err
	}
	defer s.Release()
	if s.key != key {
		return fmt.Errorf("%w: %s, and not %s", ErrSuperseded, s.key, key)
	}
	return nil
}
