package cql

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gocql/gocql"

	"bowstring/fetch/store"
)

// Names of Examine's checks.
const (
	checkNodes       = "nodes"
	checkLatency     = "latency"
	checkClocks      = "clocks"
	checkAgreement   = "schema agreement"
	checkReplication = "replication"
	checkConsistency = "consistency"
	checkTablets     = "tablets"
	checkLWT         = "transactions"
	checkRights      = "permissions"
	checkTables      = "tables"
)

// Examine checks the cluster, the keyspace and its tables, node by node. It changes
// nothing, and works without a store. It returns an error only for an address that cannot
// be parsed.
func Examine(ctx context.Context, uri string, opts Options) (store.Findings, error) {
	config, err := ParseURI(uri)
	if err != nil {
		return nil, fmt.Errorf("store address: %w", err)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := newStore(config, opts)
	defer s.end()
	e := &examination{s: s}
	session, err := s.connectAny(ctx, config.Hosts, 0)
	if err != nil {
		e.Problem(checkNodes, "start the nodes, or correct the address", "no node can be reached: %v", err)
		return e.Findings, nil
	}
	defer session.Close()
	e.session = session
	e.settings(ctx)
	e.eachNode(ctx)
	if e.keyspace {
		e.transactions(ctx)
	}
	return e.Findings, nil
}

// Examine checks the keyspace's settings over the store's own connections. It costs a few small reads.
func (s *Store) Examine(ctx context.Context) store.Findings {
	e := &examination{s: s, session: s.db}
	if err := s.enter(ctx); err != nil {
		e.Problem(checkNodes, "open the store again", "%v", err)
		return e.Findings
	}
	defer s.life.RUnlock()
	e.settings(ctx)
	return e.Findings
}

// examination collects the findings of one Examine. One goroutine uses it.
type examination struct {
	store.Findings
	s        *Store
	session  *gocql.Session
	members  []node // of the cluster; set by settings
	keyspace bool   // the keyspace exists
}

// settings checks what the servers' own tables say about the cluster and the keyspace.
func (e *examination) settings(ctx context.Context) {
	var err error
	if e.members, err = e.s.listNodes(ctx, e.session); err != nil {
		e.Problem(checkNodes, "grant the user SELECT on system.local and system.peers",
			"the members of the cluster cannot be listed: %v", err)
		return
	}
	dc := cmp.Or(e.s.config.DC, e.members[0].dc)
	if err := e.examineReplication(ctx, dc); err != nil {
		e.Problem(checkReplication, "grant the user SELECT on system_schema", "the keyspace cannot be looked at: %v",
			err)
		return
	}
	if !e.keyspace {
		return
	}
	if err := e.examineTables(ctx); err != nil {
		e.Problem(checkTables, "grant the user SELECT on system_schema", "the tables cannot be looked at: %v", err)
	}
	e.examineTablets(ctx)
}

// examineReplication compares the keyspace's replicas with the nodes.
func (e *examination) examineReplication(ctx context.Context, dc string) error {
	c := e.s.config
	options, err := e.s.replicationOf(ctx, e.session)
	if err != nil {
		return err
	}
	if options == nil {
		e.Problem(checkReplication, "bowstring store init makes it", "the cluster has no keyspace %s", c.Keyspace)
		return nil
	}
	e.keyspace = true
	found, replicas := judgeReplication(c, options, centers(e.members), dc)
	e.Findings = append(e.Findings, found...)
	if replicas > 0 {
		e.Findings = append(e.Findings, judgeConsistency(c, replicas, len(options) > 2)...)
	}
	return nil
}

// judgeReplication reports what is wrong with a keyspace's replication, given the number of nodes per datacenter. It
// returns how many replicas dc has.
func judgeReplication(c *Config, options map[string]string, nodes map[string]int,
	dc string) (f store.Findings, replicas int) {
	class := options["class"][strings.LastIndexByte(options["class"], '.')+1:]
	alter := func(n int) string {
		return fmt.Sprintf("ALTER KEYSPACE %s WITH replication = {'class': 'NetworkTopologyStrategy', '%s': %d}, "+
			"then nodetool repair -full %s on every node",
			c.Keyspace, dc, n, c.Keyspace)
	}
	if nodes[dc] == 0 {
		f.Problem(checkReplication, "name one of "+strings.Join(slices.Sorted(maps.Keys(nodes)), ", ")+
			" by the parameter dc",
			"the cluster has no datacenter %s", dc)
		return f, 0
	}
	if class == "SimpleStrategy" && len(nodes) > 1 {
		f.Problem(checkReplication, alter(min(3, nodes[dc])), "SimpleStrategy in a cluster of %d datacenters: "+
			"replicas fall anywhere, and LOCAL_QUORUM means nothing", len(nodes))
	}
	any := map[string]any{}
	for k, v := range options {
		any[k] = v
	}
	replicas = int(replicasIn(dc, any))
	total := nodes[dc]
	switch {
	case replicas == 0 && class != "LocalStrategy":
		f.Problem(checkReplication, alter(min(3, total)), "keyspace %s has no replicas in datacenter %s (%v)",
			c.Keyspace, dc, options)
	case replicas > total:
		f.Problem(checkReplication, fmt.Sprintf("add nodes, or: %s", alter(total)),
			"%d replicas in datacenter %s, which has %s: what needs all or a quorum of them fails", replicas, dc,
			nodesOf(total))
	case replicas == 1 && total > 1:
		f.Problem(checkReplication, alter(min(3, total)),
			"one replica of everything in a cluster of %d nodes: each node that is down takes its part of every "+
				"dataset with it, and each disk that fails, for good", total)
	case replicas == 1:
		f.Warning(checkReplication, "add nodes and replicas before the data is worth more than it costs to "+
			"import again", "one node, and one replica of everything")
	case replicas == 2:
		f.Warning(checkReplication, alter(min(3, total)), "two replicas: a quorum of them is both, so that imports "+
			"stop while either is down")
	default:
		f.OK(checkReplication, "%d replicas on %s of datacenter %s", replicas, nodesOf(total), dc)
	}
	return f, replicas
}

// nodesOf is a number of nodes for messages.
func nodesOf(n int) string {
	if n == 1 {
		return "1 node"
	}
	return strconv.Itoa(n) + " nodes"
}

// judgeConsistency reports what the consistency levels of the address guarantee with that many replicas.
func judgeConsistency(c *Config, replicas int, several bool) (f store.Findings) {
	switch c.Write { //nolint:exhaustive // the others are a quorum or more
	case gocql.Any, gocql.One, gocql.LocalOne:
		if replicas > 1 {
			f.Problem(checkConsistency, "leave the parameter write out: it is local_quorum then",
				"blobs are written at %v: what one of %d replicas has taken counts as stored, and is gone with it",
				c.Write, replicas)
			return f
		}
	case gocql.Two:
		if replicas > 3 {
			f.Warning(checkConsistency, "leave the parameter write out: it is local_quorum then",
				"blobs are written at %v, which is no quorum of %d", c.Write, replicas)
			return f
		}
	case gocql.All:
		f.Warning(checkConsistency, "leave the parameter write out: it is local_quorum then",
			"blobs are written at ALL: imports stop while any node is down")
		return f
	}
	if c.Read != gocql.LocalOne && c.Read != gocql.One {
		f.Warning(checkConsistency, "leave the parameter consistency out: blobs never change, and one that is not "+
			"found is asked for at a quorum",
			"blobs are read at %v, each from several replicas", c.Read)
		return f
	}
	if c.LocalSerial && several {
		f.Warning(checkConsistency, "leave serial=local_serial out unless every import and collection runs in "+
			"one datacenter",
			"transactions are serial within one datacenter only, and the keyspace spans several")
		return f
	}
	f.OK(checkConsistency, "reads at %v, writes at %v: %d of %d replicas may be down for imports, %d for reads",
		c.Read, c.Write, replicas-(replicas/2+1), replicas, replicas-1)
	return f
}

// eachNode examines every node over a connection of its own, because the driver would
// choose the nodes itself.
func (e *examination) eachNode(ctx context.Context) {
	var states []nodeState
	for _, m := range e.members {
		l, err := e.examineNode(ctx, m)
		if err != nil {
			e.Problem(checkNodes, "nodetool status on another node says whether it is up; clients need its "+
				"address and port "+strconv.Itoa(e.s.config.Port),
				"node %s (%s) cannot be reached: %v", m.address, m.dc, err)
			continue
		}
		states = append(states, l)
	}
	e.Findings = append(e.Findings, judgeNodes(states)...)
}

// nodeState is the state of a node, as measured from here.
type nodeState struct {
	node
	schema    string
	latency   time.Duration // minimum of a few
	offset    time.Duration // of its clock, minus this machine's
	uncertain time.Duration // the possible error of offset: half the round trip
}

// name is the node in messages.
func (l *nodeState) name() string { return fmt.Sprintf("%s (%s)", l.address, l.dc) }

// pings is how many requests are made to find the minimum latency.
const pings = 5

// examineNode measures one node.
func (e *examination) examineNode(ctx context.Context, m node) (l nodeState, err error) {
	session, err := e.s.connectAny(ctx, []string{m.address.String()}, 0)
	if err != nil {
		return l, err
	}
	defer session.Close()
	l = nodeState{node: m}
	for range pings {
		var now gocql.UUID // when the node answered
		var schema gocql.UUID
		sent := time.Now()
		if err := session.Query("SELECT now(), schema_version FROM system.local").WithContext(ctx).Scan(&now,
			&schema); err != nil {
			return l, err
		}
		took := time.Since(sent)
		if l.latency == 0 || took < l.latency {
			l.latency, l.uncertain = took, took/2
			l.offset = now.Time().Sub(sent.Add(took / 2))
		}
		l.schema = schema.String()
	}
	return l, nil
}

const (
	// clockWarning is a difference of clocks that NTP would not leave.
	clockWarning = time.Second
	// latencyTimes is the factor above the nearest node's latency from which a node counts as far.
	latencyTimes = 5
)

// judgeNodes compares the nodes with each other and with this machine. It makes no
// requests, like the other judge functions, so that tests need no cluster.
func judgeNodes(states []nodeState) (f store.Findings) {
	if len(states) == 0 {
		return nil
	}
	versions, schemas := map[string]int{}, map[string]int{}
	nearest, worst := states[0].latency, states[0]
	var far, list []string
	for _, l := range states {
		versions[l.version]++
		schemas[l.schema]++
		nearest = min(nearest, l.latency)
		if l.offset.Abs()-l.uncertain > worst.offset.Abs()-worst.uncertain {
			worst = l
		}
	}
	for _, l := range states {
		list = append(list, fmt.Sprintf("%s %v", l.name(), l.latency.Round(10*time.Microsecond)))
		if l.dc == states[0].dc && l.latency > latencyTimes*nearest+slowLeast {
			far = append(far, l.name())
		}
	}
	names := strings.Join(slices.Sorted(maps.Keys(versions)), ", ")
	if len(versions) > 1 {
		f.Warning(checkNodes, "finish the upgrade: schemas cannot be changed while it is under way",
			"%s of versions %s", nodesOf(len(states)), names)
	} else {
		f.OK(checkNodes, "%s of version %s answered", nodesOf(len(states)), names)
	}
	if len(schemas) > 1 {
		f.Problem(checkAgreement, "nodetool describecluster shows who disagrees; restart the node that stays behind",
			"the nodes have %d versions of the schema", len(schemas))
	} else {
		f.OK(checkAgreement, "all nodes have one version of the schema")
	}
	switch off := worst.offset.Abs() - worst.uncertain; {
	case off > clockWarning:
		f.Problem(checkClocks, "run NTP or PTP on every node and here",
			"the clock of %s and this machine's differ by %v", worst.name(), worst.offset.Round(time.Millisecond))
	default:
		f.OK(checkClocks, "no node's clock is off from this machine's by more than %v",
			(worst.offset.Abs() + worst.uncertain).Round(time.Millisecond))
	}
	if len(far) > 0 {
		f.Warning(checkLatency, "look at the network and the load of these nodes; they lose their reads to "+
			"others meanwhile", "%s answer late: %s",
			strings.Join(far, ", "), strings.Join(list, ", "))
	} else {
		f.OK(checkLatency, "%s", strings.Join(list, ", "))
	}
	return f
}

// settingsOf is a table's settings from the servers' catalog.
type settingsOf struct {
	comment                          string
	compaction, compression, caching map[string]string
	grace, ttl                       int
}

// examineTables reads the settings of the keyspace's tables.
func (e *examination) examineTables(ctx context.Context) error {
	found := map[string]settingsOf{}
	q := e.session.Query("SELECT table_name, comment, compaction, compression, caching, gc_grace_seconds, "+
		"default_time_to_live FROM system_schema.tables WHERE keyspace_name = ?", e.s.config.Keyspace)
	err := e.s.rows(ctx, q, "system_schema.tables", "look at the tables", func(scan scanner) error {
		for {
			var name string
			var t settingsOf
			if !scan(&name, &t.comment, &t.compaction, &t.compression, &t.caching, &t.grace, &t.ttl) {
				return nil
			}
			found[name] = t
		}
	})
	if err != nil {
		return err
	}
	e.Findings = append(e.Findings, judgeTables(e.s.config.Keyspace, found)...)
	return nil
}

// judgeTables compares the settings of the tables with those that Init uses.
func judgeTables(keyspace string, found map[string]settingsOf) (f store.Findings) {
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		t, ok := found[name]
		switch {
		case !ok:
			missing = append(missing, name)
		case !strings.HasPrefix(t.comment, formatMark):
			f.Problem(checkTables, "name another keyspace, or use the release of bowstring that made it",
				"table %s.%s is of another format or program: its comment is %q, want %q first", keyspace, name,
				t.comment, formatMark)
		default:
			f = append(f, judgeTable(keyspace, name, t)...)
		}
	}
	if len(missing) > 0 {
		f.Problem(checkTables, "bowstring store init makes them", "keyspace %s lacks the tables %s", keyspace,
			strings.Join(missing, ", "))
	}
	if f.Worst() == store.LevelOK {
		f.OK(checkTables, "the %d tables have the settings that they are made with, or as good ones", len(tables))
	}
	return f
}

