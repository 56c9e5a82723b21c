package cql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gocql/gocql"

	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// InitOptions configure [Init].
type InitOptions struct {
	// Replication of a keyspace that does not exist yet. If it is nil, the address must give it.
	Replication Replication
	// Logger and Dialer are those of [Options].
	Logger *slog.Logger
	Dialer Dialer
}

// Replication is the number of replicas per datacenter. The name "" is the datacenter that the address prefers.
type Replication map[string]int

// ParseReplication parses a replication such as 3, or dc1=3,dc2=2.
func ParseReplication(text string) (Replication, error) {
	const want = "a number of replicas, such as 3, or one for each datacenter, such as dc1=3,dc2=2"
	wrong := func() (Replication, error) { return nil, bad("replication", text, want) }
	r := Replication{}
	for part := range strings.SplitSeq(text, ",") {
		dc, count, named := strings.Cut(strings.TrimSpace(part), "=")
		if !named {
			dc, count = "", dc
		}
		n, err := strconv.Atoi(count)
		_, twice := r[dc]
		if err != nil || n < 1 || n > 99 || twice || named && dc == "" || !named && strings.Contains(text, ",") {
			return wrong()
		}
		r[dc] = n
	}
	return r, nil
}

// String is the form that [ParseReplication] parses.
func (r Replication) String() string {
	var parts []string
	for _, dc := range slices.Sorted(maps.Keys(r)) {
		if dc == "" {
			parts = append(parts, strconv.Itoa(r[dc]))
		} else {
			parts = append(parts, fmt.Sprintf("%s=%d", dc, r[dc]))
		}
	}
	return strings.Join(parts, ",")
}

// NoReplicationError says that a keyspace is missing, and that its number of replicas is not given.
type NoReplicationError struct {
	Keyspace string
	DC       string         // that the address prefers
	Nodes    map[string]int // per datacenter, now
}

// Error implements error.
func (e *NoReplicationError) Error() string {
	return fmt.Sprintf("keyspace %s is to be made: say by --replication how many replicas it is to have, such as 3 "+
		"or %s=3 (nodes now: %s)",
		e.Keyspace, e.DC, e.Now())
}

// Now lists the numbers of nodes, for messages.
func (e *NoReplicationError) Now() string {
	var nodes []string
	for _, dc := range slices.Sorted(maps.Keys(e.Nodes)) {
		nodes = append(nodes, fmt.Sprintf("%s has %d", dc, e.Nodes[dc]))
	}
	return strings.Join(nodes, ", ")
}

// Unwrap returns schema.ErrInvalid.
func (e *NoReplicationError) Unwrap() error { return schema.ErrInvalid }

// Init creates the store of an address: its keyspace, if that does not exist, and its tables. Existing tables stay
// unchanged. It may be interrupted and repeated.
func Init(ctx context.Context, uri string, opts InitOptions) error {
	config, err := ParseURI(uri)
	if err != nil {
		return fmt.Errorf("store address: %w", err)
	}
	options := Options{Logger: opts.Logger, Dialer: opts.Dialer}
	options.ensureDefaults()
	s := newStore(config, options)
	defer s.end()
	if err := s.create(ctx, opts.Replication); err != nil {
		return fmt.Errorf("make store %s: %w", config, err)
	}
	return nil
}

// create creates the keyspace and the tables that are missing, and then the state of
// collections.
func (s *Store) create(ctx context.Context, replication Replication) (err error) {
	within, cancel := context.WithCancel(ctx)
	v, err := s.inspect(within)
	cancel()
	s.spares.close() // the session is opened much later
	if err != nil {
		return err
	}
	session, err := s.connectAny(ctx, s.config.Hosts, defineTimeout)
	if err != nil {
		return err
	}
	defer session.Close()
	if err := s.createKeyspace(ctx, session, v, replication); err != nil {
		return err
	}
	missing, err := v.missing(s.config.Keyspace)
	if err != nil {
		return err
	}
	if err := s.createTables(ctx, session, missing); err != nil {
		return err
	}
	if err := s.createClusterTables(ctx, session, v); err != nil {
		return err
	}
	if err := s.join(ctx, v); err != nil {
		return err
	}
	defer s.db.Close()
	return protocol.Found(ctx, database{s})
}

// defineTimeout is for statements that change the schema, which involve all nodes.
const defineTimeout = time.Minute

