package cql

import (
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gocql/gocql"

	"bowstring/fetch/store"
)

// wantFindings checks the level of all, and what one says or would do.
func wantFindings(t *testing.T, found store.Findings, level, says string) {
	t.Helper()
	if got := found.Worst(); got != level {
		t.Errorf("the worst is %q, want %q: %+v", got, level, found)
	}
	for _, f := range found {
		if (f.Level == store.LevelOK) != (f.Do == "") {
			t.Errorf("%+v: what is to be done goes with what is not well", f)
		}
		if f.Level == level && strings.Contains(f.Says+"; "+f.Do, says) {
			return
		}
	}
	t.Errorf("no %s says %q: %+v", level, says, found)
}

func TestJudgeReplication(t *testing.T) {
	topology := func(pairs ...string) map[string]string {
		options := map[string]string{"class": "org.apache.cassandra.locator.NetworkTopologyStrategy"}
		for i := 0; i < len(pairs); i += 2 {
			options[pairs[i]] = pairs[i+1]
		}
		return options
	}
	simple := func(n string) map[string]string {
		return map[string]string{"class": "SimpleStrategy", "replication_factor": n}
	}
	for name, c := range map[string]struct {
		options     map[string]string
		nodes       map[string]int
		dc          string
		replicas    int
		level, says string
	}{
		"three of three": {topology("dc1", "3"), map[string]int{"dc1": 3}, "dc1", 3, "ok",
			"3 replicas on 3 nodes"},
		"three of thirty": {topology("dc1", "3"), map[string]int{"dc1": 30, "dc2": 5}, "dc1", 3, "ok",
			"3 replicas"},
		"one in a cluster": {topology("dc1", "1"), map[string]int{"dc1": 3}, "dc1", 1, "problem",
			"'dc1': 3}, then nodetool repair"},
		"one in two nodes": {simple("1"), map[string]int{"dc1": 2}, "dc1", 1, "problem",
			"one replica of everything"},
		"one of one": {simple("1"), map[string]int{"dc1": 1}, "dc1", 1, "warning", "one node"},
		"two": {topology("dc1", "2"), map[string]int{"dc1": 3}, "dc1", 2, "warning",
			"imports stop while either is down"},
		"more than nodes": {topology("dc1", "3"), map[string]int{"dc1": 2}, "dc1", 3, "problem",
			"which has 2 nodes"},
		"elsewhere only": {topology("dc2", "3"), map[string]int{"dc1": 3, "dc2": 3}, "dc1", 0, "problem",
			"no replicas in datacenter dc1"},
		"no such datacenter": {topology("dc1", "3"), map[string]int{"dc1": 3}, "dc9", 0, "problem",
			"name one of dc1"},
		"simple over datacenters": {simple("3"), map[string]int{"dc1": 3, "dc2": 3}, "dc1", 3, "problem",
			"SimpleStrategy"},
	} {
		t.Run(name, func(t *testing.T) {
			found, replicas := judgeReplication(&Config{Keyspace: "photos"}, c.options, c.nodes, c.dc)
			wantFindings(t, found, c.level, c.says)
			if replicas != c.replicas {
				t.Errorf("%d replicas, want %d", replicas, c.replicas)
			}
		})
	}
}

func TestJudgeConsistency(t *testing.T) {
	for name, c := range map[string]struct {
		read, write gocql.Consistency
		local       bool
		replicas    int
		several     bool
		level, says string
	}{
		"as it is": {gocql.LocalOne, gocql.LocalQuorum, false, 3, false, "ok",
			"1 of 3 replicas may be down for imports, 2 for reads"},
		"writes at one": {gocql.LocalOne, gocql.One, false, 3, false, "problem",
			"leave the parameter write out"},
		"one of one":           {gocql.LocalOne, gocql.One, false, 1, false, "ok", ""},
		"two of five":          {gocql.LocalOne, gocql.Two, false, 5, false, "warning", "no quorum of 5"},
		"all":                  {gocql.LocalOne, gocql.All, false, 3, false, "warning", "any node is down"},
		"reads at a quorum":    {gocql.LocalQuorum, gocql.LocalQuorum, false, 3, false, "warning", "several replicas"},
		"serial in one center": {gocql.LocalOne, gocql.LocalQuorum, true, 3, false, "ok", ""},
		"serial over several":  {gocql.LocalOne, gocql.LocalQuorum, true, 3, true, "warning", "local_serial"},
	} {
		t.Run(name, func(t *testing.T) {
			config := &Config{Read: c.read, Write: c.write, LocalSerial: c.local}
			wantFindings(t, judgeConsistency(config, c.replicas, c.several), c.level, c.says)
		})
	}
}

// asMade are the settings of the tables as Cassandra shows them when it made them.
func asMade() map[string]settingsOf {
	found := map[string]settingsOf{"someone_elses": {comment: "hands off", ttl: 5}}
	for name, table := range tables {
		s := settingsOf{
			comment: formatMark + table.comment, grace: graceDefault,
			compaction: map[string]string{"class": "org.apache.cassandra.db.compaction.SizeTieredCompactionStrategy",
				"max_threshold": "32"},
			compression: map[string]string{"class": "org.apache.cassandra.io.compress.LZ4Compressor",
				"chunk_length_in_kb": "16"},
			caching: map[string]string{"keys": "ALL", "rows_per_partition": "NONE"},
		}
		if strings.Contains(table.options, "compression") {
			s.compression = map[string]string{"enabled": "false"}
		}
		if strings.Contains(table.options, "gc_grace_seconds = 86400") {
			s.grace = 86_400
		}
		found[name] = s
	}
	return found
}

