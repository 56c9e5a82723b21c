package cql

import (
	"context"
	"errors"
	"time"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"bowstring/schema"
)

// prepareWithin is for how long hosts are waited for that are to prepare statements.
const prepareWithin = 2 * time.Second

// Prepare does what would otherwise cost the first reader some round trips: each host prepares the
// statements that reading takes, by being asked for what no name can name, the process's row is
// written, and some memory for blobs is touched, in bytes.
func (s *Store) Prepare(ctx context.Context, memory int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.buffers.touch(memory) })
	g.Go(func() error { return s.catalog.Ready(ctx) })
	g.Go(func() error {
		_, err := database{s}.Peek(ctx, " ", " ")
		return err
	})
	g.Go(func() error {
		r := newReading(ctx, selectPart, 0)
		r.bind(&r.key, 0)
		if err := s.readCell(s.db, r, s.config.Read, tableParts); !errors.Is(err, gocql.ErrNotFound) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		s.prepareHosts(ctx)
		return nil
	})
	return g.Wait()
}

// prepareHosts has the hosts that are asked first prepare what reading takes. The driver has each host prepare a
// statement when it is used there first, so a host that fails here, or takes too long, does so for its first reader.
func (s *Store) prepareHosts(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	key := boundKey{}
	statements := [][]any{
		{selectPartition, " "},
		{selectRows, " ", []string{" "}},
		{selectVersion, " "},
		{selectPart, &key, 0},
	}
	if s.gathering != nil && s.gathering.keys() > 1 {
		statements = append(statements, []any{selectGathered, keysOf([]*joined{{ref: schema.BlobRef{}}})})
	}
	var g errgroup.Group
	for h := range s.steering.known() {
		if h.info.DataCenter() != s.dc {
			continue
		}
		for _, st := range statements {
			g.Go(func() error {
				q := s.db.Query(st[0].(string), st[1:]...).Consistency(gocql.LocalOne).
					RetryPolicy(movingRetries(0)).WithContext(asking{ctx, h})
				if err := q.Iter().Close(); err != nil {
					s.log.DebugContext(ctx, "a statement was not prepared ahead of its use", "host", s.steering.name(h.info),
						"statement", st[0], "error", err)
				}
				return nil
			})
		}
	}
	_ = g.Wait() // none returns an error
}
