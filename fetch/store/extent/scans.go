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
	// scanAgain is for how long the result of a scan counts that has not found a set.
	// Without it, a stream of reads of unknown blobs would read the whole catalog again
	// for each.
	scanAgain = 2 * time.Second
	// scansAtOnce is how many snapshots are read at the same time.
	scansAtOnce = 16
	// mostSeen bounds how many snapshots are remembered as scanned. Beyond it the scan
	// forgets all and reads them once more.
	mostSeen = 1 << 16
)

// scans searches the snapshots of the catalog for object sets: one scan at a time, for
// all calls that miss a set. A set that was not found is not searched for again within
// scanAgain.
type scans struct {
	s   *Store
	log *slog.Logger

	mu sync.Mutex
	// under is the running scan, which later callers join; nil if there is none.
	under *scan
	last  *scan                 // the last one that ended without an error
	seen  map[snapshotName]bool // snapshots that were scanned: they do not change
}

type snapshotName struct {
	dataset string
	number  int64
}

// scan is one pass over the catalog. err is set before done is closed, and not changed
// afterwards.
type scan struct {
	began time.Time
	done  chan struct{}
	err   error
}

func (l *scans) init(s *Store, log *slog.Logger) {
	l.s, l.log, l.seen = s, log, map[snapshotName]bool{}
}

// find returns as soon as a set is known, or when all snapshots that existed when the
// scan began were read. The set may then still be unknown, which is no error.
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

// again returns when all present snapshots were read, whatever sets are known. It is for
// a set that is known and lacks a unit: a newer snapshot may name a larger one.
func (l *scans) again(ctx context.Context) error {
	one := l.begin()
	select {
	case <-one.done:
		return one.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin returns the running scan, or one that began less than scanAgain ago, or a new
// one. The scan runs in a goroutine of the store, so that it outlives the call that began
// it.
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

// run reads all snapshots that were not read yet, and learns their object sets.
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