func TestJudgeTables(t *testing.T) {
	class := func(name string) map[string]string { return map[string]string{"class": name} }
	for name, c := range map[string]struct {
		table       string
		change      func(*settingsOf)
		level, says string
	}{
		"as made": {tableParts, func(*settingsOf) {}, "ok", "have the settings"},
		"grace 0": {tableBlobs, func(s *settingsOf) {
			s.grace = 0
		}, "problem", "ALTER TABLE k.blobs WITH gc_grace_seconds = 864000"},
		"grace of hours": {tableParts, func(s *settingsOf) {
			s.grace = 3600
		}, "problem", "brings back what was deleted"},
		"grace of days": {tableParts, func(s *settingsOf) {
			s.grace = 3 * 86_400
		}, "warning", "repair every node more often"},
		"time to live": {tableParts, func(s *settingsOf) { s.ttl = 60 }, "problem", "default_time_to_live = 0"},
		"time windows": {tableParts, func(s *settingsOf) {
			s.compaction = class("TimeWindowCompactionStrategy")
		}, "warning", "never gives back"},
		"levels": {tableParts, func(s *settingsOf) {
			s.compaction = class("o.a.c.LeveledCompactionStrategy")
		}, "warning", "ten times"},
		"levels of rows": {tableBlobs, func(s *settingsOf) {
			s.compaction = class("LeveledCompactionStrategy")
		}, "ok", ""},
		"unified": {tableParts, func(s *settingsOf) {
			s.compaction = class("UnifiedCompactionStrategy")
		}, "ok", ""},
		"incremental": {tableParts, func(s *settingsOf) {
			s.compaction = class("IncrementalCompactionStrategy")
		}, "ok", ""},
		"no compaction": {tableBlobs, func(s *settingsOf) {
			s.compaction["enabled"] = "false"
		}, "warning", "not compacted"},
		"compressed": {tableParts, func(s *settingsOf) {
			s.compression = class("LZ4Compressor")
		}, "warning", "upgradesstables"},
		"compressed 2.x": {tableParts, func(s *settingsOf) {
			s.compression = map[string]string{"sstable_compression": "Snappy"}
		}, "warning", "Snappy"},
		"uncompressed 2": {tableParts, func(s *settingsOf) {
			s.compression = map[string]string{"sstable_compression": ""}
		}, "ok", ""},
		"row cache": {tableParts, func(s *settingsOf) {
			s.caching["rows_per_partition"] = "ALL"
		}, "warning", "row cache"},
		"scylla": {tableParts, func(s *settingsOf) {
			s.caching = map[string]string{"keys": "ALL", "rows_per_partition": "ALL", "enabled": "true"}
		}, "ok", ""},
		"another's": {tableParts, func(s *settingsOf) {
			s.comment = "my blobs"
		}, "problem", "another format or program"},
	} {
		t.Run(name, func(t *testing.T) {
			found := asMade()
			s := found[c.table]
			s.compaction, s.caching = maps.Clone(s.compaction), maps.Clone(s.caching)
			c.change(&s)
			found[c.table] = s
			wantFindings(t, judgeTables("k", found), c.level, c.says)
		})
	}
	found := asMade()
	delete(found, tableAttached)
	wantFindings(t, judgeTables("k", found), store.LevelProblem, "lacks the tables attached")
}

func TestJudgeNodes(t *testing.T) {
	node := func(last byte, change func(*nodeState)) nodeState {
		l := nodeState{node: node{net.IPv4(10, 0, 0, last), "dc1", "5.0.8"}, schema: "a", latency: time.Millisecond,
			uncertain: time.Millisecond / 2}
		change(&l)
		return l
	}
	same := func(*nodeState) {}
	for name, c := range map[string]struct {
		change      func(*nodeState)
		level, says string
	}{
		"alike":          {same, "ok", "3 nodes of version 5.0.8"},
		"an upgrade":     {func(l *nodeState) { l.version = "5.1.0" }, "warning", "5.0.8, 5.1.0"},
		"a disagreement": {func(l *nodeState) { l.schema = "b" }, "problem", "2 versions of the schema"},
		"a clock behind": {func(l *nodeState) { l.offset = -2 * time.Second }, "problem", "differ by -2s"},
		"a clock ahead":  {func(l *nodeState) { l.offset = 1100 * time.Millisecond }, "problem", "10.0.0.3"},
		"a far clock": {func(l *nodeState) {
			l.offset, l.uncertain = 1100*time.Millisecond, 200*time.Millisecond
		}, "ok", "1.3s"},
		"far": {func(l *nodeState) {
			l.latency = 400 * time.Millisecond
		}, "warning", "10.0.0.3 (dc1) answer late"},
		"another center":  {func(l *nodeState) { l.latency, l.dc = 400*time.Millisecond, "dc2" }, "ok", "400ms"},
		"a little slower": {func(l *nodeState) { l.latency = 20 * time.Millisecond }, "ok", ""},
	} {
		t.Run(name, func(t *testing.T) {
			wantFindings(t, judgeNodes([]nodeState{node(1, same), node(2, same), node(3, c.change)}), c.level, c.says)
		})
	}
}
