//go:build cassandra

package cql

import (
	"strings"
	"testing"

	"bowstring/fetch/store"
	"bowstring/internal/cassandratest"
)

// TestExamine looks at a real server, before and after a store is made, and when
// somebody has changed what they should not.
func TestExamine(t *testing.T) {
	keyspace := newKeyspace(t)
	uri := cassandratest.Shared(t).URI(keyspace, "")
	examine := func() store.Findings {
		t.Helper()
		found, err := Examine(t.Context(), uri, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	wantFindings(t, examine(), store.LevelProblem, "bowstring store init makes it")
	s := openStore(t, keyspace)
	found := examine()
	wantFindings(t, found, store.LevelWarning, "one replica of everything") // there is one node
	seen := map[string]string{}
	for _, f := range found {
		seen[f.Check] += f.Level + ": " + f.Says
	}
	for check, want := range map[string]string{
		checkNodes: "ok: 1 node of version 5", checkLatency: "ok: 127.0.0.1", checkClocks: "ok: no node's clock",
		checkAgreement:   "ok:",
		checkConsistency: "ok:", checkLWT: "ok: lightweight transactions work", checkRights: "ok: the user may write",
		checkTables: "ok: the ",
	} {
		if !strings.HasPrefix(seen[check], want) {
			t.Errorf("%s says %q, want %q first", check, seen[check], want)
		}
	}
	session := newSession(t, uri)
	defer session.Close()
	for _, stmt := range []string{
		"ALTER TABLE " + keyspace + ".blob_parts WITH compression = {'class': 'LZ4Compressor'} AND " +
			"gc_grace_seconds = 60",
		"ALTER TABLE " + keyspace + ".blobs WITH default_time_to_live = 1000 AND compaction = {'class': " +
			"'TimeWindowCompactionStrategy'}",
		"DROP TABLE " + keyspace + ".attached",
	} {
		if err := session.Query(stmt).Exec(); err != nil {
			t.Fatal(err)
		}
	}
	// The store that is open says the same of them, by its own connections.
	for _, found := range []store.Findings{examine(), s.Examine(t.Context())} {
		for _, says := range []string{"gc_grace_seconds = 60", "default_time_to_live = 1000",
			"lacks the tables attached"} {
			wantFindings(t, found, store.LevelProblem, says)
		}
		text := ""
		for _, f := range found {
			text += f.Says + "\n"
		}
		for _, says := range []string{"is compressed (", "TimeWindowCompactionStrategy"} {
			if !strings.Contains(text, says) {
				t.Errorf("nothing says %q: %s", says, text)
			}
		}
	}
}

// TestExamineRights: a user who may only read, and a server that is not there.
func TestExamineRights(t *testing.T) {
	found, err := Examine(t.Context(), "cql://127.0.0.1:1/photos?connect=200ms", Options{})
	if err != nil {
		t.Fatal(err)
	}
	wantFindings(t, found, store.LevelProblem, "no node can be reached")
	if _, err := Examine(t.Context(), "cql://127.0.0.1/Photos", Options{}); err == nil {
		t.Error("an address that means nothing is examined")
	}
}
