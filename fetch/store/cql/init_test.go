//go:build cassandra

package cql

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"bowstring/internal/cassandratest"
	"bowstring/schema"
)

// TestInit: what makes a store, and what does not.
func TestInit(t *testing.T) {
	keyspace := newKeyspace(t)
	node := cassandratest.Shared(t)
	uri := node.URI(keyspace, "")
	if _, err := Open(t.Context(), uri, Options{Logger: quiet}); !errors.Is(err, schema.ErrNotFound) ||
		!strings.Contains(err.Error(), "bowstring store init") {
		t.Errorf("a keyspace that is missing is opened: %v", err)
	}
	var missing *NoReplicationError
	if err := Init(t.Context(), uri, InitOptions{Logger: quiet}); !errors.As(err, &missing) ||
		missing.Nodes["datacenter1"] != 1 {
		t.Errorf("without a replication: %v", err)
	}
	if err := Init(t.Context(), uri, InitOptions{Logger: quiet, Replication: Replication{"mars": 1}}); !errors.Is(err,
		schema.ErrInvalid) {
		t.Errorf("with a datacenter that is not there: %v", err)
	}
	session := newSession(t, uri)
	defer session.Close()
	v := &survey{}
	s := newStore(&Config{Keyspace: keyspace}, Options{Logger: quiet})
	defer s.end()
	inspect := func() *survey {
		t.Helper()
		if err := s.inspectKeyspace(t.Context(), session, v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	if inspect().exists {
		t.Fatal("the keyspace was made")
	}
	for _, replication := range []Replication{{"datacenter1": 2}, nil, {"": 2}} {
		if err := Init(t.Context(), uri, InitOptions{Logger: quiet, Replication: replication}); err != nil {
			// One node cannot agree with another on the first row of the catalog.
			if !errors.Is(err, schema.ErrUnavailable) {
				t.Fatal(err)
			}
		}
	}
	if got := inspect().replication; !reflect.DeepEqual(got, Replication{"datacenter1": 2}) {
		t.Errorf("the keyspace has the replication %v", got)
	}
	if err := Init(t.Context(), uri, InitOptions{Logger: quiet, Replication: one}); !errors.Is(err, schema.ErrExists) {
		t.Errorf("another replication: %v", err)
	}
}