// node is a node of the cluster, as the node that was asked knows it.
type node struct {
	address     net.IP
	dc, version string
}

// listNodes lists the nodes of the cluster, the one that is asked first.
func (s *Store) listNodes(ctx context.Context, session *gocql.Session) (list []node, err error) {
	for _, table := range []string{"system.local", "system.peers"} { // system.peers lists the others
		q := session.Query("SELECT rpc_address, data_center, release_version FROM " + table)
		err := s.rows(ctx, q, table, "look at the cluster", func(scan scanner) error {
			var n node
			for scan(&n.address, &n.dc, &n.version) {
				list = append(list, n)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: %s says nothing of itself", schema.ErrUnavailable, s.where(nil, "system.local"))
	}
	return list, nil
}

// centers counts the nodes per datacenter.
func centers(list []node) map[string]int {
	n := map[string]int{}
	for _, m := range list {
		n[m.dc]++
	}
	return n
}

// connectAny opens a session of one connection to the first of the hosts that can be reached. The hosts are tried one
// by one: without the list of nodes, which is not requested here, ScyllaDB's fork would take several hosts for one,
// and use any of them, even one that is down.
func (s *Store) connectAny(ctx context.Context, hosts []string, timeout time.Duration) (*gocql.Session, error) {
	cl, err := s.config.cluster(s.options)
	if err != nil {
		return nil, err
	}
	cl.NumConns = 1
	cl.Timeout = max(cl.Timeout, timeout)
	cl.DisableInitialHostLookup = true
	cl.Events.DisableNodeStatusEvents, cl.Events.DisableTopologyEvents, cl.Events.DisableSchemaEvents = true, true, true
	cl.Consistency = gocql.LocalOne
	for _, host := range hosts {
		cl.Hosts = []string{host}
		var session *gocql.Session
		if session, err = connect(ctx, s.connected, cl, nil, func() {}); err == nil {
			return session, nil
		}
		err = s.connectFault(ctx, err)
		if !errors.Is(err, schema.ErrUnavailable) || ctx.Err() != nil {
			break // other hosts would answer the same
		}
	}
	return nil, err
}

// createKeyspace creates the keyspace with the given replication, and no other: the current number of nodes says
// nothing about the future one.
func (s *Store) createKeyspace(ctx context.Context, session *gocql.Session, v *survey, want Replication) error {
	want = maps.Clone(want)
	if n, ok := want[""]; ok {
		delete(want, "")
		want[v.dc] = n
	}
	for dc := range want {
		if v.nodes[dc] == 0 {
			return &schema.FieldError{
				Field: "replication", Got: quoted(dc), Want: "datacenters of the cluster: " +
					strings.Join(slices.Sorted(maps.Keys(v.nodes)), ", "),
			}
		}
	}
	// An existing keyspace is never altered: that needs a repair of the data afterwards.
	if v.exists {
		if len(want) > 0 && v.replication[""] == 0 && !maps.Equal(want, v.replication) {
			return fmt.Errorf("%w: keyspace %s is there and has the replication %s, not %s; ALTER KEYSPACE changes it",
				schema.ErrExists, s.config.Keyspace, v.replication, want)
		}
		return nil
	}
	if len(want) == 0 && s.config.RF > 0 {
		want = Replication{v.dc: s.config.RF}
	}
	if len(want) == 0 {
		return &NoReplicationError{Keyspace: s.config.Keyspace, DC: v.dc, Nodes: v.nodes}
	}
	// The replication is written for each datacenter by name, so that a new datacenter
	// gets replicas only if an operator says so.
	var options strings.Builder
	for _, dc := range slices.Sorted(maps.Keys(want)) {
		fmt.Fprintf(&options, ", '%s': %d", strings.ReplaceAll(dc, "'", "''"), want[dc])
	}
	s.log.InfoContext(ctx, "creating the keyspace", "keyspace", s.config.Keyspace, "replication", want.String())
	stmt := fmt.Sprintf("CREATE KEYSPACE IF NOT EXISTS %s WITH replication = {'class': 'NetworkTopologyStrategy'%s}",
		s.config.Keyspace, options.String())
	if err := s.define(ctx, session, stmt, ""); err != nil {
		return err
	}
	return s.inspectKeyspace(ctx, session, v)
}

// replicationOf reads the keyspace's replication from the servers' catalog; nil if the
// keyspace does not exist.
func (s *Store) replicationOf(ctx context.Context, session *gocql.Session) (options map[string]string, err error) {
	q := session.Query("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?", s.config.Keyspace)
	_, err = s.row(ctx, q, "system_schema.keyspaces", "look at the keyspace", &options)
	return options, err
}

// inspectKeyspace reads the keyspace's replication and the comments of its tables into v.
func (s *Store) inspectKeyspace(ctx context.Context, session *gocql.Session, v *survey) error {
	replication, err := s.replicationOf(ctx, session)
	if replication == nil || err != nil {
		return err
	}
	if err := v.replicate(s.config.Keyspace, replication); err != nil {
		return err
	}
	v.tables = map[string]string{}
	q := session.Query("SELECT table_name, comment FROM system_schema.tables WHERE keyspace_name = ?", s.config.Keyspace)
	return s.rows(ctx, q, "system_schema.tables", "look at the tables", func(scan scanner) error {
		var name, comment string
		for scan(&name, &comment) {
			v.tables[name] = comment
		}
		return nil
	})
}

// formatMark begins the comment of each table. A keyspace that has tables of these names with another comment is not
// changed.
const formatMark = "bowstring format 1: "

// Names of the tables.
const (
	tableBlobs    = "blobs"
	tableParts    = "blob_parts"
	tableCatalog  = "catalog"
	tableMembers  = "members"
	tableAttached = "attached"
)

// tables are created by [Init]. Blobs hardly compress, and a compressed chunk must be read and decompressed as a
// whole.
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

// missing lists the missing tables. If a table of the same name was not made by this program, it returns a
// schema.ErrInvalid.
func (v *survey) missing(keyspace string) (missing []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		comment, ok := v.tables[name]
		switch {
		case !ok:
			missing = append(missing, name)
		case strings.HasPrefix(comment, formatMark):
		case strings.HasPrefix(comment, "bowstring format "):
			return nil, fmt.Errorf("%w: table %s.%s is of a format that this program does not know (%q, want %q): "+
				"another version of bowstring made it",
				schema.ErrInvalid, keyspace, name, comment, formatMark)
		default:
			return nil, fmt.Errorf("%w: keyspace %s has a table %s that is not of a bowstring store: name "+
				"another keyspace",
				schema.ErrInvalid, keyspace, name)
		}
	}
	return missing, nil
}

// ready returns an error unless the keyspace holds a store of this format.
func (v *survey) ready(c *Config) error {
	if !v.exists {
		return fmt.Errorf("%w: the cluster has no keyspace %s; bowstring store init --replication N makes it",
			schema.ErrNotFound, c.Keyspace)
	}
	missing, err := v.missing(c.Keyspace)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("%w: keyspace %s holds no store (it lacks the tables %s); bowstring store init makes one",
			schema.ErrNotFound, c.Keyspace, strings.Join(missing, ", "))
	}
	return err
}

// createTables creates the missing tables; several processes may do so at once. It uses no options of newer servers:
// what works on a Cassandra of 2015 and on Scylla is enough.
func (s *Store) createTables(ctx context.Context, session *gocql.Session, names []string) error {
	for _, name := range names {
		t := tables[name]
		with := "comment = '" + strings.ReplaceAll(formatMark+t.comment, "'", "''") + "'"
		if t.options != "" {
			with += " AND " + t.options
		}
		stmt := fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s.%s (%s) WITH %s", s.config.Keyspace, name, t.columns, with)
		if err := s.define(ctx, session, stmt, name); err != nil {
			return err
		}
	}
	if len(names) > 0 {
		s.log.InfoContext(ctx, "created tables", "keyspace", s.config.Keyspace, "tables", strings.Join(names, " "))
	}
	return nil
}

// define runs a statement that changes the schema, and waits until all nodes know the change.
func (s *Store) define(ctx context.Context, session *gocql.Session, stmt, table string) error {
	if err := session.Query(stmt).WithContext(ctx).Consistency(gocql.Quorum).Exec(); err != nil {
		return s.fault(ctx, err, nil, table, "change the schema")
	}
	if err := session.AwaitSchemaAgreement(ctx); err != nil {
		return s.fault(ctx, err, nil, table, "wait until all nodes know of a change of the schema")
	}
	return nil
}
