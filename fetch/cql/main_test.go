//go:build cassandra

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
		if err := findLeaks(unopened...); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// unopened are goroutines that ScyllaDB's fork leaves behind where a session
// could not be opened, such as for a wrong password.
var unopened = []goleak.Option{
	goleak.IgnoreAnyFunction("github.com/gocql/gocql/tablets.(*opQueue).run"),
	goleak.IgnoreAnyFunction("github.com/gocql/gocql/debounce.(*RefreshDebouncer).flusher"),
	goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*eventDebouncer).flusher"),
	goleak.IgnoreAnyFunction("github.com/gocql/gocql/internal/eventbus.(*EventBus[...]).run"),
}

// findLeaks waits for the driver's attempts to connect, which sleep a second
// each and are not told that their session is closed.
func findLeaks(ignore ...goleak.Option) error {
	err := goleak.Find(ignore...)
	for end := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(end); {
		err = goleak.Find(ignore...)
	}
	return err
}

// TestCloseLeavesNothing: all goroutines of a store that was open end.
func TestCloseLeavesNothing(t *testing.T) {
	node, keyspace := cassandratest.Shared(t), newKeyspace(t)
	before := goleak.IgnoreCurrent()
	s, err := Open(t.Context(), node.URI(keyspace, ""), Options{Create: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := importInto(t.Context(), s, "d", 0, blobs("leak", 3, 100)); err != nil {
		t.Fatal(err)
	}
	s.Stats()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := findLeaks(before); err != nil {
		t.Error(err)
	}
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
