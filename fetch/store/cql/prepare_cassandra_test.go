//go:build cassandra

package cql

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"bowstring/schema"
)

// lockedBuffer receives log messages.
type lockedBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// TestPrepareCassandra: a real server prepares all that reading takes, and names are listed.
func TestPrepareCassandra(t *testing.T) {
	var logged lockedBuffer
	keyspace := newKeyspace(t)
	s := openWith(t, keyspace, Options{Logger: slog.New(slog.NewTextHandler(&logged,
		&slog.HandlerOptions{Level: slog.LevelDebug}))})
	data := blobs("prepared", 1, 100)
	if _, err := importInto(t.Context(), s, "d", 0, data); err != nil {
		t.Fatal(err)
	}
	if err := s.Prepare(t.Context(), 4<<20); err != nil {
		t.Fatal(err)
	}
	if text := logged.String(); strings.Contains(text, "was not prepared") {
		t.Errorf("logged is %s", text)
	}
	if names, err := s.Names(t.Context()); err != nil || !slices.Equal(names, []string{"d"}) {
		t.Errorf("the datasets are %v (%v)", names, err)
	}
	if _, err := s.Get(t.Context(), schema.RefOf([]byte("none"))); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("a blob that there is not: %v", err)
	}
}
