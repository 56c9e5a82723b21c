//go:build cassandra

package cql

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bowstring/fetch/store"
	"bowstring/internal/cassandratest"
	"bowstring/schema"
)

// TestSecure opens a store on a node that wants a password and a client's
// certificate.
func TestSecure(t *testing.T) {
	keys := cassandratest.NewKeys(t)
	node := cassandratest.Start(t, cassandratest.Options{Auth: true, TLS: keys.Dir})
	const right, wrong = "cassandra", "swordfish-in-the-dark"
	password := func(s string) string {
		file := filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(file, []byte(s+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return "&user=cassandra&password_file=" + file
	}
	for _, env := range []string{EnvUser, EnvPassword, EnvPasswordFile} {
		t.Setenv(env, "")
	}
	trusted := "connect=20s&ca=" + keys.CA
	certified := trusted + "&cert=" + keys.Cert + "&key=" + keys.Key
	named := certified + "&server_name=" + keys.Name
	for name, c := range map[string]struct{ parameters, says string }{
		"no tls": {"connect=2s" + password(right), "tls"},
		"unknown authority": {"server_name=" + keys.Name + "&cert=" + keys.Cert + "&key=" + keys.Key + password(right),
			"parameter ca"},
		"wrong name":     {certified + password(right), "server_name"},
		"other name":     {certified + "&server_name=other.test" + password(right), "server_name"},
		"no certificate": {trusted + "&server_name=" + keys.Name + password(right), "cert and key"},
		"no password":    {named, "password_file"},
		"wrong password": {named + password(wrong), "password_file"},
	} {
		t.Run(name, func(t *testing.T) {
			var log logText
			logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			uri := node.URI("secure", c.parameters)
			s, err := Open(t.Context(), uri, Options{Logger: logger})
			if err == nil {
				t.Fatal(errors.Join(errors.New("the store was opened"), s.Close()))
			}
			config, parse := ParseURI(uri)
			if parse != nil {
				t.Fatal(parse)
			}
			text := strings.Replace(err.Error(), config.String(), "", 1)
			t.Log(text)
			if !strings.Contains(text, c.says) {
				t.Errorf("the error %q does not say %q", text, c.says)
			}
			if strings.Contains(err.Error(), wrong) || strings.Contains(log.String(), wrong) {
				t.Errorf("the password is in the error %q or in the log %s", err, log.String())
			}
		})
	}
	t.Run("right", func(t *testing.T) {
		var log logText
		logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		uri := node.URI("secure", named+password(right))
		if err := Init(t.Context(), uri, InitOptions{Replication: one, Logger: logger}); err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), uri, Options{Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := importInto(t.Context(), s, "d", 0, blobs("secure", 3, 1000)); err != nil {
			t.Fatal(err)
		}
		for _, data := range blobs("secure", 3, 1000) {
			if err := has(t, s, data); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("may only read", func(t *testing.T) {
		admin := newSession(t, node.URI("secure", named+password(right)))
		defer admin.Close()
		for _, stmt := range []string{
			"CREATE ROLE reader WITH PASSWORD = 'reader' AND LOGIN = true",
			"GRANT SELECT ON KEYSPACE secure TO reader",
		} {
			if err := admin.Query(stmt).Exec(); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv(EnvUser, "reader")
		t.Setenv(EnvPassword, "reader")
		s, err := Open(t.Context(), node.URI("secure", named), Options{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Snapshot(t.Context(), "d", 0); err != nil {
			t.Errorf("reading a snapshot: %v", err)
		}
		if err := has(t, s, blobs("secure", 3, 1000)[0]); err != nil {
			t.Errorf("reading a blob: %v", err)
		}
		if _, err := s.Begin(t.Context(), "d"); err == nil || errors.Is(err, schema.ErrUnavailable) ||
			!strings.Contains(err.Error(), "grant") {
			t.Errorf("beginning an ingest without permission: %v", err)
		}
		found, err := Examine(t.Context(), node.URI("secure", named), Options{})
		if err != nil {
			t.Fatal(err)
		}
		wantFindings(t, found, store.LevelProblem, "the user may not write")
	})
}

// logText is a log. The driver may go on writing for a moment after it could not connect.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
