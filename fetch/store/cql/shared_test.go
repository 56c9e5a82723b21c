//go:build cassandra

package cql

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/internal/cassandratest"
	"bowstring/internal/leaktest"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// TestCloseLeavesNothing: all goroutines of a store that was open end.
func TestCloseLeavesNothing(t *testing.T) {
	node, keyspace := cassandratest.Shared(t), newKeyspace(t)
	before := goleak.IgnoreCurrent()
	if err := Init(t.Context(), node.URI(keyspace, ""), InitOptions{Replication: one, Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), node.URI(keyspace, ""), Options{Logger: quiet})
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
	if err := leaktest.Find(before); err != nil {
		t.Error(err)
	}
}

// TestTwoImporters has two processes' worth of stores append to one dataset,
// each on what it saw last, while a third collects.
func TestTwoImporters(t *testing.T) {
	keyspace := newKeyspace(t)
	stores := []*Store{openStore(t, keyspace), openStore(t, keyspace)}
	collector := openStore(t, keyspace)
	const each = 6
	var mu sync.Mutex
	committed := map[int64]string{}
	done := make(chan struct{})
	var collections errgroup.Group
	collections.Go(func() error {
		for {
			select {
			case <-done:
				return nil
			default:
			}
			if _, err := collector.GC(t.Context(), store.GCOptions{}, nil); err != nil {
				return err
			}
		}
	})
	var g errgroup.Group
	for w, s := range stores {
		g.Go(func() error {
			for n := 0; n < each; {
				name := fmt.Sprintf("%d-%d", w, n)
				var parent int64
				newest, err := s.Snapshot(t.Context(), "shared", 0)
				if err == nil {
					parent = newest.Number
				} else if !errors.Is(err, schema.ErrNotFound) {
					return err
				}
				// Half of the blobs are the other's too.
				snap, err := importInto(t.Context(), s, "shared", parent,
					append(blobs(name, 3, 500), blobs(fmt.Sprint(n), 3, 500)...))
				if errors.Is(err, schema.ErrConflict) {
					continue
				} else if err != nil {
					return err
				}
				mu.Lock()
				if other, ok := committed[snap.Number]; ok {
					err = fmt.Errorf("%s and %s both got number %d", other, name, snap.Number)
				}
				committed[snap.Number] = name
				mu.Unlock()
				if err != nil {
					return err
				}
				n++
			}
			return nil
		})
	}
	err := g.Wait()
	close(done)
	if err := errors.Join(err, collections.Wait()); err != nil {
		t.Fatal(err)
	}
	for number := int64(1); number <= 2*each; number++ {
		name, ok := committed[number]
		if !ok {
			t.Fatalf("no caller got number %d of %v", number, committed)
		}
		snap, err := collector.Snapshot(t.Context(), "shared", number)
		if err != nil {
			t.Fatal(err)
		}
		if snap.Rows() != 6 || snap.Parent != number-1 {
			t.Errorf("snapshot %d has %d rows and parent %d", number, snap.Rows(), snap.Parent)
		}
		for _, data := range append(blobs(name, 3, 500), blobs(name[2:], 3, 500)...) {
			if err := has(t, collector, data); err != nil {
				t.Errorf("snapshot %d, by %s: %v", number, name, err)
			}
		}
	}
}

