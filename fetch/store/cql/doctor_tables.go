package cql

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gocql/gocql"

	"bowstring/fetch/store"
)

// quietLogger drops what is logged.
var quietLogger = slog.New(slog.DiscardHandler)

// settingsOf is what the servers' catalog says of a table.
type settingsOf struct {
	comment                          string
	compaction, compression, caching map[string]string
	grace, ttl                       int
}

func (e *examination) lookAtTables(ctx context.Context) error {
	found := map[string]settingsOf{}
	iter := e.session.Query("SELECT table_name, comment, compaction, compression, caching, gc_grace_seconds, "+
		"default_time_to_live "+
		"FROM system_schema.tables WHERE keyspace_name = ?", e.s.config.Keyspace).WithContext(ctx).Iter()
	for {
		var name string
		var t settingsOf
		if !iter.Scan(&name, &t.comment, &t.compaction, &t.compression, &t.caching, &t.grace, &t.ttl) {
			break
		}
		found[name] = t
	}
	if err := iter.Close(); err != nil {
		return err
	}
	e.Findings = append(e.Findings, judgeTables(e.s.config.Keyspace, found)...)
	return nil
}

// judgeTables compares the settings of the tables with those that they are made with.
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
	// graceDefault is what servers give a table that says nothing.
	graceDefault = 864_000
	// graceLeast leaves time for a repair that begins every day.
	graceLeast = 86_400
)

var graceOption = regexp.MustCompile(`gc_grace_seconds = (\d+)`)

func judgeTable(keyspace, name string, t settingsOf) (f store.Findings) {
	full := keyspace + "." + name
	alter := func(format string, args ...any) string {
		return fmt.Sprintf("ALTER TABLE %s WITH ", full) + fmt.Sprintf(format, args...)
	}
	made := tables[name].options
	wanted := graceDefault
	if m := graceOption.FindStringSubmatch(made); m != nil {
		wanted, _ = strconv.Atoi(m[1]) // it is digits
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
		// Scylla says ALL of every table, and keeps rows by use.
		f.Warning(checkTables, alter("caching = {'keys': 'ALL', 'rows_per_partition': 'NONE'}"),
			"%s caches rows: blobs push everything else out of the row cache, and the page cache has them anyway", full)
	}
	return f
}

// compressed reads the several ways of saying no.
func compressed(options map[string]string) bool {
	if strings.EqualFold(options["enabled"], "false") {
		return false
	}
	return options["class"] != "" || options["sstable_compression"] != ""
}

// lookAtTablets asks Scylla how the keyspace is spread; Cassandra has no such table.
func (e *examination) lookAtTablets(ctx context.Context) {
	var initial *int
	err := e.session.Query("SELECT initial_tablets FROM system_schema.scylla_keyspaces WHERE keyspace_name = ?",
		e.s.config.Keyspace).
		WithContext(ctx).Scan(&initial)
	switch {
	case err != nil: // no Scylla, one without tablets, or a keyspace that has none
	case initial == nil:
		e.OK(checkTablets, "the keyspace has none")
	default:
		e.Warning(checkTablets, "if transactions fail: make the keyspace anew WITH tablets = {'enabled': false}",
			"the keyspace has tablets, on which older releases of Scylla know no lightweight transactions")
	}
}

// transactions tries one whose condition does not hold: nothing is changed, and it takes
// the right to write and a quorum, as a commit does. It uses a table whose key is one text.
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
