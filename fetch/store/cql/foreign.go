package cql

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/gocql/gocql"

	"bowstring/schema"
)

const (
	selectAttached = "SELECT prefix, keyspace_name, table_name, id_column, data_column FROM " + tableAttached
	selectKeyspace = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?"
	insertAttached = "INSERT INTO " + tableAttached + " (prefix, keyspace_name, table_name, id_column, data_column) " +
		"VALUES (?, ?, ?, ?, ?)"
)

// A cell of a foreign table is a blob whose key is its address (schema.AddressKey), and
// not the hash of its content. The address begins with a prefix of the SHA-256 of the
// names of the table and columns. The probability that a content hash begins with a given
// registered prefix is 2^-96.
const prefixLen = 12

// foreignTable is a blob column of another program's table. It is immutable.
type foreignTable struct {
	keyspace, table string
	id, data        string // columns
	prefix          [prefixLen]byte
	query           string // reads a cell by its row's id
}

// newForeignTable returns the column with its prefix, which depends on the names alone.
// So each process computes the same prefix.
func newForeignTable(keyspace, table, id, data string) *foreignTable {
	t := &foreignTable{keyspace: keyspace, table: table, id: id, data: data}
	// The names are separated by zero bytes, which no name contains, so that no two lists
	// of names are the same text.
	sum := sha256.Sum256(fmt.Appendf(nil, "bowstring attached cell\x00%s\x00%s\x00%s\x00%s", keyspace, table, id, data))
	copy(t.prefix[:], sum[:])
	t.query = fmt.Sprintf("SELECT %s FROM %s WHERE %s = ?", identifier(data), t.qualified(), identifier(id))
	return t
}

// name is the table's name for messages.
func (t *foreignTable) name() string { return t.keyspace + "." + t.table }

// qualified is the table's name in statements.
func (t *foreignTable) qualified() string {
	return identifier(t.keyspace) + "." + identifier(t.table)
}

// key is the address of a cell: the table's prefix, a part of the checksum, and the row's
// id.
func (t *foreignTable) key(id schema.ID, sum schema.Sum) schema.Key {
	return schema.AddressKey(t.prefix, sum, id)
}

// foreignTables are the tables attached to the store, by prefix. The map is replaced and
// never changed, so readers need no lock.
type foreignTables struct {
	atomic.Pointer[map[[prefixLen]byte]*foreignTable]
}

// of returns the table of a key's prefix; nil if the key is a hash.
func (f *foreignTables) of(key schema.Key) *foreignTable {
	return (*f.Load())[[prefixLen]byte(key[:prefixLen])]
}

// loadAttached reads the list of attached tables. After an error the old list stays.
func (s *Store) loadAttached(ctx context.Context) error {
	tables := map[[prefixLen]byte]*foreignTable{}
	q := s.db.Query(selectAttached).Consistency(s.catalogLevel())
	err := s.rows(ctx, q, tableAttached, "list the attached tables", func(scan scanner) error {
		var prefix []byte
		var keyspace, table, id, data string
		for scan(&prefix, &keyspace, &table, &id, &data) {
			t := newForeignTable(keyspace, table, id, data)
			tables[t.prefix] = t
		}
		return nil
	})
	if err == nil {
		s.foreign.Store(&tables)
	}
	return err
}

// keyspaceLost returns a schema.ErrDataLoss if the cluster has no such keyspace.
func (s *Store) keyspaceLost(ctx context.Context, keyspace string) error {
	iter := s.db.Query(selectKeyspace, keyspace).WithContext(ctx).Iter()
	var name string
	found := iter.Scan(&name)
	if err := iter.Close(); err != nil || found {
		return nil //nolint:nilerr // the caller's next request returns the error
	}
	return fmt.Errorf("%w: %s: the cluster has no keyspace %s any more; make it again from a copy, or drop the snapshots "+
		"that refer to its tables", schema.ErrDataLoss, s.where(nil, ""), keyspace)
}

// getForeign reads a cell of an attached table. A missing row, or a cell of another size, is a schema.ErrDataLoss,
// because the table has changed since it was attached. So is a missing table, column or keyspace.
func (s *Store) getForeign(ctx context.Context, t *foreignTable, ref schema.BlobRef) (schema.Blob, error) {
	id := gocql.UUID(ref.Key[16:])
	session, err := s.sessionFor(ctx, t.keyspace)
	if err != nil {
		return schema.Blob{}, fmt.Errorf("read attached cell %s of row %s in table %s: %w", t.data, id, t.name(), err)
	}
	r := newReading(ctx, t.query, int(ref.Size))
	r.arena = &s.buffers
	r.bind(id)
	r.route.draw = drawOf(&ref.Key, 0)
	for _, level := range []gocql.Consistency{s.config.Read, gocql.Quorum} {
		err = s.readCell(session, r, level, t.name())
		if !errors.Is(err, gocql.ErrNotFound) {
			break
		}
	}
	if errors.Is(err, gocql.ErrNotFound) {
		err = fmt.Errorf("%w: %s has no row %s with a value in %s, though it had when it was attached",
			schema.ErrDataLoss, s.where(nil, t.name()), id, t.data)
	}
	if errors.Is(err, schema.ErrUnavailable) && session != s.db {
		// The driver cannot connect to a missing keyspace.
		if lost := s.keyspaceLost(ctx, t.keyspace); lost != nil {
			err = fmt.Errorf("table %s: %w", t.name(), lost)
		}
	}
	if err != nil {
		err = fmt.Errorf("read attached cell %s of row %s: %w", t.data, id, err)
	}
	return r.blob(err)
}

// identifier quotes a name for CQL, so that its case is kept.
func identifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
