package cql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gocql/gocql"

	"bowstring/schema"
)

// Tables of clusters of nodes. [Init] creates them. A store without them works, but not for clusters.
const (
	tableLeases  = "cluster_leases"
	tableLayouts = "cluster_layouts"
	tableClaims  = "cluster_claims"
)

// clusterTables are created like the other tables. Leases are rewritten often, and expire, so tombstones are kept no
// longer than the database's nodes may be partitioned.
var clusterTables = map[string]string{
	tableLeases: "(cluster text, id text, lease blob, PRIMARY KEY (cluster, id)) WITH gc_grace_seconds = 3600 AND " +
		"comment = 'bowstring cluster 1: nodes at work; rows lapse'",
	tableLayouts: "(name text PRIMARY KEY, record blob) WITH comment = 'bowstring cluster 1: layouts by the hash of " +
		"their record'",
	tableClaims: "(cluster text, plan text, epoch bigint, layout text, PRIMARY KEY ((cluster, plan, epoch))) WITH " +
		"comment = 'bowstring cluster 1: which layout an epoch of a plan has; changed by lightweight transactions only'",
}

// Leases and layouts are written with a time to live, so that the servers remove them.
// Claims are made by lightweight transactions.
const (
	putLease     = "INSERT INTO " + tableLeases + " (cluster, id, lease) VALUES (?, ?, ?) USING TTL ?"
	selectLeases = "SELECT id, lease FROM " + tableLeases + " WHERE cluster = ?"
	deleteLease  = "DELETE FROM " + tableLeases + " WHERE cluster = ? AND id = ?"
	putLayout    = "INSERT INTO " + tableLayouts + " (name, record) VALUES (?, ?) USING TTL ?"
	selectLayout = "SELECT record FROM " + tableLayouts + " WHERE name = ?"
	selectClaim  = "SELECT layout FROM " + tableClaims + " WHERE cluster = ? AND plan = ? AND epoch = ?"
	putClaim     = "INSERT INTO " + tableClaims + " (cluster, plan, epoch, layout) VALUES (?, ?, ?, ?) IF NOT EXISTS " +
		"USING TTL ?"
)

// createClusterTables creates those tables of clusters that are missing.
func (s *Store) createClusterTables(ctx context.Context, session *gocql.Session, v *survey) error {
	for _, name := range slices.Sorted(maps.Keys(clusterTables)) {
		if _, ok := v.tables[name]; ok {
			continue
		}
		if err := s.define(ctx, session, fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s.%s %s", s.config.Keyspace, name,
			clusterTables[name]), name); err != nil {
			return err
		}
	}
	return nil
}

// clustered turns the error of a missing table into one that says how to make it.
func (s *Store) clustered(err error) error {
	if code, ok := codeOf(err); ok && code == codeInvalid {
		return fmt.Errorf("%w: keyspace %s has no tables for clusters: bowstring store init makes them (%s)",
			schema.ErrNotFound, s.config.Keyspace, err.Error())
	}
	return err
}

// onControl runs an idempotent statement of clusters on the control session, where it
// does not wait behind blobs. The servers' clocks order the writes, because with a node's
// own clock, a slow one could hide the node.
func (s *Store) onControl(ctx context.Context, table, doing string, read func(scanner) error, stmt string, args ...any,
) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	db, err := s.controlled(ctx)
	if err != nil {
		return err
	}
	q := db.Query(stmt, args...).Consistency(s.catalogLevel()).DefaultTimestamp(false).Idempotent(true).PageSize(rowsAtOnce)
	return s.clustered(s.rows(ctx, q, table, doing, read))
}

// noRows reads the result of a statement that has none.
func noRows(scanner) error { return nil }

// PutLease implements members.Shared.
func (s *Store) PutLease(ctx context.Context, cluster, id string, lease []byte, ttl time.Duration) error {
	return s.onControl(ctx, tableLeases, "write the lease of a node", noRows, putLease, cluster, id, lease,
		int(ttl.Seconds()))
}

// Leases implements members.Shared.
func (s *Store) Leases(ctx context.Context, cluster string) (map[string][]byte, error) {
	found := map[string][]byte{}
	err := s.onControl(ctx, tableLeases, "list the nodes of a cluster", func(scan scanner) error {
		for {
			var id string
			var lease []byte
			if !scan(&id, &lease) {
				return nil
			}
			found[id] = lease
		}
	}, selectLeases, cluster)
	if err != nil {
		return nil, err
	}
	return found, nil
}

// RemoveLease implements members.Shared.
func (s *Store) RemoveLease(ctx context.Context, cluster, id string) error {
	return s.onControl(ctx, tableLeases, "remove the lease of a node", noRows, deleteLease, cluster, id)
}

// PutLayout implements members.Shared.
func (s *Store) PutLayout(ctx context.Context, name string, record []byte, ttl time.Duration) error {
	return s.onControl(ctx, tableLayouts, "keep a layout", noRows, putLayout, name, record, int(ttl.Seconds()))
}

// Layout implements members.Shared.
func (s *Store) Layout(ctx context.Context, name string) (record []byte, err error) {
	found := false
	err = s.onControl(ctx, tableLayouts, "read a layout", func(scan scanner) error {
		found = scan(&record)
		return nil
	}, selectLayout, name)
	if err == nil && !found {
		err = fmt.Errorf("%w: no layout has this name, or it was kept for its time", schema.ErrNotFound)
	}
	return record, err
}

// claimAttempts is how often a claim with unknown outcome is attempted.
const claimAttempts = 5

// ReserveLayout implements members.Shared. A claim never changes, so it is looked up first, which is cheaper than a
// transaction. If the outcome of a claim is unknown, a read at serial consistency settles it for all nodes.
func (s *Store) ReserveLayout(ctx context.Context, cluster, plan string, epoch uint64, name string,
	ttl time.Duration) (string, error) {
	if err := s.enter(ctx); err != nil {
		return "", err
	}
	defer s.life.RUnlock()
	db, err := s.controlled(ctx)
	if err != nil {
		return "", err
	}
	for attempt := 1; ; attempt++ {
		level := s.catalogLevel()
		if attempt > 1 {
			level = s.serialLevel()
		}
		winner, err := s.claimed(ctx, db, level, cluster, plan, epoch)
		if err != nil || winner != "" || name == "" {
			return winner, err
		}
		q := db.Query(putClaim, cluster, plan, int64(epoch), name,
			int(ttl.Seconds())).WithContext(ctx).Consistency(s.catalogLevel()).
			DefaultTimestamp(false).RetryPolicy(movingRetries(0))
		before := map[string]any{}
		applied, err := q.MapScanCAS(before)
		if err == nil && applied {
			return name, nil
		}
		if err != nil && !uncertain(err) || attempt == claimAttempts {
			return "", s.clustered(s.fault(ctx, cmp.Or(err, errUnsettled), nil, tableClaims, "reserve a layout"))
		}
		// Another node has claimed it, or the outcome is unknown: look it up.
	}
}

// errUnsettled says that a claim was refused, but none could be read.
var errUnsettled = errors.New("a claim was neither made nor lost")

// claimed returns the name of the reserved layout; "" if none is reserved.
func (s *Store) claimed(ctx context.Context, db *gocql.Session, level gocql.Consistency, cluster, plan string,
	epoch uint64) (string, error) {
	var name string
	_, err := s.row(ctx, db.Query(selectClaim, cluster, plan, int64(epoch)).Consistency(level), tableClaims,
		"look a claim up", &name)
	return name, s.clustered(err)
}
