package extent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/schema"
)

const (
	// scanAgain is how long a look through the catalog that has not found a set counts.
	scanAgain = 2 * time.Second
	// scansAtOnce is how many snapshots are read at the same time.
	scansAtOnce = 16
	// mostSeen is how many snapshots are remembered as looked at: they are not read again.
	mostSeen = 1 << 16
)

// scans searches the snapshots of the catalog for object sets: one scan at a time, for
// all calls that miss a set. A set that was not found is not searched for again within
// scanAgain.
type scans struct {
	s   *Store
	log *slog.Logger

	mu    sync.Mutex
	under *scan
	last  *scan                 // that has ended without an error
	seen  map[snapshotName]bool // snapshots that were looked at; they do not change
}

type snapshotName struct {
	dataset string
	number  int64
}

// scan is one look through the catalog.
type scan struct {
	began time.Time
	done  chan struct{}
	err   error
}

func (l *scans) init(s *Store, log *slog.Logger) {
	l.s, l.log, l.seen = s, log, map[snapshotName]bool{}
}

// find returns when a set is known, or when all snapshots that there were have been looked at.
func (l *scans) find(ctx context.Context, prefix schema.ObjectPrefix) error {
	one := l.begin()
	for {
		more := l.s.sets.more()
		if l.s.sets.whose(prefix) != unknown {
			return nil
		}
		select {
		case <-one.done:
			if one.err != nil && l.s.sets.whose(prefix) == unknown {
				return fmt.Errorf("look for object set %s in the catalog: %w", prefix, one.err)
			}
			return nil
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// again returns when all snapshots that there are have been looked at.
func (l *scans) again(ctx context.Context) error {
	one := l.begin()
	select {
	case <-one.done:
		return one.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin returns a look that is under way, or has just ended, or a new one.
func (l *scans) begin() *scan {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.under != nil {
		return l.under
	}
	if l.last != nil && time.Since(l.last.began) < scanAgain {
		return l.last
	}
	one := &scan{began: time.Now(), done: make(chan struct{})}
	l.under = one
	l.s.goAfter(func() {
		ctx, cancel := context.WithTimeoutCause(l.s.ctx, scanWithin, fmt.Errorf(
			"%w: it was not looked through within %s", schema.ErrUnavailable, scanWithin))
		defer cancel()
		one.err = l.run(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.under = nil
		if one.err == nil {
			l.last = one
		}
		close(one.done)
	})
	return one
}

// run looks at all snapshots that were not looked at yet.
func (l *scans) run(ctx context.Context) error {
	datasets, err := l.s.Store.Datasets(ctx)
	if err != nil {
		return err
	}
	var news []snapshotName
	l.mu.Lock()
	if len(l.seen) > mostSeen {
		clear(l.seen)
	}
	// The newest snapshot of each dataset comes first: it most likely names the set.
	for age, any := 1, true; any; age++ {
		any = false
		for _, d := range datasets {
			if len(d.Snapshots) < age {
				continue
			}
			any = true
			if name := (snapshotName{d.Name, d.Snapshots[len(d.Snapshots)-age]}); !l.seen[name] {
				news = append(news, name)
			}
		}
	}
	l.mu.Unlock()
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(scansAtOnce)
	for _, name := range news {
		group.Go(func() error {
			snap, err := l.s.Store.Snapshot(inGroup, name.dataset, name.number)
			switch {
			case errors.Is(err, schema.ErrNotFound): // dropped meanwhile
			case errors.Is(err, schema.ErrDataLoss): // its sets are lost with it, those of others are not
				l.log.WarnContext(ctx, "a snapshot's record cannot be read", "dataset", name.dataset, "snapshot", name.number,
					"error", err)
				return nil
			case err != nil:
				return err
			default:
				l.s.learn(snap)
			}
			l.mu.Lock()
			l.seen[name] = true
			l.mu.Unlock()
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return nil
}
