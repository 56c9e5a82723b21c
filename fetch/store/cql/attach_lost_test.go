//go:build cassandra

package cql

import (
	"errors"
	"strings"
	"testing"

	"github.com/gocql/gocql"

	"bowstring/fetch/store/maintenance"
	"bowstring/internal/cassandratest"
	"bowstring/schema"
)

// A change by another program that removes bytes of an attached table is data loss, in a store that has read the
// table before and in one that has not. A verification continues to the last row, and other datasets are not
// affected.
func TestAttachedTableThatIsGone(t *testing.T) {
	keyspace := newKeyspace(t)
	s := openStore(t, keyspace)
	whole, err := importInto(t.Context(), s, "whole", 0, blobs("whole", 3, 100))
	if err != nil {
		t.Fatal(err)
	}
	session := newSession(t, cassandratest.Shared(t).URI(keyspace, ""))
	defer session.Close()
	for _, c := range []struct{ name, stmts string }{
		{"table dropped", "DROP TABLE $.data"},
		{"keyspace dropped", "DROP KEYSPACE $"},
		{"column dropped", "ALTER TABLE $.data DROP data"},
		{"table truncated", "TRUNCATE $.data"},
		{"id of another type", "DROP TABLE $.data; CREATE TABLE $.data (id int PRIMARY KEY, data blob)"},
		{"id of another name", "DROP TABLE $.data; CREATE TABLE $.data (other uuid PRIMARY KEY, data blob)"},
		{"bytes of another type", "DROP TABLE $.data; CREATE TABLE $.data (id uuid PRIMARY KEY, data int)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows := foreignRows(9, false)
			foreign := createForeign(t, "int", rows)
			snap, _, err := s.Attach(t.Context(), AttachOptions{Dataset: foreign, Data: foreign + ".data", ranges: 4})
			if err != nil {
				t.Fatal(err)
			}
			var first schema.BlobRef
			verify := func(s *Store, snaps ...*schema.Snapshot) maintenance.Verification {
				t.Helper()
				report, err := maintenance.Verify(t.Context(), maintenance.Scope{Source: s, Snapshots: snaps},
					maintenance.VerifyOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return report
			}
			if report := verify(s, snap, whole); len(report.Damaged) > 0 {
				t.Fatalf("before: %+v", report.Damaged)
			}
			for stmt := range strings.SplitSeq(c.stmts, ";") {
				if err := session.Query(strings.ReplaceAll(stmt, "$", foreign)).Consistency(gocql.Quorum).Exec(); err != nil {
					t.Fatal(err)
				}
			}
			anew := openStore(t, keyspace)
			for what, s := range map[string]*Store{"read before": s, "opened anew": anew} {
				report := verify(s, snap, whole)
				if len(report.Damaged) != len(rows) {
					t.Errorf("%s: %d blobs are damaged, want %d", what, len(report.Damaged), len(rows))
				}
				for _, d := range report.Damaged {
					first = d.BlobRef
					if !strings.Contains(d.Problem, foreign) || len(d.In) != 1 || d.In[0].Dataset != foreign ||
						d.In[0].Count != 1 {
						t.Errorf("%s: %+v", what, d)
					}
				}
				if _, err := s.Get(t.Context(), first); !errors.Is(err, schema.ErrDataLoss) ||
					!strings.Contains(err.Error(), foreign+".data") {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}

// A blob table of the store itself that is gone has lost its bytes.
func TestOwnTableThatIsGone(t *testing.T) {
	keyspace := newKeyspace(t)
	s := openStore(t, keyspace)
	whole, err := importInto(t.Context(), s, "whole", 0, blobs("whole", 3, 100))
	if err != nil {
		t.Fatal(err)
	}
	session := newSession(t, cassandratest.Shared(t).URI(keyspace, ""))
	defer session.Close()
	if err := session.Query("DROP TABLE " + keyspace + "." + tableParts).Exec(); err != nil {
		t.Fatal(err)
	}
	_, err = s.Get(t.Context(), whole.Chunks[0].BlobRef)
	if !errors.Is(err, schema.ErrDataLoss) || !strings.Contains(err.Error(), keyspace+"."+tableParts) {
		t.Error(err)
	}
}
