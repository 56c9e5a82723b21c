//go:build cassandra

package cql

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gocql/gocql"

	"bowstring/fetch/store"
	"bowstring/internal/cassandratest"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

var keyspaces atomic.Int64

// newKeyspace is the name of a keyspace that no other test uses, and that is
// dropped at the end of the test: a server of this size has room for few.
func newKeyspace(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("t%d_%d", os.Getpid(), keyspaces.Add(1))
	uri := cassandratest.Shared(t).URI(name, "")
	t.Cleanup(func() {
		session := newSession(t, uri)
		defer session.Close()
		if err := session.Query("DROP KEYSPACE IF EXISTS " + name).Exec(); err != nil {
			t.Error(err)
		}
	})
	return name
}

// newSession opens a session without a keyspace on the server that uri names.
func newSession(t testing.TB, uri string) *gocql.Session {
	t.Helper()
	config, err := ParseURI(uri)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := config.cluster(Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	cl.NumConns, cl.Timeout = 1, time.Minute
	session, err := cl.CreateSession()
	if err != nil {
		t.Fatal(err)
	}
	return session
}

// openStore opens a store until the end of the test, which it makes if need be.
func openStore(t testing.TB, keyspace string) *Store {
	t.Helper()
	return openWith(t, keyspace, Options{Logger: quiet})
}

// one is the replication of the keyspaces of tests.
var one = Replication{"": 1}

func openWith(t testing.TB, keyspace string, opts Options) *Store {
	t.Helper()
	uri := cassandratest.Shared(t).URI(keyspace, "conns=2")
	if err := Init(t.Context(), uri, InitOptions{Replication: one, Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), uri, opts)
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

// blobs are distinct by name.
func blobs(name string, count, size int) [][]byte {
	list := make([][]byte, count)
	for i := range list {
		list[i] = make([]byte, size)
		copy(list[i], fmt.Sprintf("%s/%d", name, i))
	}
	return list
}

// importInto commits the blobs as a snapshot, on top of parent.
func importInto(ctx context.Context, s store.Store, dataset string, parent int64,
	data [][]byte) (_ *schema.Snapshot, err error) {
	in, err := s.Begin(ctx, dataset)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	snap, err := storetest.Put(ctx, in, data, 8)
	if err != nil {
		return nil, err
	}
	snap.Parent = parent
	return in.Commit(ctx, snap)
}

func has(t *testing.T, s store.Store, data []byte) error {
	t.Helper()
	ref := schema.RefOf(data)
	b, err := s.Get(t.Context(), ref)
	if err != nil {
		return err
	}
	defer b.Release()
	return ref.Check(b.Bytes())
}
