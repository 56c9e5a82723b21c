package cql

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"

	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// found makes the catalog of a store whose tables are there.
func (s *Store) found(ctx context.Context, v *survey) error {
	if err := s.join(ctx, v); err != nil {
		return err
	}
	defer s.db.Close()
	return protocol.Found(ctx, database{s}, protocol.Foundation{})
}

// upgrade makes a store of format 1 one of this format. The comment of the
// catalog, which is made first and says so until the end, keeps every process
// of this program out; the comments of the other tables, which are changed
// next, every process of the older one that is started. All that is copied is
// in the tables of format 1 afterwards, too, which nobody reads any more.
func (s *Store) upgrade(ctx context.Context, session *gocql.Session, v *survey, f formats) error {
	if err := s.join(ctx, v); err != nil {
		return err
	}
	defer s.db.Close()
	if err := s.oldAtWork(ctx, v); err != nil {
		return err
	}
	s.log.InfoContext(ctx, "upgrading a store of format 1", "keyspace", s.config.Keyspace)
	for _, name := range f.missing {
		mark := formatMark
		if name == tableCatalog {
			mark = upgradeMark
		}
		if err := s.define(ctx, session, createStatement(s.config.Keyspace, name, mark), name); err != nil {
			return err
		}
	}
	for _, name := range f.old {
		if err := s.mark(ctx, session, name, formatMark); err != nil {
			return err
		}
	}
	if err := s.oldAtWork(ctx, v); err != nil { // one that was started meanwhile
		return err
	}
	if err := s.adopt(ctx, v); err != nil {
		return err
	}
	if err := s.mark(ctx, session, tableCatalog, formatMark); err != nil {
		return err
	}
	s.log.InfoContext(ctx, "the store is upgraded; its tables of format 1 are of no more use, and may be dropped",
		"keyspace", s.config.Keyspace, "tables", strings.Join([]string{oldSnapshots, oldSelections, oldLeases}, " "))
	return nil
}

// oldAtWork is an error while processes of the older program are at work.
func (s *Store) oldAtWork(ctx context.Context, v *survey) error {
	if _, ok := v.tables[oldLeases]; !ok {
		return nil
	}
	holders, err := s.oldHolders(ctx)
	if err == nil && len(holders) > 0 {
		err = fmt.Errorf("%w: processes of the older program are at work on it, or were within the last minute: %s; "+
			"end them before the upgrade",
			schema.ErrUnavailable, strings.Join(holders, "; "))
	}
	return err
}

// adopt copies the catalog of format 1.
func (s *Store) adopt(ctx context.Context, v *survey) error {
	d := database{s}
	if p, err := d.Load(ctx, protocol.Control); err != nil {
		return err
	} else if p.Version == 0 {
		foundation, err := s.survey(ctx)
		if err != nil {
			return err
		}
		if err := protocol.Found(ctx, d, foundation); err != nil {
			return err
		}
	}
	if _, ok := v.tables[oldSnapshots]; !ok {
		return nil
	}
	names, err := s.oldDatasets(ctx)
	if err != nil {
		return err
	}
	_, selections := v.tables[oldSelections]
	for i, name := range names {
		old, err := s.oldDataset(ctx, name, selections)
		if err != nil {
			return err
		}
		err = protocol.Adopt(ctx, d, protocol.Adopted{
			Name: name, Last: old.last, Selections: old.selections,
			Snapshots: func(yield func(*schema.Snapshot, error) bool) {
				for _, number := range old.live {
					if snap, err := s.oldRecord(ctx, name, number); !yield(snap, err) {
						return
					}
				}
			},
		})
		if err != nil {
			return fmt.Errorf("copy dataset %q: %w", name, err)
		}
		s.log.InfoContext(ctx, "copied a dataset", "dataset", name, "snapshots", len(old.live), "selections",
			len(old.selections),
			"done", i+1, "of", len(names))
	}
	return nil
}

// survey goes over the blobs of format 1. Their write times are from the clocks
// of the processes that wrote them, and so were those of deletions that are not
// to be seen: the first epoch is greater than all of them.
func (s *Store) survey(ctx context.Context) (protocol.Foundation, error) {
	var newest, blobs, bytes atomic.Int64
	err := database{s}.Scan(ctx, func(_ context.Context, row protocol.BlobRow) error {
		at := int64(row.Touched)
		for last := newest.Load(); at > last && !newest.CompareAndSwap(last, at); last = newest.Load() {
		}
		if row.Size >= 0 {
			blobs.Add(1)
			bytes.Add(row.Size)
		}
		return nil
	})
	epoch := max(time.Now().Add(s.config.Grace).UnixMicro(), newest.Load()+1)
	return protocol.Foundation{Epoch: protocol.Epoch(epoch), Blobs: blobs.Load(), Bytes: bytes.Load()}, err
}
