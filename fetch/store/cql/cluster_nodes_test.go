//go:build cassandra

package cql

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"bowstring/fetch/layout"
	"bowstring/fetch/members"
	"bowstring/internal/cassandratest"
	"bowstring/internal/sharedtest"
	"bowstring/schema"
)

// openShared makes a store in a keyspace of its own, and opens it.
func openShared(t *testing.T) *Store {
	t.Helper()
	uri := cassandratest.Shared(t).URI(newKeyspace(t), "conns=2")
	if err := Init(t.Context(), uri, InitOptions{Replication: one, Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), uri, Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestClusterShared(t *testing.T) { sharedtest.Run(t, openShared(t)) }

// Three members on a real store see each other, and have one layout for an epoch.
func TestClusterMembers(t *testing.T) {
	s := openShared(t)
	var all []*members.Members
	for i := range 3 {
		m, err := members.New(members.Options{Cluster: "c", Shared: s, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		n := layout.Node{ID: fmt.Sprintf("n%d", i), Address: fmt.Sprintf("grpc://n%d:1", i), Weight: 1,
			Capacity: 1 << 30}
		if err := m.Start(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		all = append(all, m)
	}
	if got := len(all[2].View().Nodes); got != 3 {
		t.Errorf("the last one sees %d nodes, want 3", got)
	}
	var first string
	for _, m := range all {
		l, err := m.Reserve(t.Context(), "plan", 7, 1<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = l.Name()
		}
		if l.Name() != first {
			t.Errorf("epoch 7 has layouts %s and %s", first, l.Name())
		}
	}
}

// A store that an older program made has no tables for clusters: that is said, and store init makes them.
func TestClusterTablesMissing(t *testing.T) {
	s := openShared(t)
	for name := range clusterTables {
		if err := s.db.Query("DROP TABLE " + name).WithContext(t.Context()).Exec(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Leases(t.Context(), "c")
	if !errors.Is(err, schema.ErrNotFound) || !strings.Contains(err.Error(), "bowstring store init makes them") {
		t.Errorf("without tables: %v", err)
	}
	if err := Init(t.Context(), s.config.String(), InitOptions{Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	if err := s.PutLease(t.Context(), "c", "a", []byte("x"), time.Minute); err != nil {
		t.Error(err)
	}
}
