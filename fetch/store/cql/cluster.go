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

// Tables of clusters of nodes. [Init] makes them; a store without them works, but for clusters.
const (
	tableLeases  = "cluster_leases"
	tableLayouts = "cluster_layouts"
	tableClaims  = "cluster_claims"
)

// clusterTables are made like the others. Leases are written again and again, and lapse: tombstones
// are not to be kept for longer than the nodes of the database may be apart.
var clusterTables = map[string]string{
	tableLeases: "(cluster text, id text, lease blob, PRIMARY KEY (cluster, id)) WITH gc_grace_seconds = 3600 AND " +
		"comment = 'bowstring cluster 1: nodes at work; rows lapse'",
	tableLayouts: "(name text PRIMARY KEY, record blob) WITH comment = 'bowstring cluster 1: layouts by the hash of " +
		"their record'",
	tableClaims: "(cluster text, plan text, epoch bigint, layout text, PRIMARY KEY ((cluster, plan, epoch))) WITH " +
		"comment = 'bowstring cluster 1: which layout an epoch of a plan has; changed by lightweight transactions only'",
}

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

// createClusterTables makes those that are missing.
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

// clustered says of an error that there are no tables for clusters, if that is so.
func (s *Store) clustered(err error) error {
	if code, ok := codeOf(err); ok && code == codeInvalid {
		return fmt.Errorf("%w: keyspace %s has no tables for clusters: bowstring store init makes them (%s)",
			schema.ErrNotFound, s.config.Keyspace, err.Error())
	}
	return err
}

// onControl runs a statement of clusters by the session that nothing else waits behind. The servers' clocks order what
// is written: a node whose own clock is behind would not be seen.
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

// claimAttempts is how often a claim is made whose outcome nobody knows.
const claimAttempts = 5

// ClaimLayout implements members.Shared. What was claimed never changes, so it is looked up first at
// less cost. A claim whose outcome is not known is settled by a read at serial consistency:
// whichever stands, all see the same.
func (s *Store) ClaimLayout(ctx context.Context, cluster, plan string, epoch uint64, name string,
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
			return "", s.clustered(s.fault(ctx, cmp.Or(err, errUnsettled), nil, tableClaims, "claim a layout"))
		}
		// Somebody else has it, or nobody knows: that is looked up.
	}
}

// errUnsettled says that claims were refused, and none was to be seen.
var errUnsettled = errors.New("a claim was neither made nor lost")

// claimed is which layout was claimed; "" if none was.
func (s *Store) claimed(ctx context.Context, db *gocql.Session, level gocql.Consistency, cluster, plan string,
	epoch uint64) (string, error) {
	var name string
	_, err := s.row(ctx, db.Query(selectClaim, cluster, plan, int64(epoch)).Consistency(level), tableClaims,
		"look a claim up", &name)
	return name, s.clustered(err)
}
