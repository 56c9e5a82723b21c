package cql

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gocql/gocql"

	"bowstring/schema"
)

// formatMark begins the comment of each table. A keyspace with tables of these
// names and another comment is not touched.
const formatMark = "bowstring format 1: "

// Names of the tables.
const (
	tableBlobs      = "blobs"
	tableParts      = "blob_parts"
	tableSnapshots  = "snapshots"
	tableSelections = "selections"
	tableLeases     = "leases"
	tableAttached   = "attached"
)

// tables are made on first use. Blobs hardly compress, and a compressed chunk
// must be read and decompressed whole.
var tables = map[string]struct{ columns, options, comment string }{
	tableBlobs: {
		"key blob PRIMARY KEY, size bigint, parts int",
		"", "what blobs there are; a row without size is being stored or removed",
	},
	tableParts: {
		"key blob, part int, data blob, PRIMARY KEY ((key, part))",
		"compression = {'enabled': 'false'}", "bytes of blobs, 1 MiB in a part",
	},
	tableSnapshots: {
		"dataset text, number bigint, version bigint static, last bigint static, dropped_to bigint static, " +
			"record blob, created timestamp, commit_id uuid, dropped timestamp, PRIMARY KEY (dataset, number)",
		"", "committed snapshots; changed by lightweight transactions only",
	},
	tableSelections: {
		"dataset text, key blob, record text, PRIMARY KEY (dataset, key)",
		"", "uploaded selections by the hash of their bitmap",
	},
	tableLeases: {
		"id text PRIMARY KEY, holder text, collection uuid, ingest bigint, snapshots frozen<set<text>>",
		"gc_grace_seconds = 86400", "processes at work and what they hold; rows lapse",
	},
	tableAttached: {
		"prefix blob PRIMARY KEY, keyspace_name text, table_name text, id_column text, data_column text",
		"", "tables of others whose cells are blobs of this store",
	},
}

// Options of the newer servers are left alone: what works on a Cassandra of
// 2015 and on Scylla is enough.
func createStatement(keyspace, name string) string {
	t := tables[name]
	with := fmt.Sprintf("comment = '%s%s'", formatMark, strings.ReplaceAll(t.comment, "'", "''"))
	if t.options != "" {
		with += " AND " + t.options
	}
	return fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s.%s (%s) WITH %s", keyspace, name, t.columns, with)
}

// missing lists the tables that are not there. Tables of the same names that
// this program did not make are a schema.ErrInvalid.
func (v *survey) missing(keyspace string) ([]string, error) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		comment, ok := v.tables[name]
		switch {
		case !ok:
			names = append(names, name)
		case strings.HasPrefix(comment, formatMark):
		case strings.HasPrefix(comment, "bowstring format "):
			return nil, fmt.Errorf("%w: table %s.%s is of a format that this program does not know (%q, want %q): a newer bowstring made it",
				schema.ErrInvalid, keyspace, name, comment, formatMark)
		default:
			return nil, fmt.Errorf("%w: keyspace %s has a table %s that is not of a bowstring store: name another keyspace",
				schema.ErrInvalid, keyspace, name)
		}
	}
	return names, nil
}

// createTables makes what is missing, in one process or in several at once.
func (s *Store) createTables(ctx context.Context, session *gocql.Session, names []string) error {
	for _, name := range names {
		if err := s.define(ctx, session, createStatement(s.config.Keyspace, name), name); err != nil {
			return err
		}
	}
	if len(names) > 0 {
		s.log.InfoContext(ctx, "created tables", "keyspace", s.config.Keyspace, "tables", strings.Join(names, " "))
	}
	return nil
}

// define runs a statement that changes the schema, and waits until all nodes
// know of it.
func (s *Store) define(ctx context.Context, session *gocql.Session, stmt, table string) error {
	if err := session.Query(stmt).WithContext(ctx).Consistency(gocql.Quorum).Exec(); err != nil {
		return s.fault(ctx, err, nil, table, "create what is missing")
	}
	if err := session.AwaitSchemaAgreement(ctx); err != nil {
		return s.fault(ctx, err, nil, table, "wait until all nodes know of a new table")
	}
	return nil
}