const (
	// graceDefault is the servers' default.
	graceDefault = 864_000
	// graceLeast leaves time for a daily repair.
	graceLeast = 86_400
)

// graceOption finds the setting in the options of a table.
var graceOption = regexp.MustCompile(`gc_grace_seconds = (\d+)`)

// judgeTable compares the settings of one table with those that Init uses.
func judgeTable(keyspace, name string, t settingsOf) (f store.Findings) {
	full := keyspace + "." + name
	alter := func(format string, args ...any) string {
		return fmt.Sprintf("ALTER TABLE %s WITH ", full) + fmt.Sprintf(format, args...)
	}
	made := tables[name].options
	wanted := graceDefault
	if m := graceOption.FindStringSubmatch(made); m != nil {
		wanted, _ = strconv.Atoi(m[1]) // the text consists of digits
	}
	switch {
	case t.grace < min(graceLeast, wanted):
		f.Problem(checkTables, alter("gc_grace_seconds = %d", wanted),
			"%s has gc_grace_seconds = %d: a node that is down for longer brings back what was deleted meanwhile", full,
			t.grace)
	case t.grace < wanted:
		f.Warning(checkTables, "repair every node more often than that, or: "+alter("gc_grace_seconds = %d", wanted),
			"%s has gc_grace_seconds = %d, less than the %d it is made with", full, t.grace, wanted)
	}
	if t.ttl != 0 {
		f.Problem(checkTables, alter("default_time_to_live = 0"),
			"%s has default_time_to_live = %d: what is stored vanishes after that time", full, t.ttl)
	}
	class := t.compaction["class"][strings.LastIndexByte(t.compaction["class"], '.')+1:]
	switch {
	case strings.HasPrefix(class, "TimeWindow"), strings.HasPrefix(class, "DateTiered"):
		f.Warning(checkTables, alter("compaction = {'class': 'SizeTieredCompactionStrategy'}"),
			"%s is compacted by %s, which never gives back the space of what a collection deletes: it is for rows "+
				"with a time to live", full, class)
	case t.compaction["enabled"] == "false":
		f.Warning(checkTables, alter("compaction = {'class': '%s', 'enabled': 'true'}", class),
			"%s is not compacted: deleted rows keep their space", full)
	case name == tableParts && strings.HasPrefix(class, "Leveled"):
		f.Warning(checkTables, alter("compaction = {'class': 'SizeTieredCompactionStrategy'}"),
			"%s is compacted by levels, which writes each part about ten times; parts never change and each is in one "+
				"file anyway", full)
	}
	if strings.Contains(made, "compression = {'enabled': 'false'}") && compressed(t.compression) {
		f.Warning(checkTables, alter("compression = {'enabled': 'false'}")+", then nodetool upgradesstables -a",
			"%s is compressed (%s): images and audio do not shrink, and each read decompresses whole chunks", full,
			t.compression["class"]+t.compression["sstable_compression"])
	}
	if rows := t.caching["rows_per_partition"]; name == tableParts && rows != "" && !strings.EqualFold(rows, "NONE") &&
		t.caching["enabled"] == "" {
		// Scylla reports ALL for every table, and caches rows by use.
		f.Warning(checkTables, alter("caching = {'keys': 'ALL', 'rows_per_partition': 'NONE'}"),
			"%s caches rows: blobs push everything else out of the row cache, and the page cache has them anyway", full)
	}
	return f
}

