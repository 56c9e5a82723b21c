//go:build cassandra

package cql

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/fetch/store/maintenance"
	"bowstring/internal/cassandratest"
	"bowstring/schema"
)

// TestAttachedCopies copies an attached dataset by value to a store in a directory and
// from there to another one, and by reference to another keyspace. Each copy has the rows
// of the tables. The copies by value still have them when the tables are gone.
func TestAttachedCopies(t *testing.T) {
	rows := foreignRows(60, true)
	foreign := createForeign(t, "blob", rows)
	s := openStore(t, newKeyspace(t))
	opts := AttachOptions{Dataset: "d", Data: foreign + ".data", Metadata: foreign + ".metadata",
		SplitColumn: "or_split", ranges: 4}
	snap, _, err := s.Attach(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	snaps := []*schema.Snapshot{snap}
	here := func(name string) *local.Store {
		to, err := local.Open(filepath.Join(t.TempDir(), name), local.Options{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := to.Close(); err != nil {
				t.Error(err)
			}
		})
		return to
	}
	byValue, restored, far := here("by-value"), here("restored"), openStore(t, newKeyspace(t))
	if _, err := maintenance.Copy(t.Context(), s, byValue, snaps, maintenance.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	again, err := maintenance.Copy(t.Context(), s, byValue, snaps, maintenance.CopyOptions{})
	if err != nil || again.Sent != 0 {
		t.Fatalf("again: %+v, %v", again, err)
	}
	kept, err := maintenance.Snapshots(t.Context(), byValue, nil)
	if err == nil {
		_, err = maintenance.Copy(t.Context(), byValue, restored, kept, maintenance.CopyOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	byReference := maintenance.CopyOptions{Attached: maintenance.ByReference}
	if _, err := maintenance.Copy(t.Context(), s, far, snaps, byReference); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]store.Store{"by value": byValue, "restored": restored, "by reference": far} {
		got, err := to.Snapshot(t.Context(), "d", 1)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		checkAttached(t, to, got, rows, true)
	}

	session := newSession(t, cassandratest.Shared(t).URI(foreign, ""))
	defer session.Close()
	if err := session.Query(fmt.Sprintf("ALTER TABLE %s.data DROP data", foreign)).Exec(); err != nil {
		t.Fatal(err)
	}
	third := openStore(t, newKeyspace(t))
	if _, err := maintenance.Copy(t.Context(), s, third, snaps, byReference); !errors.Is(err, schema.ErrInvalid) &&
		!errors.Is(err, schema.ErrNotFound) {
		t.Errorf("a table without the column: %v", err)
	}
	if list, err := third.Datasets(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("there are %v, %v", list, err)
	}
	for _, to := range []store.Store{byValue, restored} {
		got, err := to.Snapshot(t.Context(), "d", 1)
		if err != nil {
			t.Fatal(err)
		}
		checkAttached(t, to, got, rows, true)
	}
}