// TestCollectionSparesOtherProcesses: what another process reads or puts stays.
func TestCollectionSparesOtherProcesses(t *testing.T) {
	keyspace := newKeyspace(t)
	own, other := openStore(t, keyspace), openStore(t, keyspace)
	read, put, dead := blobs("read", 3, 300), blobs("put", 3, 300), blobs("dead", 3, 300)
	if _, err := importInto(t.Context(), own, "read", 0, read); err != nil {
		t.Fatal(err)
	}
	if _, err := importInto(t.Context(), own, "dead", 0, dead); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Snapshot(t.Context(), "read", 0); err != nil {
		t.Fatal(err)
	}
	gc := func() {
		t.Helper()
		if _, err := own.GC(t.Context(), store.GCOptions{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	gc() // or what was put since the last collection is kept while an ingest is open
	in, err := other.Begin(t.Context(), "put")
	if err != nil {
		t.Fatal(err)
	}
	snap, err := storetest.Put(t.Context(), in, put, 8)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"read", "dead"} {
		if err := own.Drop(t.Context(), name, 0); err != nil {
			t.Fatal(err)
		}
	}
	gc()
	for i := range 3 {
		if err := errors.Join(has(t, own, read[i]), has(t, own, put[i])); err != nil {
			t.Errorf("what another process holds was freed: %v", err)
		}
		if err := has(t, own, dead[i]); !errors.Is(err, schema.ErrNotFound) {
			t.Errorf("an unreferenced blob is still there: %v", err)
		}
	}
	if _, err := in.Commit(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	gc()
	for i := range 3 {
		if err := has(t, own, put[i]); err != nil {
			t.Errorf("what was committed was freed: %v", err)
		}
		if err := has(t, own, read[i]); !errors.Is(err, schema.ErrNotFound) {
			t.Errorf("what a process held that has ended is still there: %v", err)
		}
	}
}

// TestSupersededIngest: if a collection has taken an ingest's process for dead, the
// ingest commits nothing afterwards, and the blobs that it had put are freed.
func TestSupersededIngest(t *testing.T) {
	keyspace := newKeyspace(t)
	own, other := openStore(t, keyspace), openStore(t, keyspace)
	data := blobs("superseded", 3, 300)
	in, err := other.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	snap, err := storetest.Put(t.Context(), in, data, 8)
	if err != nil {
		t.Fatal(err)
	}
	// Its row is gone, and what it says of itself from now on is not heard.
	members, err := database{own}.Members(t.Context())
	if err != nil || len(members) != 1 {
		t.Fatalf("at work are %+v: %v", members, err)
	}
	if err := (database{own}).Leave(t.Context(), members[0].ID); err != nil {
		t.Fatal(err)
	}
	r, err := own.GC(t.Context(), store.GCOptions{}, nil)
	if err != nil || r.DeadBlobs < int64(len(data)) {
		t.Fatalf("a collection found %+v: %v", r, err)
	}
	for _, again := range []bool{false, true} {
		if again { // which stores it or not: the ingest is over
			if snap, err = storetest.Put(t.Context(), in, data, 8); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := in.Commit(t.Context(), snap); !errors.Is(err, schema.ErrUnavailable) ||
			!strings.Contains(err.Error(), "begin again") {
			t.Errorf("a superseded ingest was committed: %v", err)
		}
	}
	if _, err := own.Snapshot(t.Context(), "d", 0); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("something of it can be seen: %v", err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
}

// TestManyDatasets: partitions are listed page by page.
func TestManyDatasets(t *testing.T) {
	s := openStore(t, newKeyspace(t))
	count := 2*rowsAtOnce + 1
	if testing.Short() {
		count = 100
	}
	var g errgroup.Group
	g.SetLimit(64)
	for i := range count {
		g.Go(func() error { // as swaps leave it
			q := s.db.Query("INSERT INTO "+tableCatalog+" (partition, row, value, version) VALUES (?, 'head', 0x00, 1)",
				fmt.Sprintf("d%d", i))
			return s.exec(t.Context(), q, tableCatalog, "fill")
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	names, err := database{s}.Partitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) != count+1 {
		t.Errorf("%d partitions, want %d", len(names), count+1)
	}
}

// TestUnfinishedPutIsCollected: parts without the row that completes them.
func TestUnfinishedPutIsCollected(t *testing.T) {
	keyspace := newKeyspace(t)
	s := openStore(t, keyspace)
	data := blobs("unfinished", 1, 3*PartBytes)[0]
	ref := schema.RefOf(data)
	d := database{s}
	if err := errors.Join(d.Touch(t.Context(), ref, 1), s.putParts(t.Context(), ref, data, 1)); err != nil {
		t.Fatal(err)
	}
	r, err := s.GC(t.Context(), store.GCOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if (r != store.GCReport{}) {
		t.Errorf("what was not finished is counted: %+v", r)
	}
	if err := has(t, s, data); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("the parts are still there: %v", err)
	}
}

func TestForeignKeyspaceIsLeftAlone(t *testing.T) {
	keyspace := newKeyspace(t)
	uri := cassandratest.Shared(t).URI(keyspace, "")
	session := newSession(t, uri)
	defer session.Close()
	for _, stmt := range []string{
		"CREATE KEYSPACE " + keyspace + " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
		"CREATE TABLE " + keyspace + ".blobs (id int PRIMARY KEY)",
	} {
		if err := session.Query(stmt).Exec(); err != nil {
			t.Fatal(err)
		}
	}
	if err := Init(t.Context(), uri, InitOptions{Logger: quiet}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("a keyspace with a table of that name: %v", err)
	}
	if _, err := Open(t.Context(), cassandratest.Shared(t).URI("absent", ""), Options{Logger: quiet}); !errors.Is(err,
		schema.ErrNotFound) {
		t.Errorf("an absent keyspace: %v", err)
	}
	var field *schema.FieldError
	if _, err := Open(t.Context(), uri+"?dc=mars", Options{Logger: quiet}); !errors.As(err, &field) ||
		field.Field != "dc" {
		t.Errorf("an absent datacenter: %v", err)
	}
}