// compressed parses the several forms of "no compression".
func compressed(options map[string]string) bool {
	if strings.EqualFold(options["enabled"], "false") {
		return false
	}
	return options["class"] != "" || options["sstable_compression"] != ""
}

// examineTablets checks whether a Scylla keyspace uses tablets; Cassandra has no such table.
func (e *examination) examineTablets(ctx context.Context) {
	var initial *int
	err := e.session.Query("SELECT initial_tablets FROM system_schema.scylla_keyspaces WHERE keyspace_name = ?",
		e.s.config.Keyspace).
		WithContext(ctx).Scan(&initial)
	switch {
	case err != nil: // not Scylla, or without tablets
	case initial == nil:
		e.OK(checkTablets, "the keyspace has none")
	default:
		e.Warning(checkTablets, "if transactions fail: make the keyspace anew WITH tablets = {'enabled': false}",
			"the keyspace has tablets, on which older releases of Scylla know no lightweight transactions")
	}
}

// transactions tries a transaction whose condition does not hold. It changes nothing, but needs the right to write
// and a quorum, as a commit does. It uses a table whose key is one text.
func (e *examination) transactions(ctx context.Context) {
	var table, column string
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		if c, ok := strings.CutSuffix(strings.Split(tables[name].columns, ",")[0], " text PRIMARY KEY"); ok {
			table, column = name, c
		}
	}
	level := gocql.Serial
	if e.s.config.LocalSerial {
		level = gocql.LocalSerial
	}
	stmt := fmt.Sprintf("DELETE FROM %s.%s WHERE %s = ? IF EXISTS", e.s.config.Keyspace, table, column)
	row := map[string]any{}
	_, err := e.session.Query(stmt, "bowstring doctor").WithContext(ctx).Consistency(e.s.catalogLevel()).
		SerialConsistency(level).MapScanCAS(row)
	code, _ := codeOf(err)
	switch {
	case err == nil:
		e.OK(checkRights, "the user may write to the keyspace")
		e.OK(checkLWT, "lightweight transactions work")
	case code == codeUnauthorized:
		e.Problem(checkRights, fmt.Sprintf("GRANT SELECT, MODIFY ON KEYSPACE %s TO the user; reading datasets "+
			"works without", e.s.config.Keyspace),
			"the user may not write: imports, drops and collections fail")
	case code == codeInvalid && strings.Contains(strings.ToLower(err.Error()), "tablet"):
		e.Problem(checkLWT, "make the keyspace anew WITH tablets = {'enabled': false}, or use a release of Scylla "+
			"that has both",
			"lightweight transactions do not work on this keyspace's tablets, and every commit is one: %v", err)
	default:
		e.Problem(checkLWT, "every commit is one: look at the nodes that are down, and at the servers' logs",
			"a lightweight transaction failed: %v", err)
	}
}
