package cql

import (
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"bowstring/fetch/cql/cassandratest"
)

func TestMain(m *testing.M) {
	zerolog.SetGlobalLevel(zerolog.Disabled) // the mock's chatter
	code := m.Run()
	cassandratest.Stop()
	if code == 0 {
		// The driver's attempts to connect sleep a second each, and are not told that their session is closed.
		err := goleak.Find()
		for end := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(end); {
			err = goleak.Find()
		}
		if err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// quiet drops what stores log.
var quiet = slog.New(slog.DiscardHandler)

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

// openStore opens a store until the end of the test. Clocks do not differ here.
func openStore(t testing.TB, keyspace string) *Store {
	t.Helper()
	s, err := Open(t.Context(), cassandratest.Shared(t).URI(keyspace, "grace=0s&conns=2"), Options{Create: true, Logger: quiet})
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
