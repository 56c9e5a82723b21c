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
const formatMark = "bowstring format 2: "

const (
	// oldMark begins the comments of the format before, which [Init] upgrades.
	oldMark = "bowstring format 1: "
	// upgradeMark begins the comment of the catalog while that is under way.
	upgradeMark = "bowstring upgrade to format 2: "
)

// Names of the tables.
const (
	tableBlobs    = "blobs"
	tableParts    = "blob_parts"
	tableCatalog  = "catalog"
	tableMembers  = "members"
	tableAttached = "attached"
)

// tables are made by [Init]. Blobs hardly compress, and a compressed chunk
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
	tableCatalog: {
		"partition text, row text, version bigint static, value blob, PRIMARY KEY (partition, row)",
		"", "small records, a partition for each dataset; changed by lightweight transactions only",
	},
	tableMembers: {
		"id text PRIMARY KEY, holder text, acked bigint, beat bigint, holds frozen<set<text>>",
		"gc_grace_seconds = 86400", "processes at work and what they hold; rows lapse",
	},
	tableAttached: {
		"prefix blob PRIMARY KEY, keyspace_name text, table_name text, id_column text, data_column text",
		"", "tables of others whose cells are blobs of this store",
	},
}

// comment is a table's, as a value of CQL.
func comment(mark, name string) string {
	return "'" + strings.ReplaceAll(mark+tables[name].comment, "'", "''") + "'"
}

// Options of the newer servers are left alone: what works on a Cassandra of
// 2015 and on Scylla is enough.
func createStatement(keyspace, name, mark string) string {
	t := tables[name]
	with := "comment = " + comment(mark, name)
	if t.options != "" {
		with += " AND " + t.options
	}
	return fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s.%s (%s) WITH %s", keyspace, name, t.columns, with)
}

// formats is what the comments of a keyspace's tables say.
type formats struct {
	missing  []string // tables that are not there
	old      []string // tables of the format before
	upgrade  bool     // one is under way, or was interrupted
	complete bool     // all are there, of this format
}

// formats looks at the tables that there are. Tables of the same names that
// this program did not make are a schema.ErrInvalid.
func (v *survey) formats(keyspace string) (f formats, err error) {
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		comment, ok := v.tables[name]
		switch {
		case !ok:
			f.missing = append(f.missing, name)
		case strings.HasPrefix(comment, formatMark):
		case strings.HasPrefix(comment, oldMark):
			f.old = append(f.old, name)
		case name == tableCatalog && strings.HasPrefix(comment, upgradeMark):
			f.upgrade = true
		case strings.HasPrefix(comment, "bowstring format "):
			return f, fmt.Errorf("%w: table %s.%s is of a format that this program does not know (%q, want %q): a "+
				"newer bowstring made it",
				schema.ErrInvalid, keyspace, name, comment, formatMark)
		default:
			return f, fmt.Errorf("%w: keyspace %s has a table %s that is not of a bowstring store: name "+
				"another keyspace",
				schema.ErrInvalid, keyspace, name)
		}
	}
	f.complete = len(f.missing) == 0 && len(f.old) == 0 && !f.upgrade
	return f, nil
}

// ready is an error unless the keyspace holds a store of this format.
func (v *survey) ready(c *Config) error {
	if !v.exists {
		return fmt.Errorf("%w: the cluster has no keyspace %s; bowstring store init --replication N makes it",
			schema.ErrNotFound, c.Keyspace)
	}
	f, err := v.formats(c.Keyspace)
	switch {
	case err != nil || f.complete:
		return err
	case len(f.old) > 0 || f.upgrade:
		return fmt.Errorf("%w: the store in keyspace %s is of format 1; end all processes of the older program, and "+
			"upgrade it by bowstring store init",
			schema.ErrInvalid, c.Keyspace)
	}
	return fmt.Errorf("%w: keyspace %s holds no store (it lacks the tables %s); bowstring store init makes one",
		schema.ErrNotFound, c.Keyspace, strings.Join(f.missing, ", "))
}

// createTables makes what is missing, in one process or in several at once.
func (s *Store) createTables(ctx context.Context, session *gocql.Session, names []string) error {
	for _, name := range names {
		if err := s.define(ctx, session, createStatement(s.config.Keyspace, name, formatMark), name); err != nil {
			return err
		}
	}
	if len(names) > 0 {
		s.log.InfoContext(ctx, "created tables", "keyspace", s.config.Keyspace, "tables", strings.Join(names, " "))
	}
	return nil
}

// mark changes the comment of a table.
func (s *Store) mark(ctx context.Context, session *gocql.Session, name, mark string) error {
	return s.define(ctx, session, fmt.Sprintf("ALTER TABLE %s.%s WITH comment = %s", s.config.Keyspace, name,
		comment(mark, name)), name)
}

// define runs a statement that changes the schema, and waits until all nodes
// know of it.
func (s *Store) define(ctx context.Context, session *gocql.Session, stmt, table string) error {
	if err := session.Query(stmt).WithContext(ctx).Consistency(gocql.Quorum).Exec(); err != nil {
		return s.fault(ctx, err, nil, table, "change the schema")
	}
	if err := session.AwaitSchemaAgreement(ctx); err != nil {
		return s.fault(ctx, err, nil, table, "wait until all nodes know of a change of the schema")
	}
	return nil
}
